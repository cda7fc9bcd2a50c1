//! What a model is, from `config.json` or GGUF metadata, in one form.
//!
//! Everything that changes the mathematics is either understood or refused by field and value; fields that cannot be
//! understood but do not belong to a known list are reported as ignored, never passed over in silence.
//!
//! Rejected: deriving a struct per model type with serde. Its errors do not say which file and field, and defaults
//! differ per architecture.
#![forbid(unsafe_code)]

mod eagle3;
mod error;
mod fields;
mod generation;
mod gguf;
mod hf;
mod hf_rope;
mod kimi;
mod llama;
mod rope;

pub use eagle3::from_eagle3;
pub use error::{ConfigError, ConfigFault};
pub use generation::GenerationDefaults;
pub use gguf::from_gguf;
pub use hf::{from_hf, from_hf_map};
pub use kimi::{from_kimi, is_kimi};
pub use llama::{Architecture, LlamaConfig};
pub use rope::{Rope, RopeScaling, RopeStyle};

use crate::kimi::KimiConfig;
use std::path::Path;

/// Sizes beyond these are typing errors or attacks: they keep every product of two sizes inside 64 bits and the graph
/// of a config small.
const SIZE_MAX: u64 = 1 << 30;
const LAYERS_MAX: u64 = 1024;

/// What a model is, whichever family it belongs to.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelConfig {
    /// A dense decoder of the Llama family.
    Llama(Box<LlamaConfig>),
    /// Kimi K3 or Kimi Linear.
    Kimi(Box<KimiConfig>),
}

impl ModelConfig {
    /// Read `config.json`; its `model_type` decides the family.
    pub fn read(file: &Path, latent_eps: Option<f64>) -> Result<Self, ConfigError> {
        if is_kimi(file)? {
            return Ok(Self::Kimi(Box::new(from_kimi(file, latent_eps)?)));
        }
        from_hf(file).map(|c| Self::Llama(Box::new(c)))
    }

    /// Name of the family's member, for people.
    pub fn architecture(&self) -> &'static str {
        match self {
            Self::Llama(c) => c.architecture.name(),
            Self::Kimi(c) if c.attn_res_block.is_some() => "kimi_k3",
            Self::Kimi(_) => "kimi_linear",
        }
    }

    /// Rows of the embedding table and of the output head.
    pub fn vocab_size(&self) -> u64 {
        match self {
            Self::Llama(c) => c.vocab_size,
            Self::Kimi(c) => c.vocab_size,
        }
    }

    /// Decoder layers.
    pub fn n_layers(&self) -> u64 {
        match self {
            Self::Llama(c) => c.n_layers,
            Self::Kimi(c) => c.layers.len() as u64,
        }
    }

    /// Longest sequence the model is made for, in tokens.
    pub fn context_tokens_max(&self) -> u64 {
        match self {
            Self::Llama(c) => c.context_tokens_max,
            Self::Kimi(c) => c.context_tokens_max,
        }
    }

    /// Tokens that end an answer, from this file alone; see [`GenerationDefaults`] for the union.
    pub fn eos_ids(&self) -> &[u32] {
        match self {
            Self::Llama(c) => &c.eos_ids,
            Self::Kimi(c) => &c.eos_ids,
        }
    }

    /// Fields that were not understood and cannot matter as far as we know; to be shown once.
    pub fn ignored_fields(&self) -> &[String] {
        match self {
            Self::Llama(c) => &c.ignored_fields,
            Self::Kimi(c) => &c.ignored_fields,
        }
    }
}
