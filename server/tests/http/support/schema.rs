//! A validator for the part of JSON Schema that these tests use, written from the specification and independent of the
//! library that makes the grammars.

use serde_json::Value;

/// Whether `value` fits `schema`, whose references start at `root`.
pub fn fits(value: &Value, schema: &Value, root: &Value) -> bool {
    let Value::Object(map) = schema else { return *schema == Value::Bool(true) };
    map.iter().all(|(key, rule)| match key.as_str() {
        "$ref" => fits(value, root.pointer(&rule.as_str().expect("a reference")[1..]).expect("found"), root),
        "type" => match rule {
            Value::Array(names) => names.iter().any(|name| is_a(value, name.as_str().expect("a name"))),
            name => is_a(value, name.as_str().expect("a name")),
        },
        "enum" => rule.as_array().expect("a list").contains(value),
        "const" => rule == value,
        "anyOf" => rule.as_array().expect("a list").iter().any(|one| fits(value, one, root)),
        "allOf" => rule.as_array().expect("a list").iter().all(|one| fits(value, one, root)),
        "required" => value.as_object().is_none_or(|object| {
            rule.as_array().expect("a list").iter().all(|k| object.contains_key(k.as_str().expect("a name")))
        }),
        "properties" => value.as_object().is_none_or(|object| {
            object.iter().all(|(name, inner)| rule.get(name).is_none_or(|schema| fits(inner, schema, root)))
        }),
        "additionalProperties" => value.as_object().is_none_or(|object| {
            let is_named = |name: &str| map.get("properties").is_some_and(|known| known.get(name).is_some());
            object.iter().all(|(name, inner)| is_named(name) || fits(inner, rule, root))
        }),
        "items" => value.as_array().is_none_or(|items| items.iter().all(|item| fits(item, rule, root))),
        "minItems" => value.as_array().is_none_or(|items| items.len() as u64 >= rule.as_u64().expect("a count")),
        "maxItems" => value.as_array().is_none_or(|items| items.len() as u64 <= rule.as_u64().expect("a count")),
        "minLength" => value.as_str().is_none_or(|text| text.chars().count() as u64 >= rule.as_u64().expect("a count")),
        "maxLength" => value.as_str().is_none_or(|text| text.chars().count() as u64 <= rule.as_u64().expect("a count")),
        "minimum" => value.as_f64().is_none_or(|number| number >= rule.as_f64().expect("a number")),
        "maximum" => value.as_f64().is_none_or(|number| number <= rule.as_f64().expect("a number")),
        "multipleOf" => value.as_f64().is_none_or(|number| (number / rule.as_f64().expect("a number")).fract() == 0.0),
        "pattern" => value.as_str().is_none_or(|text| matches(text, rule.as_str().expect("a pattern"))),
        "$defs" | "description" | "title" => true,
        other => panic!("the tests' validator does not know '{other}'"),
    })
}

fn is_a(value: &Value, name: &str) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "number" => value.is_number(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        other => panic!("unknown type '{other}'"),
    }
}

/// Only these patterns occur.
fn matches(text: &str, pattern: &str) -> bool {
    let bytes = text.as_bytes();
    match pattern {
        "^[A-Z]{2}-[0-9]{3}$" => {
            bytes.len() == 6
                && bytes[..2].iter().all(u8::is_ascii_uppercase)
                && bytes[2] == b'-'
                && bytes[3..].iter().all(u8::is_ascii_digit)
        }
        r"\d" => text.contains(|c: char| c.is_ascii_digit()),
        other => panic!("unknown pattern '{other}'"),
    }
}
