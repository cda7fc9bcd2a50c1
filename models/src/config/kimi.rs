//! `config.json` of Kimi Linear and Kimi K3, whose text part may be nested in `text_config`.

use super::{
    LAYERS_MAX, SIZE_MAX,
    error::ConfigError,
    fields::{Fields, read_object, show},
};
use crate::kimi::{Activation, ExpertFormat, Kda, KdaGate, KimiConfig, LayerKind, Mla, Moe, Vision};
use std::path::Path;
use tokenspeed_backend_api::dtype::DType;

/// The default of the class that Moonshot's own code builds the latent normalisations from.
const LATENT_EPS: f64 = 1e-6;

/// Fields of the text part that are read below or known not to change inference.
const KNOWN: [&str; 64] = [
    "architectures",
    "model_type",
    "auto_map",
    "dtype",
    "torch_dtype",
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rms_norm_eps",
    "linear_attn_config",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "mla_use_nope",
    "mla_use_output_gate",
    "hidden_act",
    "activation_situ_beta",
    "activation_situ_linear_beta",
    "intermediate_size",
    "num_experts",
    "num_experts_per_token",
    "num_shared_experts",
    "moe_intermediate_size",
    "routed_expert_hidden_size",
    "latent_moe_use_norm",
    "moe_router_activation_func",
    "topk_method",
    "use_grouped_topk",
    "num_expert_group",
    "topk_group",
    "moe_renormalize",
    "routed_scaling_factor",
    "first_k_dense_replace",
    "moe_layer_freq",
    "attn_res_block_size",
    "quantization_config",
    "max_position_embeddings",
    "model_max_length",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "tie_word_embeddings",
    "num_nextn_predict_layers",
    "initializer_range",
    "rope_theta",
    "rope_scaling",
    "use_cache",
    "transformers_version",
    "_name_or_path",
    "max_length",
    "min_length",
    "do_sample",
    "num_beams",
    "temperature",
    "top_k",
    "top_p",
    "return_dict",
    "output_attentions",
    "output_hidden_states",
];

/// Whether a `config.json` is one of this family's.
pub fn is_kimi(file: &Path) -> Result<bool, ConfigError> {
    let map = read_object(file)?;
    let f = Fields::new(file, &map);
    Ok(matches!(f.str("model_type")?, Some("kimi_k3" | "kimi_linear")))
}

/// Read and check a `config.json`. `latent_eps` overrides the epsilon of the latent normalisations (1e-6): several
/// serving engines use `rms_norm_eps` there.
pub fn from_kimi(file: &Path, latent_eps: Option<f64>) -> Result<KimiConfig, ConfigError> {
    let map = read_object(file)?;
    let top = Fields::new(file, &map);
    let nested = top.object("text_config")?;
    let f = nested.as_ref().unwrap_or(&top);
    let model_type = f.str("model_type")?.ok_or_else(|| f.missing("model_type"))?;
    if model_type != "kimi_linear" {
        return Err(f.unsupported("model_type", model_type, "kimi_linear"));
    }
    refuse_what_we_do_not_do(f)?;
    let expert_format = quantisation(&top, f)?;
    let layers = layers(f)?;
    let config = KimiConfig {
        vocab_size: size(f, "vocab_size")?,
        hidden_size: size(f, "hidden_size")?,
        rms_norm_eps: f.need_float("rms_norm_eps")?,
        kda: kda(f)?,
        mla: Mla {
            heads: size(f, "num_attention_heads")?,
            q_rank: f.uint("q_lora_rank")?,
            kv_rank: size(f, "kv_lora_rank")?,
            nope_dim: size(f, "qk_nope_head_dim")?,
            rope_dim: f.need_uint("qk_rope_head_dim")?,
            v_dim: size(f, "v_head_dim")?,
            output_gate: f.bool("mla_use_output_gate")?.unwrap_or(false),
            latent_eps: latent_eps.unwrap_or(LATENT_EPS),
        },
        activation: activation(f)?,
        intermediate_size: size(f, "intermediate_size")?,
        moe: moe(f, layers.len())?,
        attn_res_block: f.uint("attn_res_block_size")?,
        stored: stored(&top, f)?,
        expert_format,
        context_tokens_max: match f.uint("max_position_embeddings")? {
            Some(n) => n,
            None => size(f, "model_max_length")?,
        },
        bos_id: f.uint("bos_token_id")?.and_then(|n| u32::try_from(n).ok()),
        eos_ids: f.ids("eos_token_id")?,
        vision: top.object("vision_config")?.map(|v| vision(&v)).transpose()?,
        ignored_fields: f.keys().filter(|k| !KNOWN.contains(k)).map(|k| f.name(k)).collect(),
        layers,
    };
    check(f, config)
}

