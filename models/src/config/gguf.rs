//! Model configuration from GGUF metadata.
//!
//! Key names: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>. What the keys leave open (biases, a tied
//! head) GGUF says through the presence of tensors. `attention.sliding_window` is honoured for every architecture;
//! llama.cpp passes it over for `llama`, which then attends to more than the model was trained to.

use super::{
    Architecture, LlamaConfig,
    error::{ConfigError, ConfigFault},
    rope::{Rope, RopeScaling, RopeStyle, yarn_magnitude},
};
use crate::weights::{
    gguf::{Array, Metadata, Value},
    quoted,
};

/// Per-architecture keys that are read below or known not to change the mathematics of these three families.
const KNOWN: [&str; 26] = [
    "vocab_size",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "block_count",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "attention.causal",
    "rope.freq_base",
    "rope.dimension_count",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.attn_factor",
    "rope.scaling.finetuned",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "expert_count",
    "expert_used_count",
    "tensor_data_layout",
    "pooling_type",
];

/// Keys that other members of the family use to change the mathematics; 0 means absent.
const MUST_BE_ABSENT: [&str; 9] = [
    "expert_count",
    "attention.scale",
    "attention.clamp_kqv",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "logit_scale",
    "embedding_scale",
    "residual_scale",
    "rope.scaling.yarn_log_multiplier",
];

/// Keys of one architecture.
struct Keys<'a> {
    metadata: &'a Metadata,
    architecture: &'static str,
}

impl Keys<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    fn uint(&self, name: &str) -> Result<Option<u64>, ConfigError> {
        Ok(self.metadata.uint(&self.key(name))?)
    }

    fn need_uint(&self, name: &str) -> Result<u64, ConfigError> {
        self.uint(name)?.ok_or_else(|| self.error(ConfigFault::Missing(self.key(name))))
    }

    /// A count that some files give per layer: accepted if all layers agree.
    fn uniform(&self, name: &str) -> Result<Option<u64>, ConfigError> {
        let key = self.key(name);
        if !matches!(self.metadata.get(&key), Some(Value::Array(Array::Uint(_) | Array::Int(_)))) {
            return self.uint(name);
        }
        let list = self.metadata.ints(&key)?.unwrap_or_default();
        match list.first().copied().map(u64::try_from) {
            Some(Ok(first)) if list.iter().all(|n| *n == list[0]) => Ok(Some(first)),
            _ => Err(self.unsupported(name, "a list of different values".to_owned(), "the same value in every layer")),
        }
    }

    /// A finite float.
    fn float(&self, name: &str) -> Result<Option<f64>, ConfigError> {
        match self.metadata.float(&self.key(name))? {
            Some(v) if !v.is_finite() => Err(self.invalid(name, v, "it must be finite")),
            other => Ok(other),
        }
    }

    fn positive(&self, name: &str) -> Result<Option<f64>, ConfigError> {
        match self.float(name)? {
            Some(v) if v <= 0.0 => Err(self.invalid(name, v, "it must be positive")),
            other => Ok(other),
        }
    }

    fn error(&self, fault: ConfigFault) -> ConfigError {
        ConfigError::at(self.metadata.file(), fault)
    }

    fn invalid(&self, name: &str, value: impl ToString, why: &str) -> ConfigError {
        self.error(ConfigFault::Invalid { field: self.key(name), value: value.to_string(), why: why.to_owned() })
    }

    fn unsupported(&self, name: &str, value: String, supported: &str) -> ConfigError {
        self.error(ConfigFault::Unsupported { field: self.key(name), value, supported: supported.to_owned() })
    }
}

/// Read and check the configuration; `has` tells which tensors the file holds.
pub fn from_gguf(metadata: &Metadata, has: impl Fn(&str) -> bool) -> Result<LlamaConfig, ConfigError> {
    let architecture = architecture(metadata)?;
    let k = Keys { metadata, architecture: architecture.name() };
    for name in MUST_BE_ABSENT {
        if let Some(value) = k.float(name)?.filter(|v| *v != 0.0) {
            return Err(k.unsupported(name, value.to_string(), "0 or absent"));
        }
    }
    if metadata.bool(&k.key("attention.causal"))? == Some(false) {
        return Err(k.unsupported("attention.causal", "false".to_owned(), "true"));
    }
    let hidden_size = k.need_uint("embedding_length")?;
    let n_layers = k.need_uint("block_count")?;
    let n_heads = k.uniform("attention.head_count")?;
    let n_heads = n_heads.ok_or_else(|| k.error(ConfigFault::Missing(k.key("attention.head_count"))))?;
    let head_dim = match k.uint("attention.key_length")? {
        Some(d) => d,
        None if n_heads > 0 && hidden_size.is_multiple_of(n_heads) => hidden_size / n_heads,
        None => return Err(k.invalid("attention.head_count", n_heads, "it must divide the embedding length")),
    };
    if let Some(value) = k.uint("attention.value_length")?.filter(|d| *d != head_dim) {
        return Err(k.unsupported("attention.value_length", value.to_string(), &format!("the key length {head_dim}")));
    }
    let stated_tokens = k.need_uint("context_length")?;
    let rope = rope(&k, architecture, head_dim, stated_tokens)?;
    let window = k.uint("attention.sliding_window")?.unwrap_or(0);
    let vocab_size = match k.uint("vocab_size")? {
        Some(n) => n,
        None => match metadata.strings("tokenizer.ggml.tokens")? {
            Some(tokens) => tokens.len() as u64,
            None => return Err(k.error(ConfigFault::Missing(k.key("vocab_size")))),
        },
    };
    let config = LlamaConfig {
        architecture,
        vocab_size,
        hidden_size,
        intermediate_size: k.uniform("feed_forward_length")?.unwrap_or(0),
        n_layers,
        n_heads,
        n_kv_heads: k.uniform("attention.head_count_kv")?.unwrap_or(n_heads),
        head_dim,
        rms_norm_eps: k
            .float("attention.layer_norm_rms_epsilon")?
            .ok_or_else(|| k.error(ConfigFault::Missing(k.key("attention.layer_norm_rms_epsilon"))))?,
        qkv_bias: architecture == Architecture::Qwen2 || has("blk.0.attn_q.bias"),
        o_bias: has("blk.0.attn_output.bias"),
        mlp_bias: has("blk.0.ffn_gate.bias"),
        qk_norm: architecture == Architecture::Qwen3,
        tied_embeddings: !has("output.weight"),
        windows: vec![window; n_layers.min(super::LAYERS_MAX + 1) as usize],
        rope,
        context_tokens_max: rope.context_tokens(stated_tokens),
        bos_id: id(metadata, "tokenizer.ggml.bos_token_id")?,
        eos_ids: eos_ids(metadata)?,
        stored_dtype: None,
        ignored_fields: ignored(metadata, &k),
    };
    config.check(metadata.file(), |field| k.key(gguf_name(field)))
}

