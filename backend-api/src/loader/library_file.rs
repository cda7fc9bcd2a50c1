//! Looks at a library file before the dynamic linker does.
//!
//! `dlopen` answers "invalid ELF header" for most defects and kills the process with SIGBUS for a file that was cut
//! inside a segment. A look at the headers tells people what they have.

use super::LoadError;
use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::Path,
};

const HEADER_BYTES: usize = 64;
const PROGRAM_HEADER_BYTES: usize = 56;
const SHARED_OBJECT: u16 = 3;
const PT_LOAD: u32 = 1;

/// Processor numbers of the ELF specification.
const MACHINES: [(u16, &str); 8] = [
    (3, "x86 (32 bit)"),
    (8, "mips"),
    (21, "powerpc64"),
    (22, "s390x"),
    (40, "arm (32 bit)"),
    (62, "x86_64"),
    (183, "aarch64"),
    (243, "riscv64"),
];

fn machine_name(number: u16) -> String {
    let known = MACHINES.iter().find(|(n, _)| *n == number);
    known.map_or_else(|| format!("processor number {number}"), |(_, name)| (*name).to_owned())
}

/// Refuses what is not a complete shared library for this machine.
pub(super) fn check(path: &Path) -> Result<(), LoadError> {
    let io = |e: std::io::Error| LoadError::Unreadable { path: path.to_owned(), reason: e.to_string() };
    let mut file = File::open(path).map_err(io)?;
    let meta = file.metadata().map_err(io)?;
    if !meta.is_file() {
        return Err(LoadError::Unreadable { path: path.to_owned(), reason: "it is not a file".to_owned() });
    }
    let size = meta.len();
    let not_a_library = |found: String| LoadError::NotALibrary { path: path.to_owned(), found };
    let truncated = |needed: u64| LoadError::Truncated { path: path.to_owned(), found: size, needed };
    let mut header = [0; HEADER_BYTES];
    let n = read_up_to(&mut file, &mut header).map_err(io)?;
    if n == 0 {
        return Err(not_a_library("an empty file".to_owned()));
    }
    if n < 4 || header[..4] != *b"\x7fELF" {
        return Err(not_a_library(describe(&header[..n])));
    }
    if n < HEADER_BYTES {
        return Err(truncated(HEADER_BYTES as u64));
    }
    let little = header[5] == 1;
    let half = |at: usize| {
        let b = [header[at], header[at + 1]];
        if little { u16::from_le_bytes(b) } else { u16::from_be_bytes(b) }
    };
    let found = machine_name(half(18));
    let same_order = little == cfg!(target_endian = "little");
    let is_64 = header[4] == 2;
    if found != std::env::consts::ARCH || !same_order || is_64 != cfg!(target_pointer_width = "64") {
        let order = if same_order { "" } else { ", other byte order" };
        let width = if is_64 { "" } else { ", 32 bit" };
        let found = format!("{found}{width}{order}");
        return Err(LoadError::OtherMachine { path: path.to_owned(), found, wanted: std::env::consts::ARCH });
    }
    if half(16) != SHARED_OBJECT {
        return Err(not_a_library("an ELF file, but a program or an object file".to_owned()));
    }
    check_segments(&mut file, &header, size).map_err(io)?.map_or(Ok(()), |needed| Err(truncated(needed)))
}

/// The size the file should at least have, if it has less. Same byte order and width as ours by now.
fn check_segments(file: &mut File, header: &[u8; HEADER_BYTES], size: u64) -> std::io::Result<Option<u64>> {
    let word = |b: &[u8], at: usize| u64::from_ne_bytes(b[at..at + 8].try_into().expect("8 bytes"));
    let half = |at: usize| u64::from(u16::from_ne_bytes(header[at..at + 2].try_into().expect("2 bytes")));
    let (segments_at, segment_bytes, n) = (word(header, 32), half(54), half(56));
    let (sections_at, section_bytes, sections) = (word(header, 40), half(58), half(60));
    let end = |at: u64, bytes: u64| at.saturating_add(bytes);
    let mut needed = end(segments_at, segment_bytes * n);
    if sections_at != 0 {
        needed = needed.max(end(sections_at, section_bytes * sections));
    }
    if needed > size || segment_bytes != PROGRAM_HEADER_BYTES as u64 {
        return Ok(Some(needed));
    }
    file.seek(SeekFrom::Start(segments_at))?;
    let mut segment = [0; PROGRAM_HEADER_BYTES];
    for _ in 0..n {
        file.read_exact(&mut segment)?;
        if u32::from_ne_bytes(segment[..4].try_into().expect("4 bytes")) == PT_LOAD {
            needed = needed.max(end(word(&segment, 8), word(&segment, 32)));
        }
    }
    Ok((needed > size).then_some(needed))
}

fn read_up_to(file: &mut File, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut n = 0;
    while n < buffer.len() {
        match file.read(&mut buffer[n..])? {
            0 => break,
            more => n += more,
        }
    }
    Ok(n)
}

/// What a wrong file probably is.
fn describe(start: &[u8]) -> String {
    let known: [(&[u8], &str); 5] = [
        (b"MZ", "a Windows library"),
        (&[0xcf, 0xfa, 0xed, 0xfe], "a macOS library"),
        (b"!<arch>", "a static archive (.a or .rlib)"),
        (b"#!", "a script"),
        (b"version https://git-lfs", "a Git LFS pointer, not the file itself"),
    ];
    match known.iter().find(|(magic, _)| start.starts_with(magic)) {
        Some((_, name)) => (*name).to_owned(),
        None => format!("a file that starts with {:02x?}", &start[..start.len().min(8)]),
    }
}