fn size(f: &Fields<'_>, field: &str) -> Result<u64, ConfigError> {
    let n = f.need_uint(field)?;
    if n == 0 || n > SIZE_MAX { Err(f.invalid(field, n, "it must be between 1 and 2^30")) } else { Ok(n) }
}

fn refuse_what_we_do_not_do(f: &Fields<'_>) -> Result<(), ConfigError> {
    if f.bool("mla_use_nope")? == Some(false) {
        return Err(f.unsupported("mla_use_nope", "false", "true"));
    }
    if f.bool("tie_word_embeddings")? == Some(true) {
        return Err(f.unsupported("tie_word_embeddings", "true", "false"));
    }
    for (field, supported) in [("moe_router_activation_func", "sigmoid"), ("topk_method", "noaux_tc")] {
        if let Some(value) = f.str(field)?.filter(|v| *v != supported) {
            return Err(f.unsupported(field, value, supported));
        }
    }
    match f.uint("num_nextn_predict_layers")? {
        None | Some(0) => Ok(()),
        Some(n) => {
            Err(f.unsupported("num_nextn_predict_layers", n.to_string(), "0 (no multi-token prediction layers)"))
        }
    }
}

/// The block stands inside `text_config` in the published file, at the top in some derived ones.
fn quantisation(top: &Fields<'_>, text: &Fields<'_>) -> Result<ExpertFormat, ConfigError> {
    const SUPPORTED: &str = "compressed-tensors with format mxfp4-pack-quantized, or none";
    for f in [text, top] {
        let Some(q) = f.object("quantization_config")? else { continue };
        let method = q.str("quant_method")?.unwrap_or("unnamed");
        let format = q.str("format")?.or(q.str("quant_algo")?).unwrap_or("unnamed");
        if (method, format) != ("compressed-tensors", "mxfp4-pack-quantized") {
            return Err(q.unsupported("quant_method", format!("{method} ({format})"), SUPPORTED));
        }
        return Ok(ExpertFormat::Mxfp4);
    }
    Ok(ExpertFormat::Plain)
}

fn stored(top: &Fields<'_>, text: &Fields<'_>) -> Result<DType, ConfigError> {
    for (f, field) in [(text, "dtype"), (text, "torch_dtype"), (top, "dtype"), (top, "torch_dtype")] {
        match f.str(field)? {
            None => {}
            Some("bfloat16") => return Ok(DType::BF16),
            Some("float16") => return Ok(DType::F16),
            Some("float32") => return Ok(DType::F32),
            Some(other) => return Err(f.unsupported(field, other, "bfloat16, float16, float32")),
        }
    }
    Ok(DType::BF16)
}

