//! Typed access to a JSON object, with errors that name file, field and value. `null` counts as absent, as in Python.

use super::error::{ConfigError, ConfigFault};
use crate::weights::quoted;
use serde_json::{Map, Value};
use std::path::Path;

/// A JSON object of `file`, at `prefix` (`rope_scaling.`).
pub(super) struct Fields<'a> {
    pub file: &'a Path,
    prefix: String,
    map: &'a Map<String, Value>,
}

/// Read a file that must hold a JSON object.
pub(super) fn read_object(file: &Path) -> Result<Map<String, Value>, ConfigError> {
    let text = std::fs::read(file).map_err(|e| ConfigError::at(file, ConfigFault::Io(e)))?;
    let not_json = |cause: String| ConfigError::at(file, ConfigFault::NotJson(cause));
    if text.starts_with(b"version https://git-lfs") {
        return Err(not_json("it is a Git LFS pointer; fetch the real file with `git lfs pull`".to_owned()));
    }
    match serde_json::from_slice(&text) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(not_json("it holds another kind of value".to_owned())),
        Err(e) => Err(not_json(quoted(&e.to_string()))),
    }
}

/// A value, short enough for a message.
pub(super) fn show(value: &Value) -> String {
    quoted(&value.to_string())
}

impl<'a> Fields<'a> {
    pub fn new(file: &'a Path, map: &'a Map<String, Value>) -> Self {
        Self { file, prefix: String::new(), map }
    }

    pub fn keys(&self) -> impl Iterator<Item = &'a str> {
        self.map.keys().map(String::as_str)
    }

    pub fn get(&self, field: &str) -> Option<&'a Value> {
        self.map.get(field).filter(|value| !value.is_null())
    }

    /// Whether the field is written out, be it as `null`.
    pub fn is_written(&self, field: &str) -> bool {
        self.map.contains_key(field)
    }

    pub fn error(&self, fault: ConfigFault) -> ConfigError {
        ConfigError::at(self.file, fault)
    }

    pub fn name(&self, field: &str) -> String {
        format!("{}{}", self.prefix, quoted(field))
    }

    pub fn missing(&self, field: &str) -> ConfigError {
        self.error(ConfigFault::Missing(self.name(field)))
    }

    pub fn unsupported(&self, field: &str, value: impl Into<String>, supported: impl Into<String>) -> ConfigError {
        let fault =
            ConfigFault::Unsupported { field: self.name(field), value: value.into(), supported: supported.into() };
        self.error(fault)
    }

    pub fn invalid(&self, field: &str, value: impl ToString, why: &str) -> ConfigError {
        let fault = ConfigFault::Invalid { field: self.name(field), value: value.to_string(), why: why.to_owned() };
        self.error(fault)
    }

    fn typed<T>(
        &self,
        field: &str,
        wanted: &'static str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let wrong = || self.error(ConfigFault::WrongType { field: self.name(field), value: show(value), wanted });
        read(value).map(Some).ok_or_else(wrong)
    }

    /// A whole number; `4096.0` counts.
    pub fn uint(&self, field: &str) -> Result<Option<u64>, ConfigError> {
        self.typed(field, "a whole number", whole)
    }

    pub fn need_uint(&self, field: &str) -> Result<u64, ConfigError> {
        self.uint(field)?.ok_or_else(|| self.missing(field))
    }

    /// A number; JSON has no infinities, so it is finite.
    pub fn float(&self, field: &str) -> Result<Option<f64>, ConfigError> {
        self.typed(field, "a number", Value::as_f64)
    }

    pub fn need_float(&self, field: &str) -> Result<f64, ConfigError> {
        self.float(field)?.ok_or_else(|| self.missing(field))
    }

    pub fn bool(&self, field: &str) -> Result<Option<bool>, ConfigError> {
        self.typed(field, "true or false", Value::as_bool)
    }

    pub fn str(&self, field: &str) -> Result<Option<&'a str>, ConfigError> {
        self.typed(field, "a string", Value::as_str)
    }

    pub fn array(&self, field: &str) -> Result<Option<&'a [Value]>, ConfigError> {
        self.typed(field, "a list", |v| v.as_array().map(Vec::as_slice))
    }

    pub fn object(&self, field: &str) -> Result<Option<Fields<'a>>, ConfigError> {
        let map = self.typed(field, "an object", Value::as_object)?;
        Ok(map.map(|map| Fields { file: self.file, prefix: format!("{}{field}.", self.prefix), map }))
    }

    /// A token id or a list of them, as `eos_token_id` comes; sorted, without repetitions.
    pub fn ids(&self, field: &str) -> Result<Vec<u32>, ConfigError> {
        let id = |v: &Value| whole(v).and_then(|n| u32::try_from(n).ok());
        let ids = self.typed(field, "a token id or a list of token ids", |value| match value {
            Value::Array(list) => list.iter().map(id).collect::<Option<Vec<u32>>>(),
            one => id(one).map(|id| vec![id]),
        })?;
        let mut ids = ids.unwrap_or_default();
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }
}

fn whole(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| {
        let float = value.as_f64()?;
        (float.fract() == 0.0 && (0.0..9e15).contains(&float)).then_some(float as u64)
    })
}
