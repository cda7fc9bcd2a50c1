//! Weights of the Llama family as a backend asks for them: in place where the stored form is wanted, made on request
//! otherwise.

use super::{
    LoadOptions, Notice,
    error::{ModelError, TensorMismatch},
    is_weight_format, resolve,
};
use crate::{
    config::LlamaConfig,
    dummy,
    graph::{self, INV_FREQ, Part, WeightPlan},
    weights::{Checkpoint, Tensor, quoted},
};
use std::{borrow::Cow, collections::HashMap};
use tokenspeed_backend_api::{
    dtype::DType,
    graph::{WeightBytes, WeightSource, WeightSpec},
    quant::{dequantize_row, quantize_row},
};

/// The weights of an opened model.
#[derive(Debug)]
pub struct LlamaWeights {
    origin: Origin,
    entries: HashMap<String, Entry>,
    /// Bytes of [`INV_FREQ`].
    frequencies: Vec<u8>,
}

#[derive(Debug)]
enum Origin {
    File(Box<Checkpoint>),
    Random { seed: u64 },
}

#[derive(Debug)]
struct Entry {
    plan: WeightPlan,
    /// In the file, with its stored format; `None` for random weights.
    stored: Option<(Tensor, DType)>,
    /// As the graph wants it.
    dtype: DType,
}

/// What becomes of a weight, for memory plans.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed {
    pub part: Part,
    pub values: u64,
    pub bytes: u64,
    /// Used where it lies in the file.
    pub in_place: bool,
}

impl LlamaWeights {
    /// Match `config` with `checkpoint` (or random weights) and decide every weight's format.
    pub(super) fn resolve(
        config: &LlamaConfig,
        checkpoint: Option<Checkpoint>,
        options: &LoadOptions,
        notices: &mut Vec<Notice>,
    ) -> Result<Self, ModelError> {
        let plan = graph::weights(config);
        let mut divisors = None;
        let found: Vec<Option<(Tensor, DType)>> = match &checkpoint {
            None => plan.iter().map(|_| None).collect(),
            Some(checkpoint) => {
                divisors = resolve::rope_divisors(config, checkpoint)?.map(|tensor| {
                    let mut values = vec![0.0; tensor.shape[0] as usize];
                    dequantize_row(DType::F32, checkpoint.bytes(tensor), &mut values);
                    values
                });
                let found = resolve::resolve(config, &plan, checkpoint, notices)?;
                found.into_iter().map(|(tensor, dtype)| Some((tensor.clone(), dtype))).collect()
            }
        };
        let frequencies = config.rope.inverse_frequencies(divisors.as_deref());
        let random_dtype = config.stored_dtype.unwrap_or(DType::F32);
        let mut entries = HashMap::with_capacity(plan.len());
        for (plan, stored) in plan.into_iter().zip(found) {
            let stored_dtype = stored.as_ref().map_or(random_dtype, |(_, dtype)| *dtype);
            let dtype = if plan.dims.len() == 1 { DType::F32 } else { options.dequantize.unwrap_or(stored_dtype) };
            assert!(is_weight_format(dtype), "resolve lets only computable formats pass");
            let row = plan.dims.last().copied().unwrap_or(1);
            if dtype.bytes(row).is_none() {
                let (file, tensor) = match (&checkpoint, &stored) {
                    (Some(checkpoint), Some((tensor, _))) => {
                        (checkpoint.file_of(tensor).to_owned(), quoted(&tensor.name))
                    }
                    _ => ("dummy".into(), plan.name.clone()),
                };
                return Err(ModelError::Tensor { file, tensor, cause: TensorMismatch::Blocks { row, dtype } });
            }
            entries.insert(plan.name.clone(), Entry { plan, stored, dtype });
        }
        let origin = match checkpoint {
            Some(checkpoint) => Origin::File(Box::new(checkpoint)),
            None => Origin::Random { seed: options.seed },
        };
        let frequencies = frequencies.iter().flat_map(|f| f.to_le_bytes()).collect();
        Ok(Self { origin, entries, frequencies })
    }

    /// The format the graph wants a weight in.
    ///
    /// # Panics
    /// If the model has no such weight: the graph and this list come from the same config.
    pub fn dtype(&self, name: &str) -> DType {
        self.entries.get(name).unwrap_or_else(|| panic!("no weight `{name}`")).dtype
    }

    /// The checkpoint, unless the weights are random.
    pub fn checkpoint(&self) -> Option<&Checkpoint> {
        match &self.origin {
            Origin::File(checkpoint) => Some(checkpoint),
            Origin::Random { .. } => None,
        }
    }

    pub(super) fn placed(&self) -> impl Iterator<Item = Placed> {
        self.entries.values().map(|entry| {
            let values = entry.plan.values();
            let bytes = entry.dtype.bytes(values).expect("rows are whole blocks");
            let in_place = entry.stored.as_ref().is_some_and(|(_, stored)| *stored == entry.dtype);
            Placed { part: entry.plan.part, values, bytes, in_place }
        })
    }
}

impl WeightSource for LlamaWeights {
    fn regions(&self) -> Vec<&[u8]> {
        self.checkpoint().map_or_else(Vec::new, |c| c.files().iter().map(|f| f.bytes()).collect())
    }

    fn weight(&self, spec: &WeightSpec) -> Result<WeightBytes<'_>, String> {
        if spec.name == INV_FREQ {
            return Ok(WeightBytes::Owned(Cow::Borrowed(&self.frequencies)));
        }
        let entry = self.entries.get(&spec.name).ok_or_else(|| format!("the model has no weight `{}`", spec.name))?;
        if (spec.dtype, spec.dims.as_slice()) != (entry.dtype, entry.plan.dims.as_slice()) {
            let Entry { dtype, plan, .. } = entry;
            return Err(format!(
                "weight `{}` was opened as {dtype} {:?}, not as {} {:?}",
                spec.name, plan.dims, spec.dtype, spec.dims
            ));
        }
        match (&self.origin, &entry.stored) {
            (Origin::File(_), Some((tensor, stored))) if *stored == entry.dtype => {
                Ok(WeightBytes::Mapped { region: tensor.region, offset: tensor.offset, bytes: tensor.bytes })
            }
            (Origin::File(checkpoint), Some((tensor, stored))) => {
                let row = spec.dims.last().copied().unwrap_or(1);
                let converted = convert(checkpoint.bytes(tensor), *stored, entry.dtype, row as usize);
                Ok(WeightBytes::Owned(Cow::Owned(converted)))
            }
            (Origin::Random { seed }, _) => {
                Ok(WeightBytes::Owned(Cow::Owned(dummy::weight(*seed, &spec.name, &spec.dims, spec.dtype))))
            }
            (Origin::File(_), None) => unreachable!("every weight of a file was found in it"),
        }
    }
}

/// Row by row through f32, so that only one row is ever held in f32.
fn convert(from: &[u8], stored: DType, wanted: DType, row: usize) -> Vec<u8> {
    let size = |dtype: DType| dtype.bytes(row as u64).expect("rows are whole blocks") as usize;
    let (in_bytes, out_bytes) = (size(stored), size(wanted));
    let mut values = vec![0f32; row];
    let mut out = vec![0; from.len() / in_bytes * out_bytes];
    for (from, to) in from.chunks_exact(in_bytes).zip(out.chunks_exact_mut(out_bytes)) {
        dequantize_row(stored, from, &mut values);
        quantize_row(wanted, &values, to);
    }
    out
}
