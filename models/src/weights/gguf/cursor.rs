//! Bounded reading of little-endian data.

use super::super::error::Fault;

/// A position in a file. Reading past the end is an error, never a panic.
pub(super) struct Cursor<'a> {
    file: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(file: &'a [u8]) -> Self {
        Self { file, at: 0 }
    }

    pub fn position(&self) -> u64 {
        self.at as u64
    }

    pub fn file_bytes(&self) -> u64 {
        self.file.len() as u64
    }

    pub fn left(&self) -> u64 {
        (self.file.len() - self.at) as u64
    }

    /// The next `n` bytes; `what` names them in the error.
    pub fn take(&mut self, n: u64, what: &str) -> Result<&'a [u8], Fault> {
        if n > self.left() {
            let expected = self.position().saturating_add(n);
            return Err(Fault::Truncated { what: what.to_owned(), expected, actual: self.file_bytes() });
        }
        let bytes = &self.file[self.at..self.at + n as usize];
        self.at += n as usize;
        Ok(bytes)
    }

    pub fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], Fault> {
        let bytes = self.take(N as u64, what)?;
        Ok(bytes.try_into().expect("take returns what was asked for"))
    }

    pub fn u32(&mut self, what: &str) -> Result<u32, Fault> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub fn u64(&mut self, what: &str) -> Result<u64, Fault> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A length-prefixed UTF-8 string.
    pub fn string(&mut self, what: &str) -> Result<&'a str, Fault> {
        let length = self.u64(what)?;
        let bytes = self.take(length, what)?;
        std::str::from_utf8(bytes).map_err(|_| Fault::Header(format!("{what} is not UTF-8")))
    }

    /// A count of things of at least `bytes_min` bytes each, held against the bytes left so that nothing is allocated
    /// for a lie.
    pub fn count(&self, count: u64, bytes_min: u64, what: &str) -> Result<usize, Fault> {
        match count.checked_mul(bytes_min) {
            Some(bytes) if bytes <= self.left() => Ok(count as usize),
            _ => Err(Fault::Count { what: what.to_owned(), count, left: self.left() }),
        }
    }
}
