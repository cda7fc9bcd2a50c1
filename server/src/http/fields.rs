//! Reading a request object field by field, so that nothing is ever silently ignored.
//!
//! Every read marks its field as known; [`Fields::finish`] refuses what nobody read and names the nearest known field.
//! Written by hand instead of derived: messages must name the parameter, the value and the range, and `null` means
//! "not given" everywhere, as in the OpenAI API.

use std::cell::RefCell;

use serde_json::{Map, Value};

use super::{error::ApiError, json::type_name};

/// A request object being read.
#[derive(Debug)]
pub struct Fields {
    map: Map<String, Value>,
    known: RefCell<Vec<&'static str>>,
}

fn wrong(name: &str, wanted: &str, value: &Value) -> ApiError {
    let mut shown = value.to_string();
    if shown.len() > 80 {
        shown = type_name(value).to_owned();
    }
    ApiError::param(name, format!("'{name}' must be {wanted}, not {shown}."))
}

/// An integer, also when written as `5.0`; `None` when it is none or does not fit.
pub fn integer(value: &Value) -> Option<i128> {
    let number = value.as_number()?;
    if let Some(value) = number.as_i64() {
        return Some(value.into());
    }
    if let Some(value) = number.as_u64() {
        return Some(value.into());
    }
    let float = number.as_f64()?;
    // Up to 2^53 a float holds every integer exactly; beyond, it may stand for another one.
    (float.fract() == 0.0 && float.abs() <= 9_007_199_254_740_992.0).then_some(float as i128)
}

impl Fields {
    /// Wrap a parsed body.
    pub fn new(map: Map<String, Value>) -> Self {
        Self { map, known: RefCell::default() }
    }

    /// The raw value; `null` counts as absent.
    pub fn get(&self, name: &'static str) -> Option<&Value> {
        self.known.borrow_mut().push(name);
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// The field is known and has no effect on the answer.
    pub fn accept(&self, names: &[&'static str]) {
        self.known.borrow_mut().extend_from_slice(names);
    }

    /// true or false.
    pub fn bool(&self, name: &'static str) -> Result<Option<bool>, ApiError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(*value)),
            Some(other) => Err(wrong(name, "true or false", other)),
        }
    }

    /// A string.
    pub fn string(&self, name: &'static str) -> Result<Option<&str>, ApiError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(value)) => Ok(Some(value)),
            Some(other) => Err(wrong(name, "a string", other)),
        }
    }

