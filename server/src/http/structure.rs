//! The form of an answer that a request asks for: `response_format`, `structured_outputs` and their older names.
//!
//! What is read here is enforced while decoding, or the request is refused; a schema is never just a hint. Rejected:
//! enforcing only with `strict: true`, which leaves clients of other servers with text where they expect JSON.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::{error::ApiError, fields::Fields, limits, request::GenerationRequest};
use crate::{
    frontend::AnswerForm,
    grammar::{Answer, Calls, Form, GrammarError, Grammars, Wish, check},
};

/// A form and the field that asks for it.
pub type Asked = (Form, String);

fn wrong<T>(path: &str, what: &str) -> Result<T, ApiError> {
    Err(ApiError::param(path, format!("'{path}' must be {what}.")))
}

/// Read `response_format`; `None` for plain text.
pub fn response_format(fields: &Fields) -> Result<Option<Asked>, ApiError> {
    const NAME: &str = "response_format";
    let Some(format) = fields.object(NAME)? else { return Ok(None) };
    let known = |map: &Map<String, Value>, names: &[&str], path: &str| match map
        .keys()
        .find(|key| !names.contains(&key.as_str()))
    {
        None => Ok(()),
        Some(key) => {
            let key: String = key.chars().take(60).collect();
            Err(ApiError::param(format!("{path}.{key}"), format!("'{path}.{key}' is not a field of it.")))
        }
    };
    match format.get("type").and_then(Value::as_str) {
        Some("text") => known(format, &["type"], NAME).map(|()| None),
        Some("json_object") => {
            known(format, &["type"], NAME)?;
            Ok(Some((Form::Schema(json!({"type": "object"})), NAME.to_owned())))
        }
        Some("json_schema") => {
            known(format, &["type", "json_schema"], NAME)?;
            let path = "response_format.json_schema";
            let Some(definition) = format.get("json_schema").and_then(Value::as_object) else {
                return wrong(path, "an object with a 'schema'");
            };
            known(definition, &["name", "description", "schema", "strict"], path)?;
            for key in ["name", "description"] {
                if definition.get(key).is_some_and(|value| !value.is_string() && !value.is_null()) {
                    return wrong(&format!("{path}.{key}"), "a string");
                }
            }
            if definition.get("strict").is_some_and(|value| !value.is_boolean() && !value.is_null()) {
                return wrong(&format!("{path}.strict"), "true or false");
            }
            let path = format!("{path}.schema");
            match definition.get("schema") {
                Some(schema @ (Value::Object(_) | Value::Bool(_))) => Ok(Some((Form::Schema(schema.clone()), path))),
                _ => wrong(&path, "an object (a JSON schema)"),
            }
        }
        _ => wrong("response_format.type", "'text', 'json_object' or 'json_schema'"),
    }
}

/// What the chat format is told of it.
pub fn in_words(asked: Option<&Asked>) -> AnswerForm {
    match asked {
        Some((Form::Schema(_), path)) if path == "response_format" => AnswerForm::Json,
        Some((Form::Schema(schema), _)) => AnswerForm::Schema(schema.clone()),
        _ => AnswerForm::Text,
    }
}

fn of_key(key: &str, value: &Value, path: &str) -> Result<Form, ApiError> {
    Ok(match key {
        "json" => match value {
            Value::Object(_) | Value::Bool(_) => Form::Schema(value.clone()),
            // Clients of other servers send the schema as text, too.
            Value::String(text) => match serde_json::from_str(text) {
                Ok(schema @ (Value::Object(_) | Value::Bool(_))) => Form::Schema(schema),
                Ok(_) => return wrong(path, "a JSON schema"),
                Err(error) => return Err(ApiError::param(path, format!("'{path}' is no valid JSON: {error}."))),
            },
            _ => return wrong(path, "a JSON schema"),
        },
        "regex" => match value.as_str() {
            Some(text) if !text.is_empty() => Form::Regex(text.to_owned()),
            _ => return wrong(path, "a regular expression"),
        },
        "grammar" => match value.as_str() {
            Some(text) if !text.trim().is_empty() => Form::Grammar(text.to_owned()),
            _ => return wrong(path, "a grammar in Lark's syntax"),
        },
        "choice" => {
            let texts: Option<Vec<String>> =
                value.as_array().and_then(|items| items.iter().map(|item| item.as_str().map(str::to_owned)).collect());
            match texts {
                Some(texts) if texts.len() > limits::CHOICES_MAX => {
                    let message =
                        format!("'{path}' has {} entries; the limit is {}.", texts.len(), limits::CHOICES_MAX);
                    return Err(ApiError::param(path, message));
                }
                Some(texts) if !texts.is_empty() && texts.iter().all(|text| !text.is_empty()) => Form::Choice(texts),
                _ => return wrong(path, "a list of strings, none of them empty"),
            }
        }
        _ => unreachable!("only known keys are read"),
    })
}

