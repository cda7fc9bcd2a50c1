//! Chat messages and tools: validated here, rendered by the text layer.
//!
//! Clients replay history as they received it, so everything this server ever sent as an assistant turn is accepted
//! back, `content: null` included. What is unknown is refused by its path, `messages[2].content[0].type`.

use serde_json::{Map, Value};

use super::{error::ApiError, json::type_name, limits};
use crate::frontend::ToolChoice;

fn bad(path: String, message: impl std::fmt::Display) -> ApiError {
    let text = format!("'{path}' {message}");
    ApiError::param(path, text)
}

/// Validate and normalise `messages`; see [`crate::frontend::ChatInput`] for the result. `may_add_tools`: system messages
/// may carry tools.
pub fn messages(list: &[Value], may_add_tools: bool) -> Result<Vec<Value>, ApiError> {
    if list.is_empty() {
        return Err(ApiError::param("messages", "'messages' is empty; it needs at least one message."));
    }
    let read = |(index, item)| message(&format!("messages[{index}]"), item, may_add_tools);
    list.iter().enumerate().map(read).collect()
}

fn message(path: &str, item: &Value, may_add_tools: bool) -> Result<Value, ApiError> {
    let Value::Object(item) = item else {
        return Err(bad(path.into(), format!("must be an object, not {}.", type_name(item))));
    };
    let role = match item.get("role").and_then(Value::as_str) {
        // One and the same to every open model; templates know the old name.
        Some("system" | "developer") => "system",
        Some(role @ ("user" | "assistant" | "tool")) => role,
        _ => return Err(bad(format!("{path}.role"), "must be system, developer, user, assistant or tool.")),
    };
    let mut out = Map::new();
    out.insert("role".into(), role.into());
    let content = item.get("content").unwrap_or(&Value::Null);
    let adds_tools = may_add_tools && role == "system" && item.get("tools").is_some_and(|tools| !tools.is_null());
    if content.is_null() && role != "assistant" && !adds_tools {
        return Err(bad(format!("{path}.content"), format!("is missing; a {role} message needs it.")));
    }
    out.insert("content".into(), text(&format!("{path}.content"), content)?.into());
    for (key, value) in item {
        let here = format!("{path}.{key}");
        match (key.as_str(), value) {
            ("role" | "content", _) | (_, Value::Null) => {}
            ("name", Value::String(_)) => drop(out.insert(key.clone(), value.clone())),
            ("reasoning_content" | "reasoning", Value::String(_)) if role == "assistant" => {
                out.insert("reasoning_content".into(), value.clone());
            }
            ("tool_calls", Value::Array(calls)) if role == "assistant" => {
                let calls: Result<Vec<Value>, ApiError> =
                    calls.iter().enumerate().map(|(i, call)| tool_call(&format!("{here}[{i}]"), call)).collect();
                let calls = calls?;
                if !calls.is_empty() {
                    out.insert(key.clone(), calls.into());
                }
            }
            ("tools", Value::Array(list)) if adds_tools && !list.is_empty() => {
                out.insert(key.clone(), tools(&here, list)?.into());
            }
            ("tools", _) if adds_tools => return Err(bad(here, "must be a list of tools, at least one.")),
            ("tool_call_id", Value::String(_)) if role == "tool" => drop(out.insert(key.clone(), value.clone())),
            ("annotations", Value::Array(items)) if items.is_empty() => {}
            ("name" | "reasoning_content" | "reasoning" | "tool_call_id", _) => {
                return Err(bad(
                    here,
                    format!("is not allowed here: a string, and only where the role has it ({role})."),
                ));
            }
            ("tool_calls", _) => return Err(bad(here, "must be a list, in an assistant message.")),
            ("function_call", _) => return Err(bad(here, "is not supported; use tool_calls.")),
            _ => return Err(bad(here, "is not a field of a message that this server knows.")),
        }
    }
    if role == "tool" && !out.contains_key("tool_call_id") {
        return Err(bad(format!("{path}.tool_call_id"), "is missing; it names the call that this answers."));
    }
    Ok(Value::Object(out))
}

/// Content as one string: parts are joined with nothing between them.
fn text(path: &str, content: &Value) -> Result<String, ApiError> {
    match content {
        Value::Null => Ok(String::new()),
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => {
            let mut joined = String::new();
            for (index, part) in parts.iter().enumerate() {
                let here = format!("{path}[{index}]");
                match part.get("type").and_then(Value::as_str) {
                    Some("text") => match part.get("text") {
                        Some(Value::String(text)) => joined.push_str(text),
                        _ => return Err(bad(format!("{here}.text"), "must be a string.")),
                    },
                    Some(kind) => {
                        let kind: String = kind.chars().take(40).collect();
                        return Err(bad(format!("{here}.type"), format!("is '{kind}'; this model takes text only.")));
                    }
                    None => return Err(bad(format!("{here}.type"), "is missing; it must be 'text'.")),
                }
                let unknown =
                    part.as_object().and_then(|part| part.keys().find(|key| *key != "type" && *key != "text"));
                if let Some(key) = unknown {
                    return Err(bad(format!("{here}.{key}"), "is not a field of a text part."));
                }
            }
            Ok(joined)
        }
        other => Err(bad(path.into(), format!("must be a string or a list of parts, not {}.", type_name(other)))),
    }
}

