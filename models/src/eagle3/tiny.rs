//! Small drafts in the published layout, from a seed: for tests, demos and conformance.
//!
//! A random draft ([`write`]) exercises everything but acceptance. A draft that is accepted is fitted to its target
//! ([`fitted`]), and that takes a target whose text can be guessed at all ([`write_target`]).

use super::{
    Eagle3Config,
    tensors::{self, EMBEDDING, TO_DRAFT, TO_TARGET},
};
use crate::{
    config::{Rope, RopeScaling, RopeStyle},
    kimi::{self, KimiConfig, tensors::Stored},
    weights::Checkpoint,
};
use serde_json::{Map, Value, json};
use std::{io::Write, path::Path};
use tokenspeed_backend_api::{dtype::DType, quant};

pub use super::fit::{Fit, FitError, fitted};

/// A draft for `target` with every feature of the published one, small: YaRN with its magnitude, three taps.
pub fn config(target: &KimiConfig) -> Eagle3Config {
    let (nope_dim, rope_dim, factor) = (32, 16, 8.0);
    let magnitude = 0.1 * f64::ln(factor) + 1.0;
    let scaling = RopeScaling::Yarn {
        factor,
        original_tokens: 512.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: 1.0,
        truncate: true,
    };
    Eagle3Config {
        vocab_size: target.vocab_size,
        draft_vocab_size: target.vocab_size,
        hidden_size: target.hidden_size,
        heads: 4,
        q_rank: 48,
        kv_rank: 64,
        nope_dim,
        rope_dim,
        v_dim: 32,
        rope: Rope { style: RopeStyle::Pairs, theta: 50_000.0, rotary_dims: rope_dim, scaling },
        softmax_scale: magnitude * magnitude / ((nope_dim + rope_dim) as f64).sqrt(),
        intermediate_size: 320,
        rms_norm_eps: 1e-5,
        taps: super::default_taps(target.layers.len() as u64),
        norm_output: true,
        stored: DType::BF16,
        context_tokens_max: 4096,
        ignored_fields: Vec::new(),
    }
}

/// A tensor and its bytes.
pub(super) type Made = (Stored, Vec<u8>);

/// Random weights. With a smaller head than vocabulary, `d2t` and `t2d` spread its rows over all tokens.
pub(super) fn weights(config: &Eagle3Config, seed: u64) -> Vec<Made> {
    let mut made = Vec::new();
    tensors::all(config, &mut |t| {
        let mut draw = Draw::new(seed, &t.name);
        let (scale, offset) = distribution(&t.name, &t.dims);
        let values: Vec<f32> = (0..t.dims.iter().product()).map(|_| draw.normal() * scale + offset).collect();
        let bytes = encode(t.dtype, &values);
        made.push((t, bytes));
    });
    made
}

/// Standard deviation and mean.
fn distribution(name: &str, dims: &[u64]) -> (f32, f32) {
    let fan_in = 1.0 / (*dims.last().expect("tensors have shapes") as f32).sqrt();
    match name {
        _ if dims.len() == 1 => (0.1, 1.0),
        EMBEDDING => (1.0, 0.0),
        _ if name.ends_with("gate_proj.weight") || name.ends_with("up_proj.weight") => (1.5 * fan_in, 0.0),
        // Scores that tell positions and tokens apart.
        _ if name.ends_with("q_b_proj.weight") => (2.0 * fan_in, 0.0),
        _ => (fan_in, 0.0),
    }
}

pub(super) fn encode(dtype: DType, values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; dtype.bytes(values.len() as u64).expect("plain formats") as usize];
    quant::quantize_row(dtype, values, &mut bytes);
    bytes
}

/// Write `config.json` and `model.safetensors` of a random draft into an existing folder, with or without its own
/// embedding table.
pub fn write(folder: &Path, config: &Eagle3Config, seed: u64, embedding: bool) -> std::io::Result<()> {
    let mut made = weights(config, seed);
    made.retain(|(t, _)| embedding || t.name != EMBEDDING);
    save(folder, config, made)
}

