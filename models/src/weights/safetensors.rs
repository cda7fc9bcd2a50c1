//! One safetensors file: `[u64 header length][JSON header][tensor data]`, the data without gaps, overlaps or surplus.
//!
//! Format: <https://github.com/huggingface/safetensors#format>. No cap on the header but the file itself, since it is
//! mapped and not copied, and real files have headers above 100 MB.
#![forbid(unsafe_code)]

use super::{
    error::{Fault, TensorFault, quoted},
    tensor::{Format, Tensor},
};
use serde::de::{DeserializeSeed, Error as _, MapAccess, Visitor};
use std::collections::BTreeMap;
use tokenspeed_backend_api::dtype::DType;

/// Format, and bits per element, of a type name.
fn element(name: &str) -> Option<(Format, u64)> {
    Some(match name {
        "F32" => (Format::Known(DType::F32), 32),
        "F16" => (Format::Known(DType::F16), 16),
        "BF16" => (Format::Known(DType::BF16), 16),
        "F8_E4M3" => (Format::Known(DType::F8E4M3), 8),
        "I32" => (Format::Known(DType::I32), 32),
        "U32" => (Format::Known(DType::U32), 32),
        "U8" => (Format::Known(DType::U8), 8),
        "BOOL" => (Format::Other("BOOL"), 8),
        "I8" => (Format::Other("I8"), 8),
        "F4" => (Format::Other("F4"), 4),
        "F6_E2M3" => (Format::Other("F6_E2M3"), 6),
        "F6_E3M2" => (Format::Other("F6_E3M2"), 6),
        "F8_E5M2" => (Format::Other("F8_E5M2"), 8),
        "F8_E8M0" => (Format::Other("F8_E8M0"), 8),
        "F8_E4M3FNUZ" => (Format::Other("F8_E4M3FNUZ"), 8),
        "F8_E5M2FNUZ" => (Format::Other("F8_E5M2FNUZ"), 8),
        "I16" => (Format::Other("I16"), 16),
        "U16" => (Format::Other("U16"), 16),
        "I64" => (Format::Other("I64"), 64),
        "U64" => (Format::Other("U64"), 64),
        "F64" => (Format::Other("F64"), 64),
        "C64" => (Format::Other("C64"), 64),
        _ => return None,
    })
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// Parse and validate a whole file; tensors in order of their data. `region` is what the tensors will say.
pub fn parse(file: &[u8], region: usize) -> Result<Vec<Tensor>, Fault> {
    let actual = file.len() as u64;
    let truncated = |what: &str, expected: u64| Fault::Truncated { what: what.to_owned(), expected, actual };
    let Some((length, rest)) = file.split_first_chunk::<8>() else {
        return Err(truncated("the header length", 8));
    };
    let length = u64::from_le_bytes(*length);
    let Some(data_start) = length.checked_add(8).filter(|end| *end < 1 << 62) else {
        return Err(Fault::Format { format: "safetensors", cause: format!("it claims a header of {length} bytes") });
    };
    let Some((header, data)) = usize::try_from(length).ok().and_then(|n| rest.split_at_checked(n)) else {
        return Err(truncated("the header", data_start));
    };
    let mut tensors = Vec::new();
    for (name, entry) in read_header(header)? {
        tensors.push(check_entry(name, entry, region)?);
    }
    check_cover(&mut tensors, data_start, data.len() as u64, actual)?;
    for tensor in &mut tensors {
        tensor.offset += data_start;
    }
    Ok(tensors)
}

/// Offsets are still relative to the data here.
fn check_entry(name: String, entry: Entry, region: usize) -> Result<Tensor, Fault> {
    let fail = |cause| Err(Fault::tensor(&name, cause));
    let [begin, end] = entry.data_offsets;
    let Some((format, bits)) = element(&entry.dtype) else {
        return fail(TensorFault::UnknownType(format!("`{}`", quoted(&entry.dtype))));
    };
    let Some(actual) = end.checked_sub(begin) else {
        return fail(TensorFault::Reversed(begin, end));
    };
    let size = entry.shape.iter().try_fold(bits, |n, d| n.checked_mul(*d));
    let Some(size) = size else {
        return fail(TensorFault::Overflow(entry.shape));
    };
    let expected = size.div_ceil(8);
    if !size.is_multiple_of(8) || expected != actual {
        return fail(TensorFault::Size { shape: entry.shape, format: format.name(), expected, actual });
    }
    Ok(Tensor { name, format, shape: entry.shape, region, offset: begin, bytes: actual })
}

/// Sort by place; the ranges must tile the data exactly.
fn check_cover(tensors: &mut [Tensor], data_start: u64, data: u64, actual: u64) -> Result<(), Fault> {
    tensors.sort_by(|a, b| (a.offset, a.bytes, &a.name).cmp(&(b.offset, b.bytes, &b.name)));
    let mut covered = 0;
    let mut first_cut = None;
    for (i, tensor) in tensors.iter().enumerate() {
        let start = tensor.offset;
        if start < covered {
            return Err(Fault::tensor(&tensor.name, TensorFault::Overlap(quoted(&tensors[i - 1].name))));
        }
        if start > covered {
            return Err(Fault::tensor(&tensor.name, TensorFault::Hole { start, previous: covered }));
        }
        covered = start + tensor.bytes;
        if covered > data {
            first_cut = first_cut.or(Some(&tensor.name));
        }
    }
    if let Some(name) = first_cut {
        let what = format!("tensor data, cut from `{}` on,", quoted(name));
        return Err(Fault::Truncated { what, expected: data_start.saturating_add(covered), actual });
    }
    if covered < data {
        return Err(Fault::Trailing { extra: data - covered, expected: data_start + covered, actual });
    }
    Ok(())
}

/// The header's entries in order of appearance, duplicates refused (a JSON map would keep the last in silence).
fn read_header(header: &[u8]) -> Result<Vec<(String, Entry)>, Fault> {
    let malformed = |cause: String| Fault::Header(quoted(&cause));
    let mut json = serde_json::Deserializer::from_slice(header);
    let entries = HeaderSeed.deserialize(&mut json).map_err(|e| malformed(e.to_string()))?;
    json.end().map_err(|e| malformed(e.to_string()))?;
    let mut names: Vec<&str> = entries.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(Fault::tensor(pair[0], TensorFault::Duplicate)),
        None => Ok(entries),
    }
}

struct HeaderSeed;

impl<'de> DeserializeSeed<'de> for HeaderSeed {
    type Value = Vec<(String, Entry)>;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for HeaderSeed {
    type Value = Vec<(String, Entry)>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a map of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                map.next_value::<Option<BTreeMap<String, String>>>()
                    .map_err(|e| A::Error::custom(format!("__metadata__ is not a map of strings: {e}")))?;
                continue;
            }
            let entry = map.next_value().map_err(|e| A::Error::custom(format!("tensor `{name}`: {e}")))?;
            entries.push((name, entry));
        }
        Ok(entries)
    }
}
