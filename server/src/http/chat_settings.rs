//! Settings of a chat request that some models' formats have words for: how to think, the form of the answer.
//!
//! For other models they are refused, because nothing here constrains decoding. Where the format has words, the model is
//! told, as it was trained to be; that is a request to the model, not a guarantee.

use serde_json::Value;

use super::{error::ApiError, fields::Fields, sampling};
use crate::frontend::{AnswerForm, ChatSettings, ToolChoice};

/// Read them; `has_words`: see [`crate::frontend::TextFrontend::has_setting_words`].
pub fn read(fields: &Fields, tool_choice: ToolChoice, has_words: bool) -> Result<ChatSettings, ApiError> {
    if !has_words {
        let no = |_: &Value| false;
        fields.refuse("reasoning_effort", "set what the model's template knows with 'chat_template_kwargs'.", no)?;
        sampling::refuse_response_format(fields)?;
        return Ok(ChatSettings::default());
    }
    Ok(ChatSettings {
        tool_choice,
        answer_form: answer_form(fields.get("response_format"))?,
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

fn answer_form(value: Option<&Value>) -> Result<AnswerForm, ApiError> {
    const NAME: &str = "response_format";
    let Some(value) = value else { return Ok(AnswerForm::Text) };
    match value.get("type").and_then(Value::as_str) {
        Some("text") => Ok(AnswerForm::Text),
        Some("json_object") => Ok(AnswerForm::Json),
        Some("json_schema") => {
            let path = "response_format.json_schema";
            let Some(definition) = value.get("json_schema").and_then(Value::as_object) else {
                return Err(ApiError::param(path, format!("'{path}' must be an object with a 'schema'.")));
            };
            if definition.get("strict") == Some(&Value::Bool(true)) {
                let message = format!("'{path}.strict' is not supported: this server does not constrain decoding.");
                return Err(ApiError::unsupported(format!("{path}.strict"), message));
            }
            match definition.get("schema") {
                Some(schema @ Value::Object(_)) => Ok(AnswerForm::Schema(schema.clone())),
                _ => Err(ApiError::param(path, format!("'{path}.schema' must be an object (a JSON schema)."))),
            }
        }
        _ => Err(ApiError::param(NAME, format!("'{NAME}.type' must be 'text', 'json_object' or 'json_schema'."))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(body: Value, has_words: bool) -> Result<ChatSettings, ApiError> {
        let Value::Object(map) = body else { panic!("an object") };
        let fields = Fields::new(map);
        let settings = read(&fields, ToolChoice::Auto, has_words)?;
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
            (json!({"response_format": {"type": "json_object"}}), false, "response_format"),
            (json!({"reasoning_effort": 1}), true, "reasoning_effort"),
            (json!({"thinking": "yes"}), true, "thinking"),
            (json!({"thinking": {"type": "enabled", "budget_tokens": 5}}), true, "thinking"),
            (json!({"response_format": 7}), true, "response_format"),
            (json!({"response_format": {"type": "xml"}}), true, "response_format"),
            (json!({"response_format": {"type": "json_schema"}}), true, "response_format.json_schema"),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"strict": true, "schema": {}}}}),
                true,
                "response_format.json_schema.strict",
            ),
        ] {
            let error = of(body.clone(), has_words).expect_err("refused");
            assert_eq!(error.param.as_deref(), Some(param), "{body}");
        }
    }
}
