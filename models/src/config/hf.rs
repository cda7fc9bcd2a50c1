//! `config.json` of a Hugging Face checkpoint.

use super::{
    Architecture, LlamaConfig,
    error::ConfigError,
    fields::{Fields, read_object, show},
    hf_rope,
};
use crate::weights::quoted;
use serde_json::{Map, Value};
use std::path::Path;
use tokenspeed_backend_api::dtype::DType;

const SUPPORTED: &str = "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM";

/// Fields that are read below, or known not to change inference (training settings, caches, bookkeeping).
const KNOWN: [&str; 46] = [
    "architectures",
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "attention_bias",
    "mlp_bias",
    "tie_word_embeddings",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "layer_types",
    "quantization_config",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "torch_dtype",
    "dtype",
    "attention_dropout",
    "initializer_range",
    "is_llama_config",
    "pretraining_tp",
    "rope_interleaved",
    "transformers.js_config",
    "transformers_version",
    "use_cache",
    "_name_or_path",
    "_attn_implementation",
    "auto_map",
    "unsloth_version",
    "unsloth_fixed",
    "use_mrope",
    "return_dict",
    "output_attentions",
];

/// Read and check a `config.json`.
pub fn from_hf(file: &Path) -> Result<LlamaConfig, ConfigError> {
    from_hf_map(file, &read_object(file)?)
}

/// As [`from_hf`], from parsed JSON; `file` is for messages.
pub fn from_hf_map(file: &Path, map: &Map<String, Value>) -> Result<LlamaConfig, ConfigError> {
    let f = Fields::new(file, map);
    let architecture = architecture(&f)?;
    refuse_what_we_do_not_do(&f, architecture)?;

    let hidden_size = f.need_uint("hidden_size")?;
    let n_layers = f.need_uint("num_hidden_layers")?;
    let n_heads = f.need_uint("num_attention_heads")?;
    let n_kv_heads = match (f.uint("num_key_value_heads")?, architecture) {
        (Some(n), _) => n,
        (None, Architecture::Llama) => n_heads,
        // These classes have defaults unrelated to the other sizes; no real checkpoint relies on them.
        (None, _) => return Err(f.missing("num_key_value_heads")),
    };
    let head_dim = match (f.uint("head_dim")?, architecture) {
        (Some(d), _) => d,
        (None, Architecture::Qwen3) => 128,
        (None, _) if n_heads > 0 && hidden_size.is_multiple_of(n_heads) => hidden_size / n_heads,
        (None, _) => return Err(f.invalid("hidden_size", hidden_size, "it must be a multiple of num_attention_heads")),
    };
    let positions = f.uint("max_position_embeddings")?.unwrap_or(match architecture {
        Architecture::Llama => 2048,
        Architecture::Mistral => 131_072,
        Architecture::Qwen2 | Architecture::Qwen3 => 32_768,
    });
    let rope = hf_rope::read(&f, head_dim, positions)?;
    let attention_bias = f.bool("attention_bias")?.unwrap_or(false);
    let config = LlamaConfig {
        architecture,
        vocab_size: f.need_uint("vocab_size")?,
        hidden_size,
        intermediate_size: f.need_uint("intermediate_size")?,
        n_layers,
        n_heads,
        n_kv_heads,
        head_dim,
        rms_norm_eps: f.float("rms_norm_eps")?.unwrap_or(1e-6),
        qkv_bias: attention_bias || architecture == Architecture::Qwen2,
        o_bias: attention_bias,
        mlp_bias: f.bool("mlp_bias")?.unwrap_or(false),
        qk_norm: architecture == Architecture::Qwen3,
        // All four classes default to an output head of their own.
        tied_embeddings: f.bool("tie_word_embeddings")?.unwrap_or(false),
        windows: windows(&f, architecture, n_layers)?,
        rope,
        context_tokens_max: rope.context_tokens(positions),
        bos_id: f.ids("bos_token_id")?.first().copied(),
        eos_ids: f.ids("eos_token_id")?,
        stored_dtype: stored_dtype(&f)?,
        ignored_fields: f.keys().filter(|key| !KNOWN.contains(key)).map(quoted).collect(),
    };
    config.check(file, str::to_owned)
}

