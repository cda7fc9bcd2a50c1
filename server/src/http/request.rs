//! A generation request, understood: what the chat and the completions routes both turn bodies into.

use serde_json::Value;
use tokenspeed_core::{
    client::Limits,
    grammar::Constraint,
    request::{Request, SamplingParams},
};

use super::{error::ApiError, fields::Fields, limits};
use crate::{
    engine_setup::GenerationDefaults,
    frontend::{OutputOptions, TextFrontend},
    grammar::Wish,
};

/// What validation may look at.
#[derive(Clone, Copy)]
pub struct RequestContext<'a> {
    /// Text rules.
    pub frontend: &'a dyn TextFrontend,
    /// Engine limits.
    pub limits: &'a Limits,
    /// From the model's files.
    pub defaults: GenerationDefaults,
    /// `--seed`.
    pub seed: Option<u64>,
    /// Names this server answers to, at least one.
    pub model_names: &'a [String],
}

impl std::fmt::Debug for RequestContext<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RequestContext({:?})", self.model_names)
    }
}

impl<'a> RequestContext<'a> {
    /// The part that sampling fields need.
    pub fn sampling(&self) -> super::sampling::SamplingContext<'a> {
        super::sampling::SamplingContext {
            frontend: self.frontend,
            vocab_size: self.limits.vocab_size,
            defaults: self.defaults,
            seed: self.seed,
        }
    }
}

/// Which response shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// `chat.completion` and `chat.completion.chunk`.
    Chat,
    /// `text_completion`.
    Completion,
}

/// One prompt.
#[derive(Clone, Debug, Default)]
pub struct Prompt {
    /// Token ids, at least one.
    pub ids: Vec<u32>,
    /// See [`crate::frontend::EncodedPrompt::boundaries`].
    pub boundaries: Vec<u32>,
    /// The text to return first (`echo`).
    pub echo: Option<String>,
    /// The answer starts inside a reasoning block.
    pub in_reasoning: bool,
    /// At most this many tokens.
    pub max_tokens: u32,
}

/// Everything needed to answer.
#[derive(Clone, Debug)]
pub struct GenerationRequest {
    /// Response shape.
    pub shape: Shape,
    /// Model name as the caller wrote it.
    pub model: String,
    /// Prompts in order.
    pub prompts: Vec<Prompt>,
    /// Choices per prompt; choice index = prompt index × n + k.
    pub n: u32,
    /// Sampling of all choices, but for `sample_index` and `max_tokens`.
    pub sampling: SamplingParams,
    /// Text rules of all choices, but for `in_reasoning`.
    pub output: OutputOptions,
    /// Server-sent events.
    pub stream: bool,
    /// A last chunk with usage.
    pub include_usage: bool,
    /// Report the chosen token and this many likely ones.
    pub logprobs: Option<u32>,
    /// Return the prompt's report as `prompt_logprobs`.
    pub prompt_logprobs: bool,
    /// Return the ids of prompts and answers.
    pub token_ids: bool,
    /// `max_tokens: 0` with `echo`.
    pub prompt_only: bool,
    /// `parallel_tool_calls: false`.
    pub single_tool_call: bool,
    /// Scheduling class.
    pub priority: i32,
    /// Prefix cache namespace.
    pub cache_salt: Option<String>,
    /// `request_id` of the body, used like the `X-Request-Id` header.
    pub request_id: Option<String>,
    /// What the answer must look like, to be compiled.
    pub wish: Option<Wish>,
    /// The same, compiled.
    pub constraint: Option<Box<dyn Constraint>>,
}

impl GenerationRequest {
    /// What the engine gets for choice `k` of prompt `index`.
    pub fn engine_request(&self, index: usize, k: u32) -> Request {
        let prompt = &self.prompts[index];
        let sampling =
            SamplingParams { sample_index: k, max_tokens: prompt.max_tokens.max(1), ..self.sampling.clone() };
        let (priority, cache_salt) = (self.priority, self.cache_salt.clone());
        // With nothing to generate there is nothing to constrain.
        let constraint = self.constraint.clone().filter(|_| !self.prompt_only);
        let (boundaries, prompt) = (prompt.boundaries.clone(), prompt.ids.clone());
        Request { prompt, sampling, priority, cache_salt, boundaries, constraint }
    }
}

/// Fields both routes have, besides sampling.
#[derive(Clone, Debug)]
pub struct Common {
    /// See [`GenerationRequest::model`].
    pub model: String,
    /// See [`GenerationRequest::n`].
    pub n: u32,
    /// See [`GenerationRequest::stream`].
    pub stream: bool,
    /// See [`GenerationRequest::include_usage`].
    pub include_usage: bool,
    /// See [`GenerationRequest::priority`].
    pub priority: i32,
    /// See [`GenerationRequest::cache_salt`].
    pub cache_salt: Option<String>,
    /// See [`GenerationRequest::request_id`].
    pub request_id: Option<String>,
    /// Number of likely prompt tokens to report.
    pub prompt_logprobs: Option<u32>,
    /// See [`GenerationRequest::token_ids`].
    pub token_ids: bool,
}

