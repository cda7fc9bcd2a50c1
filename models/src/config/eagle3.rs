//! `config.json` of an EAGLE3 draft with latent attention (`Eagle3DeepseekV2ForCausalLM`).
//!
//! The fields about drafting stand at the top or in `eagle_config`; both are read. Other drafts for the same target are
//! refused by their names: they have other inputs, and a wrong guess would cost acceptance without a word.

use super::{
    SIZE_MAX,
    error::ConfigError,
    fields::{Fields, read_object, show},
    hf_rope,
    rope::{Rope, RopeScaling, RopeStyle, yarn_magnitude},
};
use crate::{eagle3::Eagle3Config, kimi::Taps};
use std::path::Path;
use tokenspeed_backend_api::dtype::DType;

const ARCHITECTURE: &str = "Eagle3DeepseekV2ForCausalLM";
const TAPS: &str = "eagle_aux_hidden_state_layer_ids";

/// Fields that are read below or known not to change inference.
const KNOWN: [&str; 50] = [
    "architectures",
    "model_type",
    "auto_map",
    "dtype",
    "torch_dtype",
    "vocab_size",
    "draft_vocab_size",
    "hidden_size",
    "target_hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "qk_head_dim",
    "rms_norm_eps",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "rope_interleave",
    "hidden_act",
    "intermediate_size",
    "attention_bias",
    "attention_dropout",
    "mlp_bias",
    "max_position_embeddings",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "tie_word_embeddings",
    "num_nextn_predict_layers",
    "quantization_config",
    "eagle_config",
    "norm_output",
    TAPS,
    "initializer_range",
    "use_cache",
    "transformers_version",
    "_name_or_path",
    "pretraining_tp",
    "return_dict",
    "output_attentions",
    "output_hidden_states",
    "partial_rotary_factor",
    "original_max_position_embeddings",
    "use_sliding_window",
];

/// Read and check the `config.json` of a draft.
pub fn from_eagle3(file: &Path) -> Result<Eagle3Config, ConfigError> {
    let map = read_object(file)?;
    let f = Fields::new(file, &map);
    refuse_other_drafts(&f)?;
    let hidden_size = size(&f, "hidden_size")?;
    let vocab_size = size(&f, "vocab_size")?;
    let rope_dim = even(&f, "qk_rope_head_dim")?;
    let nope_dim = even(&f, "qk_nope_head_dim")?;
    let context_tokens_max = size(&f, "max_position_embeddings")?;
    let (rope, magnitude) = rope(&f, rope_dim, context_tokens_max)?;
    let eagle = f.object("eagle_config")?;
    let anywhere = || eagle.iter().chain([&f]);
    let config = Eagle3Config {
        vocab_size,
        draft_vocab_size: f.uint("draft_vocab_size")?.unwrap_or(vocab_size),
        hidden_size,
        heads: size(&f, "num_attention_heads")?,
        q_rank: size(&f, "q_lora_rank")?,
        kv_rank: even(&f, "kv_lora_rank")?,
        nope_dim,
        rope_dim,
        v_dim: size(&f, "v_head_dim")?,
        rope,
        softmax_scale: magnitude * magnitude / ((nope_dim + rope_dim) as f64).sqrt(),
        intermediate_size: size(&f, "intermediate_size")?,
        rms_norm_eps: f.need_float("rms_norm_eps")?,
        taps: anywhere().find(|f| f.get(TAPS).is_some()).map(taps).transpose()?,
        norm_output: match anywhere().find(|f| f.get("norm_output").is_some()) {
            Some(f) => f.bool("norm_output")?.unwrap_or(false),
            None => false,
        },
        stored: stored(&f)?,
        context_tokens_max,
        ignored_fields: f.keys().filter(|k| !KNOWN.contains(k)).map(|k| f.name(k)).collect(),
    };
    check(&f, config)
}

fn refuse_other_drafts(f: &Fields<'_>) -> Result<(), ConfigError> {
    let named = f.array("architectures")?.unwrap_or_default().iter().filter_map(|v| v.as_str());
    let names: Vec<&str> = named.chain(f.str("model_type")?).collect();
    let has = |part: &str| names.iter().find(|n| n.to_lowercase().contains(part));
    for (part, kind) in [("dspark", "a DSpark draft"), ("nextn", "an MTP draft"), ("mtp", "an MTP draft")] {
        if let Some(name) = has(part) {
            return Err(f.unsupported("architectures", format!("{name} ({kind})"), ARCHITECTURE));
        }
    }
    if !names.contains(&ARCHITECTURE) {
        return Err(f.unsupported("architectures", names.join(", "), ARCHITECTURE));
    }
    if let Some(n) = f.uint("num_nextn_predict_layers")?.filter(|n| *n > 0) {
        return Err(f.unsupported("num_nextn_predict_layers", format!("{n} (an MTP draft)"), "0"));
    }
    if let Some(quantisation) = f.get("quantization_config") {
        return Err(f.unsupported("quantization_config", show(quantisation), "an unquantised draft"));
    }
    Ok(())
}

