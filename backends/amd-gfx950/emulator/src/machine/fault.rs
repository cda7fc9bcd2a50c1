//! What went wrong, and where: kernel, program counter, disassembly, lane, work-group, wave.

use std::fmt;

/// A fault as an instruction raises it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// What is wrong.
    pub what: String,
    /// First lane concerned.
    pub lane: Option<u32>,
}

/// A fault with its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// What is wrong.
    pub what: String,
    /// Kernel name.
    pub kernel: String,
    /// Byte offset in the kernel's code.
    pub offset: u32,
    /// The instruction.
    pub instruction: String,
    /// Work-group coordinates.
    pub group: [u32; 3],
    /// Wave in the group.
    pub wave: u32,
    /// Lane in the wave.
    pub lane: Option<u32>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, kernel, offset, instruction, group, wave, lane } = self;
        write!(f, "kernel {kernel} at {offset:#x} `{instruction}`: {what} (work-group {group:?}, wave {wave}")?;
        match lane {
            Some(lane) => write!(f, ", lane {lane})"),
            None => f.write_str(")"),
        }
    }
}
