//! The parts of an ELF64 file that a code object needs: segments, dynamic symbols, the metadata note.
//!
//! Formats: ELF gABI; LLVM's "User Guide for AMDGPU Backend", code object versions 4 to 6. Nothing of the file is trusted.

use std::ops::Range;

/// Why bytes are not a code object that can be loaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// Not the right kind of file.
    #[error("not a gfx950 code object: {0}")]
    Format(String),
    /// A structure lies outside the file.
    #[error("truncated or corrupted code object: {0}")]
    Corrupt(String),
    /// Code that the emulator cannot run.
    #[error("kernel {kernel} at {offset:#x}: {error}")]
    Code {
        /// Kernel.
        kernel: String,
        /// Byte offset in its code.
        offset: u32,
        /// Decoder's reason.
        error: crate::isa::DecodeError,
    },
    /// A descriptor or metadata asks for something that is not modelled.
    #[error("kernel {kernel}: {what}")]
    Unsupported {
        /// Kernel.
        kernel: String,
        /// What.
        what: String,
    },
}

/// A loadable segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Address in the image.
    pub address: u64,
    /// Bytes in the file.
    pub file: Range<usize>,
    /// Bytes in memory.
    pub memory_len: u64,
}

/// A dynamic symbol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Symbol {
    /// Name.
    pub name: String,
    /// Address in the image.
    pub address: u64,
    /// Bytes.
    pub size: u64,
}

/// What was found in the file.
#[derive(Debug, Clone)]
pub struct Elf<'a> {
    bytes: &'a [u8],
    /// Loadable segments.
    pub segments: Vec<Segment>,
    /// Dynamic symbols.
    pub symbols: Vec<Symbol>,
    /// Descriptor bytes of the metadata note.
    pub metadata: &'a [u8],
}

fn corrupt<T>(what: &str) -> Result<T, LoadError> {
    Err(LoadError::Corrupt(what.into()))
}

/// Little-endian reads that cannot leave the slice.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// `len` bytes at `at`.
    pub fn slice(&self, at: usize, len: usize) -> Result<&'a [u8], LoadError> {
        let end = at.checked_add(len).filter(|e| *e <= self.0.len());
        end.map_or_else(|| corrupt("a structure lies outside the file"), |end| Ok(&self.0[at..end]))
    }

    /// An integer of `len` bytes.
    pub fn int(&self, at: usize, len: usize) -> Result<u64, LoadError> {
        Ok(self.slice(at, len)?.iter().rev().fold(0, |all, b| all << 8 | u64::from(*b)))
    }

    fn string(&self, at: usize) -> Result<String, LoadError> {
        let rest = self.0.get(at..).unwrap_or_default();
        let Some(end) = rest.iter().position(|b| *b == 0) else { return corrupt("a name without an end") };
        Ok(String::from_utf8_lossy(&rest[..end]).into_owned())
    }
}

const EM_AMDGPU: u64 = 224;
const MACH_GFX950: u64 = 0x4f;
const OSABI_HSA: u8 = 64;
const NOTE_METADATA: u64 = 32;