/// Write a checkpoint of these weights.
pub(super) fn save(folder: &Path, config: &Eagle3Config, made: Vec<Made>) -> std::io::Result<()> {
    let mut list: Vec<(String, &str, Vec<u64>, Vec<u8>)> = made
        .into_iter()
        .map(|(t, bytes)| {
            let dtype = match t.dtype {
                DType::F32 => "F32",
                DType::F16 => "F16",
                _ => "BF16",
            };
            (t.name, dtype, t.dims, bytes)
        })
        .collect();
    let (rows, vocab) = (config.draft_vocab_size, config.vocab_size);
    if rows < vocab {
        let ids: Vec<u64> = (0..rows).map(|i| i * vocab / rows).collect();
        let shifts = ids.iter().zip(0..).flat_map(|(id, i)| (id - i).to_le_bytes()).collect();
        let has = (0..vocab).map(|id| u8::from(ids.contains(&id))).collect();
        list.push((TO_TARGET.into(), "I64", vec![rows], shifts));
        list.push((TO_DRAFT.into(), "BOOL", vec![vocab], has));
    }
    list.sort();
    let (mut header, mut at) = (Map::new(), 0);
    for (name, dtype, dims, bytes) in &list {
        let end = at + bytes.len();
        header.insert(name.clone(), json!({"dtype": dtype, "shape": dims, "data_offsets": [at, end]}));
        at = end;
    }
    let mut header = Value::Object(header).to_string();
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    std::fs::write(folder.join("config.json"), format!("{:#}\n", config_json(config)))?;
    let mut file = std::io::BufWriter::new(std::fs::File::create(folder.join("model.safetensors"))?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    list.iter().try_for_each(|(_, _, _, bytes)| file.write_all(bytes))?;
    file.flush()
}

/// How much larger embeddings are in a target whose text can be guessed.
const LOUD: f32 = 64.0;

/// Write a tiny target whose text a small draft can guess: `kimi::tiny`'s, with a louder embedding table.
///
/// The next token of a plain random model depends on its whole history as if by a hash, and its greedy text never comes
/// back to where it was. Here the last token has most of the say, and the history the rest.
pub fn write_target(folder: &Path, config: &KimiConfig, seed: u64) -> std::io::Result<()> {
    kimi::tiny::write(folder, config, seed)?;
    let file = folder.join("model.safetensors");
    let (at, dtype, mut values) = {
        let checkpoint = Checkpoint::open(&file).map_err(std::io::Error::other)?;
        let name = format!("{}model.embed_tokens.weight", kimi::tensors::TEXT_PREFIX);
        let tensor = checkpoint.get(&name).ok_or_else(|| std::io::Error::other(format!("{name} was not written")))?;
        let mut values = vec![0f32; tensor.shape.iter().product::<u64>() as usize];
        quant::dequantize_row(config.stored, checkpoint.bytes(tensor), &mut values);
        (tensor.offset as usize, config.stored, values)
    };
    values.iter_mut().for_each(|v| *v *= LOUD);
    let mut bytes = std::fs::read(&file)?;
    let scaled = encode(dtype, &values);
    bytes[at..at + scaled.len()].copy_from_slice(&scaled);
    std::fs::write(&file, bytes)
}

/// `config.json` of a configuration, in the published form.
pub fn config_json(c: &Eagle3Config) -> Value {
    let dtype = match c.stored {
        DType::F32 => "float32",
        DType::F16 => "float16",
        _ => "bfloat16",
    };
    let mut json = json!({
        "architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "deepseek_v3", "dtype": dtype,
        "vocab_size": c.vocab_size, "draft_vocab_size": c.draft_vocab_size, "hidden_size": c.hidden_size,
        "num_hidden_layers": 1, "num_attention_heads": c.heads, "num_key_value_heads": c.heads,
        "q_lora_rank": c.q_rank, "kv_lora_rank": c.kv_rank, "qk_nope_head_dim": c.nope_dim,
        "qk_rope_head_dim": c.rope_dim, "v_head_dim": c.v_dim, "intermediate_size": c.intermediate_size,
        "hidden_act": "silu", "rms_norm_eps": c.rms_norm_eps, "rope_theta": c.rope.theta,
        "max_position_embeddings": c.context_tokens_max, "attention_bias": false, "tie_word_embeddings": false,
        "norm_output": c.norm_output,
    });
    if let RopeScaling::Yarn { factor, original_tokens, beta_fast, beta_slow, .. } = c.rope.scaling {
        json["rope_scaling"] = json!({
            "type": "yarn", "factor": factor, "original_max_position_embeddings": original_tokens,
            "beta_fast": beta_fast, "beta_slow": beta_slow, "mscale": 1.0, "mscale_all_dim": 1.0,
        });
    }
    if let Some(taps) = c.taps {
        json["eagle_config"] = json!({"eagle_aux_hidden_state_layer_ids": taps.layers().collect::<Vec<_>>()});
    }
    json
}

/// Random values of one tensor, independent of every other tensor's. Integer arithmetic and a sum of uniforms: every
/// machine draws the same.
#[derive(Debug)]
pub(super) struct Draw(u64);

impl Draw {
    pub fn new(seed: u64, name: &str) -> Self {
        // FNV-1a.
        let hash =
            name.bytes().fold(0xcbf2_9ce4_8422_2325, |h: u64, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        Self(hash ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Next 64 random bits (splitmix64).
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Close to normal.
    pub fn normal(&mut self) -> f32 {
        let sum: u64 = (0..3).map(|_| self.next()).flat_map(|z| [0, 16, 32, 48].map(|s| z >> s & 0xffff)).sum();
        (sum as f32 - 12.0 * 32767.5) / 65536.0
    }
}
