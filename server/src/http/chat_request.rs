//! `POST /v1/chat/completions`: the body, understood.

use serde_json::{Map, Value};

use super::{
    chat_settings,
    error::ApiError,
    fields::Fields,
    limits, messages,
    request::{self, GenerationRequest, Prompt, RequestContext, Shape},
    sampling, structure,
};
use crate::{
    frontend::{ChatInput, EncodedPrompt, ParseOptions, ToolChoice},
    grammar::{Answer, Wish},
};

/// Validate, render, encode.
pub fn read(body: Map<String, Value>, context: RequestContext<'_>) -> Result<GenerationRequest, ApiError> {
    let fields = Fields::new(body);
    let common = request::common(&fields, context)?;
    let (mut params, mut output) = sampling::read(&fields, context.sampling())?;
    let asked = max_tokens(&fields)?;
    let logprobs = logprobs(&fields)?;
    let Conversation { input, callable, single_tool_call, wish } = chat_input(&fields, context)?;
    structure::check_ending(wish.as_ref(), params.ignore_eos)?;
    refuse_others(&fields)?;
    fields.finish()?;

    let encoded = context.frontend.encode_chat(&input)?;
    if encoded.ids.is_empty() {
        return Err(ApiError::param("messages", "'messages' render to an empty prompt."));
    }
    let max_tokens = request::token_budget("messages", encoded.ids.len(), asked, None, context.limits.max_model_len)?;
    request::check_min_tokens(params.min_tokens, max_tokens)?;
    params.logprobs = logprobs;
    params.prompt_logprobs = common.prompt_logprobs;
    output.parse = Some(ParseOptions { tools: callable, in_reasoning: false });
    let EncodedPrompt { ids, boundaries, in_reasoning } = encoded;
    let prompt = Prompt { ids, boundaries, echo: None, in_reasoning, max_tokens };
    Ok(GenerationRequest {
        shape: Shape::Chat,
        model: common.model,
        prompts: vec![prompt],
        n: common.n,
        sampling: params,
        output,
        stream: common.stream,
        include_usage: common.include_usage,
        logprobs,
        prompt_logprobs: common.prompt_logprobs.is_some(),
        token_ids: common.token_ids,
        prompt_only: false,
        single_tool_call,
        priority: common.priority,
        cache_salt: common.cache_salt,
        request_id: common.request_id,
        wish,
        constraint: None,
    })
}

/// What a request says, apart from sampling.
#[derive(Clone, Debug)]
pub struct Conversation {
    /// What to render.
    pub input: ChatInput,
    /// Tools that may be called in the answer.
    pub callable: Vec<Value>,
    /// `parallel_tool_calls: false`.
    pub single_tool_call: bool,
    /// What the answer must look like.
    pub wish: Option<Wish>,
}