/// From the two 1-based lists, which together name each layer once.
fn layers(f: &Fields<'_>) -> Result<Vec<LayerKind>, ConfigError> {
    let n = size(f, "num_hidden_layers")?;
    if n > LAYERS_MAX {
        return Err(f.invalid("num_hidden_layers", n, "more than 4096 layers"));
    }
    let linear = f.object("linear_attn_config")?.ok_or_else(|| f.missing("linear_attn_config"))?;
    let mut kinds = vec![None; n as usize];
    for (field, kind) in [("kda_layers", LayerKind::Kda), ("full_attn_layers", LayerKind::Mla)] {
        for value in linear.array(field)?.ok_or_else(|| linear.missing(field))? {
            let index = value.as_u64().and_then(|l| usize::try_from(l).ok()).and_then(|l| l.checked_sub(1));
            match index.and_then(|i| kinds.get_mut(i)) {
                Some(place @ None) => *place = Some(kind),
                Some(Some(_)) => return Err(linear.invalid(field, show(value), "the layer is named twice")),
                None => return Err(linear.invalid(field, show(value), "layers count from 1 to num_hidden_layers")),
            }
        }
    }
    if let Some(layer) = kinds.iter().position(Option::is_none) {
        return Err(linear.invalid("kda_layers", layer + 1, "this layer is in neither list"));
    }
    Ok(kinds.into_iter().flatten().collect())
}

fn kda(f: &Fields<'_>) -> Result<Kda, ConfigError> {
    let linear = f.object("linear_attn_config")?.ok_or_else(|| f.missing("linear_attn_config"))?;
    let gate = match linear.float("gate_lower_bound")? {
        None => KdaGate::Softplus,
        Some(bound) if bound < 0.0 => KdaGate::Bounded(bound),
        Some(bound) => return Err(linear.invalid("gate_lower_bound", bound, "it must be negative")),
    };
    let taps = size(&linear, "short_conv_kernel_size")?;
    if !(2..=64).contains(&taps) {
        return Err(linear.invalid("short_conv_kernel_size", taps, "it must be between 2 and 64"));
    }
    Ok(Kda {
        heads: size(&linear, "num_heads")?,
        head_dim: size(&linear, "head_dim")?,
        conv_taps: taps,
        gate,
        full_rank_output_gate: linear.bool("use_full_rank_gate")?.unwrap_or(false),
    })
}

/// A beta of 0 or null means 1 for the gate branch and no cap for the other.
fn activation(f: &Fields<'_>) -> Result<Activation, ConfigError> {
    match f.str("hidden_act")?.ok_or_else(|| f.missing("hidden_act"))? {
        "silu" => Ok(Activation::Silu),
        "situ" => {
            let beta = f.float("activation_situ_beta")?.filter(|b| *b != 0.0).unwrap_or(1.0);
            let linear = f.float("activation_situ_linear_beta")?.unwrap_or(0.0);
            if beta < 0.0 || linear < 0.0 {
                return Err(f.invalid("activation_situ_beta", beta.min(linear), "it must not be negative"));
            }
            Ok(Activation::Situ { beta, linear })
        }
        other => Err(f.unsupported("hidden_act", other, "silu, situ")),
    }
}

fn moe(f: &Fields<'_>, layers: usize) -> Result<Moe, ConfigError> {
    let experts = f.uint("num_experts")?.unwrap_or(0);
    if experts == 0 {
        // A dense model: no layer is late enough to have experts.
        return Ok(Moe {
            experts: 0,
            top_k: 0,
            shared: 0,
            intermediate_size: 0,
            latent: None,
            latent_norm: false,
            groups: 1,
            groups_used: 1,
            renormalise: false,
            scale: 1.0,
            first_layer: layers as u64,
            layer_step: 1,
        });
    }
    let groups = f.uint("num_expert_group")?.unwrap_or(1);
    let groups_used = f.uint("topk_group")?.unwrap_or(1);
    let top_k = size(f, "num_experts_per_token")?;
    // More groups used than there are is how the published files say "no grouping".
    let (groups, groups_used) = if groups > groups_used { (groups, groups_used) } else { (1, 1) };
    if groups_used == 0 || !experts.is_multiple_of(groups) || groups > 1 && experts / groups < 2 {
        return Err(f.invalid("num_expert_group", groups, "it must divide the experts into groups of at least two"));
    }
    if top_k > experts / groups * groups_used {
        return Err(f.invalid("num_experts_per_token", top_k, "more than there are experts to choose from"));
    }
    Ok(Moe {
        experts: size(f, "num_experts")?,
        top_k,
        shared: f.uint("num_shared_experts")?.unwrap_or(0),
        intermediate_size: size(f, "moe_intermediate_size")?,
        latent: f.uint("routed_expert_hidden_size")?,
        latent_norm: f.bool("latent_moe_use_norm")?.unwrap_or(false),
        groups,
        groups_used,
        // With one expert, dividing its weight by itself would make the router mute.
        renormalise: f.bool("moe_renormalize")?.unwrap_or(true) && top_k > 1,
        scale: f.float("routed_scaling_factor")?.unwrap_or(1.0),
        first_layer: f.uint("first_k_dense_replace")?.unwrap_or(0),
        layer_step: f.uint("moe_layer_freq")?.unwrap_or(1).max(1),
    })
}

