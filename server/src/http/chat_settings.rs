//! Settings of a chat request that some models' formats have words for: how to think, the form of the answer.
//!
//! How to think is a request to the model, and refused for models whose format has no words for it. The form of the answer
//! and forced calls are enforced for every model (see `structure`); where the format has words for them, the model is told
//! as well, as it was trained to be.

use serde_json::Value;

use super::{error::ApiError, fields::Fields};
use crate::frontend::{AnswerForm, ChatSettings, ToolChoice};

/// Read them; `has_words`: see [`crate::frontend::TextFrontend::has_setting_words`].
pub fn read(
    fields: &Fields,
    tool_choice: ToolChoice,
    answer_form: AnswerForm,
    has_words: bool,
) -> Result<ChatSettings, ApiError> {
    if !has_words {
        let no = |_: &Value| false;
        fields.refuse("reasoning_effort", "set what the model's template knows with 'chat_template_kwargs'.", no)?;
        return Ok(ChatSettings::default());
    }
    Ok(ChatSettings {
        tool_choice,
        answer_form,
        thinking: thinking(fields.get("thinking"))?,
        effort: fields.string("reasoning_effort")?.map(str::to_owned),
    })
}

/// `true`, `false`, or `{"type": "enabled"}` and the like.
fn thinking(value: Option<&Value>) -> Result<Option<bool>, ApiError> {
    let wrong = || {
        let message = "'thinking' must be true, false, {\"type\": \"enabled\"} or {\"type\": \"disabled\"}.";
        ApiError::param("thinking", message)
    };
    match value {
        None => Ok(None),
        Some(Value::Bool(value)) => Ok(Some(*value)),
        Some(Value::Object(map)) if map.len() == 1 => match map.get("type").and_then(Value::as_str) {
            Some("enabled") => Ok(Some(true)),
            Some("disabled") => Ok(Some(false)),
            _ => Err(wrong()),
        },
        Some(_) => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::structure, *};

    fn of(body: Value, has_words: bool) -> Result<ChatSettings, ApiError> {
        let Value::Object(map) = body else { panic!("an object") };
        let fields = Fields::new(map);
        let format = structure::response_format(&fields)?;
        let settings = read(&fields, ToolChoice::Auto, structure::in_words(format.as_ref()), has_words)?;
        fields.finish()?;
        Ok(settings)
    }

    #[test]
    fn settings_are_read_where_the_model_has_words_for_them() {
        let settings = of(
            json!({"reasoning_effort": "low", "thinking": {"type": "disabled"}, "response_format": {
                "type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}}),
            true,
        );
        let settings = settings.expect("read");
        assert_eq!((settings.thinking, settings.effort.as_deref()), (Some(false), Some("low")));
        assert_eq!(settings.answer_form, AnswerForm::Schema(json!({"type": "object"})));
        let json_object = of(json!({"response_format": {"type": "json_object"}}), true).expect("read");
        assert_eq!(json_object.answer_form, AnswerForm::Json);
        assert_eq!(of(json!({"response_format": {"type": "text"}}), false).expect("read"), ChatSettings::default());
    }

    #[test]
    fn everything_else_is_refused_by_name() {
        for (body, has_words, param) in [
            (json!({"reasoning_effort": "low"}), false, "reasoning_effort"),
            (json!({"thinking": true}), false, "thinking"),
            (json!({"reasoning_effort": 1}), true, "reasoning_effort"),
            (json!({"thinking": "yes"}), true, "thinking"),
            (json!({"thinking": {"type": "enabled", "budget_tokens": 5}}), true, "thinking"),
            (json!({"response_format": 7}), true, "response_format"),
            (json!({"response_format": {"type": "xml"}}), true, "response_format.type"),
            (json!({"response_format": {"type": "text", "x": 1}}), true, "response_format.x"),
            (json!({"response_format": {"type": "json_schema"}}), true, "response_format.json_schema"),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"strict": 1, "schema": {}}}}),
                true,
                "response_format.json_schema.strict",
            ),
        ] {
            let error = of(body.clone(), has_words).expect_err("refused");
            assert_eq!(error.param.as_deref(), Some(param), "{body}");
        }
    }
}
