//! MessagePack, as far as kernel metadata uses it. Format: msgpack.org specification.

use super::elf::{LoadError, Reader};

/// A value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// Nil, booleans and integers.
    Int(i64),
    /// A string.
    Text(String),
    /// An array.
    List(Vec<Value>),
    /// A map with string keys.
    Map(Vec<(String, Value)>),
}

impl Value {
    /// A member of a map.
    pub fn get(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Map(members) => members.iter().find(|(k, _)| k == key).map(|(_, v)| v),
            _ => None,
        }
    }

    /// An integer member.
    pub fn int(&self, key: &str) -> Option<i64> {
        match self.get(key) {
            Some(Self::Int(i)) => Some(*i),
            _ => None,
        }
    }

    /// A text member.
    pub fn text(&self, key: &str) -> Option<&str> {
        match self.get(key) {
            Some(Self::Text(t)) => Some(t),
            _ => None,
        }
    }

    /// A list member; absent is empty.
    pub fn list(&self, key: &str) -> &[Self] {
        match self.get(key) {
            Some(Self::List(l)) => l,
            _ => &[],
        }
    }
}

/// Deeper nesting than any metadata.
const DEPTH: u32 = 16;

/// Parses one value.
pub fn parse(bytes: &[u8]) -> Result<Value, LoadError> {
    value(Reader(bytes), &mut 0, DEPTH)
}

fn value(r: Reader, at: &mut usize, depth: u32) -> Result<Value, LoadError> {
    let bad = |what: &str| LoadError::Corrupt(format!("metadata: {what}"));
    let depth = depth.checked_sub(1).ok_or_else(|| bad("nested too deeply"))?;
    let take = |at: &mut usize, len: usize| {
        let v = r.int(*at, len)?;
        *at += len;
        // Big-endian.
        Ok::<u64, LoadError>(v.swap_bytes() >> (64 - 8 * len))
    };
    let tag = take(at, 1)? as u8;
    let len = match tag {
        0x80..=0x9f => usize::from(tag & 15),
        0xa0..=0xbf => usize::from(tag & 31),
        0xd9 => take(at, 1)? as usize,
        0xda | 0xdc | 0xde => take(at, 2)? as usize,
        0xdb | 0xdd | 0xdf => take(at, 4)? as usize,
        _ => 0,
    };
    Ok(match tag {
        0..=0x7f => Value::Int(i64::from(tag)),
        0xe0..=0xff => Value::Int(i64::from(tag as i8)),
        0xc0 | 0xc2 => Value::Int(0),
        0xc3 => Value::Int(1),
        0xcc => Value::Int(take(at, 1)? as i64),
        0xcd => Value::Int(take(at, 2)? as i64),
        0xce => Value::Int(take(at, 4)? as i64),
        0xcf | 0xd3 => Value::Int(take(at, 8)? as i64),
        0xd0 => Value::Int(i64::from(take(at, 1)? as i8)),
        0xd1 => Value::Int(i64::from(take(at, 2)? as i16)),
        0xd2 => Value::Int(i64::from(take(at, 4)? as i32)),
        0xa0..=0xbf | 0xd9..=0xdb => {
            let text = r.slice(*at, len)?;
            *at += len;
            Value::Text(String::from_utf8_lossy(text).into_owned())
        }
        0x90..=0x9f | 0xdc | 0xdd => {
            let mut list = Vec::new();
            for _ in 0..len {
                list.push(value(r, at, depth)?);
            }
            Value::List(list)
        }
        0x80..=0x8f | 0xde | 0xdf => {
            let mut map = Vec::new();
            for _ in 0..len {
                let Value::Text(key) = value(r, at, depth)? else { return Err(bad("a key that is no text")) };
                map.push((key, value(r, at, depth)?));
            }
            Value::Map(map)
        }
        _ => return Err(bad("an unexpected type")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values() {
        let bytes = b"\x82\xa1a\x93\x01\xff\xcd\x01\x02\xa2bc\xc3";
        let v = parse(bytes).unwrap();
        assert_eq!(v.list("a"), [Value::Int(1), Value::Int(-1), Value::Int(258)]);
        assert_eq!(v.int("bc"), Some(1));
        for cut in 1..bytes.len() {
            assert!(parse(&bytes[..cut]).is_err(), "{cut}");
        }
        assert!(parse(&[0x91; 40]).is_err());
    }
}
