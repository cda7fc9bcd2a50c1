//! Options of every command that loads a model.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use tokenspeed_core::speculation::{BRANCHES_MAX, DRAFT_MAX};

use crate::error::CliError;

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
/// Tokens that must repeat before a guess is made from the text.
const LOOKUP_NGRAM: u32 = 3;
/// Steps in which later prompts may go first.
const OVERTAKEN_STEPS: u32 = 64;

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
    /// With shortest-prefill: after so many steps in which later prompts went first, a prompt is next [default: 64]
    #[arg(long, value_name = "STEPS")]
    pub max_overtaken_steps: Option<u32>,
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
    /// Continuations checked beside each other, at most: 1 is a chain of guesses, more make it a tree [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 + i64::from(BRANCHES_MAX)))]
    pub speculative_eagle_topk: Option<u32>,
    /// With ngram: tokens that must repeat before a guess is made [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    pub speculative_ngram: Option<u32>,
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

    /// Tokens that must repeat before a guess is made from the text.
    pub fn ngram(&self) -> u32 {
        self.speculative_ngram.unwrap_or(LOOKUP_NGRAM)
    }

    /// Continuations beside the first, at most.
    pub fn branches(&self) -> u32 {
        self.speculative_eagle_topk.map_or(0, |most| most - 1)
    }

    /// Steps in which later prompts may go first.
    pub fn overtaken_steps(&self) -> u32 {
        self.max_overtaken_steps.unwrap_or(OVERTAKEN_STEPS)
    }

    /// Refuse an option that another one makes meaningless, whichever command it was given to. What depends on the model is
    /// refused when that is known.
    pub fn refuse_idle(&self) -> Result<(), CliError> {
        use SpeculativeAlgorithm::{DraftModel, Eagle3, Ngram, None};
        let algorithm = self.speculative_algorithm;
        let idle = [
            (
                self.speculative_draft_model.is_some() && !matches!(algorithm, Eagle3 | DraftModel),
                "--speculative-draft-model",
                "a draft model is used by the algorithms eagle3 and draft-model only",
                "give one of them as --speculative-algorithm",
            ),
            (
                self.speculative_num_draft_tokens.is_some() && algorithm == None,
                "--speculative-num-draft-tokens",
                "nothing is guessed without an algorithm",
                "give --speculative-algorithm too",
            ),
            (
                self.speculative_eagle_topk.is_some() && algorithm == None,
                "--speculative-eagle-topk",
                "nothing is guessed without an algorithm",
                "give --speculative-algorithm too",
            ),
            (
                self.speculative_ngram.is_some() && algorithm != Ngram,
                "--speculative-ngram",
                "only the algorithm ngram looks for tokens that repeat",
                "give --speculative-algorithm ngram, or leave it out",
            ),
            (
                self.skip_server_warmup && !matches!(algorithm, Eagle3 | DraftModel),
                "--skip-server-warmup",
                "nothing is measured at start without a draft model",
                "leave it out",
            ),
            (
                self.max_overtaken_steps.is_some() && self.scheduling_policy == SchedulingPolicy::Fcfs,
                "--max-overtaken-steps",
                "first come, first served lets nobody be overtaken",
                "give --scheduling-policy shortest-prefill too, or leave it out",
            ),
            (
                self.prefix_snapshots.is_some() && self.no_prefix_cache,
                "--prefix-snapshots",
                "without a prefix cache no recurrent states are kept",
                "leave it or --no-prefix-cache out",
            ),
        ];
        match idle.into_iter().find(|(is_idle, ..)| *is_idle) {
            Option::None => Ok(()),
            Some((_, option, what, hint)) => Err(CliError::usage(what, option, hint)),
        }
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

    fn parsed(words: &str) -> EngineOptions {
        use clap::Parser as _;
        let line = format!("tokenspeed plan m {words}");
        let cli = crate::cli::Cli::try_parse_from(line.split_whitespace()).expect(words);
        let crate::cli::Command::Plan(args) = cli.command else { panic!("plan") };
        args.engine
    }

    #[test]
    fn an_option_that_another_makes_meaningless_is_refused_by_name() {
        for (words, part) in [
            ("--speculative-draft-model d", "--speculative-algorithm"),
            ("--speculative-draft-model d --speculative-algorithm ngram", "eagle3 and draft-model only"),
            ("--speculative-num-draft-tokens 12", "--speculative-algorithm"),
            ("--speculative-eagle-topk 1", "--speculative-algorithm"),
            ("--speculative-ngram 3", "--speculative-algorithm ngram"),
            (
                "--speculative-ngram 3 --speculative-algorithm eagle3 --speculative-draft-model d",
                "only the algorithm ngram",
            ),
            (
                "--speculative-ngram 3 --speculative-algorithm draft-model --speculative-draft-model d",
                "only the algorithm ngram",
            ),
            ("--skip-server-warmup", "without a draft model"),
            ("--skip-server-warmup --speculative-algorithm ngram", "without a draft model"),
            ("--max-overtaken-steps 64", "--scheduling-policy shortest-prefill"),
            ("--max-overtaken-steps 64 --scheduling-policy fcfs", "--scheduling-policy shortest-prefill"),
            ("--prefix-snapshots 4 --no-prefix-cache", "--no-prefix-cache"),
        ] {
            let error = parsed(words).refuse_idle().expect_err(words);
            let option = words.split_whitespace().next().expect("a word");
            let text = error.render();
            assert_eq!((error.place.as_str(), error.exit_code), (option, 2), "{words}: {text}");
            assert!(text.contains(part) && text.lines().count() == 2, "{words}: {text}");
        }
        for words in [
            "",
            "--no-prefix-cache",
            "--prefix-snapshots 4",
            "--scheduling-policy shortest-prefill --max-overtaken-steps 2",
            "--speculative-algorithm ngram --speculative-ngram 1 --speculative-num-draft-tokens 4 --speculative-eagle-topk 3",
            "--speculative-algorithm eagle3 --speculative-draft-model d --speculative-num-draft-tokens 4 --speculative-eagle-topk 3",
            "--speculative-algorithm draft-model --speculative-draft-model d --skip-server-warmup",
        ] {
            parsed(words).refuse_idle().expect(words);
        }
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
