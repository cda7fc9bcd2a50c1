//! What a dense decoder of the Llama family is.

use super::{ConfigError, ConfigFault, LAYERS_MAX, Rope, SIZE_MAX};
use std::path::Path;
use tokenspeed_backend_api::dtype::DType;

/// Model families that share the Llama graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// Llama 2/3, SmolLM2 and everything else that calls itself Llama.
    Llama,
    /// Llama with a sliding window.
    Mistral,
    /// Llama with biases on q, k, v.
    Qwen2,
    /// Llama with normalised q and k heads.
    Qwen3,
}

impl Architecture {
    /// The name in messages and in `model_type`.
    pub const fn name(self) -> &'static str {
        match self {
            Architecture::Llama => "llama",
            Architecture::Mistral => "mistral",
            Architecture::Qwen2 => "qwen2",
            Architecture::Qwen3 => "qwen3",
        }
    }
}

/// A dense decoder of the Llama family.
#[derive(Clone, Debug, PartialEq)]
pub struct LlamaConfig {
    /// Family.
    pub architecture: Architecture,
    /// Rows of the embedding table.
    pub vocab_size: u64,
    /// Width of the residual stream.
    pub hidden_size: u64,
    /// Width of the MLP.
    pub intermediate_size: u64,
    /// Decoder layers.
    pub n_layers: u64,
    /// Query heads.
    pub n_heads: u64,
    /// Key/value heads; divides `n_heads`.
    pub n_kv_heads: u64,
    /// Width of a head.
    pub head_dim: u64,
    /// Epsilon of every RMS normalisation.
    pub rms_norm_eps: f64,
    /// q, k, v projections have biases.
    pub qkv_bias: bool,
    /// The output projection has a bias.
    pub o_bias: bool,
    /// gate, up and down projections have biases.
    pub mlp_bias: bool,
    /// q and k heads are normalised before rotation.
    pub qk_norm: bool,
    /// The output head is the embedding table.
    pub tied_embeddings: bool,
    /// Per layer: how many last tokens, itself included, a token attends to; 0 = all.
    pub windows: Vec<u64>,
    /// Rotary embedding.
    pub rope: Rope,
    /// Longest sequence the model is made for, rope scaling included.
    pub context_tokens_max: u64,
    /// First token, if the model names one.
    pub bos_id: Option<u32>,
    /// Tokens that end an answer, from this file alone; see [`super::GenerationDefaults`] for the union.
    pub eos_ids: Vec<u32>,
    /// `torch_dtype`: used only where there are no weights to look at.
    pub stored_dtype: Option<DType>,
    /// Fields that were not understood and cannot matter as far as we know; to be shown once.
    pub ignored_fields: Vec<String>,
}

const HEAD_DIM_MAX: u64 = 1 << 16;

impl LlamaConfig {
    /// Relations between fields, whatever the source; `name` translates a field to the source's name for it.
    pub(super) fn check(self, file: &Path, name: impl Fn(&'static str) -> String) -> Result<Self, ConfigError> {
        let invalid = |field, value: u64, why: &str| {
            ConfigError::at(
                file,
                ConfigFault::Invalid { field: name(field), value: value.to_string(), why: why.into() },
            )
        };
        for (field, value) in [
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_attention_heads", self.n_heads),
            ("num_key_value_heads", self.n_kv_heads),
            ("head_dim", self.head_dim),
            ("num_hidden_layers", self.n_layers),
            ("max_position_embeddings", self.context_tokens_max),
        ] {
            if value == 0 || value > SIZE_MAX {
                return Err(invalid(field, value, "it must be between 1 and 2^30"));
            }
        }
        if self.n_layers > LAYERS_MAX {
            return Err(invalid("num_hidden_layers", self.n_layers, "more than 1024 layers"));
        }
        if self.head_dim > HEAD_DIM_MAX {
            return Err(invalid("head_dim", self.head_dim, "heads wider than 65536"));
        }
        if self.n_heads * self.head_dim > SIZE_MAX {
            return Err(invalid("head_dim", self.head_dim, "heads times head size is over 2^30"));
        }
        if !self.n_heads.is_multiple_of(self.n_kv_heads) {
            return Err(invalid("num_key_value_heads", self.n_kv_heads, "it must divide the number of heads"));
        }
        if !self.rope.rotary_dims.is_multiple_of(2)
            || self.rope.rotary_dims > self.head_dim
            || self.rope.rotary_dims == 0
        {
            return Err(invalid("head_dim", self.head_dim, "the rotated part of a head must be even and fit the head"));
        }
        if !(self.rms_norm_eps >= 0.0 && self.rms_norm_eps < 1.0) {
            let fault = ConfigFault::Invalid {
                field: name("rms_norm_eps"),
                value: self.rms_norm_eps.to_string(),
                why: "it must be at least 0 and below 1".into(),
            };
            return Err(ConfigError::at(file, fault));
        }
        Ok(self)
    }
}
