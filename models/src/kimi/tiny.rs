//! Small checkpoints in the published layout, from a seed: for tests, demos and conformance.
//!
//! The weights are random, but of sizes that make every part of the model matter: gates open and close, both tanh caps
//! bite, the latent epsilon shows, experts are chosen unevenly. Randomness is integer arithmetic and a sum of uniforms, so
//! every machine writes the same bytes.

mod sizes;

pub use sizes::{SizeError, Sizes, mid, real_heads};

use super::{
    config::{Activation, ExpertFormat, Kda, KdaGate, KimiConfig, LayerKind, Mla, Moe},
    tensors::{self, Stored, TEXT_PREFIX},
};
use serde_json::{Value, json};
use std::{
    fs::File,
    io::{Seek as _, SeekFrom, Write as _},
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
};
use tokenspeed_backend_api::{
    dtype::DType,
    quant::{self, mxfp4},
};

/// Kimi K3 with every feature, small: 15 layers ending KDA, MLA, MLA; four blocks, the last one cut short.
pub fn k3() -> KimiConfig {
    KimiConfig {
        vocab_size: 512,
        hidden_size: 128,
        layers: kinds(15, &[4, 8, 12, 14, 15]),
        rms_norm_eps: 1e-5,
        kda: Kda { heads: 4, head_dim: 32, conv_taps: 4, gate: KdaGate::Bounded(-5.0), full_rank_output_gate: true },
        mla: Mla {
            heads: 4,
            q_rank: Some(48),
            kv_rank: 64,
            nope_dim: 32,
            rope_dim: 16,
            v_dim: 32,
            output_gate: true,
            latent_eps: 1e-6,
        },
        activation: Activation::Situ { beta: 4.0, linear: 25.0 },
        intermediate_size: 320,
        moe: Moe {
            experts: 16,
            top_k: 4,
            shared: 2,
            intermediate_size: 96,
            latent: Some(64),
            latent_norm: true,
            groups: 1,
            groups_used: 1,
            renormalise: true,
            scale: 1.0,
            first_layer: 1,
            layer_step: 1,
        },
        attn_res_block: Some(4),
        stored: DType::BF16,
        expert_format: ExpertFormat::Mxfp4,
        context_tokens_max: 4096,
        bos_id: Some(1),
        eos_ids: vec![2],
        vision: None,
        ignored_fields: Vec::new(),
    }
}

/// Kimi Linear with every feature, small: plain residuals, softplus decay, low-rank gates, SiLU, one shared expert.
pub fn kimi_linear() -> KimiConfig {
    let k3 = k3();
    KimiConfig {
        layers: kinds(9, &[4, 8, 9]),
        kda: Kda { gate: KdaGate::Softplus, full_rank_output_gate: false, ..k3.kda },
        mla: Mla { q_rank: None, output_gate: false, ..k3.mla },
        activation: Activation::Silu,
        moe: Moe { shared: 1, latent: None, latent_norm: false, scale: 2.446, ..k3.moe },
        attn_res_block: None,
        expert_format: ExpertFormat::Plain,
        ..k3
    }
}

/// `n` layers, KDA except these, counted from 1.
pub fn kinds(n: usize, mla: &[usize]) -> Vec<LayerKind> {
    (1..=n).map(|l| if mla.contains(&l) { LayerKind::Mla } else { LayerKind::Kda }).collect()
}

/// How wide the values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// Every part of the model shows in its logits, down to the epsilons. For tests.
    Exaggerated,
    /// Every matrix keeps the variance of what it multiplies, as a trained model roughly does. For benchmarks, and for
    /// comparisons with engines that decide small things differently.
    Even,
}

/// Write `config.json`, `model.safetensors` and its index into an existing folder, with exaggerated values.
pub fn write(folder: &Path, config: &KimiConfig, seed: u64) -> std::io::Result<()> {
    write_as(folder, config, seed, Spread::Exaggerated)
}

