//! A file mapped into memory, read-only.
//!
//! Mapping instead of reading: weights are used in place, start-up costs what is touched, and two servers share the
//! pages. The price: a file that is truncated *while in use* raises SIGBUS in whoever touches the lost pages; the
//! operating system offers no portable defence, so files must be replaced by renaming, never overwritten. A file that
//! is short when opened is refused by the readers.

use super::error::{Fault, WeightsError};
use memmap2::Mmap;
use std::{
    fs::File,
    path::{Path, PathBuf},
};

/// A mapped file. Never empty.
#[derive(Debug)]
pub struct MappedFile {
    path: PathBuf,
    map: Mmap,
}

impl MappedFile {
    /// Map `path`. Refuses what is not a regular file, empty files and Git LFS pointers.
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        let fail = |fault: Fault| fault.of(path);
        let file = File::open(path).map_err(|e| fail(Fault::Io(e)))?;
        let about = file.metadata().map_err(|e| fail(Fault::Io(e)))?;
        if !about.is_file() {
            return Err(fail(Fault::NotAFile));
        }
        if about.len() == 0 {
            return Err(fail(Fault::Empty));
        }
        // SAFETY: the map is private to this struct and read-only; the bytes could change only if another process
        // wrote to the file, which the module documentation forbids, and every reader treats them as untrusted data.
        let map = unsafe { Mmap::map(&file) }.map_err(|e| fail(Fault::Io(e)))?;
        if map.starts_with(b"version https://git-lfs") {
            return Err(fail(Fault::LfsPointer));
        }
        Ok(Self { path: path.to_owned(), map })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }
}
