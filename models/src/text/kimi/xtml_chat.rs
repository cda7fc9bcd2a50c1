//! Kimi K3's chat format, XTML: elements opened by `<|open|>tag key="value"<|sep|>` and closed by `<|close|>tag<|sep|>`.
//!
//! A prompt is, in this order: tools, thinking effort, the conversation, tool choice, response format, and the opening of
//! the answer. What changes from request to request stands last, so that the conversation's prefix can be reused. An
//! answer starts inside its first channel: `think`, or `response` when thinking is off.
//!
//! Content parts are joined before encoding, as for every other model here; the reference encodes each part on its own,
//! which differs where a merge crosses their border.

use serde_json::Value;

use super::{
    prompt_texts::{Effort, MissingText, PromptTexts, Slot},
    segments::{Segments, XtmlPrompt},
    tool_results::{Placed, place},
};
use crate::text::{
    error::TokenizerError,
    py_text::{JsonStyle, to_json},
    py_value::from_json,
    tokenizer::Tokenizer,
};

/// Whether the next turn must or must not call tools. The model reads it; nothing enforces it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ToolUse {
    /// As it likes.
    #[default]
    Free,
    /// It is told to call one.
    Required,
    /// It is told not to.
    Forbidden,
}

/// The form of the answer. The model reads it; nothing enforces it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum AnswerForm<'a> {
    /// Text.
    #[default]
    Text,
    /// Any JSON.
    Json,
    /// JSON that fits this schema.
    Schema(&'a Value),
}

/// A chat to encode.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct XtmlChat<'a> {
    /// OpenAI messages. A system message may carry `tools`.
    pub messages: &'a [Value],
    /// OpenAI tools of the request.
    pub tools: &'a [Value],
    /// See [`ToolUse`].
    pub tool_use: ToolUse,
    /// See [`AnswerForm`].
    pub answer_form: AnswerForm<'a>,
    /// Earlier and coming answers have a thinking part.
    pub thinking: bool,
    /// How much; `None`: the prompt says nothing of it. Without effect unless `thinking`.
    pub effort: Option<Effort>,
    /// End with the opening of an answer.
    pub add_generation_prompt: bool,
}

