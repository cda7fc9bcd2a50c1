//! A first look at what a user wrote: mistakes that can be located, and sizes that would only cost time.
//!
//! The library says what it cannot do, but rarely where. Here every keyword's value is looked at, and the place is named
//! as a JSON pointer. Keywords that the library does not enforce are its to refuse; unknown ones mean nothing, as in every
//! validator.

use serde_json::{Map, Value};

use super::GrammarError;

/// Longest text of one expression.
const TEXT_BYTES_MAX: usize = 64 << 10;
/// Deepest nesting of brackets in a regular expression or a grammar.
const NESTING_MAX: usize = 200;
/// Largest bound of a length or a count.
const COUNT_MAX: u64 = 100_000;
/// Largest repetition in a regular expression.
const REPETITION_MAX: u64 = 10_000;
/// Most values of all `enum`s together.
const ENUM_MAX: usize = 20_000;

fn wrong<T>(place: &str, why: impl std::fmt::Display) -> Result<T, GrammarError> {
    let place = if place.is_empty() { "the schema" } else { place };
    Err(GrammarError::Wrong(format!("{place}: {why}")))
}

/// Look at a whole schema.
pub fn schema(schema: &Value) -> Result<(), GrammarError> {
    let mut values = 0;
    look(schema, schema, "", &mut values)
}

fn shown(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= 40 { text } else { text.chars().take(40).chain(['…']).collect() }
}

fn look(schema: &Value, root: &Value, place: &str, values: &mut usize) -> Result<(), GrammarError> {
    let map = match schema {
        Value::Bool(_) => return Ok(()),
        Value::Object(map) => map,
        other => return wrong(place, format!("a schema must be an object, true or false, not {}", shown(other))),
    };
    for (key, value) in map {
        let at = format!("{place}/{}", key.replace('~', "~0").replace('/', "~1"));
        keyword(key, value, &at)?;
        match key.as_str() {
            "$ref" => reference(value, root, &at)?,
            "enum" => {
                *values += value.as_array().map_or(0, Vec::len);
                if *values > ENUM_MAX {
                    return wrong(&at, format!("more than {ENUM_MAX} values in all"));
                }
            }
            "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas" => {
                for (name, inner) in value.as_object().into_iter().flatten() {
                    let at = format!("{at}/{}", name.replace('~', "~0").replace('/', "~1"));
                    if key == "patternProperties" {
                        pattern(name, &at)?;
                    }
                    look(inner, root, &at, values)?;
                }
            }
            "allOf" | "anyOf" | "oneOf" | "prefixItems" => {
                for (number, inner) in value.as_array().into_iter().flatten().enumerate() {
                    look(inner, root, &format!("{at}/{number}"), values)?;
                }
            }
            "items" if value.is_array() => {
                for (number, inner) in value.as_array().into_iter().flatten().enumerate() {
                    look(inner, root, &format!("{at}/{number}"), values)?;
                }
            }
            "items"
            | "additionalItems"
            | "additionalProperties"
            | "not"
            | "if"
            | "then"
            | "else"
            | "contains"
            | "propertyNames"
            | "unevaluatedItems"
            | "unevaluatedProperties" => look(value, root, &at, values)?,
            _ => {}
        }
    }
    Ok(())
}

