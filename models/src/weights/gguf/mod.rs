//! GGUF, versions 2 and 3: `[magic][version][counts][metadata][tensor infos][padding][tensor data]`, little-endian.
//!
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>. Our own parser, because the published readers
//! trust counts and dimensions. Dimensions are innermost first in the file; [`Tensor::shape`](super::Tensor) is
//! outermost first. Trailing bytes after the last tensor are accepted (padding, and llama.cpp accepts them); split
//! files are refused.
#![forbid(unsafe_code)]

mod cursor;
mod metadata;
mod tensors;
mod types;
mod value;

pub use metadata::Metadata;
pub use types::type_number;
pub use value::{Array, Value};

use super::{error::Fault, tensor::Tensor};
use cursor::Cursor;
use std::path::Path;

/// First four bytes.
pub const MAGIC: &[u8; 4] = b"GGUF";
/// `general.alignment` where the file does not say.
pub const DEFAULT_ALIGNMENT: u64 = 32;

/// A parsed file.
#[derive(Debug)]
pub struct Parsed {
    /// Metadata.
    pub metadata: Metadata,
    /// Tensors in order of their data, region 0.
    pub tensors: Vec<Tensor>,
}

/// Parse and validate a whole file. `path` is for later errors of the metadata getters.
pub fn parse(file: &[u8], path: &Path) -> Result<Parsed, Fault> {
    let mut cursor = Cursor::new(file);
    let not_gguf = |cause: String| Fault::Format { format: "GGUF", cause };
    let magic = cursor.take(4, "the magic")?;
    if magic != MAGIC {
        return Err(not_gguf(format!("it starts with `{}`, not `GGUF`", magic.escape_ascii())));
    }
    let version = cursor.u32("the version")?;
    if version.swap_bytes() == 2 || version.swap_bytes() == 3 {
        return Err(not_gguf("it is big-endian; convert it to little-endian".to_owned()));
    }
    if version != 2 && version != 3 {
        return Err(not_gguf(format!("version {version}; versions 2 and 3 are supported")));
    }
    let n_tensors = cursor.u64("the tensor count")?;
    let n_keys = cursor.u64("the key count")?;
    let metadata = Metadata::read(&mut cursor, n_keys, path)?;
    if let Some(parts @ 2..) = metadata.uint("split.count").map_err(|e| e.fault)? {
        return Err(not_gguf(format!("it is one of {parts} split files; join them with `llama-gguf-split --merge`")));
    }
    let alignment = metadata.uint("general.alignment").map_err(|e| e.fault)?.unwrap_or(DEFAULT_ALIGNMENT);
    if !alignment.is_power_of_two() || alignment > 1 << 20 {
        return Err(Fault::key("general.alignment", format!("is {alignment}; a power of two up to 1048576 is needed")));
    }
    let tensors = tensors::read(&mut cursor, n_tensors, alignment)?;
    Ok(Parsed { metadata, tensors })
}