/// A chat cannot be encoded.
#[derive(Debug, thiserror::Error)]
pub enum XtmlError {
    /// The request asks for what the checkpoint brings no words for.
    #[error(transparent)]
    Text(#[from] MissingText),
    /// A message is malformed.
    #[error("messages[{index}] {cause}")]
    Message {
        /// Which.
        index: usize,
        /// What is wrong.
        cause: String,
    },
    /// The tokenizer failed.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

/// Token ids of a chat; the tokenizer's format must be XTML ([`Tokenizer::xtml`]).
pub fn encode_chat(tokenizer: &Tokenizer, texts: &PromptTexts, chat: &XtmlChat<'_>) -> Result<XtmlPrompt, XtmlError> {
    Ok(segments(texts, chat)?.encode(tokenizer)?)
}

/// `json.dumps` as the reference calls it: keys sorted and no blanks for definitions, neither for arguments.
fn json(value: &Value, compact: bool) -> String {
    let style = JsonStyle {
        ensure_ascii: false,
        indent: None,
        item_separator: if compact { "," } else { ", " }.into(),
        key_separator: if compact { ":" } else { ": " }.into(),
        sort_keys: compact,
        untouched: 0..0,
    };
    to_json(&from_json(value), &style).expect("parsed JSON can be written")
}

/// A text that opens a fence, what is inside, and the closing fence.
fn fenced(opening: &str, value: &Value) -> String {
    format!("{opening}{}\n```", json(value, true))
}

pub(crate) fn segments<'a>(texts: &'a PromptTexts, chat: &XtmlChat<'a>) -> Result<Segments<'a>, XtmlError> {
    let mut out = Segments::default();
    if !chat.tools.is_empty() {
        out.setting("tool-declare", fenced(texts.get(Slot::Tools)?, &Value::from(chat.tools)));
    }
    if let (true, Some(effort)) = (chat.thinking, chat.effort) {
        out.setting("thinking-effort", texts.get(Slot::Effort(effort))?);
    }
    out.end_shared();
    let mut is_setting = true;
    for placed in place(chat.messages) {
        is_setting &= placed.message.get("role").is_some_and(|role| role == "system" || role == "developer");
        message(&mut out, texts, chat.thinking, placed)?;
        if is_setting {
            out.end_shared();
        }
    }
    match chat.tool_use {
        ToolUse::Free => {}
        ToolUse::Required => out.setting("tool-choice", texts.get(Slot::ToolsRequired)?),
        ToolUse::Forbidden => out.setting("tool-choice", texts.get(Slot::ToolsForbidden)?),
    }
    match chat.answer_form {
        AnswerForm::Text => {}
        AnswerForm::Json => out.setting("response-format", texts.get(Slot::JsonObject)?),
        AnswerForm::Schema(schema) => {
            out.setting("response-format", fenced(texts.get(Slot::JsonSchema)?, schema));
        }
    }
    if chat.add_generation_prompt {
        out.open("message", &[("role", "assistant")]);
        out.open(if chat.thinking { "think" } else { "response" }, &[]);
    }
    Ok(out)
}

fn message<'a>(
    out: &mut Segments<'a>,
    texts: &'a PromptTexts,
    thinking: bool,
    placed: Placed<'a>,
) -> Result<(), XtmlError> {
    let Placed { index, message, result } = placed;
    let bad = |cause: String| XtmlError::Message { index, cause };
    let text = |key: &str| message.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    let role = message.get("role").and_then(Value::as_str).ok_or_else(|| bad("has no role".into()))?;
    let role = if role == "developer" { "system" } else { role };
    let content = content(message.get("content")).map_err(bad)?;
    match (role, message.get("tools").filter(|tools| !tools.is_null())) {
        ("system", Some(Value::Array(tools))) if !tools.is_empty() => {
            if !content.is_empty() {
                return Err(bad("has tools and content; a system message that adds tools says nothing else".into()));
            }
            out.setting("tool-declare", fenced(texts.get(Slot::MoreTools)?, &Value::from(tools.as_slice())));
            return Ok(());
        }
        (_, None) => {}
        ("system", Some(_)) => return Err(bad("has tools that are no list, or an empty one".into())),
        (_, Some(_)) => return Err(bad(format!("of role {role} has tools; only a system message adds some"))),
    }
    let mut attributes = vec![("role", role)];
    let number;
    match (role, result) {
        ("system" | "user" | "assistant", _) => attributes.extend(text("name").map(|name| ("name", name))),
        ("tool", Some((name, place))) => {
            let unnamed = "has no tool name: give it a tool_call_id of the assistant turn before, or a name";
            number = place.to_string();
            attributes.extend([("tool", name.ok_or_else(|| bad(unnamed.into()))?), ("index", number.as_str())]);
        }
        _ => return Err(bad(format!("has role {role:?}; expected system, developer, user, assistant or tool"))),
    }
    out.open("message", &attributes);
    if role == "assistant" {
        if thinking {
            // The channel is there even when empty: that is how the model learned earlier turns.
            out.open("think", &[]);
            let reasoning = text("reasoning_content").or_else(|| text("reasoning"));
            out.text(reasoning.filter(|text| !text.trim().is_empty()).unwrap_or_default());
            out.close("think");
        }
        out.open("response", &[]);
        out.text(content);
        out.close("response");
        calls(out, message.get("tool_calls")).map_err(bad)?;
    } else {
        out.text(content);
    }
    out.end_message();
    Ok(())
}

/// Content as one string.
fn content(content: Option<&Value>) -> Result<String, String> {
    match content {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => {
            let text = |(index, part): (usize, &Value)| match part["type"].as_str() {
                Some("text") if part["text"].is_string() => Ok(part["text"].as_str().unwrap_or_default().to_owned()),
                kind => Err(format!("content[{index}] is of type {kind:?}; this model reads text only")),
            };
            parts.iter().enumerate().map(text).collect()
        }
        Some(_) => Err("content is neither a string nor a list of parts".into()),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "string",
        Value::Number(_) => "number",
        Value::Bool(_) => "boolean",
        Value::Null => "null",
        Value::Object(_) => "object",
        Value::Array(_) => "array",
    }
}

fn calls<'a>(out: &mut Segments<'a>, calls: Option<&'a Value>) -> Result<(), String> {
    let calls = match calls {
        None | Some(Value::Null) => return Ok(()),
        Some(Value::Array(calls)) if calls.is_empty() => return Ok(()),
        Some(Value::Array(calls)) => calls,
        Some(_) => return Err("tool_calls is not a list".into()),
    };
    out.open("tools", &[]);
    for (index, call) in calls.iter().enumerate() {
        let bad = |cause: &str| format!("tool_calls[{index}]{cause}");
        let function = call.get("function").unwrap_or(call);
        let name = function.get("name").and_then(Value::as_str).filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| bad(".function has no name"))?;
        out.open("call", &[("tool", name), ("index", &(index + 1).to_string())]);
        let parsed: Value;
        let arguments = match function.get("arguments") {
            None | Some(Value::Null) => None,
            Some(Value::Object(arguments)) => Some(arguments),
            Some(Value::String(text)) if text.trim().is_empty() => None,
            Some(Value::String(text)) => match serde_json::from_str(text) {
                Ok(value) => {
                    parsed = value;
                    Some(parsed.as_object().ok_or_else(|| bad(".function.arguments is not a JSON object"))?)
                }
                Err(_) => {
                    // What an earlier answer wrote wrongly is shown as it was.
                    out.open("json", &[("type", "object")]);
                    out.text(text.as_str());
                    out.close("json");
                    None
                }
            },
            Some(_) => return Err(bad(".function.arguments is neither a JSON string nor an object")),
        };
        for (key, value) in arguments.into_iter().flatten() {
            out.open("argument", &[("key", key), ("type", kind(value))]);
            out.text(value.as_str().map_or_else(|| json(value, false), str::to_owned));
            out.close("argument");
        }
        out.close("call");
    }
    out.close("tools");
    Ok(())
}

#[cfg(test)]
mod tests;