/// As [`write`]. `config.json` comes last, so that a folder left half-written is no model. The bytes do not depend on
/// the number of threads: each tensor has its own stream of random values and its own place in the file.
pub fn write_as(folder: &Path, config: &KimiConfig, seed: u64, spread: Spread) -> std::io::Result<()> {
    let mut list = Vec::new();
    tensors::text(config, &mut |t| list.push(t));
    // Of an MXFP4 matrix, `weight_packed` comes right before `weight_scale`.
    list.sort_by(|a, b| a.name.cmp(&b.name));
    let mut header = serde_json::Map::new();
    let mut places = Vec::with_capacity(list.len());
    let mut at = 0;
    for t in &list {
        let dtype = match t.dtype {
            DType::F32 => "F32",
            DType::F16 => "F16",
            DType::U8 => "U8",
            _ => "BF16",
        };
        let end = at + t.bytes();
        header.insert(full_name(t), json!({"dtype": dtype, "shape": t.dims, "data_offsets": [at, end]}));
        places.push(at);
        at = end;
    }
    let map: serde_json::Map<String, Value> =
        list.iter().map(|t| (full_name(t), Value::from("model.safetensors"))).collect();
    let mut header = Value::Object(header).to_string();
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    let path = folder.join("model.safetensors");
    let mut file = File::create(&path)?;
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    let start = 8 + header.len() as u64;
    file.set_len(start + at)?;

    let next = AtomicUsize::new(0);
    let work = || {
        let mut file = File::options().write(true).open(&path)?;
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(t) = list.get(i) else { return Ok(()) };
            match t.name.rsplit_once(".weight_") {
                // One draw makes both tensors of an MXFP4 matrix.
                Some((_, "packed")) => {
                    let (packed, scales) = expert(t, seed, spread);
                    for (at, bytes) in [(places[i], packed), (places[i + 1], scales)] {
                        file.seek(SeekFrom::Start(start + at))?;
                        file.write_all(&bytes)?;
                    }
                }
                Some(_) => {}
                None => {
                    file.seek(SeekFrom::Start(start + places[i]))?;
                    dense(t, config, seed, spread, &mut |bytes| file.write_all(bytes))?;
                }
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(list.len());
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let results = workers.into_iter().map(|w| w.join().expect("a writer does not panic"));
        results.collect::<Vec<std::io::Result<()>>>().into_iter().collect::<std::io::Result<()>>()
    })?;

    let index = json!({"metadata": {"total_size": at}, "weight_map": map});
    std::fs::write(folder.join("model.safetensors.index.json"), index.to_string())?;
    std::fs::write(folder.join("config.json"), format!("{:#}\n", config_json(config)))
}

fn full_name(t: &Stored) -> String {
    format!("{TEXT_PREFIX}{}", t.name)
}

/// Values of a plain tensor in its format, a piece at a time: an embedding table need not fit into memory.
fn dense(
    t: &Stored,
    config: &KimiConfig,
    seed: u64,
    spread: Spread,
    sink: &mut dyn FnMut(&[u8]) -> std::io::Result<()>,
) -> std::io::Result<()> {
    const PIECE: usize = 1 << 16;
    let mut draw = Draw::new(seed, &t.name);
    let n = t.dims.iter().product::<u64>() as usize;
    let (scale, offset) = distribution(&t.name, &t.dims, spread);
    let mut bytes = Vec::new();
    for at in (0..n).step_by(PIECE) {
        let mut values: Vec<f32> = (at..n.min(at + PIECE)).map(|_| draw.normal() * scale + offset).collect();
        if t.name.ends_with(".A_log") {
            // Padding, as published.
            let used = (config.kda.heads as usize).saturating_sub(at).min(values.len());
            values[used..].fill(0.0);
        }
        bytes.resize(t.dtype.bytes(values.len() as u64).expect("plain formats") as usize, 0);
        quant::quantize_row(t.dtype, &values, &mut bytes);
        sink(&bytes)?;
    }
    Ok(())
}

/// Standard deviation and mean of a tensor's values.
fn distribution(name: &str, dims: &[u64], spread: Spread) -> (f32, f32) {
    let last = |suffix: &str| name.ends_with(suffix);
    let fan_in = 1.0 / (*dims.last().expect("tensors have shapes") as f32).sqrt();
    match name {
        _ if last("norm.weight") => (0.1, 1.0),
        _ if last("embed_tokens.weight") => (1.0, 0.0),
        _ if last("res_proj.weight") => (0.05, 0.0),
        _ if last("conv1d.weight") => (0.5, 0.0),
        _ if last("A_log") => (0.6, 0.0),
        _ if last("dt_bias") => (1.5, -1.0),
        _ if last("e_score_correction_bias") => (0.3, 0.0),
        _ if spread == Spread::Even => (fan_in, 0.0),
        // Latents so small that the epsilon of their norms shows.
        _ if last("q_a_proj.weight") || last("kv_a_proj_with_mqa.weight") => (0.02 * fan_in, 0.0),
        // Wide enough for both caps of SiTU.
        _ if last(".mlp.gate_proj.weight") => (4.0 * fan_in, 0.0),
        _ if last(".mlp.up_proj.weight") => (15.0 * fan_in, 0.0),
        _ if last(".mlp.down_proj.weight") => (0.2 * fan_in, 0.0),
        _ if last("gate_proj.weight") || last("up_proj.weight") || last("w1.weight") || last("w3.weight") => {
            (1.5 * fan_in, 0.0)
        }
        _ => (fan_in, 0.0),
    }
}

