//! A chat request in Kimi K3's own format: what it asks for, put into the words that the format has for it.
//!
//! Whether to think and how much may be said in the request (`reasoning_effort`, `thinking`) or, as other servers take
//! it, in `chat_template_kwargs`; said twice, it must be the same. Unless told otherwise the model thinks, with the
//! format's default effort, max.

use serde_json::{Map, Value};
use tokenspeed_models::text::{
    Tokenizer,
    kimi::{self, Effort, PromptTexts, Slot, XtmlError},
};

use crate::frontend::{AnswerForm, ChatInput, ChatSettings, EncodedPrompt, FrontendError, ToolChoice};

const KWARGS: &str = "chat_template_kwargs";

fn input(param: &'static str, message: impl Into<String>) -> FrontendError {
    FrontendError::Input { param, message: message.into() }
}

/// Thinking or not, and how much if that is said.
fn wishes(settings: &ChatSettings, kwargs: &Map<String, Value>) -> Result<(bool, Option<Effort>), FrontendError> {
    let (mut thinking, mut effort) = (settings.thinking, settings.effort.clone());
    for (key, value) in kwargs {
        match (key.as_str(), value) {
            (_, Value::Null) => {}
            ("thinking" | "enable_thinking", Value::Bool(wanted)) => {
                if thinking.is_some_and(|known| known != *wanted) {
                    return Err(input(
                        KWARGS,
                        format!("'{KWARGS}.{key}' is {wanted}, and the request says otherwise."),
                    ));
                }
                thinking = Some(*wanted);
            }
            ("thinking" | "enable_thinking", _) => {
                return Err(input(KWARGS, format!("'{KWARGS}.{key}' must be true or false.")));
            }
            ("thinking_effort" | "reasoning_effort", Value::String(wanted)) => {
                if effort.as_ref().is_some_and(|known| known != wanted) {
                    return Err(input(
                        KWARGS,
                        format!("'{KWARGS}.{key}' is '{wanted}', and the request says otherwise."),
                    ));
                }
                effort = Some(wanted.clone());
            }
            ("thinking_effort" | "reasoning_effort", _) => {
                return Err(input(KWARGS, format!("'{KWARGS}.{key}' must be a string.")));
            }
            // Earlier turns always keep their thinking in this format.
            ("preserve_thinking", Value::Bool(true)) => {}
            _ => {
                let key: String = key.chars().take(60).collect();
                let message = format!(
                    "'{KWARGS}.{key}' is not a setting of this model's chat format; it has thinking (true or false) and \
                     thinking_effort (low, high or max)."
                );
                return Err(input(KWARGS, message));
            }
        }
    }
    let effort = match effort.as_deref() {
        None => None,
        Some("none") if thinking != Some(true) => return Ok((false, None)),
        Some(word) => match Effort::ALL.into_iter().find(|effort| effort.word() == word) {
            Some(effort) => Some(effort),
            None => {
                let word: String = word.chars().take(40).collect();
                let message = format!(
                    "'reasoning_effort' must be 'low', 'high' or 'max' for this model ('none' to answer without \
                     thinking), not '{word}'."
                );
                return Err(input("reasoning_effort", message));
            }
        },
    };
    if thinking == Some(false) && effort.is_some() {
        return Err(input("reasoning_effort", "'reasoning_effort' asks for thinking, which the request switches off."));
    }
    Ok((thinking.unwrap_or(true), effort))
}

fn failed(error: XtmlError) -> FrontendError {
    let message = error.to_string();
    match error {
        XtmlError::Text(missing) => FrontendError::Unsupported {
            param: match missing.slot {
                Slot::Effort(_) => "reasoning_effort",
                Slot::Tools => "tools",
                Slot::MoreTools => "messages",
                Slot::ToolsRequired | Slot::ToolsForbidden => "tool_choice",
                Slot::JsonObject | Slot::JsonSchema => "response_format",
            },
            message,
        },
        XtmlError::Message { .. } => input("messages", message),
        XtmlError::Tokenizer(_) => FrontendError::Internal(message),
    }
}

