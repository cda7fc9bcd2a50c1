//! `POST /v1/completions`: the body, understood.

use serde_json::{Map, Value};

use super::{
    error::ApiError,
    fields::Fields,
    limits,
    request::{self, GenerationRequest, Prompt, RequestContext, Shape},
    sampling, structure,
};

/// Tokens generated when the caller names no limit, as in the OpenAI API.
const MAX_TOKENS_DEFAULT: u32 = 16;

/// Validate and encode.
pub fn read(body: Map<String, Value>, context: RequestContext<'_>) -> Result<GenerationRequest, ApiError> {
    let fields = Fields::new(body);
    let common = request::common(&fields, context)?;
    let (mut params, output) = sampling::read(&fields, context.sampling())?;
    let echo = fields.bool("echo")?.unwrap_or(false);
    let asked = fields.u32("max_tokens", 0, u32::MAX)?;
    if asked == Some(0) && !echo {
        return Err(ApiError::param("max_tokens", "'max_tokens' must be at least 1, or 0 together with 'echo': true."));
    }
    let logprobs = fields.u32("logprobs", 0, limits::TOP_LOGPROBS_MAX)?;
    let add_special = fields.bool("add_special_tokens")?.unwrap_or(true);
    let wish = structure::of_text(structure::form(&fields, structure::response_format(&fields)?)?);
    structure::check_ending(wish.as_ref(), params.ignore_eos)?;
    refuse_others(&fields)?;
    let prompt = fields.get("prompt").cloned();
    fields.finish()?;

    let mut prompts = read_prompts(prompt.as_ref(), add_special, context)?;
    let choices = prompts.len() * common.n as usize;
    if choices > limits::CHOICES_MAX {
        let message = format!(
            "{} prompts times n={} are {choices} choices; the limit is {}.",
            prompts.len(),
            common.n,
            limits::CHOICES_MAX
        );
        return Err(ApiError::param("prompt", message));
    }
    for prompt in &mut prompts {
        let default = Some(MAX_TOKENS_DEFAULT.max(params.min_tokens));
        prompt.max_tokens =
            request::token_budget("prompt", prompt.ids.len(), asked, default, context.limits.max_model_len)?;
        request::check_min_tokens(params.min_tokens, prompt.max_tokens)?;
        if !echo {
            prompt.echo = None;
        } else if prompt.echo.is_none() {
            prompt.echo = Some(context.frontend.decode(&prompt.ids, output.skip_special_tokens));
        }
    }
    params.logprobs = logprobs;
    params.prompt_logprobs = match (common.prompt_logprobs, logprobs.filter(|_| echo)) {
        (Some(a), Some(b)) => Some(a.max(b)),
        (a, b) => a.or(b),
    };
    Ok(GenerationRequest {
        shape: Shape::Completion,
        model: common.model,
        prompts,
        n: common.n,
        sampling: params,
        output,
        stream: common.stream,
        include_usage: common.include_usage,
        logprobs,
        prompt_logprobs: common.prompt_logprobs.is_some(),
        token_ids: common.token_ids,
        prompt_only: asked == Some(0),
        single_tool_call: false,
        priority: common.priority,
        cache_salt: common.cache_salt,
        request_id: common.request_id,
        wish,
        constraint: None,
    })
}

fn refuse_others(fields: &Fields) -> Result<(), ApiError> {
    let no = |_: &Value| false;
    fields.refuse(
        "suffix",
        "there is no fill-in-the-middle; send the whole prompt in the model's own format.",
        |value| value.as_str() == Some(""),
    )?;
    for name in ["messages", "tools", "tool_choice", "chat_template_kwargs", "add_generation_prompt"] {
        fields.refuse(name, "use /v1/chat/completions.", no)?;
    }
    fields.refuse("max_completion_tokens", "use 'max_tokens'.", no)?;
    fields.refuse("top_logprobs", "use 'logprobs' with a number.", no)?;
    fields.refuse("prompt_embeds", "prompts are text or token ids.", no)
}

/// A string, a list of strings, a list of ids, or a list of lists of ids. Text prompts keep their text in `echo`.
fn read_prompts(
    prompt: Option<&Value>,
    add_special: bool,
    context: RequestContext<'_>,
) -> Result<Vec<Prompt>, ApiError> {
    const NAME: &str = "prompt";
    let wrong = |message: &str| ApiError::param(NAME, format!("'{NAME}' {message}"));
    let bad = |message: &str| Err(wrong(message));
    let too_many = |count: usize| {
        let limit = limits::CHOICES_MAX;
        Err(ApiError::param(NAME, format!("'{NAME}' has {count} prompts; the limit is {limit}.")))
    };
    let encode = |text: &str| -> Result<Prompt, ApiError> {
        let ids = context.frontend.encode(text, add_special)?;
        if ids.is_empty() {
            return Err(ApiError::param(NAME, format!("'{NAME}' is empty; it needs at least one token.")));
        }
        Ok(Prompt { ids, echo: Some(text.to_owned()), ..Prompt::default() })
    };
    let ids = |list: &[Value]| -> Result<Prompt, ApiError> {
        Ok(Prompt { ids: sampling::prompt_ids(NAME, list, context.limits.vocab_size)?, ..Prompt::default() })
    };
    match prompt {
        None => bad("is missing."),
        Some(Value::String(text)) => Ok(vec![encode(text)?]),
        Some(Value::Array(list)) => match list.first() {
            None => bad("is an empty list."),
            Some(Value::Number(_)) => Ok(vec![ids(list)?]),
            Some(Value::String(_) | Value::Array(_)) if list.len() > limits::CHOICES_MAX => too_many(list.len()),
            Some(Value::String(_)) => list
                .iter()
                .map(|item| match item {
                    Value::String(text) => encode(text),
                    _ => Err(wrong("mixes text with something else; use one form for all.")),
                })
                .collect::<Result<_, _>>(),
            Some(Value::Array(_)) => list
                .iter()
                .map(|item| match item {
                    Value::Array(item) => ids(item),
                    _ => Err(wrong("mixes lists of ids with something else; use one form for all.")),
                })
                .collect::<Result<_, _>>(),
            Some(_) => bad("must hold strings, token ids or lists of token ids."),
        },
        Some(_) => bad("must be a string, a list of strings, a list of token ids or a list of such lists."),
    }
}
