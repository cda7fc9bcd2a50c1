//! The memory of one expert, in windows that the system maps together, and what the system is asked to do with them.

use std::ops::Range;

/// A fault maps the piece of the file that the system keeps together: at most a huge page, at a multiple of its size in
/// the file.
pub const WINDOW: usize = 2 << 20;
/// What reading is asked for in.
const PAGE: usize = 4 << 10;

/// Address ranges, ascending and apart.
pub type Windows = Vec<Range<usize>>;

/// A file mapped into this process, read-only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedFile {
    /// Where it is mapped.
    pub range: Range<usize>,
    /// Where its first byte would be.
    pub origin: usize,
}

impl MappedFile {
    /// Whether it holds a range.
    pub fn holds(&self, range: &Range<usize>) -> bool {
        self.range.start <= range.start && range.end <= self.range.end
    }

    /// The windows that cover some ranges of it, as far as they are mapped.
    pub fn windows(&self, parts: &[Range<usize>]) -> Windows {
        self.cover(parts, WINDOW)
    }

    /// The pages of some ranges of it.
    pub fn pages(&self, parts: &[Range<usize>]) -> Windows {
        self.cover(parts, PAGE)
    }

    fn cover(&self, parts: &[Range<usize>], unit: usize) -> Windows {
        let mut parts: Vec<_> = parts.iter().filter(|part| self.holds(part) && !part.is_empty()).collect();
        parts.sort_by_key(|part| part.start);
        let mut out: Windows = Vec::new();
        for part in parts {
            let offset = |address: usize| address.wrapping_sub(self.origin);
            let start = (offset(part.start) / unit * unit).wrapping_add(self.origin).max(self.range.start);
            let end = offset(part.end).next_multiple_of(unit).wrapping_add(self.origin).min(self.range.end);
            match out.last_mut() {
                Some(last) if start <= last.end => last.end = last.end.max(end),
                _ => out.push(start..end),
            }
        }
        out
    }
}

/// Bytes of the ranges.
pub fn bytes(windows: &[Range<usize>]) -> u64 {
    windows.iter().map(|w| w.len() as u64).sum()
}

/// The read-only mapped files of this process.
pub fn mapped_files() -> Vec<MappedFile> {
    parse(&std::fs::read_to_string("/proc/self/maps").unwrap_or_default())
}

/// Lines of `start-end permissions offset device inode path`. What the system lists in several pieces is joined.
fn parse(maps: &str) -> Vec<MappedFile> {
    let file = |line: &str| {
        let mut fields = line.split_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let read_only = fields.next().is_some_and(|p| p.starts_with('r') && !p.contains('w'));
        let number = |text: &str| usize::from_str_radix(text, 16).ok();
        let (start, end, offset) = (number(start)?, number(end)?, number(fields.next()?)?);
        let inode = fields.nth(1)?;
        let file = MappedFile { range: start..end, origin: start.wrapping_sub(offset) };
        (read_only && inode != "0").then_some(file)
    };
    let mut files: Vec<MappedFile> = Vec::new();
    for file in maps.lines().filter_map(file) {
        match files.last_mut() {
            Some(last) if last.range.end == file.range.start && last.origin == file.origin => {
                last.range.end = file.range.end;
            }
            _ => files.push(file),
        }
    }
    files
}

/// What to do with pages.
#[derive(Clone, Copy, Debug)]
pub enum Advice {
    /// Start reading them from the file.
    Read,
    /// Map them, waiting until they are read.
    Populate,
    /// Unmap them; the file still has their contents.
    Drop,
}

/// Ask the system. Ranges are whole pages of read-only mapped files.
pub fn advise(ranges: &[Range<usize>], advice: Advice) {
    #[cfg(target_os = "linux")]
    for range in ranges {
        let advice = match advice {
            Advice::Read => libc::MADV_WILLNEED,
            Advice::Populate => libc::MADV_POPULATE_READ,
            Advice::Drop => libc::MADV_DONTNEED,
        };
        // SAFETY: dropped pages of a read-only file mapping come back from the file with the same contents. Errors are
        // ignored: without read-ahead pages come with the first access.
        unsafe { libc::madvise(range.start as *mut libc::c_void, range.len(), advice) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (ranges, advice);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_rounded_out_in_the_file_and_joined() {
        const M: usize = 1 << 20;
        // Mapped from the file's second megabyte on, at an address that is no multiple of anything.
        let file = MappedFile { range: 101 * M..120 * M, origin: 100 * M };
        let parts = [107 * M..107 * M + 1, 101 * M..101 * M + 9, 103 * M - 5..103 * M + 5, 119 * M..120 * M];
        assert_eq!(file.windows(&parts), [101 * M..104 * M, 106 * M..108 * M, 118 * M..120 * M]);
        assert_eq!(bytes(&file.windows(&parts)), 7 << 20);
        assert_eq!(file.pages(&parts[..1])[0], 107 * M..107 * M + 4096);
        assert_eq!(file.windows(&[90 * M..91 * M, 105 * M..105 * M]), [], "elsewhere, or nothing");
    }

    #[test]
    fn maps_are_read_and_pieces_joined() {
        let maps = "\
            1000-3000 r--s 00000000 fe:00 17 /a\n\
            3000-5000 r--s 00002000 fe:00 17 /a\n\
            5000-6000 r--s 00000000 fe:00 18 /b\n\
            7000-8000 rw-p 00000000 fe:00 19 /c\n\
            8000-9000 r--p 00000000 00:00 0\n";
        let file = |range, origin| MappedFile { range, origin };
        assert_eq!(parse(maps), [file(0x1000..0x5000, 0x1000), file(0x5000..0x6000, 0x5000)]);
    }

    #[test]
    fn anonymous_memory_is_no_file() {
        let here = [0u8; 64];
        let address = here.as_ptr() as usize;
        assert!(mapped_files().iter().all(|f| !f.range.contains(&address)));
    }
}
