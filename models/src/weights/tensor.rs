//! A tensor in a file: name, element type, shape and place.
#![forbid(unsafe_code)]

use tokenspeed_backend_api::dtype::DType;

/// Element type as stored. Files may hold types that no op reads; only using such a tensor is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One the engine knows.
    Known(DType),
    /// One only the file format knows, by its name there.
    Other(&'static str),
}

impl Format {
    /// For messages.
    pub fn name(self) -> &'static str {
        match self {
            Format::Known(dtype) => dtype.name(),
            Format::Other(name) => name,
        }
    }
}

/// A validated tensor: `offset..offset + bytes` lies inside its region.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Name in the file.
    pub name: String,
    /// Element type.
    pub format: Format,
    /// Outermost dimension first, whatever the file's order.
    pub shape: Vec<u64>,
    /// Index of the mapped file.
    pub region: usize,
    /// First byte inside the region.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}