/// The conversation part, which `/tokenize` shares.
pub fn chat_input(fields: &Fields, context: RequestContext<'_>) -> Result<Conversation, ApiError> {
    let Some(list) = fields.list("messages")? else {
        return Err(ApiError::param("messages", "'messages' is missing; it must be a list of messages."));
    };
    if !context.frontend.has_chat_template() {
        let message = "This model has no chat template. Use /v1/completions, or start the server with --chat-template.";
        return Err(ApiError::unsupported("messages", message));
    }
    let has_words = context.frontend.has_setting_words();
    let messages = messages::messages(list, has_words)?;
    let mut tools = messages::tools("tools", fields.list("tools")?.unwrap_or(&[]))?;
    let later = messages.iter().filter_map(|message| message.get("tools")?.as_array()).flatten();
    let mut callable: Vec<Value> = tools.iter().chain(later).cloned().collect();
    let choice = messages::tool_choice(fields.get("tool_choice"), &callable)?;
    if choice == ToolChoice::None {
        // A format with words for it says so, and keeps the tools where they were in earlier turns.
        callable.clear();
        if !has_words {
            tools.clear();
        }
    }
    if !callable.is_empty() && !context.frontend.parsers().tools {
        let message = "'tools' need a tool-call parser; start the server with --tool-call-parser.";
        return Err(ApiError::unsupported("tools", message));
    }
    let parallel = fields.bool("parallel_tool_calls")?.unwrap_or(true);
    let add_generation_prompt = fields.bool("add_generation_prompt")?.unwrap_or(true);
    let off = |value: &Value| *value == Value::Bool(false);
    fields.refuse("continue_final_message", "render the prompt yourself and use /v1/completions.", off)?;
    let template_kwargs = fields.object("chat_template_kwargs")?.cloned().unwrap_or_default();
    let reserved = ["messages", "tools", "add_generation_prompt", "bos_token", "eos_token"];
    if let Some(key) = template_kwargs.keys().find(|key| reserved.contains(&key.as_str())) {
        let message = format!("'chat_template_kwargs' must not set '{key}'; it has a field of its own.");
        return Err(ApiError::param("chat_template_kwargs", message));
    }
    let format = structure::response_format(fields)?;
    let settings = chat_settings::read(fields, choice.clone(), structure::in_words(format.as_ref()), has_words)?;
    let single_tool_call = !callable.is_empty() && !parallel;
    let form = structure::form(fields, format)?;
    let wish = match (form, &choice) {
        (form, ToolChoice::Auto | ToolChoice::None) if callable.is_empty() => {
            form.map(|(form, param)| Wish { answer: Answer::Text(form), param, is_chat: true })
        }
        (None, ToolChoice::Auto | ToolChoice::None) => None,
        (Some((form, param)), ToolChoice::Auto | ToolChoice::None) => {
            let answer = Answer::Either(form, structure::calls(&callable, None, parallel));
            Some(Wish { answer, param, is_chat: true })
        }
        // A call is called for: the form is for an answer without one.
        (_, ToolChoice::Required) => {
            let answer = Answer::Calls(structure::calls(&callable, None, parallel));
            Some(Wish { answer, param: "tool_choice".into(), is_chat: true })
        }
        (_, ToolChoice::Named(name)) => {
            let answer = Answer::Calls(structure::calls(&callable, Some(name), false));
            Some(Wish { answer, param: "tool_choice".into(), is_chat: true })
        }
    };
    let input = ChatInput { messages, tools, add_generation_prompt, template_kwargs, settings };
    Ok(Conversation { input, callable, single_tool_call, wish })
}

fn max_tokens(fields: &Fields) -> Result<Option<u32>, ApiError> {
    let old = fields.u32("max_tokens", 1, u32::MAX)?;
    let new = fields.u32("max_completion_tokens", 1, u32::MAX)?;
    match (old, new) {
        (Some(old), Some(new)) if old != new => {
            let message = format!("'max_tokens' ({old}) and 'max_completion_tokens' ({new}) differ; send one of them.");
            Err(ApiError::param("max_completion_tokens", message))
        }
        (old, new) => Ok(new.or(old)),
    }
}

fn logprobs(fields: &Fields) -> Result<Option<u32>, ApiError> {
    let wanted = fields.bool("logprobs")?.unwrap_or(false);
    let top = fields.u32("top_logprobs", 0, limits::TOP_LOGPROBS_MAX)?;
    match (wanted, top) {
        (false, Some(_)) => Err(ApiError::param("top_logprobs", "'top_logprobs' needs 'logprobs': true.")),
        (false, None) => Ok(None),
        (true, top) => Ok(Some(top.unwrap_or(0))),
    }
}

fn refuse_others(fields: &Fields) -> Result<(), ApiError> {
    let no = |_: &Value| false;
    let off = |value: &Value| *value == Value::Bool(false);
    let text_only = |value: &Value| *value == serde_json::json!(["text"]);
    fields.refuse("functions", "use 'tools'.", no)?;
    fields.refuse("function_call", "use 'tool_choice'.", no)?;
    fields.refuse("audio", "answers are text.", no)?;
    fields.refuse("modalities", "answers are text.", text_only)?;
    fields.refuse("prediction", "speculation needs no help from the client.", no)?;
    fields.refuse("verbosity", "say it in the prompt.", no)?;
    fields.refuse("web_search_options", "there is no web search.", no)?;
    fields.refuse("chat_template", "start the server with --chat-template.", no)?;
    fields.refuse("documents", "put them into a message.", no)?;
    fields.refuse("echo", "use /v1/completions.", off)?;
    fields.refuse("add_special_tokens", "the chat template decides.", off)?;
    fields.refuse("suffix", "use /v1/completions without it.", no)
}