    /// A list of anything.
    pub fn list(&self, name: &'static str) -> Result<Option<&[Value]>, ApiError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Array(value)) => Ok(Some(value)),
            Some(other) => Err(wrong(name, "a list", other)),
        }
    }

    /// An object.
    pub fn object(&self, name: &'static str) -> Result<Option<&Map<String, Value>>, ApiError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Object(value)) => Ok(Some(value)),
            Some(other) => Err(wrong(name, "an object", other)),
        }
    }

    /// An integer in `low..=high`.
    pub fn int(&self, name: &'static str, low: i128, high: i128) -> Result<Option<i128>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match integer(value) {
            Some(number) if (low..=high).contains(&number) => Ok(Some(number)),
            _ => Err(wrong(name, &format!("an integer from {low} to {high}"), value)),
        }
    }

    /// An integer in `low..=high`, both within `u32`.
    pub fn u32(&self, name: &'static str, low: u32, high: u32) -> Result<Option<u32>, ApiError> {
        Ok(self.int(name, low.into(), high.into())?.map(|number| number as u32))
    }

    /// A number that `accept` takes; `range` says which ones, for the message. -0.0 becomes 0.
    pub fn f32(&self, name: &'static str, range: &str, accept: impl Fn(f64) -> bool) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match value.as_f64() {
            // `accept` sees the full value: rounding to f32 first would let 2.00000001 through.
            Some(number) if number.is_finite() && accept(number) => Ok(Some(number as f32 + 0.0)),
            _ => Err(wrong(name, &format!("a number in {range}"), value)),
        }
    }

    /// A list of token ids below `vocab_size`, at most `count_max` of them.
    pub fn token_ids(
        &self,
        name: &'static str,
        vocab_size: u32,
        count_max: usize,
    ) -> Result<Option<Vec<u32>>, ApiError> {
        let Some(list) = self.list(name)? else { return Ok(None) };
        if list.len() > count_max {
            return Err(ApiError::param(
                name,
                format!("'{name}' has {} entries; the limit is {count_max}.", list.len()),
            ));
        }
        list.iter().map(|value| token_id(name, value, vocab_size)).collect::<Result<_, _>>().map(Some)
    }

    /// Refuse `name` unless it is absent or `harmless` says its value changes nothing.
    pub fn refuse(&self, name: &'static str, why: &str, harmless: impl Fn(&Value) -> bool) -> Result<(), ApiError> {
        match self.get(name) {
            Some(value) if !harmless(value) => {
                Err(ApiError::unsupported(name, format!("'{name}' is not supported: {why}")))
            }
            _ => Ok(()),
        }
    }

    /// Refuse every field that nobody asked for.
    pub fn finish(&self) -> Result<(), ApiError> {
        let known = self.known.borrow();
        let Some(unknown) = self.map.keys().find(|key| !known.contains(&key.as_str())) else { return Ok(()) };
        let shown: String = unknown.chars().take(60).collect();
        let nearest = known.iter().min_by_key(|name| distance(name, &shown)).filter(|name| {
            let limit = name.len().max(shown.len()) / 3;
            distance(name, &shown) <= limit
        });
        let hint = nearest.map_or(String::new(), |name| format!(" Did you mean '{name}'?"));
        Err(ApiError {
            code: Some("unknown_parameter"),
            ..ApiError::param(shown.clone(), format!("Unknown parameter '{shown}'.{hint}"))
        })
    }
}

/// A token id below `vocab_size`.
pub fn token_id(name: &str, value: &Value, vocab_size: u32) -> Result<u32, ApiError> {
    match integer(value) {
        Some(id) if (0..i128::from(vocab_size)).contains(&id) => Ok(id as u32),
        _ => {
            let shown: String = value.to_string().chars().take(60).collect();
            let last = vocab_size.saturating_sub(1);
            Err(ApiError::param(name, format!("'{name}' must hold token ids from 0 to {last}, not {shown}.")))
        }
    }
}

/// Edit distance (insert, delete, replace).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let replace = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = replace.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(json: &str) -> Fields {
        Fields::new(super::super::json::parse_object(json.as_bytes()).expect("valid JSON"))
    }

    #[test]
    fn unknown_field_names_the_nearest_known_one() {
        let fields = fields(r#"{"temprature":1}"#);
        assert_eq!(fields.f32("temperature", "[0, 2]", |_| true), Ok(None));
        let error = fields.finish().expect_err("unknown");
        assert_eq!(error.param.as_deref(), Some("temprature"));
        assert!(error.message.contains("Did you mean 'temperature'?"), "{}", error.message);
    }

    #[test]
    fn huge_numbers_never_wrap() {
        for value in ["4294967301", "1e20", "18446744073709551621", "-1", "1.5", "\"5\"", "true"] {
            let fields = fields(&format!(r#"{{"n":{value}}}"#));
            assert!(fields.u32("n", 0, 100).is_err(), "{value}");
        }
        assert_eq!(fields(r#"{"n":5.0}"#).u32("n", 0, 100), Ok(Some(5)));
    }

    #[test]
    fn nan_in_request_and_edges() {
        for value in ["\"NaN\"", "[]", "2.01", "-0.1"] {
            let fields = fields(&format!(r#"{{"temperature":{value}}}"#));
            let error = fields.f32("temperature", "[0, 2]", |v| (0.0..=2.0).contains(&v)).expect_err(value);
            assert_eq!(error.param.as_deref(), Some("temperature"));
        }
        let zero = fields(r#"{"temperature":-0.0}"#).f32("temperature", "", |_| true).expect("a number");
        assert!(zero.is_some_and(|zero| zero == 0.0 && zero.is_sign_positive()));
    }

    #[test]
    fn distance_is_edit_distance() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
    }
}
