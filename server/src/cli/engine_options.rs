//! Options of every command that loads a model.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use tokenspeed_core::speculation::{BRANCHES_MAX, DRAFT_MAX};

/// How numbers are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// The numerical ground truth: sequential sums, no quantised activations, slow
    Exact,
    /// Vectorised; activations stay in 32-bit floats
    #[default]
    Fast,
    /// Like fast, with activations quantised per block
    FastInt8,
}

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum KvCacheDtype {
    /// What the backend prefers
    #[default]
    Auto,
    /// 32-bit float
    F32,
    /// 16-bit float
    F16,
    /// bfloat16
    Bf16,
    /// 8-bit float, e4m3
    #[value(name = "fp8_e4m3")]
    Fp8E4m3,
}

/// Type that stored weights are computed in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Dtype {
    /// Weights stay in their stored format
    #[default]
    Auto,
    /// 32-bit float
    F32,
    /// 16-bit float
    F16,
    /// bfloat16
    Bf16,
}

/// Where guesses of the next tokens come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum SpeculativeAlgorithm {
    /// No guesses: one token per sequence and step
    #[default]
    None,
    /// What followed the last tokens when the text had them before (prompt lookup)
    Ngram,
    /// An EAGLE3 draft, which reads the model's hidden states
    #[value(alias = "EAGLE3")]
    Eagle3,
    /// A small model of the Llama family with the same tokenizer
    #[value(alias = "draft_model")]
    DraftModel,
}

/// How tool calls are recognised in answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ToolCallParser {
    /// From the chat format
    #[default]
    Auto,
    /// `<tool_call>` with JSON inside
    Hermes,
    /// Tool-call sections of Kimi K2 and Kimi Linear
    #[value(alias = "kimi_k2")]
    KimiK2,
    /// The tools channel of Kimi K3
    #[value(alias = "kimi_k3")]
    KimiK3,
    /// Not at all
    None,
}

/// How reasoning is told from the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ReasoningParser {
    /// From the chat format
    #[default]
    Auto,
    /// `<think>` … `</think>`
    Think,
    /// The think channel of Kimi K3
    #[value(alias = "kimi_k3")]
    KimiK3,
    /// Not at all
    None,
}

/// Where default sampling values come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum GenerationConfig {
    /// The model's generation_config.json, where there is one
    #[default]
    Auto,
    /// The API's own defaults
    None,
}

/// Whose prompt is computed first, within a priority class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum SchedulingPolicy {
    /// First come, first served
    #[default]
    Fcfs,
    /// Fewest tokens that the prefix cache does not have; see --max-overtaken-steps
    ShortestPrefill,
}

/// Guesses per sequence and step, where the user is silent: from the text, which cost nothing to make, and by a model.
const LOOKUP_TOKENS: u32 = 12;
const MODEL_TOKENS: u32 = 3;

