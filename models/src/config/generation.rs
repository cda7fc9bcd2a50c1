//! `generation_config.json`: the model maker's sampling defaults and end-of-answer tokens.
//!
//! These are only read here. The rule for their use stands at the server: a request's own value always wins, neutral
//! ones included; the defaults in force are printed at start. The end tokens in force are the union of this file's,
//! the config's (or GGUF's eos, eot and eom) and, added by the text layer that knows the vocabulary, the tokenizer's.

use super::{
    ModelConfig,
    error::ConfigError,
    fields::{Fields, read_object, show},
};
use crate::weights::quoted;
use std::path::Path;

/// Sampling defaults; `None` where the file is silent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationDefaults {
    /// 0 or more.
    pub temperature: Option<f64>,
    /// In (0, 1].
    pub top_p: Option<f64>,
    /// 0 = off.
    pub top_k: Option<u64>,
    /// In [0, 1].
    pub min_p: Option<f64>,
    /// Above 0; 1 = off.
    pub repetition_penalty: Option<f64>,
    /// `false` asks for greedy decoding.
    pub do_sample: Option<bool>,
    /// End tokens: this file's and the config's, sorted.
    pub eos_ids: Vec<u32>,
    /// Fields that would change sampling in other engines and are not done here, with their values.
    pub ignored_fields: Vec<String>,
}

/// Read here, or bookkeeping without an effect.
const KNOWN: [&str; 15] = [
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "do_sample",
    "eos_token_id",
    "bos_token_id",
    "pad_token_id",
    "decoder_start_token_id",
    "max_length",
    "transformers_version",
    "_from_model_config",
    "use_cache",
    "cache_implementation",
];

impl GenerationDefaults {
    /// What holds without a file.
    pub fn of(config: &ModelConfig) -> Self {
        Self { eos_ids: config.eos_ids().to_vec(), ..Self::default() }
    }

    /// Read `file`; values out of range are refused by name.
    pub fn read(file: &Path, config: &ModelConfig) -> Result<Self, ConfigError> {
        let map = read_object(file)?;
        let f = Fields::new(file, &map);
        let range = |field: &str, ok: fn(f64) -> bool, why: &str| match f.float(field)? {
            Some(v) if !ok(v) => Err(f.invalid(field, v, why)),
            other => Ok(other),
        };
        let mut eos_ids = f.ids("eos_token_id")?;
        eos_ids.extend(config.eos_ids());
        eos_ids.sort_unstable();
        eos_ids.dedup();
        let ignored = f.keys().filter(|key| !KNOWN.contains(key));
        Ok(Self {
            temperature: range("temperature", |v| v >= 0.0, "it must be 0 or more")?,
            top_p: range("top_p", |v| v > 0.0 && v <= 1.0, "it must be above 0 and at most 1")?,
            top_k: f.uint("top_k")?,
            min_p: range("min_p", |v| (0.0..=1.0).contains(&v), "it must be between 0 and 1")?,
            repetition_penalty: range("repetition_penalty", |v| v > 0.0, "it must be above 0")?,
            do_sample: f.bool("do_sample")?,
            eos_ids,
            ignored_fields: ignored.filter_map(|k| f.get(k).map(|v| format!("{} = {}", quoted(k), show(v)))).collect(),
        })
    }
}
