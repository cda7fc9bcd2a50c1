//! Why a weight file is refused. One line each: names out of the file are escaped and cut, so a hostile name cannot
//! forge log lines.
#![forbid(unsafe_code)]

use std::{io, path::PathBuf};

/// A refused file.
#[derive(Debug, thiserror::Error)]
#[error("{}: {fault}", file.display())]
pub struct WeightsError {
    /// The file at fault.
    pub file: PathBuf,
    /// What is wrong with it.
    pub fault: Fault,
}

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The file system refused.
    #[error("cannot be read: {0}")]
    Io(#[source] io::Error),
    /// A folder, pipe or device.
    #[error("is not a regular file")]
    NotAFile,
    /// Zero bytes.
    #[error("is empty (0 bytes); download it again")]
    Empty,
    /// The text stub that Git leaves in place of a large file.
    #[error("is a Git LFS pointer, not the weights; fetch the real file with `git lfs pull`")]
    LfsPointer,
    /// Wrong magic, version or name.
    #[error("is not a readable {format} file: {cause}")]
    Format {
        /// The expected format.
        format: &'static str,
        /// What was found instead.
        cause: String,
    },
    /// Shorter than it says.
    #[error("is truncated: {what} ends at byte {expected}, but the file has {actual} bytes; download it again")]
    Truncated {
        /// The part that does not fit.
        what: String,
        /// Bytes the file should have at least.
        expected: u64,
        /// Bytes it has.
        actual: u64,
    },
    /// Longer than it says.
    #[error("has {extra} bytes after its last tensor: the file should have {expected} bytes, it has {actual}")]
    Trailing {
        /// Surplus bytes.
        extra: u64,
        /// Bytes the header accounts for.
        expected: u64,
        /// Bytes there are.
        actual: u64,
    },
    /// The header cannot be read.
    #[error("has a malformed header: {0}")]
    Header(String),
    /// A count that cannot be true of a file of this size.
    #[error("claims {count} {what}, more than its {left} remaining bytes can hold")]
    Count {
        /// What is counted.
        what: String,
        /// The claim.
        count: u64,
        /// Bytes after the claim.
        left: u64,
    },
    /// A metadata key.
    #[error("key `{key}` {cause}")]
    Key {
        /// The key.
        key: String,
        /// What is wrong with it.
        cause: String,
    },
    /// A tensor.
    #[error("tensor `{tensor}` {cause}")]
    Tensor {
        /// Its name, escaped.
        tensor: String,
        /// What is wrong with it.
        cause: TensorFault,
    },
    /// The index file of a sharded checkpoint.
    #[error("is not a usable index: {0}")]
    Index(String),
    /// The index names a file that does not exist.
    #[error("names shard `{shard}` for tensor `{tensor}`, but that file does not exist; download it")]
    MissingShard {
        /// File name.
        shard: String,
        /// First tensor mapped to it.
        tensor: String,
    },
}

/// What is wrong with a tensor.
#[derive(Debug, thiserror::Error)]
pub enum TensorFault {
    /// Listed more than once.
    #[error("is listed twice (duplicate name)")]
    Duplicate,
    /// Present in two shards.
    #[error("is in two shards, `{0}` and `{1}` (duplicate name)")]
    TwoShards(String, String),
    /// An element type that neither we nor the format know.
    #[error("has unknown element type {0}")]
    UnknownType(String),
    /// Elements or bytes overflow 64 bits.
    #[error("has shape {0:?}, whose size overflows")]
    Overflow(Vec<u64>),
    /// The byte range is not what shape and type need.
    #[error("has shape {shape:?} of {format}, which needs {expected} bytes, but its range holds {actual}")]
    Size {
        /// Outermost first.
        shape: Vec<u64>,
        /// Element type.
        format: &'static str,
        /// Bytes needed.
        expected: u64,
        /// Bytes of the range.
        actual: u64,
    },
    /// End before begin.
    #[error("has byte range {0}..{1}, which runs backwards")]
    Reversed(u64, u64),
    /// Shares bytes with another tensor.
    #[error("overlaps tensor `{0}`")]
    Overlap(String),
    /// Unaccounted bytes before it.
    #[error("starts at byte {start} of the data, leaving a hole after byte {previous}")]
    Hole {
        /// Its first byte.
        start: u64,
        /// Where the previous tensor ended.
        previous: u64,
    },
    /// GGUF: a dimension of 0.
    #[error("has a zero dimension: {0:?}")]
    ZeroDimension(Vec<u64>),
    /// GGUF: none or more than four dimensions.
    #[error("has {0} dimensions; 1 to 4 are possible")]
    Rank(u32),
    /// GGUF: offset off the alignment grid.
    #[error("starts at offset {offset}, which is not a multiple of the alignment {alignment}")]
    Misaligned {
        /// Its offset.
        offset: u64,
        /// The file's alignment.
        alignment: u64,
    },
    /// Rows that end inside a block.
    #[error("has rows of {row} values, not a multiple of the {block} values in a block of {format}")]
    PartialBlock {
        /// Values per row.
        row: u64,
        /// Values per block.
        block: u64,
        /// Element type.
        format: &'static str,
    },
    /// The index maps it to a shard that does not contain it.
    #[error("is not in shard `{shard}` where the index puts it{hint}")]
    WrongShard {
        /// Where the index puts it.
        shard: String,
        /// Where it really is, if anywhere.
        hint: String,
    },
}

/// A name out of a file, fit for one line of text: control characters and line separators escaped, cut when long.
pub(crate) fn quoted(name: &str) -> String {
    const CHARS_MAX: usize = 120;
    let mut out = String::new();
    for c in name.chars().take(CHARS_MAX) {
        match c {
            '\u{2028}' | '\u{2029}' => out.extend(c.escape_unicode()),
            c if c.is_control() => out.extend(c.escape_debug()),
            c => out.push(c),
        }
    }
    if name.chars().nth(CHARS_MAX).is_some() {
        out.push('…');
    }
    out
}

impl Fault {
    /// Name the tensor.
    pub(crate) fn tensor(name: &str, cause: TensorFault) -> Self {
        Fault::Tensor { tensor: quoted(name), cause }
    }

    /// Name the key.
    pub(crate) fn key(key: &str, cause: impl Into<String>) -> Self {
        Fault::Key { key: quoted(key), cause: cause.into() }
    }

    /// Name the file.
    pub(crate) fn of(self, file: &std::path::Path) -> WeightsError {
        WeightsError { file: file.to_owned(), fault: self }
    }
}
