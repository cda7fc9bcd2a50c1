//! Which code objects ran: `TOKENSPEED_EMULATOR_LAUNCHED=FILE` gets a line of each, appended, once per process, when a launch of it
//! has ended without a fault: the FNV-1a hash of the object, hexadecimal, and the kernel's symbol.
//!
//! For a check behind all tests that each kernel that ships was launched by one of them (`kernels/launched.py`). Rejected: the
//! counters' file, which has a long line per launch and slows launches down; names from the plugin, whose launches cost nothing
//! today, and which would also count what was queued and never ran.

use std::{
    collections::HashSet,
    fs::File,
    io::Write,
    sync::{Mutex, OnceLock, PoisonError},
};

use crate::code::Kernel;

/// Names the file.
const VARIABLE: &str = "TOKENSPEED_EMULATOR_LAUNCHED";

/// The file, and which kernels it has a line of.
struct Log<W> {
    file: W,
    seen: HashSet<(u64, String)>,
}

impl<W: Write> Log<W> {
    /// Lines go out in one write each, so that processes can share a file that is open for appending.
    fn note(&mut self, kernel: &Kernel) {
        let key = (kernel.object, kernel.name.clone());
        if self.seen.contains(&key) {
            return;
        }
        let line = format!("{:016x} {}\n", kernel.object, kernel.name);
        if let Err(e) = self.file.write_all(line.as_bytes()) {
            eprintln!("gfx950 emulator: {VARIABLE}: {e}");
        }
        self.seen.insert(key);
    }
}

fn log() -> Option<&'static Mutex<Log<File>>> {
    static LOG: OnceLock<Option<Mutex<Log<File>>>> = OnceLock::new();
    LOG.get_or_init(|| {
        let path = std::env::var_os(VARIABLE).filter(|p| !p.is_empty())?;
        let opened = File::options().create(true).append(true).open(&path);
        let said = opened.map_err(|e| eprintln!("gfx950 emulator: {VARIABLE}: {}: {e}", path.to_string_lossy()));
        said.ok().map(|file| Mutex::new(Log { file, seen: HashSet::new() }))
    })
    .as_ref()
}

/// A launch of this kernel has ended well.
pub fn note(kernel: &Kernel) {
    if let Some(log) = log() {
        log.lock().unwrap_or_else(PoisonError::into_inner).note(kernel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_has_one_line() {
        // s_endpgm
        let [one, other] = ["one", "other"].map(|name| Kernel::bare(name, &[0xbf81_0000], 8).unwrap());
        let mut log = Log { file: Vec::new(), seen: HashSet::new() };
        for kernel in [&one, &other, &one] {
            log.note(kernel);
        }
        assert_eq!(String::from_utf8(log.file).unwrap(), "0000000000000000 one\n0000000000000000 other\n");
    }
}
