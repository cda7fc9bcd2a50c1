//! Tiny random models for tests: the same values as a Hugging Face folder, as shards, and as GGUF.
//!
//! Values come from a seed and the tensor's name, so every machine writes the same bytes; committed golden logits
//! depend on it. They are larger than [`crate::dummy`]'s, so that attention is far from uniform and a wrong position
//! shows.
#![forbid(unsafe_code)]

mod gguf_writer;

use crate::{
    config::{ConfigError, LlamaConfig, RopeScaling, RopeStyle, from_hf_map},
    dummy::SplitMix64,
    graph::{WeightPlan, weights},
};
use gguf_writer::GgufWriter;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Map, Value, json};
use std::{collections::BTreeMap, io, path::Path};
use tokenspeed_backend_api::{dtype::DType, quant::quantize_row};

/// A tiny model, not yet written.
#[derive(Clone, Debug)]
pub struct Tiny {
    /// Its `config.json`.
    pub config: Map<String, Value>,
    /// Seed of its weights.
    pub seed: u64,
}

impl Tiny {
    /// A two-layer Llama: vocabulary 40, width 64, 4 heads of 16 over 2 key/value heads.
    pub fn llama() -> Self {
        Self::family("LlamaForCausalLM", "llama")
    }

    /// The same size as Mistral, with a window of 4 tokens.
    pub fn mistral() -> Self {
        Self::family("MistralForCausalLM", "mistral").with("sliding_window", json!(4))
    }

    /// The same size as Qwen2: biases on q, k, v.
    pub fn qwen2() -> Self {
        Self::family("Qwen2ForCausalLM", "qwen2")
    }

    /// The same size as Qwen3, with heads of 32 (wider than width / heads), normalised, and a tied head.
    pub fn qwen3() -> Self {
        Self::family("Qwen3ForCausalLM", "qwen3").with("head_dim", json!(32)).with("tie_word_embeddings", json!(true))
    }

    fn family(class: &str, model_type: &str) -> Self {
        let config = json!({
            "architectures": [class], "model_type": model_type, "vocab_size": 40, "hidden_size": 64,
            "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
            "tie_word_embeddings": false, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float32",
        });
        let Value::Object(config) = config else { unreachable!("an object was written") };
        Self { config, seed: 1 }
    }

    /// The variants behind the golden logits in `tests/vectors/llama_forward.json`.
    pub fn golden() -> Vec<(&'static str, Tiny)> {
        let llama3 = json!({"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64});
        let yarn = json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64});
        vec![
            ("llama", Self::llama()),
            (
                "llama3-biased",
                Self::llama()
                    .with("rope_scaling", llama3)
                    .with("attention_bias", json!(true))
                    .with("mlp_bias", json!(true)),
            ),
            ("mistral", Self::mistral()),
            ("qwen2-yarn", Self::qwen2().with("rope_scaling", yarn)),
            ("qwen3", Self::qwen3()),
        ]
    }

    /// Replace or add a config field.
    pub fn with(mut self, field: &str, value: Value) -> Self {
        self.config.insert(field.to_owned(), value);
        self
    }

    /// The parsed config.
    pub fn model_config(&self) -> Result<LlamaConfig, ConfigError> {
        from_hf_map(Path::new("config.json"), &self.config)
    }

    /// Write `config.json` and `model.safetensors`, matrices as `dtype` (f32, f16 or bf16), vectors as f32.
    pub fn write_folder(&self, folder: &Path, dtype: DType) -> io::Result<()> {
        let tensors = self.tensors(dtype)?;
        self.write_config(folder)?;
        std::fs::write(folder.join("model.safetensors"), safetensors_file(&tensors)?)
    }

    /// Write `config.json`, `n` shards and their index.
    pub fn write_sharded(&self, folder: &Path, n: usize) -> io::Result<()> {
        let tensors = self.tensors(DType::F32)?;
        self.write_config(folder)?;
        let mut map = BTreeMap::new();
        for (i, shard) in tensors.chunks(tensors.len().div_ceil(n)).enumerate() {
            let name = format!("model-{:05}-of-{n:05}.safetensors", i + 1);
            std::fs::write(folder.join(&name), safetensors_file(shard)?)?;
            map.extend(shard.iter().map(|t| (t.name.clone(), name.clone())));
        }
        let index = json!({"metadata": {}, "weight_map": map});
        std::fs::write(folder.join("model.safetensors.index.json"), index.to_string())
    }

    /// Write a GGUF file, matrices as `dtype`. Llama's q and k rows are reordered for paired rotation and its llama3
    /// scaling becomes `rope_freqs.weight`, as converters do.
    pub fn write_gguf(&self, path: &Path, dtype: DType) -> io::Result<()> {
        let config = self.model_config().map_err(io::Error::other)?;
        let architecture = match config.architecture.name() {
            "mistral" => "llama",
            other => other,
        };
        let mut writer = GgufWriter::default();
        write_keys(&mut writer, architecture, &config);
        for plan in weights(&config) {
            let mut values = self.values(&plan);
            if architecture == "llama" && ["q_proj", "k_proj"].iter().any(|p| plan.name.contains(p)) {
                values = pair_rows(&values, &plan.dims, config.head_dim as usize);
            }
            let dtype = if plan.dims.len() == 1 { DType::F32 } else { dtype };
            writer.tensor(&plan.gguf, &plan.dims, dtype, encode(&values, &plan.dims, dtype)?);
        }
        if let RopeScaling::Llama3 { .. } = config.rope.scaling {
            let plain = crate::config::Rope { scaling: RopeScaling::None, ..config.rope }.inverse_frequencies(None);
            let scaled = config.rope.inverse_frequencies(None);
            let divisors: Vec<f32> = plain.iter().zip(&scaled).map(|(p, s)| p / s).collect();
            let dims = [divisors.len() as u64];
            writer.tensor("rope_freqs.weight", &dims, DType::F32, encode(&divisors, &dims, DType::F32)?);
        }
        std::fs::write(path, writer.finish())
    }

