//! Weights of a graph from a checkpoint in the published layout.
//!
//! A matrix in the graph's format is used in place; small weights become f32; experts are gathered into one stack per
//! matrix. Everything is looked up and measured when the source is opened, so a load cannot fail half-way.
//!
//! Experts that lie in one file at a constant pitch could be used in place too (see `slots` of the `experts` op); until a
//! graph's weights can say a stride, they are copied.

use super::{
    config::KimiConfig,
    latent_moe::SLOTS,
    tensors::{self, SKIPPED_PREFIXES, Stored, TEXT_PREFIX},
};
use crate::weights::{Checkpoint, Format, Tensor};
use std::borrow::Cow;
use tokenspeed_backend_api::{
    dtype::DType,
    graph::{WeightBytes, WeightSource, WeightSpec},
    quant,
};

/// Why a checkpoint cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KimiWeightsError {
    /// A tensor the configuration asks for is not there.
    #[error("{checkpoint}: tensor `{name}` is missing; the configuration asks for it")]
    Missing {
        /// The checkpoint.
        checkpoint: String,
        /// The tensor.
        name: String,
    },
    /// A tensor is not as the configuration says.
    #[error("{checkpoint}: tensor `{name}` is {actual}, but {expected} is needed")]
    Mismatch {
        /// The checkpoint.
        checkpoint: String,
        /// The tensor.
        name: String,
        /// What it is.
        actual: String,
        /// What it should be.
        expected: String,
    },
    /// A quantisation this reader does not know.
    #[error(
        "{checkpoint}: tensor `{name}` belongs to {scheme} weights, which are not supported; use the published MXFP4 or a BF16 checkpoint"
    )]
    Quantisation {
        /// The checkpoint.
        checkpoint: String,
        /// The tensor that gives it away.
        name: String,
        /// The quantisation.
        scheme: &'static str,
    },
}

/// A checkpoint as the weights of [`super::Graphs`].
#[derive(Debug)]
pub struct KimiWeights {
    checkpoint: Checkpoint,
    prefix: &'static str,
    experts: u64,
    kda_heads: u64,
    skipped: usize,
    unknown: Vec<String>,
}

impl KimiWeights {
    /// Check that the checkpoint holds everything `config` asks for, in shapes and formats that can be used.
    pub fn open(checkpoint: Checkpoint, config: &KimiConfig) -> Result<Self, KimiWeightsError> {
        let prefixed = checkpoint.get(&format!("{TEXT_PREFIX}model.embed_tokens.weight")).is_some();
        let mut source = Self {
            prefix: if prefixed { TEXT_PREFIX } else { "" },
            experts: config.moe.experts,
            kda_heads: config.kda.heads,
            skipped: 0,
            unknown: Vec::new(),
            checkpoint,
        };
        source.refuse_other_quantisations()?;
        let (mut fault, mut wanted) = (None, std::collections::HashSet::new());
        tensors::text(config, &mut |stored| {
            if fault.is_none() {
                fault = source.check(&stored).err();
                wanted.insert(format!("{}{}", source.prefix, stored.name));
            }
        });
        if let Some(fault) = fault {
            return Err(fault);
        }
        for tensor in source.checkpoint.tensors() {
            if SKIPPED_PREFIXES.iter().any(|p| tensor.name.starts_with(p)) {
                source.skipped += 1;
            } else if !wanted.contains(&tensor.name) {
                source.unknown.push(tensor.name.clone());
            }
        }
        Ok(source)
    }

    /// Where they come from.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// Tensors of the vision tower and its projector, which are not loaded.
    pub fn skipped(&self) -> usize {
        self.skipped
    }

    /// Tensors that no part of the model asks for; to be shown once.
    pub fn unknown(&self) -> &[String] {
        &self.unknown
    }

    fn place(&self) -> String {
        self.checkpoint.path().display().to_string()
    }

    fn refuse_other_quantisations(&self) -> Result<(), KimiWeightsError> {
        for tensor in self.checkpoint.tensors() {
            let scheme = match tensor.name.rsplit('.').next() {
                Some("weight_scale_2" | "input_scale") => "NVFP4",
                Some("weight_scale_inv") => "block-scaled FP8",
                Some("weight_scale") if tensor.format != Format::Known(DType::U8) => "FP8",
                _ => continue,
            };
            let (checkpoint, name) = (self.place(), crate::weights::quoted(&tensor.name));
            return Err(KimiWeightsError::Quantisation { checkpoint, name, scheme });
        }
        Ok(())
    }

