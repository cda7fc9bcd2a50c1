//! Sampling fields of a request, common to chat and completions.

use serde_json::Value;
use tokenspeed_core::request::SamplingParams;

use super::{
    error::ApiError,
    fields::{Fields, token_id},
    limits,
};
use crate::{
    engine_setup::GenerationDefaults,
    frontend::{OutputOptions, TextFrontend},
    generation::ids::random_u64,
};

/// What reading sampling fields depends on.
#[derive(Clone, Copy)]
pub struct SamplingContext<'a> {
    /// For token ids and bad words.
    pub frontend: &'a dyn TextFrontend,
    /// Ids at or above this do not exist.
    pub vocab_size: u32,
    /// Apply where the request is silent.
    pub defaults: GenerationDefaults,
    /// `--seed`: key of requests without their own; otherwise random.
    pub seed: Option<u64>,
}

impl std::fmt::Debug for SamplingContext<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SamplingContext")
    }
}

/// Read every sampling field except token limits and log-probabilities.
pub fn read(fields: &Fields, context: SamplingContext<'_>) -> Result<(SamplingParams, OutputOptions), ApiError> {
    let defaults = context.defaults;
    let within = |low: f64, high: f64| move |value: f64| (low..=high).contains(&value);
    let penalty = "[-2, 2]";
    let top_k = fields.int("top_k", -1, i64::MAX.into())?.map(|k| match k {
        // The whole vocabulary: nothing is dropped.
        k if k <= 0 || k >= i128::from(context.vocab_size) => 0,
        k => k as u32,
    });
    let params = SamplingParams {
        temperature: fields.f32("temperature", "[0, 2]", within(0.0, 2.0))?.or(defaults.temperature).unwrap_or(1.0),
        top_p: fields.f32("top_p", "(0, 1]", |v| v > 0.0 && v <= 1.0)?.or(defaults.top_p).unwrap_or(1.0),
        top_k: top_k.or(defaults.top_k).unwrap_or(0),
        min_p: fields.f32("min_p", "[0, 1]", within(0.0, 1.0))?.or(defaults.min_p).unwrap_or(0.0),
        repetition_penalty: fields
            .f32("repetition_penalty", "(0, 10]", |v| v > 0.0 && v <= 10.0)?
            .or(defaults.repetition_penalty)
            .unwrap_or(1.0),
        frequency_penalty: fields.f32("frequency_penalty", penalty, within(-2.0, 2.0))?.unwrap_or(0.0),
        presence_penalty: fields.f32("presence_penalty", penalty, within(-2.0, 2.0))?.unwrap_or(0.0),
        logit_bias: logit_bias(fields, context.vocab_size)?,
        seed: seed(fields)?.or(context.seed).unwrap_or_else(random_u64),
        min_tokens: fields.u32("min_tokens", 0, u32::MAX)?.unwrap_or(0),
        stop_token_ids: fields
            .token_ids("stop_token_ids", context.vocab_size, limits::STOP_IDS_MAX)?
            .unwrap_or_default(),
        ignore_eos: fields.bool("ignore_eos")?.unwrap_or(false),
        allowed_token_ids: allowed_token_ids(fields, context.vocab_size)?,
        bad_words: bad_words(fields, context.frontend)?,
        ..SamplingParams::default()
    };
    if params.top_p <= 0.0 {
        // Positive in the request, and too small for the sampler's 32 bits.
        return Err(ApiError::param("top_p", "'top_p' is too small; the smallest useful value is about 1e-38."));
    }
    if params.repetition_penalty <= 0.0 {
        return Err(ApiError::param("repetition_penalty", "'repetition_penalty' is too small."));
    }
    let output = OutputOptions {
        stop: stop(fields)?,
        include_stop: fields.bool("include_stop_str_in_output")?.unwrap_or(false),
        skip_special_tokens: fields.bool("skip_special_tokens")?.unwrap_or(true),
        min_tokens: params.min_tokens,
        parse: None,
    };
    refuse_others(fields)?;
    Ok((params, output))
}

/// Fields of other servers that change the answer and do not exist here. Their neutral values pass.
fn refuse_others(fields: &Fields) -> Result<(), ApiError> {
    let no = |_: &Value| false;
    let off = |value: &Value| *value == Value::Bool(false);
    let one = |value: &Value| value.as_f64() == Some(1.0);
    for name in ["grammar", "json_schema", "regex", "ebnf"] {
        fields.refuse(name, "use 'response_format' or 'structured_outputs'.", no)?;
    }
    for name in ["guided_decoding_backend", "guided_whitespace_pattern"] {
        fields.refuse(name, "there is one way to enforce a form here.", no)?;
    }
    fields.refuse("use_beam_search", "there is no beam search.", off)?;
    fields.refuse("early_stopping", "there is no beam search.", off)?;
    fields.refuse("length_penalty", "there is no beam search.", one)?;
    fields.refuse("typical_p", "use top_p or min_p.", one)?;
    fields.refuse("truncate_prompt_tokens", "shorten the prompt before sending it.", no)?;
    fields.refuse("logits_processors", "use logit_bias.", no)?;
    fields.refuse("return_tokens_as_token_ids", "use logprobs.", off)?;
    fields.refuse("kv_transfer_params", "this server is not disaggregated.", no)?;
    fields.refuse("lora_path", "adapters are not supported.", no)
}