    fn write_config(&self, folder: &Path) -> io::Result<()> {
        std::fs::create_dir_all(folder)?;
        std::fs::write(folder.join("config.json"), serde_json::to_string_pretty(&self.config)?)
    }

    fn tensors(&self, dtype: DType) -> io::Result<Vec<Named>> {
        let config = self.model_config().map_err(io::Error::other)?;
        assert_eq!(config.rope.style, RopeStyle::Halves, "Hugging Face order");
        let one = |plan: WeightPlan| {
            let dtype = if plan.dims.len() == 1 { DType::F32 } else { dtype };
            let bytes = encode(&self.values(&plan), &plan.dims, dtype)?;
            Ok(Named { name: plan.hf, dims: plan.dims, dtype, bytes })
        };
        weights(&config).into_iter().map(one).collect()
    }

    /// Values in Hugging Face order.
    fn values(&self, plan: &WeightPlan) -> Vec<f32> {
        let mut random = SplitMix64::named(self.seed, &plan.hf);
        let row = plan.dims.last().copied().unwrap_or(1) as f32;
        (0..plan.values())
            .map(|_| match (plan.dims.len(), plan.name.ends_with(".bias")) {
                (1, true) => random.unit() * 0.25,
                (1, false) => 1.0 + random.unit() * 0.25,
                _ => random.unit() * 2.5 / row.sqrt(),
            })
            .collect()
    }
}

struct Named {
    name: String,
    dims: Vec<u64>,
    dtype: DType,
    bytes: Vec<u8>,
}

fn encode(values: &[f32], dims: &[u64], dtype: DType) -> io::Result<Vec<u8>> {
    let row = dims.last().copied().unwrap_or(1);
    let row_bytes = dtype.bytes(row).ok_or_else(|| io::Error::other(format!("rows of {row} values are no {dtype}")))?;
    let mut out = vec![0; values.len() / row as usize * row_bytes as usize];
    for (values, bytes) in values.chunks(row as usize).zip(out.chunks_mut(row_bytes as usize)) {
        quantize_row(dtype, values, bytes);
    }
    Ok(out)
}

/// Row (head, half, d) becomes row (head, d, half). Works on biases too, whose rows are single values.
fn pair_rows(values: &[f32], dims: &[u64], head_dim: usize) -> Vec<f32> {
    let row = if dims.len() == 1 { 1 } else { dims[1] as usize };
    let half = head_dim / 2;
    let source = |r: usize| r / head_dim * head_dim + r % 2 * half + r % head_dim / 2;
    (0..dims[0] as usize).flat_map(|r| &values[source(r) * row..][..row]).copied().collect()
}

fn safetensors_file(tensors: &[Named]) -> io::Result<Vec<u8>> {
    let mut views = Vec::new();
    for t in tensors {
        let dtype = match t.dtype {
            DType::F32 => Dtype::F32,
            DType::F16 => Dtype::F16,
            DType::BF16 => Dtype::BF16,
            DType::F8E4M3 => Dtype::F8_E4M3,
            other => return Err(io::Error::other(format!("safetensors has no {other}"))),
        };
        let shape = t.dims.iter().map(|d| *d as usize).collect();
        views.push((t.name.as_str(), TensorView::new(dtype, shape, &t.bytes).map_err(io::Error::other)?));
    }
    safetensors::serialize(views, None).map_err(io::Error::other)
}

fn write_keys(writer: &mut GgufWriter, architecture: &str, c: &LlamaConfig) {
    let key = |name: &str| format!("{architecture}.{name}");
    writer.str("general.architecture", architecture);
    for (name, value) in [
        ("vocab_size", c.vocab_size),
        ("context_length", c.context_tokens_max),
        ("embedding_length", c.hidden_size),
        ("feed_forward_length", c.intermediate_size),
        ("block_count", c.n_layers),
        ("attention.head_count", c.n_heads),
        ("attention.head_count_kv", c.n_kv_heads),
        ("attention.key_length", c.head_dim),
        ("attention.value_length", c.head_dim),
        ("attention.sliding_window", c.windows[0]),
        ("rope.dimension_count", c.rope.rotary_dims),
    ] {
        writer.u32(&key(name), value as u32);
    }
    writer.f32(&key("attention.layer_norm_rms_epsilon"), c.rms_norm_eps as f32);
    writer.f32(&key("rope.freq_base"), c.rope.theta as f32);
    match c.rope.scaling {
        RopeScaling::None | RopeScaling::Llama3 { .. } => {}
        RopeScaling::Linear { factor } => {
            writer.str(&key("rope.scaling.type"), "linear");
            writer.f32(&key("rope.scaling.factor"), factor as f32);
        }
        RopeScaling::Yarn { factor, original_tokens, .. } => {
            writer.str(&key("rope.scaling.type"), "yarn");
            writer.f32(&key("rope.scaling.factor"), factor as f32);
            writer.u32(&key("rope.scaling.original_context_length"), original_tokens as u32);
        }
    }
    if let Some(bos) = c.bos_id {
        writer.u32("tokenizer.ggml.bos_token_id", bos);
    }
    if let Some(eos) = c.eos_ids.first() {
        writer.u32("tokenizer.ggml.eos_token_id", *eos);
    }
}
