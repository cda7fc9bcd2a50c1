//! Weights of a graph from a checkpoint in the published layout.
//!
//! A matrix in the graph's format is used in place; small weights become f32. A stack of experts is used in place if its
//! experts lie in one file at a constant pitch, whatever their order ([`super::stacks`]); else it is copied. Everything is
//! looked up and measured when the source is opened, so a load cannot fail half-way.

use super::{
    config::KimiConfig,
    latent_moe::SLOTS,
    stacks::{self, Pitch},
    tensors::{self, SKIPPED_PREFIXES, Stored, TEXT_PREFIX},
};
use crate::weights::{Checkpoint, Format, Tensor};
use std::{borrow::Cow, collections::HashMap};
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
    /// By layer: at which place of its stacks each expert lies.
    slots: HashMap<String, Vec<u32>>,
    copied_expert_bytes: u64,
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
            slots: HashMap::new(),
            copied_expert_bytes: 0,
            checkpoint,
        };
        source.refuse_other_quantisations()?;
        let (mut fault, mut wanted, mut stacks) = (None, std::collections::HashSet::new(), Vec::new());
        tensors::text(config, &mut |stored| {
            if fault.is_none() {
                fault = source.check(&stored).err();
                wanted.insert(format!("{}{}", source.prefix, stored.name));
                // Expert 0 stands for all of a stack.
                if let Some((layer, rest)) = stored.name.split_once(".experts.0.") {
                    stacks.push((layer.to_owned(), rest.to_owned()));
                }
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
        source.place_experts(&stacks)?;
        Ok(source)
    }

    /// Bytes of experts that do not lie at a constant pitch and are copied when they are loaded; 0 = all are used in
    /// place.
    pub fn copied_expert_bytes(&self) -> u64 {
        self.copied_expert_bytes
    }

    /// Decide the order of every layer's experts, from (layer, matrix) of all stacks.
    fn place_experts(&mut self, stacks: &[(String, String)]) -> Result<(), KimiWeightsError> {
        for (layer, rest) in stacks {
            if !self.slots.contains_key(layer)
                && let Some(slots) = stacks::order(&self.experts_of(layer, rest)?)
            {
                self.slots.insert(layer.clone(), slots);
            }
        }
        for (layer, rest) in stacks {
            let in_order = || (0..self.experts as u32).collect();
            let slots = self.slots.get(layer).cloned().unwrap_or_else(in_order);
            let tensors = self.experts_of(layer, rest)?;
            if stacks::pitch(&tensors, &slots).is_none() {
                self.copied_expert_bytes += tensors.iter().map(|t| t.bytes).sum::<u64>();
            }
            self.slots.insert(layer.clone(), slots);
        }
        Ok(())
    }

    /// One matrix of every expert of a layer.
    fn experts_of(&self, layer: &str, rest: &str) -> Result<Vec<&Tensor>, KimiWeightsError> {
        (0..self.experts).map(|e| self.find(&format!("{layer}.experts.{e}.{rest}"))).collect()
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

    /// One expert's bytes of a stack `{layer}.experts.{matrix}.{suffix}`.
    pub fn expert(&self, stack: &str, expert: u64) -> Result<&[u8], String> {
        let (layer, rest) = stack.split_once(".experts.").ok_or_else(|| format!("`{stack}` names no experts"))?;
        Ok(self.bytes(&format!("{layer}.experts.{expert}.{rest}"))?.1)
    }

    /// `{layer}.experts.{matrix}.{suffix}` of the graph is `{layer}.experts.{e}.{matrix}.{suffix}` for all e.
    fn stack(&self, spec: &WeightSpec) -> Result<WeightBytes<'_>, String> {
        let Some((layer, rest)) = spec.name.split_once(".experts.") else {
            return Err(format!("`{}` names no experts", spec.name));
        };
        let tensors = self.experts_of(layer, rest).map_err(|e| e.to_string())?;
        let slots = self.slots.get(layer).ok_or_else(|| format!("`{}` belongs to no layer", spec.name))?;
        let (bytes, count) = (tensors[0].bytes, self.experts);
        Ok(match stacks::pitch(&tensors, slots) {
            Some(Pitch { region, offset, pitch }) if pitch == bytes => {
                WeightBytes::Mapped { region, offset, bytes: bytes * count }
            }
            Some(Pitch { region, offset, pitch }) => WeightBytes::Pitched { region, offset, pitch, count, bytes },
            None => {
                let mut stack = vec![0; (bytes * count) as usize];
                for (tensor, slot) in tensors.iter().zip(slots) {
                    let at = u64::from(*slot) * bytes;
                    stack[at as usize..][..bytes as usize].copy_from_slice(self.checkpoint.bytes(tensor));
                }
                WeightBytes::Owned(Cow::Owned(stack))
            }
        })
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
            let layer = spec.name.strip_suffix(SLOTS).and_then(|name| name.strip_suffix('.')).unwrap_or_default();
            let slots = self.slots.get(layer).filter(|slots| slots.len() as u64 == values);
            let slots = slots.ok_or_else(|| format!("`{}` belongs to no layer of {values} experts", spec.name))?;
            let order = slots.iter().flat_map(|slot| slot.to_le_bytes()).collect();
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
        let actual = made.size();
        if actual != size {
            return Err(format!("`{}` has {actual} bytes, but {size} are needed", spec.name));
        }
        Ok(made)
    }
}