/// Encode a chat.
pub(super) fn encode(
    tokenizer: &Tokenizer,
    texts: &PromptTexts,
    chat: &ChatInput,
) -> Result<EncodedPrompt, FrontendError> {
    let (thinking, effort) = wishes(&chat.settings, &chat.template_kwargs)?;
    // Without the checkpoint's text, saying nothing is what the format does when nothing is asked for.
    let default = texts.get(Slot::Effort(Effort::Max)).is_ok().then_some(Effort::Max);
    let encoded = kimi::encode_chat(
        tokenizer,
        texts,
        &kimi::XtmlChat {
            messages: &chat.messages,
            tools: &chat.tools,
            tool_use: match chat.settings.tool_choice {
                ToolChoice::Auto => kimi::ToolUse::Free,
                // The format has no words for one tool.
                ToolChoice::Required | ToolChoice::Named(_) => kimi::ToolUse::Required,
                ToolChoice::None => kimi::ToolUse::Forbidden,
            },
            answer_form: match &chat.settings.answer_form {
                AnswerForm::Text => kimi::AnswerForm::Text,
                AnswerForm::Json => kimi::AnswerForm::Json,
                AnswerForm::Schema(schema) => kimi::AnswerForm::Schema(schema),
            },
            thinking,
            effort: effort.or(default),
            add_generation_prompt: chat.add_generation_prompt,
        },
    );
    let kimi::XtmlPrompt { ids, shared } = encoded.map_err(failed)?;
    Ok(EncodedPrompt::sharing(ids, shared, thinking && chat.add_generation_prompt))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(thinking: Option<bool>, effort: Option<&str>, kwargs: Value) -> Result<(bool, Option<Effort>), String> {
        let settings = ChatSettings { thinking, effort: effort.map(str::to_owned), ..ChatSettings::default() };
        wishes(&settings, kwargs.as_object().expect("an object")).map_err(|error| error.to_string())
    }

    #[test]
    fn thinking_is_asked_for_as_clients_of_other_servers_ask() {
        assert_eq!(of(None, None, json!({})), Ok((true, None)));
        assert_eq!(of(None, Some("low"), json!({})), Ok((true, Some(Effort::Low))));
        assert_eq!(of(None, Some("none"), json!({})), Ok((false, None)));
        assert_eq!(of(Some(false), None, json!({})), Ok((false, None)));
        assert_eq!(of(None, None, json!({"thinking": false, "x": null})), Ok((false, None)));
        assert_eq!(of(None, None, json!({"enable_thinking": false})), Ok((false, None)));
        assert_eq!(of(None, None, json!({"thinking_effort": "high"})), Ok((true, Some(Effort::High))));
        assert_eq!(of(Some(true), Some("max"), json!({"reasoning_effort": "max"})), Ok((true, Some(Effort::Max))));
        assert_eq!(of(None, Some("none"), json!({"thinking": false})), Ok((false, None)));
    }

    #[test]
    fn what_the_format_has_no_word_for_is_refused() {
        let error = |thinking, effort, kwargs| of(thinking, effort, kwargs).unwrap_err();
        assert!(error(None, Some("medium"), json!({})).contains("'low', 'high' or 'max'"));
        assert!(error(None, None, json!({"thinking_effort": "medium"})).contains("not 'medium'"));
        assert!(error(Some(true), Some("none"), json!({})).contains("not 'none'"));
        assert!(error(Some(false), Some("low"), json!({})).contains("switches off"));
        assert!(error(None, Some("low"), json!({"thinking_effort": "max"})).contains("says otherwise"));
        assert!(error(Some(true), None, json!({"thinking": false})).contains("says otherwise"));
        assert!(error(None, None, json!({"thinking": 1})).contains("true or false"));
        assert!(error(None, None, json!({"thinking_effort": 1})).contains("must be a string"));
        assert!(error(None, None, json!({"date": "today"})).contains("'chat_template_kwargs.date' is not a setting"));
        assert!(error(None, None, json!({"preserve_thinking": false})).contains("preserve_thinking"));
    }
}