/// Read the fields both routes have.
pub fn common(fields: &Fields, context: RequestContext<'_>) -> Result<Common, ApiError> {
    let model = model(fields, context.model_names)?;
    let n = fields.u32("n", 1, limits::N_MAX)?.unwrap_or(1);
    if let Some(best_of) = fields.u32("best_of", 1, limits::N_MAX)?
        && best_of != n
    {
        let message = format!("'best_of' must equal 'n' ({n}): answers are not ranked here.");
        return Err(ApiError::unsupported("best_of", message));
    }
    let stream = fields.bool("stream")?.unwrap_or(false);
    let include_usage = stream_options(fields, stream)?;
    let cache_salt = fields.string("cache_salt")?.map(str::to_owned);
    if cache_salt.as_ref().is_some_and(|salt| salt.len() > limits::CACHE_SALT_BYTES_MAX) {
        let message = format!("'cache_salt' is longer than {} bytes.", limits::CACHE_SALT_BYTES_MAX);
        return Err(ApiError::param("cache_salt", message));
    }
    let prompt_logprobs = fields.u32("prompt_logprobs", 0, limits::TOP_LOGPROBS_MAX)?;
    if prompt_logprobs.is_some() && stream {
        return Err(ApiError::unsupported("prompt_logprobs", "'prompt_logprobs' cannot be streamed."));
    }
    let priority = fields.int("priority", i32::MIN.into(), i32::MAX.into())?.unwrap_or(0) as i32;
    let token_ids = fields.bool("return_token_ids")?.unwrap_or(false);
    let request_id = fields.string("request_id")?.map(str::to_owned);
    // Bookkeeping of the OpenAI platform: valid there, without effect on an answer.
    fields.accept(&["user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"]);
    Ok(Common { model, n, stream, include_usage, priority, cache_salt, request_id, prompt_logprobs, token_ids })
}

/// The requested model; absent means the first name served.
pub fn model(fields: &Fields, served: &[String]) -> Result<String, ApiError> {
    let first = served.first().expect("a server has at least one model name");
    let name = fields.string("model")?.unwrap_or(first);
    if served.iter().any(|known| known == name) {
        Ok(name.to_owned())
    } else {
        Err(ApiError::unknown_model(name, served))
    }
}

fn stream_options(fields: &Fields, stream: bool) -> Result<bool, ApiError> {
    const NAME: &str = "stream_options";
    let Some(options) = fields.object(NAME)? else { return Ok(false) };
    if !stream {
        return Err(ApiError::param(NAME, format!("'{NAME}' is only allowed with 'stream': true.")));
    }
    let mut include_usage = false;
    for (key, value) in options {
        match (key.as_str(), value) {
            (_, Value::Null) => {}
            ("include_usage", Value::Bool(value)) => include_usage = *value,
            // Random padding against traffic analysis; there is none here.
            ("include_obfuscation", Value::Bool(false)) => {}
            ("include_usage", _) => {
                return Err(ApiError::param(format!("{NAME}.{key}"), format!("'{NAME}.{key}' must be true or false.")));
            }
            _ => {
                let key: String = key.chars().take(60).collect();
                let message = format!("'{NAME}.{key}' is not supported.");
                return Err(ApiError::unsupported(format!("{NAME}.{key}"), message));
            }
        }
    }
    Ok(include_usage)
}

/// Settle how many tokens may be generated after `prompt_tokens`, or say why nothing fits.
///
/// `asked` is the caller's number, `default` applies without one and shrinks to what fits.
pub fn token_budget(
    param: &str,
    prompt_tokens: usize,
    asked: Option<u32>,
    default: Option<u32>,
    max_model_len: u32,
) -> Result<u32, ApiError> {
    let context = u64::from(max_model_len);
    let prompt = prompt_tokens as u64;
    let room = context.saturating_sub(prompt);
    // Zero tokens wanted (scoring a prompt) still takes one engine step, whose token is discarded.
    let wanted = asked.map_or(1, |asked| u64::from(asked.max(1)));
    if wanted <= room {
        return Ok(asked.unwrap_or_else(|| room.min(default.map_or(u64::MAX, u64::from)) as u32));
    }
    let message = match asked {
        Some(asked) if prompt < context => format!(
            "This model's maximum context length is {context} tokens, but {} were requested ({prompt} in the prompt, \
             {asked} for the answer). Shorten the prompt or ask for fewer tokens.",
            prompt + u64::from(asked)
        ),
        _ => format!(
            "This model's maximum context length is {context} tokens, but the prompt has {prompt} and needs room for an \
             answer. Shorten the prompt."
        ),
    };
    Err(ApiError::context_length(param, message))
}

/// `min_tokens` must not exceed what may be generated.
pub fn check_min_tokens(min_tokens: u32, max_tokens: u32) -> Result<(), ApiError> {
    if min_tokens > max_tokens {
        let message = format!("'min_tokens' ({min_tokens}) is more than may be generated ({max_tokens}).");
        return Err(ApiError::param("min_tokens", message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompt_longer_than_context_has_true_numbers() {
        let error = token_budget("prompt", 300, None, Some(16), 256).expect_err("too long");
        assert_eq!(error.code, Some("context_length_exceeded"));
        assert!(error.message.contains("256") && error.message.contains("300"), "{}", error.message);
        let error = token_budget("prompt", 8, Some(255), None, 256).expect_err("too long");
        assert!(error.message.contains("263") && error.message.contains("255"), "{}", error.message);
        assert!(token_budget("prompt", 256, None, None, 256).is_err());
        assert!(token_budget("prompt", 10, Some(u32::MAX), None, 256).is_err());
    }

    #[test]
    fn defaults_shrink_to_the_room() {
        assert_eq!(token_budget("prompt", 8, Some(248), None, 256), Ok(248));
        assert_eq!(token_budget("prompt", 250, None, Some(16), 256), Ok(6));
        assert_eq!(token_budget("messages", 6, None, None, 256), Ok(250));
        assert_eq!(token_budget("prompt", 6, Some(0), None, 256), Ok(0));
    }
}