/// Read every field that asks for a form, `format` included; two of them contradict each other.
pub fn form(fields: &Fields, format: Option<Asked>) -> Result<Option<Asked>, ApiError> {
    let mut asked = format;
    let mut add = |form: Form, path: &str| match asked.replace((form, path.to_owned())) {
        None => Ok(()),
        Some((_, first)) => {
            Err(ApiError::param(path, format!("'{path}' and '{first}' both say what the answer must be; send one.")))
        }
    };
    for (name, key) in
        [("guided_json", "json"), ("guided_regex", "regex"), ("guided_choice", "choice"), ("guided_grammar", "grammar")]
    {
        if let Some(value) = fields.get(name) {
            add(of_key(key, value, name)?, name)?;
        }
    }
    const NAME: &str = "structured_outputs";
    if let Some(map) = fields.object(NAME)? {
        for (key, value) in map.iter().filter(|(_, value)| !value.is_null()) {
            let path = format!("{NAME}.{key}");
            match (key.as_str(), value) {
                ("json" | "regex" | "choice" | "grammar", _) => add(of_key(key, value, &path)?, &path)?,
                ("json_object", Value::Bool(true)) => add(Form::Schema(json!({"type": "object"})), &path)?,
                ("json_object" | "disable_fallback" | "disable_any_whitespace", Value::Bool(false)) => {}
                _ => {
                    let path: String = path.chars().take(80).collect();
                    let message =
                        format!("'{path}' is not supported; use json, json_object, regex, choice or grammar.");
                    return Err(ApiError::unsupported(path, message));
                }
            }
        }
        if map.values().all(Value::is_null) {
            return wrong(NAME, "an object with one of json, json_object, regex, choice and grammar");
        }
    }
    Ok(asked)
}

/// Calls of `tools` (OpenAI's shape, validated) that a grammar can make.
pub fn calls(tools: &[Value], only: Option<&str>, many: bool) -> Calls {
    let functions = tools.iter().filter_map(|tool| tool.get("function")?.as_object());
    let named = functions.filter_map(|function| Some((function.get("name")?.as_str()?.to_owned(), function)));
    let chosen = named.filter(|(name, _)| only.is_none_or(|only| only == name));
    Calls { tools: chosen.map(|(name, function)| (name, check::parameters(function))).collect(), many }
}

/// The wish of a completion.
pub fn of_text(asked: Option<Asked>) -> Option<Wish> {
    asked.map(|(form, param)| Wish { answer: Answer::Text(form), param, is_chat: false })
}

/// A wish and `ignore_eos` contradict each other.
pub fn check_ending(wish: Option<&Wish>, ignore_eos: bool) -> Result<(), ApiError> {
    match wish {
        Some(wish) if ignore_eos => Err(ApiError::param(
            "ignore_eos",
            format!("'ignore_eos' cannot stand together with '{}': the answer ends where its form does.", wish.param),
        )),
        _ => Ok(()),
    }
}

/// Compile what the request wishes for.
pub async fn enforce(grammars: &Arc<Grammars>, request: &mut GenerationRequest) -> Result<(), ApiError> {
    let Some(wish) = request.wish.take() else { return Ok(()) };
    let param = wish.param.clone();
    // A chat has one prompt, and a completion never starts inside a reasoning block.
    let in_reasoning = request.prompts.first().is_some_and(|prompt| prompt.in_reasoning);
    let constraint = grammars.compile(wish, in_reasoning).await.map_err(|error| match error {
        GrammarError::Wrong(why) => ApiError::param(param.clone(), format!("'{param}' cannot be enforced: {why}.")),
        GrammarError::Unsupported(why) => {
            ApiError::unsupported(param.clone(), format!("'{param}' cannot be enforced: {why}."))
        }
    })?;
    request.constraint = Some(constraint);
    Ok(())
}