/// The value of a keyword has the right shape.
fn keyword(key: &str, value: &Value, at: &str) -> Result<(), GrammarError> {
    let must =
        |ok: bool, what: &str| if ok { Ok(()) } else { wrong(at, format!("must be {what}, not {}", shown(value))) };
    let strings = |value: &Value| value.as_array().is_some_and(|items| items.iter().all(Value::is_string));
    match key {
        "x-guidance" => wrong(at, "is not a keyword of JSON Schema"),
        "type" => {
            let known = |value: &Value| {
                let types = ["null", "boolean", "object", "array", "number", "string", "integer"];
                value.as_str().is_some_and(|name| types.contains(&name))
            };
            let list = value.as_array().is_some_and(|items| !items.is_empty() && items.iter().all(known));
            must(known(value) || list, "the name of a JSON type or a list of such names")
        }
        "properties" | "patternProperties" | "$defs" | "definitions" => must(value.is_object(), "an object of schemas"),
        "allOf" | "anyOf" | "oneOf" => {
            must(value.as_array().is_some_and(|items| !items.is_empty()), "a list of at least one schema")
        }
        "prefixItems" => must(value.is_array(), "a list of schemas"),
        "required" => must(strings(value), "a list of strings"),
        "enum" => must(value.as_array().is_some_and(|items| !items.is_empty()), "a list of at least one value"),
        "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties" => match value.as_u64()
        {
            Some(count) if count > COUNT_MAX => wrong(at, format!("{count} is more than the limit of {COUNT_MAX}")),
            count => must(count.is_some(), "a count"),
        },
        "minimum" | "maximum" => must(value.is_number(), "a number"),
        "exclusiveMinimum" | "exclusiveMaximum" => must(value.is_number() || value.is_boolean(), "a number"),
        "multipleOf" => must(value.as_f64().is_some_and(|number| number > 0.0), "a number above 0"),
        "pattern" => match value.as_str() {
            Some(text) => pattern(text, at),
            None => must(false, "a regular expression"),
        },
        "format" | "$ref" => must(value.is_string(), "a string"),
        _ => Ok(()),
    }
}

/// References stay inside the schema and lead somewhere.
fn reference(value: &Value, root: &Value, at: &str) -> Result<(), GrammarError> {
    let Some(target) = value.as_str() else { return Ok(()) };
    let Some(pointer) = target.strip_prefix('#') else {
        return wrong(
            at,
            format!("'{target}' is outside the schema; only references like '#/$defs/name' are followed"),
        );
    };
    if pointer.contains(['%', '~']) {
        return wrong(at, format!("'{target}' has escapes, which are not supported; rename what it points to"));
    }
    match root.pointer(pointer.trim_end_matches('/')) {
        Some(found) if !chases_itself(found, root) => Ok(()),
        Some(_) => wrong(at, format!("'{target}' leads to itself")),
        None => wrong(at, format!("'{target}' is not in the schema")),
    }
}

/// A chain of bare references that never reaches a schema.
fn chases_itself<'a>(mut found: &'a Value, root: &'a Value) -> bool {
    for _ in 0..64 {
        let Some(next) = found.get("$ref").and_then(Value::as_str).and_then(|text| text.strip_prefix('#')) else {
            return false;
        };
        let Some(target) = root.pointer(next.trim_end_matches('/')) else { return false };
        found = target;
    }
    true
}

fn pattern(text: &str, at: &str) -> Result<(), GrammarError> {
    nesting(text).or_else(|error| wrong(at, error))
}

/// Bounds of a regular expression or a grammar.
pub fn nesting(text: &str) -> Result<(), GrammarError> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(GrammarError::Wrong(format!("longer than {TEXT_BYTES_MAX} bytes")));
    }
    let (mut depth, mut is_escaped) = (0usize, false);
    for (index, char) in text.char_indices() {
        if std::mem::take(&mut is_escaped) {
            continue;
        }
        match char {
            '\\' => is_escaped = true,
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > NESTING_MAX {
            return Err(GrammarError::Wrong(format!("brackets are nested deeper than {NESTING_MAX}")));
        }
        if char == '{' {
            let body = text[index + 1..].split('}').next().unwrap_or("");
            let is_count = !body.is_empty() && body.chars().all(|c| c.is_ascii_digit() || c == ',' || c == ' ');
            let large = |count: &str| {
                let count = count.trim();
                !count.is_empty() && count.parse::<u64>().map_or(true, |count| count > REPETITION_MAX)
            };
            if is_count && body.split(',').any(large) {
                return Err(GrammarError::Wrong(format!("{{{body}}} repeats more often than {REPETITION_MAX} times")));
            }
        }
    }
    Ok(())
}

/// The parameters of a tool, which may be missing.
pub fn parameters(function: &Map<String, Value>) -> Value {
    match function.get("parameters") {
        None | Some(Value::Null) => {
            serde_json::json!({"type": "object", "properties": {}, "additionalProperties": false})
        }
        // Arguments are an object in every format.
        Some(Value::Object(map)) if !map.contains_key("type") && !map.contains_key("$ref") => {
            let mut map = map.clone();
            map.insert("type".into(), "object".into());
            Value::Object(map)
        }
        Some(other) => other.clone(),
    }
}
