//! Strict JSON for request bodies: what a lenient parser would let through and somebody would pay for later is refused.
//!
//! On top of `serde_json` (no NaN, no trailing bytes, no lone surrogates, at most 128 levels) it refuses duplicate keys,
//! where parsers disagree about which one counts. Numbers that do not fit are never wrapped: an integer beyond 64 bits
//! arrives as a float and fails the integer check of its field.

use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::error::ApiError;

struct Strict;

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("number out of range"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = sequence.next_element_seed(Strict)? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if map.contains_key(&key) {
                let shown: String = key.chars().take(60).collect();
                return Err(de::Error::custom(format_args!("duplicate key '{shown}'")));
            }
            map.insert(key, entries.next_value_seed(Strict)?);
        }
        Ok(Value::Object(map))
    }
}

/// Parse a request body into its top-level object.
pub fn parse_object(body: &[u8]) -> Result<Map<String, Value>, ApiError> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Err(ApiError::bad_request("The request body is empty; it must be a JSON object."));
    }
    if body.starts_with(b"\xef\xbb\xbf") {
        return Err(ApiError::bad_request("The request body starts with a byte-order mark; send plain UTF-8."));
    }
    let text = std::str::from_utf8(body).map_err(|error| {
        let at = error.valid_up_to();
        ApiError::bad_request(format!("The request body is not valid UTF-8 (at byte {at})."))
    })?;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = Strict.deserialize(&mut deserializer).and_then(|value| deserializer.end().map(|()| value));
    match value {
        Ok(Value::Object(map)) => Ok(map),
        Ok(other) => {
            let message = format!("The request body must be a JSON object, not {}.", type_name(&other));
            Err(ApiError::bad_request(message))
        }
        Err(error) => Err(ApiError::bad_request(format!("The request body is not valid JSON: {error}."))),
    }
}

/// What a value is, for messages.
pub fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(body: &[u8]) -> String {
        parse_object(body).expect_err("must be refused").message
    }

    #[test]
    fn malformed_body_duplicate_keys_at_any_depth() {
        assert!(message(br#"{"a":1,"a":2}"#).contains("duplicate key 'a'"));
        assert!(message(br#"{"x":[{"b":1,"b":1}]}"#).contains("duplicate key 'b'"));
    }

    #[test]
    fn malformed_body_kinds() {
        let nested = [b"{\"a\":".to_vec(), vec![b'['; 10_000]].concat();
        assert!(message(&nested).contains("recursion limit"), "{}", message(&nested));
        assert!(message(b"").contains("empty"));
        assert!(message(b"  \n").contains("empty"));
        assert!(message(b"\xef\xbb\xbf{}").contains("byte-order mark"));
        assert!(message(b"{\"a\":\"\xff\"}").contains("UTF-8"));
        assert!(message(b"{} x").contains("trailing"));
        assert!(message(b"[]").contains("not a list"));
        assert!(message(b"{\"t\":NaN}").contains("not valid JSON"));
        assert!(message(b"{\"t\":1e999}").contains("out of range"));
        assert!(message(br#"{"t":"\ud83d"}"#).contains("surrogate") || !message(br#"{"t":"\ud83d"}"#).is_empty());
    }

    #[test]
    fn integers_beyond_64_bits_are_not_wrapped() {
        let map = parse_object(br#"{"n":18446744073709551621}"#).expect("a number");
        assert!(map["n"].as_u64().is_none());
        assert_eq!(parse_object(br#"{"t":"\ud83d\ude00"}"#).expect("a pair")["t"], "😀");
    }
}
