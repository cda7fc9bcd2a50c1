//! OpenAI chat messages in the form templates expect.
//!
//! * Content parts: the texts are joined with nothing between them, so a list means the same as the joined string.
//!   Parts that are not text are refused by type.
//! * An assistant or tool turn without content (`null` or missing) has the empty string; templates print `None` else.
//! * Tool-call arguments, a JSON string in the API, are parsed: templates print them with `tojson`.

use serde_json::{Map, Value};

use super::template::TemplateError;

fn bad(index: usize, cause: impl Into<String>) -> TemplateError {
    TemplateError::Message { index, cause: cause.into() }
}

/// Check and convert one request's messages.
pub fn normalise(messages: &[Value]) -> Result<Vec<Value>, TemplateError> {
    messages.iter().enumerate().map(|(index, message)| normalise_one(index, message)).collect()
}

fn normalise_one(index: usize, message: &Value) -> Result<Value, TemplateError> {
    let mut fields = message.as_object().cloned().ok_or_else(|| bad(index, "is not an object"))?;
    let role = match fields.get("role") {
        Some(Value::String(role)) => role.clone(),
        Some(_) => return Err(bad(index, "role is not a string")),
        None => return Err(bad(index, "role is missing")),
    };
    let content = match fields.get("content") {
        None | Some(Value::Null) if matches!(role.as_str(), "assistant" | "tool" | "function") => String::new(),
        None | Some(Value::Null) => {
            return Err(bad(index, format!("content is missing, which a {role} message needs")));
        }
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => join_parts(index, parts)?,
        Some(_) => return Err(bad(index, "content is neither a string nor a list of parts")),
    };
    fields.insert("content".into(), content.into());
    match fields.get_mut("tool_calls") {
        None => {}
        Some(Value::Null) => drop(fields.shift_remove("tool_calls")),
        Some(Value::Array(calls)) if calls.is_empty() => drop(fields.shift_remove("tool_calls")),
        Some(Value::Array(calls)) => {
            for (call_index, call) in calls.iter_mut().enumerate() {
                parse_arguments(call).map_err(|cause| bad(index, format!("tool_calls[{call_index}]{cause}")))?;
            }
        }
        Some(_) => return Err(bad(index, "tool_calls is not a list")),
    }
    Ok(Value::Object(fields))
}

fn join_parts(index: usize, parts: &[Value]) -> Result<String, TemplateError> {
    let mut text = String::new();
    for (part_index, part) in parts.iter().enumerate() {
        let refuse = |cause: String| bad(index, format!("content[{part_index}] {cause}"));
        let kind = part.get("type").and_then(Value::as_str).ok_or_else(|| refuse("has no type".into()))?;
        let key = match kind {
            "text" | "input_text" | "output_text" => "text",
            "refusal" => "refusal",
            "image_url" | "image" | "input_image" | "input_audio" | "audio" | "video_url" | "video" | "file"
            | "input_file" => {
                return Err(refuse(format!("is of type {kind:?}; this model reads text only")));
            }
            _ => return Err(refuse(format!("is of unknown type {kind:?}; expected \"text\""))),
        };
        let piece = part.get(key).and_then(Value::as_str);
        text.push_str(piece.ok_or_else(|| refuse(format!("of type {kind:?} has no string {key:?}")))?);
    }
    Ok(text)
}

fn parse_arguments(call: &mut Value) -> Result<(), String> {
    let function = call.get_mut("function").and_then(Value::as_object_mut).ok_or(" has no function")?;
    if function.get("name").and_then(Value::as_str).is_none_or(str::is_empty) {
        return Err(".function has no name".into());
    }
    let arguments = match function.get("arguments") {
        None | Some(Value::Null) => Value::Object(Map::new()),
        Some(Value::String(text)) if text.trim().is_empty() => Value::Object(Map::new()),
        Some(Value::String(text)) => {
            serde_json::from_str(text).map_err(|error| format!(".function.arguments is not valid JSON: {error}"))?
        }
        Some(Value::Object(map)) => Value::Object(map.clone()),
        Some(_) => return Err(".function.arguments is neither a JSON string nor an object".into()),
    };
    function.insert("arguments".into(), arguments);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn one(message: Value) -> Result<Value, String> {
        normalise(&[message]).map(|mut list| list.remove(0)).map_err(|error| error.to_string())
    }

    #[test]
    fn content_parts_list_is_the_joined_string() {
        for role in ["user", "system", "tool"] {
            let parts =
                json!({"role": role, "content": [{"type": "text", "text": "x "}, {"type": "text", "text": "B"}]});
            assert_eq!(one(parts).unwrap(), json!({"role": role, "content": "x B"}));
            assert_eq!(one(json!({"role": role, "content": []})).unwrap()["content"], "");
        }
    }

    #[test]
    fn content_parts_list_with_anything_but_text_is_refused_by_name() {
        let error = |part: Value| one(json!({"role": "user", "content": [part]})).unwrap_err();
        assert!(error(json!({"type": "image_url", "image_url": {"url": "x"}})).contains("text only"));
        assert!(error(json!({"type": "hologram"})).contains("unknown type \"hologram\""));
        assert!(error(json!({"text": "a"})).contains("content[0] has no type"));
        assert!(error(json!({"type": "text"})).contains("has no string \"text\""));
        assert!(error(json!("a")).contains("has no type"));
    }

    #[test]
    fn empty_content_and_tool_calls_null_or_missing_are_one() {
        let call = json!([{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]);
        let with = |content: Option<Value>| {
            let mut message = json!({"role": "assistant"});
            if let Some(content) = content {
                message["content"] = content;
            }
            message["tool_calls"] = call.clone();
            one(message).unwrap()
        };
        let null = with(Some(Value::Null));
        assert_eq!(null["content"], "");
        assert_eq!(null["tool_calls"][0]["function"]["arguments"], json!({"a": 1}));
        assert_eq!((&with(None), &with(Some("".into()))), (&null, &null));
        let bare = one(json!({"role": "assistant", "content": "a", "tool_calls": null})).unwrap();
        assert_eq!(bare, json!({"role": "assistant", "content": "a"}));
    }

    #[test]
    fn malformed_messages_are_errors_that_say_where() {
        for (message, cause) in [
            (json!(1), "is not an object"),
            (json!({"content": "a"}), "role is missing"),
            (json!({"role": 1}), "role is not a string"),
            (json!({"role": "user"}), "content is missing"),
            (json!({"role": "user", "content": 1}), "neither a string nor a list"),
            (json!({"role": "assistant", "tool_calls": [{}]}), "tool_calls[0] has no function"),
            (
                json!({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}),
                "not valid JSON",
            ),
        ] {
            let error = one(message).unwrap_err();
            assert!(error.starts_with("messages[0]") && error.contains(cause), "{error}");
        }
    }
}