impl<'a> Elf<'a> {
    /// Parses a file.
    ///
    /// # Errors
    /// Anything but a gfx950 shared object with metadata.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, LoadError> {
        let r = Reader(bytes);
        let format = |what: String| Err(LoadError::Format(what));
        if bytes.get(..4) != Some(b"\x7fELF") {
            return format("no ELF magic".into());
        }
        let identity = r.slice(0, 16)?;
        if identity[4] != 2 || identity[5] != 1 || identity[7] != OSABI_HSA {
            return format("not a 64-bit little-endian HSA file".into());
        }
        let (machine, flags) = (r.int(18, 2)?, r.int(48, 4)?);
        if machine != EM_AMDGPU || flags & 0xff != MACH_GFX950 {
            return format(format!("machine {machine}, processor {:#x}; wanted 224, 0x4f (gfx950)", flags & 0xff));
        }
        let mut elf = Self { bytes, segments: Vec::new(), symbols: Vec::new(), metadata: &[] };
        elf.read_segments(r)?;
        elf.read_symbols(r)?;
        if elf.metadata.is_empty() {
            return format("no kernel metadata".into());
        }
        Ok(elf)
    }

    fn read_segments(&mut self, r: Reader<'a>) -> Result<(), LoadError> {
        let (start, size, count) = (r.int(32, 8)? as usize, r.int(54, 2)? as usize, r.int(56, 2)? as usize);
        for i in 0..count {
            let at = start.saturating_add(i * size).min(usize::MAX / 2);
            let kind = r.int(at, 4)?;
            let (offset, address) = (r.int(at + 8, 8)? as usize, r.int(at + 16, 8)?);
            let (file_len, memory_len) = (r.int(at + 32, 8)? as usize, r.int(at + 40, 8)?);
            match kind {
                1 => {
                    r.slice(offset, file_len)?;
                    if memory_len < file_len as u64 || memory_len > 1 << 30 || address > 1 << 30 {
                        return corrupt("a segment's size");
                    }
                    self.segments.push(Segment { address, file: offset..offset + file_len, memory_len });
                }
                4 => self.read_note(Reader(r.slice(offset, file_len)?))?,
                _ => {}
            }
        }
        Ok(())
    }

    fn read_note(&mut self, r: Reader<'a>) -> Result<(), LoadError> {
        let mut at = 0;
        while at + 12 <= r.0.len() {
            let (name_len, len, kind) = (r.int(at, 4)? as usize, r.int(at + 4, 4)? as usize, r.int(at + 8, 4)?);
            let body = at + 12 + name_len.next_multiple_of(4);
            if kind == NOTE_METADATA && r.slice(at + 12, name_len)?.starts_with(b"AMDGPU") {
                self.metadata = r.slice(body, len)?;
            }
            at = body + len.next_multiple_of(4);
        }
        Ok(())
    }

    fn read_symbols(&mut self, r: Reader<'a>) -> Result<(), LoadError> {
        let (start, size, count) = (r.int(40, 8)? as usize, r.int(58, 2)? as usize, r.int(60, 2)? as usize);
        for i in 0..count {
            let at = start.saturating_add(i * size).min(usize::MAX / 2);
            if r.int(at + 4, 4)? != 11 {
                continue;
            }
            let (offset, len, link) =
                (r.int(at + 24, 8)? as usize, r.int(at + 32, 8)? as usize, r.int(at + 40, 4)? as usize);
            let names = start.saturating_add(link * size).min(usize::MAX / 2);
            let (names, names_len) = (r.int(names + 24, 8)? as usize, r.int(names + 32, 8)? as usize);
            let names = Reader(r.slice(names, names_len)?);
            for entry in (0..len / 24).map(|e| offset.saturating_add(24 * e).min(usize::MAX / 2)) {
                self.symbols.push(Symbol {
                    name: names.string(r.int(entry, 4)? as usize)?,
                    address: r.int(entry + 8, 8)?,
                    size: r.int(entry + 16, 8)?,
                });
            }
        }
        Ok(())
    }

    /// The symbol of a name.
    pub fn symbol(&self, name: &str) -> Result<&Symbol, LoadError> {
        let found = self.symbols.iter().find(|s| s.name == name);
        found.ok_or_else(|| LoadError::Corrupt(format!("no symbol {name}")))
    }

    /// File bytes of a range of the image.
    pub fn image(&self, address: u64, len: u64) -> Result<&'a [u8], LoadError> {
        let segment = self.segments.iter().find(|s| {
            address >= s.address && address.checked_add(len).is_some_and(|e| e <= s.address + s.file.len() as u64)
        });
        let Some(s) = segment else { return corrupt("a symbol outside all segments") };
        Reader(self.bytes).slice(s.file.start + (address - s.address) as usize, len as usize)
    }
}