fn tool_call(path: &str, call: &Value) -> Result<Value, ApiError> {
    let Value::Object(call) = call else { return Err(bad(path.into(), "must be an object.")) };
    if let Some(key) = call.keys().find(|key| !["id", "type", "function", "index"].contains(&key.as_str())) {
        return Err(bad(format!("{path}.{key}"), "is not a field of a tool call."));
    }
    let Some(id) = call.get("id").and_then(Value::as_str) else {
        return Err(bad(format!("{path}.id"), "must be a string."));
    };
    if !matches!(call.get("type").and_then(Value::as_str), None | Some("function")) {
        return Err(bad(format!("{path}.type"), "must be 'function'."));
    }
    let function = call.get("function").and_then(Value::as_object);
    let Some(name) = function.and_then(|function| function.get("name")).and_then(Value::as_str) else {
        return Err(bad(format!("{path}.function.name"), "must be a string."));
    };
    let arguments = match function.and_then(|function| function.get("arguments")) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Object(_)) => {
            return Err(bad(format!("{path}.function.arguments"), "must be a string of JSON, not an object."));
        }
        Some(_) => return Err(bad(format!("{path}.function.arguments"), "must be a string of JSON.")),
    };
    let mut inner = Map::new();
    inner.insert("name".into(), name.into());
    inner.insert("arguments".into(), arguments.into());
    let mut out = Map::new();
    out.insert("id".into(), id.into());
    out.insert("type".into(), "function".into());
    out.insert("function".into(), Value::Object(inner));
    Ok(Value::Object(out))
}

/// Validate the list of tools at `field`; the definitions themselves are handed on as they came.
pub fn tools(field: &str, list: &[Value]) -> Result<Vec<Value>, ApiError> {
    if list.len() > limits::TOOLS_MAX {
        let message = format!("'{field}' has {} entries; the limit is {}.", list.len(), limits::TOOLS_MAX);
        return Err(ApiError::param(field, message));
    }
    let mut names: Vec<&str> = Vec::with_capacity(list.len());
    for (index, tool) in list.iter().enumerate() {
        let path = format!("{field}[{index}]");
        if tool.get("type").and_then(Value::as_str) != Some("function") {
            return Err(bad(format!("{path}.type"), "must be 'function'."));
        }
        let Some(function) = tool.get("function").and_then(Value::as_object) else {
            return Err(bad(format!("{path}.function"), "must be an object."));
        };
        let name = function.get("name").and_then(Value::as_str).unwrap_or("");
        if name.is_empty() || name.len() > 256 || name.contains(char::is_whitespace) {
            return Err(bad(format!("{path}.function.name"), "must be a name of 1 to 256 bytes without blanks."));
        }
        if names.contains(&name) {
            return Err(bad(format!("{path}.function.name"), format!("is '{name}', like that of an earlier tool.")));
        }
        names.push(name);
        for (key, value) in function {
            let here = format!("{path}.function.{key}");
            match (key.as_str(), value) {
                ("name", _)
                | (_, Value::Null)
                | ("description", Value::String(_))
                | ("parameters", Value::Object(_)) => {}
                ("strict", Value::Bool(false)) => {}
                ("strict", _) => {
                    return Err(ApiError::unsupported(
                        here.clone(),
                        format!(
                            "'{here}' is not supported: arguments are enforced where 'tool_choice' forces a call. Send false."
                        ),
                    ));
                }
                ("description", _) => return Err(bad(here, "must be a string.")),
                ("parameters", _) => return Err(bad(here, "must be an object (a JSON schema).")),
                _ => return Err(bad(here, "is not a field of a function.")),
            }
        }
    }
    Ok(list.to_vec())
}

/// Read `tool_choice`.
pub fn tool_choice(value: Option<&Value>, tools: &[Value]) -> Result<ToolChoice, ApiError> {
    const NAME: &str = "tool_choice";
    let without_tools = || Err(ApiError::param(NAME, format!("'{NAME}' is given and 'tools' is not.")));
    match value {
        None => Ok(ToolChoice::Auto),
        // Without tools there is nothing to forbid, and nothing to say.
        Some(Value::String(word)) if word == "none" && tools.is_empty() => Ok(ToolChoice::Auto),
        Some(Value::String(word)) if word == "none" => Ok(ToolChoice::None),
        Some(Value::String(word)) if word == "auto" && tools.is_empty() => without_tools(),
        Some(Value::String(word)) if word == "auto" => Ok(ToolChoice::Auto),
        Some(Value::String(word)) if word == "required" && tools.is_empty() => without_tools(),
        Some(Value::String(word)) if word == "required" => Ok(ToolChoice::Required),
        Some(Value::Object(choice)) => {
            let name = choice.get("function").and_then(|function| function.get("name")).and_then(Value::as_str);
            let Some(name) = name.filter(|_| choice.get("type").and_then(Value::as_str) == Some("function")) else {
                return Err(ApiError::param(
                    NAME,
                    format!(
                        "'{NAME}' must name a function: {{\"type\": \"function\", \"function\": {{\"name\": …}}}}."
                    ),
                ));
            };
            let known = tools.iter().any(|tool| tool["function"]["name"] == name);
            if !known {
                let name: String = name.chars().take(60).collect();
                return Err(ApiError::param(NAME, format!("'{NAME}' names '{name}', which is not in 'tools'.")));
            }
            Ok(ToolChoice::Named(name.to_owned()))
        }
        Some(_) => Err(ApiError::param(NAME, format!("'{NAME}' must be 'auto', 'none', 'required' or an object."))),
    }
}