    fn find(&self, name: &str) -> Result<&Tensor, KimiWeightsError> {
        let name = format!("{}{name}", self.prefix);
        let missing = || KimiWeightsError::Missing { checkpoint: self.place(), name: name.clone() };
        self.checkpoint.get(&name).ok_or_else(missing)
    }

    /// Small tensors may come in any float format; of `A_log` only the leading entries count.
    fn check(&self, stored: &Stored) -> Result<(), KimiWeightsError> {
        let tensor = self.find(&stored.name)?;
        let same = if stored.name.ends_with(".A_log") {
            squeezed(&tensor.shape).len() <= 1 && tensor.shape.iter().product::<u64>() >= self.kda_heads
        } else {
            squeezed(&tensor.shape) == squeezed(&stored.dims)
        };
        let small = squeezed(&stored.dims).len() <= 1 || stored.dtype == DType::F32;
        let dtype = match tensor.format {
            Format::Known(d) => d == stored.dtype || small && matches!(d, DType::F32 | DType::BF16 | DType::F16),
            Format::Other(_) => false,
        };
        if same && dtype {
            return Ok(());
        }
        Err(KimiWeightsError::Mismatch {
            checkpoint: self.place(),
            name: crate::weights::quoted(&tensor.name),
            actual: format!("{} {:?}", tensor.format.name(), tensor.shape),
            expected: format!("{} {:?}", stored.dtype, stored.dims),
        })
    }

    fn bytes(&self, name: &str) -> Result<(&Tensor, &[u8]), String> {
        let tensor = self.find(name).map_err(|e| e.to_string())?;
        Ok((tensor, self.checkpoint.bytes(tensor)))
    }

    /// `{layer}.experts.{matrix}.{suffix}` of the graph is `{layer}.experts.{e}.{matrix}.{suffix}` for all e.
    fn stack(&self, spec: &WeightSpec) -> Result<WeightBytes<'_>, String> {
        let Some((layer, rest)) = spec.name.split_once(".experts.") else {
            return Err(format!("`{}` names no experts", spec.name));
        };
        let mut stack = Vec::new();
        for expert in 0..self.experts {
            stack.extend_from_slice(self.bytes(&format!("{layer}.experts.{expert}.{rest}"))?.1);
        }
        Ok(WeightBytes::Owned(Cow::Owned(stack)))
    }
}

fn squeezed(dims: &[u64]) -> Vec<u64> {
    dims.iter().copied().filter(|d| *d != 1).collect()
}

impl WeightSource for KimiWeights {
    fn regions(&self) -> Vec<&[u8]> {
        self.checkpoint.files().iter().map(|f| f.bytes()).collect()
    }

    fn weight(&self, spec: &WeightSpec) -> Result<WeightBytes<'_>, String> {
        let values: u64 = spec.dims.iter().product();
        let size = spec.dtype.bytes(values).ok_or_else(|| format!("`{}` cuts a block", spec.name))?;
        if spec.name.ends_with(SLOTS) {
            let order = (0..values as u32).flat_map(u32::to_le_bytes).collect();
            return Ok(WeightBytes::Owned(Cow::Owned(order)));
        }
        let made = if tensors::is_expert(&spec.name) {
            self.stack(spec)?
        } else {
            let (tensor, bytes) = self.bytes(&spec.name)?;
            let Format::Known(dtype) = tensor.format else {
                return Err(format!("`{}` is {}", spec.name, tensor.format.name()));
            };
            if dtype == spec.dtype {
                let used = size.min(tensor.bytes);
                WeightBytes::Mapped { region: tensor.region, offset: tensor.offset, bytes: used }
            } else if spec.dtype == DType::F32 && quant::can_dequantize(dtype) {
                let mut out = vec![0f32; tensor.shape.iter().product::<u64>() as usize];
                quant::dequantize_row(dtype, bytes, &mut out);
                out.truncate(values as usize);
                WeightBytes::Owned(Cow::Owned(out.iter().flat_map(|v| v.to_le_bytes()).collect()))
            } else {
                return Err(format!("`{}` is {dtype}, but {} is needed", spec.name, spec.dtype));
            }
        };
        let actual = match &made {
            WeightBytes::Mapped { bytes, .. } => *bytes,
            WeightBytes::Owned(bytes) => bytes.len() as u64,
        };
        if actual != size {
            return Err(format!("`{}` has {actual} bytes, but {size} are needed", spec.name));
        }
        Ok(made)
    }
}