/// What to load and how.
#[derive(Clone, Debug, Args)]
pub struct EngineOptions {
    /// A folder, a .gguf file, a pulled name, or dummy:CONFIG.json
    pub model: String,
    /// Backend name, or path of a plugin
    #[arg(long, default_value = "reference-cpu", value_name = "NAME|PATH")]
    pub backend: String,
    /// Option for the backend; an unknown one is refused by it
    #[arg(long = "backend-option", value_name = "K=V", value_parser = key_value)]
    pub backend_options: Vec<(String, String)>,
    /// How numbers are computed
    #[arg(long, value_enum, default_value_t)]
    pub mode: Mode,
    /// Type to compute weights in
    #[arg(long, value_enum, default_value_t)]
    pub dtype: Dtype,
    /// Type to store keys and values in
    #[arg(long, value_enum, default_value_t)]
    pub kv_cache_dtype: KvCacheDtype,
    /// Epsilon of a Kimi model's latent normalisations [default: 1e-6]; some serving engines use 1e-5
    #[arg(long, value_name = "EPS", value_parser = epsilon)]
    pub mla_latent_eps: Option<f64>,
    /// Prompt plus answer, in tokens [default: what the model was made for]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_model_len: Option<u32>,
    /// Sequences running at once
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_num_seqs: u32,
    /// Most prompt tokens in one step
    #[arg(long, default_value_t = 8192, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub chunked_prefill_size: u32,
    /// Time one step should take [default: twice the measured decode step]
    #[arg(long, value_name = "MS", value_parser = positive_ms)]
    pub step_time_target_ms: Option<f64>,
    /// Plan a step only when the one before has ended, not while it runs; changes no answer
    #[arg(long)]
    pub disable_overlap_schedule: bool,
    /// With a draft model: do not measure at start what its guesses cost, which takes three seconds at most
    #[arg(long)]
    pub skip_server_warmup: bool,
    /// Sample on the host even where the device could; changes no answer
    #[arg(long)]
    pub host_sampling: bool,
    /// Whose prompt is computed first, within a priority class
    #[arg(long, alias = "schedule-policy", value_enum, default_value_t)]
    pub scheduling_policy: SchedulingPolicy,
    /// With shortest-prefill: after so many steps in which later prompts went first, a prompt is next
    #[arg(long, default_value_t = 64, value_name = "STEPS")]
    pub max_overtaken_steps: u32,
    /// Keep a prompt waiting this long for others to share its forward pass while somebody decodes; 0 = never
    #[arg(long, default_value_t = 0, value_name = "MS")]
    pub prefill_coalescing_ms: u32,
    /// Answer 429 with Retry-After to requests that would start later than this, predicted from queued tokens and
    /// measured speed. The default is half of what common clients wait for an answer; 0 = queue them all
    #[arg(long, default_value_t = 300_000, value_name = "MS")]
    pub max_queue_delay_ms: u32,
    /// Memory for the key/value cache, like 2GiB or 500MB [default: a share of what is free]
    #[arg(long = "memory", value_name = "BYTES", value_parser = bytes)]
    pub memory_bytes: Option<u64>,
    /// Threads for computing [default: physical cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub threads: Option<u32>,
    /// Seed of requests that bring none, and of dummy weights [default: random]
    #[arg(long)]
    pub seed: Option<u64>,
    /// A .jinja file instead of the model's own chat template
    #[arg(long, value_name = "FILE")]
    pub chat_template: Option<PathBuf>,
    /// How tool calls are recognised
    #[arg(long, value_enum, default_value_t)]
    pub tool_call_parser: ToolCallParser,
    /// How reasoning is recognised
    #[arg(long, value_enum, default_value_t)]
    pub reasoning_parser: ReasoningParser,
    /// Where default sampling values come from
    #[arg(long, value_enum, default_value_t)]
    pub generation_config: GenerationConfig,
    /// Guess tokens and check several per step; answers stay the same, and widths follow what is accepted
    #[arg(long, value_enum, default_value_t)]
    pub speculative_algorithm: SpeculativeAlgorithm,
    /// The draft of eagle3 and draft-model: a folder, a .gguf file (draft-model), or a pulled name
    #[arg(long, alias = "speculative-draft-model-path", value_name = "MODEL")]
    pub speculative_draft_model: Option<String>,
    /// Guesses per sequence and step, at most [default: 12 from the text, 3 by a model]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(DRAFT_MAX)))]
    pub speculative_num_draft_tokens: Option<u32>,
    /// Continuations checked beside each other, at most: 1 is a chain of guesses, more make it a tree
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 + i64::from(BRANCHES_MAX)))]
    pub speculative_eagle_topk: u32,
    /// Tokens that must repeat before a guess is made
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    pub speculative_ngram: u32,
    /// Recurrent states kept at most for the prefix cache, if memory allows [default: four per sequence]
    #[arg(long, value_name = "N")]
    pub prefix_snapshots: Option<u32>,
    /// Host memory for cached pages and states that leave the device, like 8GiB [default: none]
    #[arg(long, value_name = "BYTES", value_parser = bytes, conflicts_with = "no_prefix_cache")]
    pub host_cache_bytes: Option<u64>,
    /// Compute every prompt from its first token
    #[arg(long)]
    pub no_prefix_cache: bool,
    /// Block events kept for readers; no option of its own, see `serve --kv-events-config`.
    #[arg(skip)]
    pub cache_events: u32,
}

impl EngineOptions {
    /// Guesses per sequence and step, at most.
    pub fn draft_tokens(&self) -> u32 {
        self.speculative_num_draft_tokens.unwrap_or(match self.speculative_algorithm {
            SpeculativeAlgorithm::None | SpeculativeAlgorithm::Ngram => LOOKUP_TOKENS,
            SpeculativeAlgorithm::Eagle3 | SpeculativeAlgorithm::DraftModel => MODEL_TOKENS,
        })
    }
}

fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("must look like key=value".into()),
    }
}

fn epsilon(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|e: &f64| (0.0..1.0).contains(e))
        .ok_or_else(|| "must be a number from 0 to below 1".into())
}

fn positive_ms(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|ms: &f64| ms.is_finite() && *ms > 0.0).ok_or_else(|| "must be a number above 0".into())
}

/// `1500`, `2GiB`, `1.5G`, `500MB`: K, M, G, T are powers of 1000 with B, else of 1024.
pub fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim().to_ascii_lowercase();
    let (power, base) = match unit.as_str() {
        "" | "b" => (0, 1024.0_f64),
        "k" | "kib" => (1, 1024.0),
        "m" | "mib" => (2, 1024.0),
        "g" | "gib" => (3, 1024.0),
        "t" | "tib" => (4, 1024.0),
        "kb" => (1, 1000.0),
        "mb" => (2, 1000.0),
        "gb" => (3, 1000.0),
        "tb" => (4, 1000.0),
        _ => return Err(format!("unknown unit '{unit}'; use K, M, G or T")),
    };
    let number: f64 = number.parse().map_err(|_| "must be a number with an optional unit, like 2GiB".to_owned())?;
    let value = number * base.powi(power);
    if value >= 1.0 && value <= 2f64.powi(60) { Ok(value as u64) } else { Err("is out of range".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parsers_have_the_names_that_other_servers_give_them() {
        for name in ["kimi-k3", "kimi_k3"] {
            assert_eq!(ToolCallParser::from_str(name, false), Ok(ToolCallParser::KimiK3));
            assert_eq!(ReasoningParser::from_str(name, false), Ok(ReasoningParser::KimiK3));
        }
        assert_eq!(ToolCallParser::from_str("kimi_k2", false), Ok(ToolCallParser::KimiK2));
    }

    #[test]
    fn memory_units() {
        assert_eq!(bytes("2GiB"), Ok(2 << 30));
        assert_eq!(bytes("500MB"), Ok(500_000_000));
        assert_eq!(bytes("1.5g"), Ok(3 << 29));
        assert_eq!(bytes("4096"), Ok(4096));
        for wrong in ["", "GiB", "-1", "1x", "1e999", "0", "nan"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }
}