fn vision(v: &Fields<'_>) -> Result<Vision, ConfigError> {
    let merge = v.array("merge_kernel_size")?.ok_or_else(|| v.missing("merge_kernel_size"))?;
    let hidden_size = size(v, "vt_hidden_size")?;
    Ok(Vision {
        layers: size(v, "vt_num_hidden_layers")?,
        hidden_size,
        qkv_size: v.uint("qkv_hidden_size")?.unwrap_or(hidden_size),
        intermediate_size: size(v, "vt_intermediate_size")?,
        patch: size(v, "patch_size")?,
        grid: [size(v, "init_pos_emb_height")?, size(v, "init_pos_emb_width")?],
        merged: merge.iter().filter_map(serde_json::Value::as_u64).product(),
        text_size: size(v, "text_hidden_size")?,
    })
}

/// Relations between fields.
fn check(f: &Fields<'_>, config: KimiConfig) -> Result<KimiConfig, ConfigError> {
    if !(config.rms_norm_eps >= 0.0 && config.rms_norm_eps < 1.0) {
        return Err(f.invalid("rms_norm_eps", config.rms_norm_eps, "it must be at least 0 and below 1"));
    }
    if !(config.mla.latent_eps >= 0.0 && config.mla.latent_eps < 1.0) {
        return Err(f.invalid("mla_latent_eps", config.mla.latent_eps, "it must be at least 0 and below 1"));
    }
    for kind in [LayerKind::Kda, LayerKind::Mla] {
        if config.layers_of(kind).next().is_none() {
            return Err(f.unsupported("linear_attn_config", format!("no {kind:?} layer"), "at least one of each kind"));
        }
    }
    if config.attn_res_block == Some(0) {
        return Err(f.invalid("attn_res_block_size", 0, "it must be at least 1, or null"));
    }
    if config.mla.q_rank == Some(0) || config.moe.latent == Some(0) {
        return Err(f.invalid("q_lora_rank", 0, "a width must be at least 1, or null"));
    }
    let (experts, width) = (config.moe.experts, config.moe.width(config.hidden_size));
    let whole = width.is_multiple_of(32) && config.moe.intermediate_size.is_multiple_of(32);
    if config.expert_format == ExpertFormat::Mxfp4 && experts > 0 && !whole {
        return Err(f.invalid("moe_intermediate_size", config.moe.intermediate_size, "mxfp4 needs multiples of 32"));
    }
    let products = [
        config.kda.channels(),
        config.mla.heads * (config.mla.nope_dim + config.mla.rope_dim + config.mla.v_dim),
        config.moe.shared * config.moe.intermediate_size,
    ];
    match products.into_iter().find(|n| *n > SIZE_MAX) {
        Some(n) => Err(f.invalid("num_attention_heads", n, "heads times head size is over 2^30")),
        None => Ok(config),
    }
}
