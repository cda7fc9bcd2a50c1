//! Metadata with typed getters: `Ok(None)` if absent, an error naming file and key if of the wrong type.

use super::{
    super::error::{Fault, WeightsError, quoted},
    cursor::Cursor,
    value::{self, Array, Value},
};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// A GGUF file's key-value pairs.
#[derive(Clone, Debug)]
pub struct Metadata {
    file: PathBuf,
    values: BTreeMap<String, Value>,
}

impl Metadata {
    pub(super) fn read(cursor: &mut Cursor, n: u64, file: &Path) -> Result<Self, Fault> {
        // A key is more than its length, but a lower bound lets the next error name the key that does not fit.
        let n = cursor.count(n, 8, "metadata keys")?;
        let mut values = BTreeMap::new();
        for i in 0..n {
            let key = cursor.string(&format!("metadata key {i}"))?;
            if key.is_empty() {
                return Err(Fault::Header(format!("metadata key {i} has an empty name")));
            }
            let kind = cursor.u32(&format!("key `{}`", quoted(key)))?;
            let value = value::read(cursor, kind, &quoted(key))?;
            if values.insert(key.to_owned(), value).is_some() {
                return Err(Fault::key(key, "is listed twice (duplicate key)"));
            }
        }
        Ok(Self { file: file.to_owned(), values })
    }

    /// The file it is from.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Every key and value.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.values.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The untyped value.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// An unsigned integer of any width, or a signed one that is not negative.
    pub fn uint(&self, key: &str) -> Result<Option<u64>, WeightsError> {
        self.typed(key, "an unsigned integer", |value| match value {
            Value::Uint(v) => Some(*v),
            Value::Int(v) => u64::try_from(*v).ok(),
            _ => None,
        })
    }

    /// A float, or an integer taken as one.
    pub fn float(&self, key: &str) -> Result<Option<f64>, WeightsError> {
        self.typed(key, "a float", |value| match value {
            Value::Float(v) => Some(*v),
            Value::Uint(v) => Some(*v as f64),
            Value::Int(v) => Some(*v as f64),
            _ => None,
        })
    }

    /// A bool.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, WeightsError> {
        self.typed(key, "a bool", |value| if let Value::Bool(v) = value { Some(*v) } else { None })
    }

    /// A string.
    pub fn str(&self, key: &str) -> Result<Option<&str>, WeightsError> {
        self.typed(key, "a string", |value| if let Value::Str(v) = value { Some(v.as_str()) } else { None })
    }

    /// An array of strings.
    pub fn strings(&self, key: &str) -> Result<Option<&[String]>, WeightsError> {
        self.typed(key, "an array of strings", |value| match value {
            Value::Array(Array::Str(v)) => Some(v.as_slice()),
            _ => None,
        })
    }

    /// An array of floats; integers are refused (token scores as bytes are a known trap).
    pub fn floats(&self, key: &str) -> Result<Option<&[f64]>, WeightsError> {
        self.typed(key, "an array of floats", |value| match value {
            Value::Array(Array::Float(v)) => Some(v.as_slice()),
            _ => None,
        })
    }

    /// An array of integers of any type.
    pub fn ints(&self, key: &str) -> Result<Option<Vec<i64>>, WeightsError> {
        self.typed(key, "an array of integers", |value| match value {
            Value::Array(Array::Int(v)) => Some(v.clone()),
            Value::Array(Array::Uint(v)) => v.iter().map(|x| i64::try_from(*x).ok()).collect(),
            _ => None,
        })
    }

    /// An error about a key of this file, for readers of the values.
    pub fn error(&self, key: &str, cause: impl Into<String>) -> WeightsError {
        Fault::key(key, cause).of(&self.file)
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        wanted: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, WeightsError> {
        let Some(value) = self.values.get(key) else { return Ok(None) };
        match read(value) {
            Some(v) => Ok(Some(v)),
            None => Err(self.error(key, format!("is {}, but {wanted} is needed", describe(value)))),
        }
    }
}

fn describe(value: &Value) -> String {
    match value {
        Value::Int(v) => format!("the integer {v}"),
        _ => value.kind().to_owned(),
    }
}