fn architecture(f: &Fields) -> Result<Architecture, ConfigError> {
    let by_type = |name: &str| match name {
        "llama" => Some(Architecture::Llama),
        "mistral" => Some(Architecture::Mistral),
        "qwen2" => Some(Architecture::Qwen2),
        "qwen3" => Some(Architecture::Qwen3),
        _ => None,
    };
    if let Some(list) = f.array("architectures")? {
        let known = list.iter().find_map(|name| {
            let family = name.as_str()?.strip_suffix("ForCausalLM")?.to_lowercase();
            by_type(&family)
        });
        return known.ok_or_else(|| f.unsupported("architectures", show(&list.into()), SUPPORTED));
    }
    let kind = f.str("model_type")?.ok_or_else(|| f.missing("architectures"))?;
    by_type(kind)
        .ok_or_else(|| f.unsupported("model_type", format!("`{}`", quoted(kind)), "llama, mistral, qwen2, qwen3"))
}

fn refuse_what_we_do_not_do(f: &Fields, architecture: Architecture) -> Result<(), ConfigError> {
    if let Some(act) = f.str("hidden_act")?.filter(|act| *act != "silu") {
        return Err(f.unsupported("hidden_act", format!("`{}`", quoted(act)), "silu"));
    }
    if let Some(quantization) = f.get("quantization_config") {
        let method = quantization.get("quant_method").unwrap_or(quantization);
        return Err(f.unsupported("quantization_config", show(method), "unquantised safetensors, or GGUF"));
    }
    for field in ["rope_interleaved", "use_mrope"] {
        if f.bool(field)? == Some(true) {
            return Err(f.unsupported(field, "true", "false"));
        }
    }
    if architecture != Architecture::Llama && f.bool("mlp_bias")? == Some(true) {
        return Err(f.unsupported("mlp_bias", "true", "false for this architecture"));
    }
    if matches!(architecture, Architecture::Mistral | Architecture::Qwen2) && f.bool("attention_bias")? == Some(true) {
        return Err(f.unsupported("attention_bias", "true", "false for this architecture"));
    }
    Ok(())
}

/// Which layers attend to a window only.
fn windows(f: &Fields, architecture: Architecture, n_layers: u64) -> Result<Vec<u64>, ConfigError> {
    // Bounded again, with a message, by `LlamaConfig::check`.
    let n_layers = n_layers.min(super::LAYERS_MAX + 1) as usize;
    let window = match architecture {
        Architecture::Llama => {
            if let Some(window) = f.get("sliding_window") {
                return Err(f.unsupported("sliding_window", show(window), "null for this architecture"));
            }
            None
        }
        // The class default is 4096; newer checkpoints write null.
        Architecture::Mistral if !f.is_written("sliding_window") => Some(4096),
        Architecture::Mistral => f.uint("sliding_window")?,
        Architecture::Qwen2 | Architecture::Qwen3 => match f.bool("use_sliding_window")? {
            Some(true) => Some(f.uint("sliding_window")?.unwrap_or(4096)),
            _ => None,
        },
    };
    if window == Some(0) {
        return Err(f.invalid("sliding_window", 0, "it must be positive, or null for none"));
    }
    if let Some(types) = f.array("layer_types")? {
        if types.len() != n_layers {
            return Err(f.invalid(
                "layer_types",
                format!("a list of {}", types.len()),
                "one entry per layer is needed",
            ));
        }
        let one = |kind: &Value| match (kind.as_str(), window) {
            (Some("full_attention"), _) => Ok(0),
            (Some("sliding_attention"), Some(window)) => Ok(window),
            (Some("sliding_attention"), None) => Err(f.missing("sliding_window")),
            _ => Err(f.unsupported("layer_types", show(kind), "full_attention, sliding_attention")),
        };
        return types.iter().map(one).collect();
    }
    let first = match architecture {
        Architecture::Qwen2 | Architecture::Qwen3 => f.uint("max_window_layers")?.unwrap_or(28),
        _ => 0,
    };
    Ok((0..n_layers as u64).map(|layer| if layer >= first { window.unwrap_or(0) } else { 0 }).collect())
}

fn stored_dtype(f: &Fields) -> Result<Option<DType>, ConfigError> {
    let field = if f.get("dtype").is_some() { "dtype" } else { "torch_dtype" };
    let Some(name) = f.str(field)? else { return Ok(None) };
    match name.strip_prefix("torch.").unwrap_or(name) {
        "float32" => Ok(Some(DType::F32)),
        "float16" => Ok(Some(DType::F16)),
        "bfloat16" => Ok(Some(DType::BF16)),
        _ => Err(f.unsupported(field, format!("`{}`", quoted(name)), "float32, float16, bfloat16")),
    }
}