fn size(f: &Fields<'_>, field: &str) -> Result<u64, ConfigError> {
    let n = f.need_uint(field)?;
    if n == 0 || n > SIZE_MAX { Err(f.invalid(field, n, "it must be between 1 and 2^30")) } else { Ok(n) }
}

fn even(f: &Fields<'_>, field: &str) -> Result<u64, ConfigError> {
    let n = size(f, field)?;
    if n % 2 == 0 { Ok(n) } else { Err(f.invalid(field, n, "it must be even: positions turn pairs")) }
}

/// The rotation, and the magnitude whose square goes into the softmax scale. As in DeepSeek's models, the magnitude is
/// that of `mscale_all_dim`, and cos and sin get the ratio of `mscale`'s to it.
fn rope(f: &Fields<'_>, rope_dim: u64, positions: u64) -> Result<(Rope, f64), ConfigError> {
    if f.bool("rope_interleave")? == Some(false) {
        return Err(f.unsupported("rope_interleave", "false", "true"));
    }
    let rope = Rope { style: RopeStyle::Pairs, ..hf_rope::read(f, rope_dim, positions)? };
    let name = if f.get("rope_scaling").is_some() { "rope_scaling" } else { "rope_parameters" };
    let all_dim = match f.object(name)? {
        Some(fields) => fields.float("mscale_all_dim")?.unwrap_or(0.0),
        None => 0.0,
    };
    if rope.magnitude() != 1.0 {
        return Err(f.unsupported(
            name,
            format!("a factor of {} on cos and sin", rope.magnitude()),
            "mscale = mscale_all_dim",
        ));
    }
    match rope.scaling {
        RopeScaling::Yarn { factor, .. } => Ok((rope, yarn_magnitude(factor, all_dim))),
        _ => Ok((rope, 1.0)),
    }
}

fn taps(f: &Fields<'_>) -> Result<Taps, ConfigError> {
    let list = f.array(TAPS)?.unwrap_or_default();
    let layers: Option<Vec<u64>> = list.iter().map(serde_json::Value::as_u64).collect();
    layers.and_then(|l| Taps::new(&l)).ok_or_else(|| {
        let shown = f.get(TAPS).map_or(String::new(), show);
        f.invalid(TAPS, shown, "one to four ascending layer numbers from 1 are needed")
    })
}

fn stored(f: &Fields<'_>) -> Result<DType, ConfigError> {
    let field = if f.get("dtype").is_some() { "dtype" } else { "torch_dtype" };
    match f.str(field)? {
        None | Some("bfloat16") => Ok(DType::BF16),
        Some("float16") => Ok(DType::F16),
        Some("float32") => Ok(DType::F32),
        Some(other) => Err(f.unsupported(field, other, "bfloat16, float16, float32")),
    }
}

/// Relations between fields, and switches that must be off.
fn check(f: &Fields<'_>, config: Eagle3Config) -> Result<Eagle3Config, ConfigError> {
    for field in ["attention_bias", "mlp_bias", "use_sliding_window"] {
        if f.bool(field)? == Some(true) {
            return Err(f.unsupported(field, "true", "false"));
        }
    }
    if let Some(n) = f.uint("num_hidden_layers")?.filter(|n| *n != 1) {
        return Err(f.unsupported("num_hidden_layers", n.to_string(), "1"));
    }
    if let Some(act) = f.str("hidden_act")?.filter(|a| *a != "silu") {
        return Err(f.unsupported("hidden_act", act, "silu"));
    }
    if let Some(n) = f.uint("target_hidden_size")?.filter(|n| *n != config.hidden_size) {
        return Err(f.unsupported(
            "target_hidden_size",
            n.to_string(),
            format!("{}, as hidden_size", config.hidden_size),
        ));
    }
    if config.draft_vocab_size == 0 || config.draft_vocab_size > config.vocab_size {
        return Err(f.invalid("draft_vocab_size", config.draft_vocab_size, "it must be between 1 and vocab_size"));
    }
    if !(config.rms_norm_eps >= 0.0 && config.rms_norm_eps < 1.0) {
        return Err(f.invalid("rms_norm_eps", config.rms_norm_eps, "it must be at least 0 and below 1"));
    }
    let widest = config.heads.saturating_mul(config.nope_dim + config.rope_dim + config.v_dim);
    if widest > SIZE_MAX {
        return Err(f.invalid("num_attention_heads", config.heads, "heads times head size is over 2^30"));
    }
    Ok(config)
}