fn architecture(metadata: &Metadata) -> Result<Architecture, ConfigError> {
    const KEY: &str = "general.architecture";
    let error = |fault| ConfigError::at(metadata.file(), fault);
    let name = metadata.str(KEY)?.ok_or_else(|| error(ConfigFault::Missing(KEY.to_owned())))?;
    let known = [Architecture::Llama, Architecture::Qwen2, Architecture::Qwen3];
    known.into_iter().find(|a| a.name() == name).ok_or_else(|| {
        let (field, value) = (KEY.to_owned(), format!("`{}`", quoted(name)));
        error(ConfigFault::Unsupported { field, value, supported: "llama, qwen2, qwen3".to_owned() })
    })
}

fn rope(k: &Keys, architecture: Architecture, head_dim: u64, stated_tokens: u64) -> Result<Rope, ConfigError> {
    let theta = k.float("rope.freq_base")?.unwrap_or(10_000.0);
    if theta <= 1.0 {
        return Err(k.invalid("rope.freq_base", theta, "it must be above 1"));
    }
    let kind = k.metadata.str(&k.key("rope.scaling.type"))?;
    // Old files know only linear scaling, under its own key.
    let old = k.positive("rope.scale_linear")?;
    let factor = k.positive("rope.scaling.factor")?.or(old);
    let attention = k.positive("rope.scaling.attn_factor")?.unwrap_or(1.0);
    let need_factor = || factor.ok_or_else(|| k.error(ConfigFault::Missing(k.key("rope.scaling.factor"))));
    let scaling = match kind {
        None if factor.is_none_or(|f| f == 1.0) => RopeScaling::None,
        Some("none") => RopeScaling::None,
        None | Some("linear") => RopeScaling::Linear { factor: need_factor()? },
        Some("yarn") => {
            let factor = need_factor()?;
            RopeScaling::Yarn {
                factor,
                original_tokens: k.positive("rope.scaling.original_context_length")?.unwrap_or(stated_tokens as f64),
                beta_fast: k.positive("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                beta_slow: k.positive("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                attention_factor: yarn_magnitude(factor, 1.0) * attention,
                truncate: true,
            }
        }
        Some(other) => {
            let value = format!("`{}`", quoted(other));
            return Err(k.unsupported("rope.scaling.type", value, "none, linear, yarn"));
        }
    };
    if !matches!(scaling, RopeScaling::Yarn { .. }) && attention != 1.0 {
        return Err(k.unsupported("rope.scaling.attn_factor", attention.to_string(), "1 unless the type is yarn"));
    }
    let style = if architecture == Architecture::Llama { RopeStyle::Pairs } else { RopeStyle::Halves };
    Ok(Rope { style, theta, rotary_dims: k.uint("rope.dimension_count")?.unwrap_or(head_dim), scaling })
}

fn id(metadata: &Metadata, key: &str) -> Result<Option<u32>, ConfigError> {
    match metadata.uint(key)? {
        None => Ok(None),
        // -1 as u32: some converters' way to say none.
        Some(0xffff_ffff) => Ok(None),
        Some(id) => {
            let fault =
                || ConfigFault::Invalid { field: key.to_owned(), value: id.to_string(), why: "no token id".into() };
            u32::try_from(id).map(Some).map_err(|_| ConfigError::at(metadata.file(), fault()))
        }
    }
}

fn eos_ids(metadata: &Metadata) -> Result<Vec<u32>, ConfigError> {
    let mut ids = Vec::new();
    for name in ["eos", "eot", "eom"] {
        ids.extend(id(metadata, &format!("tokenizer.ggml.{name}_token_id"))?);
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

fn ignored(metadata: &Metadata, k: &Keys) -> Vec<String> {
    let prefix = k.key("");
    let ours = metadata.iter().filter_map(|(key, _)| key.strip_prefix(&prefix));
    ours.filter(|name| !KNOWN.contains(name) && !MUST_BE_ABSENT.contains(name)).map(|n| quoted(&k.key(n))).collect()
}

fn gguf_name(field: &'static str) -> &'static str {
    match field {
        "hidden_size" => "embedding_length",
        "intermediate_size" => "feed_forward_length",
        "num_attention_heads" => "attention.head_count",
        "num_key_value_heads" => "attention.head_count_kv",
        "head_dim" => "attention.key_length",
        "num_hidden_layers" => "block_count",
        "max_position_embeddings" => "context_length",
        "rms_norm_eps" => "attention.layer_norm_rms_epsilon",
        other => other,
    }
}
