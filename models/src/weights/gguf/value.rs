//! Metadata values. Integers and floats are widened: files disagree about widths, readers should not care.

use super::{super::error::Fault, cursor::Cursor};

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Any unsigned integer type.
    Uint(u64),
    /// Any signed integer type.
    Int(i64),
    /// f32 or f64.
    Float(f64),
    /// A bool.
    Bool(bool),
    /// UTF-8 text.
    Str(String),
    /// An array of one type.
    Array(Array),
}

/// An array value.
#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    /// Any unsigned integer type.
    Uint(Vec<u64>),
    /// Any signed integer type.
    Int(Vec<i64>),
    /// f32 or f64.
    Float(Vec<f64>),
    /// Bools.
    Bool(Vec<bool>),
    /// Strings.
    Str(Vec<String>),
    /// Arrays.
    Array(Vec<Array>),
}

impl Value {
    /// For messages.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Value::Uint(_) => "an unsigned integer",
            Value::Int(_) => "a signed integer",
            Value::Float(_) => "a float",
            Value::Bool(_) => "a bool",
            Value::Str(_) => "a string",
            Value::Array(Array::Uint(_)) => "an array of unsigned integers",
            Value::Array(Array::Int(_)) => "an array of signed integers",
            Value::Array(Array::Float(_)) => "an array of floats",
            Value::Array(Array::Bool(_)) => "an array of bools",
            Value::Array(Array::Str(_)) => "an array of strings",
            Value::Array(Array::Array(_)) => "an array of arrays",
        }
    }
}

/// Arrays inside arrays inside…: no real file goes deeper than two, and recursion must be bounded.
const DEPTH_MAX: u32 = 4;

const T_BOOL: u32 = 7;
const T_STRING: u32 = 8;
const T_ARRAY: u32 = 9;

pub(super) fn read(cursor: &mut Cursor, kind: u32, key: &str) -> Result<Value, Fault> {
    Ok(match kind {
        0 | 2 | 4 | 10 => Value::Uint(uint(cursor, kind, key)?),
        1 | 3 | 5 | 11 => Value::Int(int(cursor, kind, key)?),
        6 | 12 => Value::Float(float(cursor, kind, key)?),
        T_BOOL => Value::Bool(boolean(cursor, key)?),
        T_STRING => Value::Str(cursor.string(key)?.to_owned()),
        T_ARRAY => Value::Array(array(cursor, key, 1)?),
        _ => return Err(Fault::key(key, format!("has unknown value type {kind}"))),
    })
}

fn array(cursor: &mut Cursor, key: &str, depth: u32) -> Result<Array, Fault> {
    let kind = cursor.u32(key)?;
    let length = cursor.u64(key)?;
    let bytes_min = match kind {
        0 | 1 | T_BOOL => 1,
        2 | 3 => 2,
        4..=6 => 4,
        T_STRING | 10..=12 => 8,
        T_ARRAY => 12,
        _ => return Err(Fault::key(key, format!("is an array of unknown value type {kind}"))),
    };
    let n = cursor.count(length, bytes_min, &format!("elements in `{key}`"))?;
    Ok(match kind {
        0 | 2 | 4 | 10 => Array::Uint(collect(n, || uint(cursor, kind, key))?),
        1 | 3 | 5 | 11 => Array::Int(collect(n, || int(cursor, kind, key))?),
        6 | 12 => Array::Float(collect(n, || float(cursor, kind, key))?),
        T_BOOL => Array::Bool(collect(n, || boolean(cursor, key))?),
        T_STRING => Array::Str(collect(n, || cursor.string(key).map(str::to_owned))?),
        T_ARRAY if depth < DEPTH_MAX => Array::Array(collect(n, || array(cursor, key, depth + 1))?),
        _ => return Err(Fault::key(key, format!("nests arrays deeper than {DEPTH_MAX}"))),
    })
}

fn collect<T>(n: usize, mut next: impl FnMut() -> Result<T, Fault>) -> Result<Vec<T>, Fault> {
    (0..n).map(|_| next()).collect()
}

fn uint(cursor: &mut Cursor, kind: u32, key: &str) -> Result<u64, Fault> {
    Ok(match kind {
        0 => u64::from(cursor.array::<1>(key)?[0]),
        2 => u64::from(u16::from_le_bytes(cursor.array(key)?)),
        4 => u64::from(u32::from_le_bytes(cursor.array(key)?)),
        _ => u64::from_le_bytes(cursor.array(key)?),
    })
}

fn int(cursor: &mut Cursor, kind: u32, key: &str) -> Result<i64, Fault> {
    Ok(match kind {
        1 => i64::from(cursor.array::<1>(key)?[0] as i8),
        3 => i64::from(i16::from_le_bytes(cursor.array(key)?)),
        5 => i64::from(i32::from_le_bytes(cursor.array(key)?)),
        _ => i64::from_le_bytes(cursor.array(key)?),
    })
}

fn float(cursor: &mut Cursor, kind: u32, key: &str) -> Result<f64, Fault> {
    Ok(match kind {
        6 => f64::from(f32::from_le_bytes(cursor.array(key)?)),
        _ => f64::from_le_bytes(cursor.array(key)?),
    })
}

fn boolean(cursor: &mut Cursor, key: &str) -> Result<bool, Fault> {
    match cursor.array::<1>(key)? {
        [0] => Ok(false),
        [1] => Ok(true),
        [other] => Err(Fault::key(key, format!("is a bool of value {other}"))),
    }
}