fn seed(fields: &Fields) -> Result<Option<u64>, ApiError> {
    // Negative seeds are common in clients; each is a key of its own.
    Ok(fields.int("seed", i64::MIN.into(), u64::MAX.into())?.map(|seed| seed as u64))
}

fn stop(fields: &Fields) -> Result<Vec<String>, ApiError> {
    let refuse = |message: String| Err(ApiError::param("stop", message));
    let items: Vec<&Value> = match fields.get("stop") {
        None => return Ok(Vec::new()),
        Some(Value::Array(items)) => items.iter().collect(),
        Some(item) => vec![item],
    };
    if items.len() > limits::STOP_COUNT_MAX {
        return refuse(format!("'stop' has {} strings; the limit is {}.", items.len(), limits::STOP_COUNT_MAX));
    }
    let mut stops = Vec::with_capacity(items.len());
    for item in items {
        match item {
            Value::String(text) if text.is_empty() => {
                return refuse("'stop' holds an empty string, which would match everywhere; leave it out.".into());
            }
            Value::String(text) if text.len() > limits::STOP_BYTES_MAX => {
                return refuse(format!("'stop' holds a string longer than {} bytes.", limits::STOP_BYTES_MAX));
            }
            Value::String(text) => stops.push(text.clone()),
            _ => return refuse("'stop' must be a string or a list of strings.".into()),
        }
    }
    Ok(stops)
}

fn logit_bias(fields: &Fields, vocab_size: u32) -> Result<Vec<(u32, f32)>, ApiError> {
    const NAME: &str = "logit_bias";
    let Some(map) = fields.object(NAME)? else { return Ok(Vec::new()) };
    if map.len() > limits::LOGIT_BIAS_MAX {
        let message = format!("'{NAME}' has {} entries; the limit is {}.", map.len(), limits::LOGIT_BIAS_MAX);
        return Err(ApiError::param(NAME, message));
    }
    let mut biases = Vec::with_capacity(map.len());
    for (key, value) in map {
        let digits = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_digit());
        let id = key.parse::<u32>().ok().filter(|id| digits && *id < vocab_size);
        let shown: String = key.chars().take(40).collect();
        let Some(id) = id else {
            let last = vocab_size.saturating_sub(1);
            return Err(ApiError::param(
                NAME,
                format!("'{NAME}' must have token ids from 0 to {last} as keys, not '{shown}'."),
            ));
        };
        match value.as_f64() {
            Some(bias) if (-100.0..=100.0).contains(&bias) => biases.push((id, bias as f32)),
            _ => {
                return Err(ApiError::param(NAME, format!("'{NAME}' of token {id} must be a number in [-100, 100].")));
            }
        }
    }
    // "07" and "7" are different keys and the same token.
    biases.sort_unstable_by_key(|(id, _)| *id);
    if let Some(pair) = biases.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(ApiError::param(NAME, format!("'{NAME}' names token {} twice.", pair[0].0)));
    }
    Ok(biases)
}

fn allowed_token_ids(fields: &Fields, vocab_size: u32) -> Result<Option<Vec<u32>>, ApiError> {
    const NAME: &str = "allowed_token_ids";
    let Some(mut ids) = fields.token_ids(NAME, vocab_size, vocab_size as usize)? else { return Ok(None) };
    if ids.is_empty() {
        return Err(ApiError::param(NAME, format!("'{NAME}' is empty, so nothing could be generated; leave it out.")));
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(Some(ids))
}

fn bad_words(fields: &Fields, frontend: &dyn TextFrontend) -> Result<Vec<Vec<u32>>, ApiError> {
    const NAME: &str = "bad_words";
    let Some(words) = fields.list(NAME)? else { return Ok(Vec::new()) };
    if words.len() > limits::BAD_WORDS_MAX {
        let message = format!("'{NAME}' has {} entries; the limit is {}.", words.len(), limits::BAD_WORDS_MAX);
        return Err(ApiError::param(NAME, message));
    }
    let mut sequences = Vec::new();
    for word in words {
        let word = match word {
            Value::String(word) if word.is_empty() => {
                return Err(ApiError::param(NAME, format!("'{NAME}' holds an empty string.")));
            }
            Value::String(word) if word.len() <= limits::BAD_WORD_BYTES_MAX => word,
            _ => {
                let limit = limits::BAD_WORD_BYTES_MAX;
                return Err(ApiError::param(NAME, format!("'{NAME}' must hold strings of at most {limit} bytes.")));
            }
        };
        let spellings = frontend.word_sequences(word).map_err(|error| ApiError::param(NAME, error.to_string()))?;
        if spellings.is_empty() || spellings.iter().any(Vec::is_empty) {
            let message = format!("'{NAME}' holds {word:?}, which this model's tokenizer cannot spell.");
            return Err(ApiError::param(NAME, message));
        }
        sequences.extend(spellings);
    }
    Ok(sequences)
}

/// A list of ids as a prompt; at least one.
pub fn prompt_ids(name: &str, list: &[Value], vocab_size: u32) -> Result<Vec<u32>, ApiError> {
    if list.is_empty() {
        return Err(ApiError::param(name, format!("'{name}' is empty.")));
    }
    list.iter().map(|value| token_id(name, value, vocab_size)).collect()
}