/// Packed values and scales of an MXFP4 matrix.
fn expert(t: &Stored, seed: u64, spread: Spread) -> (Vec<u8>, Vec<u8>) {
    let mut draw = Draw::new(seed, &t.name);
    let columns = 2 * t.dims[1] as usize;
    let gain = if t.name.contains(".w2.") || spread == Spread::Even { 1.0 } else { 1.5 };
    let scale = gain / (columns as f32).sqrt();
    let (mut packed, mut scales) = (Vec::new(), Vec::new());
    for _ in 0..t.dims[0] {
        let row: Vec<f32> = (0..columns).map(|_| draw.normal() * scale).collect();
        let (mut values, mut exponents) = (vec![0; columns / 2], vec![0; columns / mxfp4::GROUP]);
        mxfp4::encode_row(&row, &mut values, &mut exponents);
        packed.extend(values);
        scales.extend(exponents);
    }
    (packed, scales)
}

/// Random values of one tensor: independent of every other tensor's.
struct Draw(u64);

impl Draw {
    fn new(seed: u64, name: &str) -> Self {
        // FNV-1a.
        let hash =
            name.bytes().fold(0xcbf2_9ce4_8422_2325, |h: u64, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        Self(hash ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Next 64 random bits (splitmix64).
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Close to normal: twelve 16-bit uniforms, exact in f32.
    fn normal(&mut self) -> f32 {
        let sum: u64 = (0..3).map(|_| self.next()).flat_map(|z| [0, 16, 32, 48].map(|s| z >> s & 0xffff)).sum();
        (sum as f32 - 12.0 * 32767.5) / 65536.0
    }
}

/// `config.json` of a configuration, in the published form.
pub fn config_json(c: &KimiConfig) -> Value {
    let numbers = |kind| -> Vec<usize> { c.layers_of(kind).map(|l| l + 1).collect() };
    let dtype = match c.stored {
        DType::F32 => "float32",
        DType::F16 => "float16",
        _ => "bfloat16",
    };
    let mut text = json!({
        "model_type": "kimi_linear", "architectures": ["KimiLinearForCausalLM"],
        "vocab_size": c.vocab_size, "hidden_size": c.hidden_size, "num_hidden_layers": c.layers.len(),
        "rms_norm_eps": c.rms_norm_eps, "max_position_embeddings": c.context_tokens_max,
        "tie_word_embeddings": false, "num_nextn_predict_layers": 0,
        "bos_token_id": c.bos_id, "eos_token_id": c.eos_ids, "pad_token_id": 0,
        "num_attention_heads": c.mla.heads, "num_key_value_heads": c.mla.heads,
        "q_lora_rank": c.mla.q_rank, "kv_lora_rank": c.mla.kv_rank, "qk_nope_head_dim": c.mla.nope_dim,
        "qk_rope_head_dim": c.mla.rope_dim, "v_head_dim": c.mla.v_dim, "mla_use_nope": true,
        "mla_use_output_gate": c.mla.output_gate,
        "linear_attn_config": {
            "num_heads": c.kda.heads, "head_dim": c.kda.head_dim, "short_conv_kernel_size": c.kda.conv_taps,
            "kda_layers": numbers(LayerKind::Kda), "full_attn_layers": numbers(LayerKind::Mla),
            "use_full_rank_gate": c.kda.full_rank_output_gate,
        },
        "hidden_act": "silu", "intermediate_size": c.intermediate_size,
        "num_experts": c.moe.experts, "num_experts_per_token": c.moe.top_k, "num_shared_experts": c.moe.shared,
        "moe_intermediate_size": c.moe.intermediate_size, "routed_expert_hidden_size": c.moe.latent,
        "latent_moe_use_norm": c.moe.latent_norm, "routed_scaling_factor": c.moe.scale,
        "moe_renormalize": c.moe.renormalise, "moe_router_activation_func": "sigmoid", "topk_method": "noaux_tc",
        "use_grouped_topk": true, "num_expert_group": c.moe.groups, "topk_group": c.moe.groups_used,
        "first_k_dense_replace": c.moe.first_layer, "moe_layer_freq": c.moe.layer_step,
        "attn_res_block_size": c.attn_res_block,
    });
    if let KdaGate::Bounded(bound) = c.kda.gate {
        text["linear_attn_config"]["gate_lower_bound"] = json!(bound);
    }
    if let Activation::Situ { beta, linear } = c.activation {
        text["hidden_act"] = json!("situ");
        text["activation_situ_beta"] = json!(beta);
        text["activation_situ_linear_beta"] = json!(linear);
    }
    if c.expert_format == ExpertFormat::Mxfp4 {
        text["quantization_config"] = json!({
            "quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
                "num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "symmetric": true,
                "scale_dtype": "torch.uint8",
            }}},
        });
    }
    json!({
        "architectures": ["KimiK3ForConditionalGeneration"], "model_type": "kimi_k3", "dtype": dtype,
        "bos_token_id": c.bos_id, "eos_token_id": c.eos_ids, "tie_word_embeddings": false, "text_config": text,
    })
}
