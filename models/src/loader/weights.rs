//! A model's weights, whichever family it belongs to.

use super::{ModelError, llama::LlamaWeights};
use crate::{
    dummy,
    kimi::{KimiWeights, is_slots},
    weights::Checkpoint,
};
use std::borrow::Cow;
use tokenspeed_backend_api::{
    dtype::DType,
    graph::{WeightBytes, WeightSource, WeightSpec},
};

/// The weights of an opened model.
#[derive(Debug)]
pub enum Weights {
    /// Of the Llama family, from a file or random.
    Llama(LlamaWeights),
    /// Of a Kimi checkpoint.
    Kimi(Box<KimiWeights>),
    /// Random ones in the formats that a Kimi configuration names.
    RandomKimi {
        /// All weights follow from it and their names.
        seed: u64,
    },
}

impl Weights {
    /// The checkpoint, unless the weights are random.
    pub fn checkpoint(&self) -> Option<&Checkpoint> {
        match self {
            Self::Llama(weights) => weights.checkpoint(),
            Self::Kimi(weights) => Some(weights.checkpoint()),
            Self::RandomKimi { .. } => None,
        }
    }

    fn source(&self) -> &dyn WeightSource {
        match self {
            Self::Llama(weights) => weights,
            Self::Kimi(weights) => &**weights,
            Self::RandomKimi { .. } => self,
        }
    }
}

impl WeightSource for Weights {
    fn regions(&self) -> Vec<&[u8]> {
        match self {
            Self::RandomKimi { .. } => Vec::new(),
            _ => self.source().regions(),
        }
    }

    fn weight(&self, spec: &WeightSpec) -> Result<WeightBytes<'_>, String> {
        match self {
            Self::RandomKimi { seed } => Ok(WeightBytes::Owned(Cow::Owned(random_kimi(*seed, spec)?))),
            _ => self.source().weight(spec),
        }
    }
}

/// Experts lie in order; MXFP4 codes are uniform, their scales make the variance of a row's product about 1.
fn random_kimi(seed: u64, spec: &WeightSpec) -> Result<Vec<u8>, String> {
    let values: u64 = spec.dims.iter().product();
    let bytes = spec.dtype.bytes(values).ok_or_else(|| format!("`{}` cuts a block", spec.name))?;
    Ok(match spec.dtype {
        DType::U32 if is_slots(&spec.name) => (0..values as u32).flat_map(u32::to_le_bytes).collect(),
        DType::Mxfp4 => {
            let mut random = dummy::SplitMix64::named(seed, &spec.name);
            (0..bytes.div_ceil(8)).flat_map(|_| random.next_u64().to_le_bytes()).take(bytes as usize).collect()
        }
        DType::U8 => {
            // A uniform E2M1 code has a root mean square of 2.7.
            let width = 32.0 * spec.dims.last().copied().unwrap_or(1) as f64;
            vec![(127.0 - (2.7 * width.sqrt()).log2().round()) as u8; bytes as usize]
        }
        dtype => dummy::weight(seed, &spec.name, &spec.dims, dtype),
    })
}

/// A matrix format that can be asked for with `--dtype`; none for Kimi checkpoints, whose formats are the model.
pub(super) fn refuse_conversion(dequantize: Option<DType>) -> Result<(), ModelError> {
    match dequantize {
        None => Ok(()),
        Some(value) => {
            let supported = "auto: Kimi models are computed in the formats of their checkpoint";
            Err(ModelError::Option { option: "--dtype", value, supported })
        }
    }
}
