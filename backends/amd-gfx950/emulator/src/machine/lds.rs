//! Local data share of one work-group: bytes, which of them were written, and who touched what since the last barrier.
//!
//! Race detection: every dword remembers its last writer and readers with the number of barriers they had passed. Two waves
//! that touch a dword, one of them writing, must be separated by a barrier. Operations are recorded when they land, so a
//! write that nobody waited for before a barrier counts after it. A dword that a DMA load is on its way to may not be touched
//! at all. A wave that writes what another has just written there changes nothing and is no race (compilers let several waves
//! keep copies of a small value); it may then read its own write. Accesses narrower than a dword remember bytes; when several waves write bytes of one dword between two barriers,
//! further checks of that dword are dropped (a race may be missed, never invented).

use super::wave::Wave;
use crate::{isa::L, lanes};

const NOBODY: u8 = 0xff;
const SEVERAL: u8 = 0xfe;

#[derive(Debug, Clone, Copy)]
struct Record {
    write_epoch: u32,
    read_epoch: u32,
    writer: u8,
    reader: u8,
    /// Bytes written and read, four bits each.
    written: u8,
    read: u8,
    /// DMA loads on their way.
    in_flight: u16,
    /// Waves that wrote the same once more, one bit each.
    repeated: u32,
    /// Waves that updated it atomically, one bit each, and when.
    updaters: u32,
    update_epoch: u32,
}

const FRESH: Record = Record {
    write_epoch: 0,
    read_epoch: 0,
    writer: NOBODY,
    reader: NOBODY,
    written: 0,
    read: 0,
    in_flight: 0,
    repeated: 0,
    updaters: 0,
    update_epoch: 0,
};

impl Record {
    /// Whether another wave has updated it atomically since the last barrier.
    fn updated_by_others(&self, me: u8, epoch: u32) -> bool {
        self.update_epoch == epoch && self.updaters & !(1 << me) != 0
    }
}

/// LDS of a work-group.
#[derive(Debug, Default)]
pub struct Lds {
    bytes: Vec<u8>,
    len: usize,
    /// One bit per byte, in checked mode.
    valid: Vec<u8>,
    records: Vec<Record>,
}

/// Contents of LDS before anybody writes.
const POISON_BYTE: u8 = 0xff;

impl Lds {
    /// Becomes the poisoned LDS of a new work-group.
    pub fn reset(&mut self, len: usize, check: bool) {
        self.len = len;
        self.bytes.clear();
        self.bytes.resize(len.next_multiple_of(16), POISON_BYTE);
        let dwords = if check { len.div_ceil(4) } else { 0 };
        self.valid.clear();
        self.valid.resize(dwords, 0);
        self.records.clear();
        self.records.resize(dwords, FRESH);
    }

    fn inside(&self, w: &mut Wave, what: &str, lane: usize, at: u32, bytes: usize) -> bool {
        let fine = at as usize + bytes <= self.len;
        if !fine {
            let len = self.len;
            w.fail(format!("LDS {what} of {bytes} bytes at {at:#x}, allocated {len:#x}"), Some(lane as u32));
        }
        fine
    }

    /// Reads up to four dwords of one lane; returns which bytes-in-dwords were initialised, `None` after a fault.
    #[inline(always)]
    pub fn read(&mut self, w: &mut Wave, lane: usize, at: u32, bytes: usize, out: &mut [u32; 4]) -> Option<[bool; 4]> {
        if !self.inside(w, "read", lane, at, bytes) {
            return None;
        }
        let at_ = at as usize;
        let mut buffer = [0u8; 16];
        buffer[..bytes].copy_from_slice(&self.bytes[at_..at_ + bytes]);
        for (i, word) in out.iter_mut().enumerate() {
            *word = u32::from_le_bytes([buffer[4 * i], buffer[4 * i + 1], buffer[4 * i + 2], buffer[4 * i + 3]]);
        }
        if self.records.is_empty() {
            return Some([true; 4]);
        }
        self.check_read(w, lane, at_, bytes)
    }

    fn check_read(&mut self, w: &mut Wave, lane: usize, at: usize, bytes: usize) -> Option<[bool; 4]> {
        let (me, epoch) = (w.index as u8, w.epoch);
        let mut known = [true; 4];
        for (dword, mask) in dwords(at, bytes) {
            if self.valid[dword] & mask != mask {
                // An unaligned access spreads a dword of the result over two; both then count as unknown.
                let first = (4 * dword).saturating_sub(at) / 4;
                known[first] = false;
                known[(first + usize::from(!at.is_multiple_of(4))).min(3)] = false;
            }
            let r = &mut self.records[dword];
            if r.in_flight > 0 {
                w.fail(format!("LDS read at {:#x} while a DMA load to it is in flight", 4 * dword), Some(lane as u32));
                return None;
            }
            if r.updated_by_others(me, epoch) {
                let what =
                    format!("LDS race: read at {:#x}, updated by another wave without a barrier between", 4 * dword);
                w.fail(what, Some(lane as u32));
                return None;
            }
            let others_write = r.writer != me && r.writer != NOBODY && r.writer != SEVERAL && r.repeated >> me & 1 == 0;
            if others_write && r.write_epoch == epoch && r.written & mask != 0 {
                let what = format!(
                    "LDS race: read at {:#x}, written by wave {} without a barrier between",
                    4 * dword,
                    r.writer
                );
                w.fail(what, Some(lane as u32));
                return None;
            }
            if r.read_epoch != epoch || r.reader == NOBODY {
                (r.read_epoch, r.reader, r.read) = (epoch, me, mask);
            } else {
                r.read |= mask;
                if r.reader != me {
                    r.reader = SEVERAL;
                }
            }
        }
        Some(known)
    }

    /// Writes up to four dwords of one lane. False after a fault.
    #[inline(always)]
    pub fn write(&mut self, w: &mut Wave, lane: usize, at: u32, bytes: usize, words: &[u32; 4], valid: bool) -> bool {
        if !self.inside(w, "write", lane, at, bytes) {
            return false;
        }
        let at_ = at as usize;
        let mut buffer = [0u8; 16];
        for (i, word) in words.iter().enumerate() {
            buffer[4 * i..4 * i + 4].copy_from_slice(&word.to_le_bytes());
        }
        let same = self.bytes[at_..at_ + bytes] == buffer[..bytes];
        if !self.records.is_empty() && !self.check_write(w, lane, at_, bytes, (valid, same)) {
            return false;
        }
        self.bytes[at_..at_ + bytes].copy_from_slice(&buffer[..bytes]);
        true
    }

    fn check_write(
        &mut self,
        w: &mut Wave,
        lane: usize,
        at: usize,
        bytes: usize,
        (valid, unchanged): (bool, bool),
    ) -> bool {
        let (me, epoch) = (w.index as u8, w.epoch);
        for (dword, mask) in dwords(at, bytes) {
            let cell = &mut self.valid[dword];
            let known = *cell & mask == mask;
            *cell = if valid { *cell | mask } else { *cell & !mask };
            let r = &mut self.records[dword];
            let fresh = r.write_epoch == epoch && r.writer != me && r.writer != NOBODY && r.writer != SEVERAL;
            if unchanged && known && valid && fresh && r.in_flight == 0 && r.written & mask == mask {
                r.repeated |= 1 << me;
                continue;
            }
            let mut conflict = None;
            if r.in_flight > 0 {
                conflict = Some("while a DMA load to it is in flight".to_string());
            }
            let others_read = r.reader != me && r.reader != NOBODY;
            if others_read && r.read_epoch == epoch && r.read & mask != 0 {
                conflict = Some("read by another wave without a barrier between".to_string());
            }
            let same = r.write_epoch == epoch && r.writer != NOBODY;
            if same && r.writer != me && r.writer != SEVERAL && r.written & mask != 0 {
                conflict = Some(format!("written by wave {} without a barrier between", r.writer));
            }
            if r.updated_by_others(me, epoch) {
                conflict = Some("updated by another wave without a barrier between".to_string());
            }
            if let Some(why) = conflict {
                w.fail(format!("LDS race: write at {:#x}, {why}", 4 * dword), Some(lane as u32));
                return false;
            }
            if same {
                r.written |= mask;
                if r.writer != me {
                    r.writer = SEVERAL;
                }
            } else {
                (r.write_epoch, r.writer, r.written, r.repeated) = (epoch, me, mask, 0);
            }
        }
        true
    }

    /// Updates one dword of one lane atomically: waves may do so side by side, but not beside plain reads and writes of others.
    /// Returns what was there and whether that was initialised, `None` after a fault.
    pub fn update(
        &mut self,
        w: &mut Wave,
        lane: usize,
        at: u32,
        valid: bool,
        f: impl Fn(u32) -> u32,
    ) -> Option<(u32, bool)> {
        if !self.inside(w, "update", lane, at, 4) {
            return None;
        }
        let bytes = &mut self.bytes[at as usize..at as usize + 4];
        let old = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        bytes.copy_from_slice(&f(old).to_le_bytes());
        let (me, epoch) = (w.index as u8, w.epoch);
        let mut known = true;
        for (dword, mask) in dwords(at as usize, 4) {
            let Some(r) = self.records.get_mut(dword) else { break };
            let other = |who: u8| who != me && who != NOBODY && who != SEVERAL;
            let conflict = if r.in_flight > 0 {
                "while a DMA load to it is in flight"
            } else if r.write_epoch == epoch && other(r.writer) && r.written & mask != 0 {
                "written by another wave without a barrier between"
            } else if r.read_epoch == epoch && r.reader != me && r.reader != NOBODY && r.read & mask != 0 {
                "read by another wave without a barrier between"
            } else {
                known &= self.valid[dword] & mask == mask;
                self.valid[dword] = if known && valid { self.valid[dword] | mask } else { self.valid[dword] & !mask };
                r.updaters = if r.update_epoch == epoch { r.updaters } else { 0 } | 1 << me;
                r.update_epoch = epoch;
                continue;
            };
            w.fail(format!("LDS race: update at {:#x}, {conflict}", 4 * dword), Some(lane as u32));
            return None;
        }
        Some((old, known))
    }

    /// Marks where a DMA load will land.
    pub fn begin_dma(&mut self, w: &mut Wave, to: &L, mask: u64, bytes: usize) {
        for lane in lanes::of(mask) {
            if !self.inside(w, "DMA", lane, to[lane], bytes) {
                return;
            }
            for (dword, _) in dwords(to[lane] as usize, bytes) {
                if let Some(r) = self.records.get_mut(dword) {
                    r.in_flight += 1;
                }
            }
        }
    }

    /// Takes back one [`Lds::begin_dma`].
    pub fn end_dma(&mut self, to: &L, mask: u64, bytes: usize) {
        for lane in lanes::of(mask) {
            for (dword, _) in dwords(to[lane] as usize, bytes) {
                if let Some(r) = self.records.get_mut(dword) {
                    r.in_flight = r.in_flight.saturating_sub(1);
                }
            }
        }
    }
}

/// Dwords that a range touches, each with the bytes touched.
fn dwords(at: usize, bytes: usize) -> impl Iterator<Item = (usize, u8)> {
    let end = at + bytes;
    (at / 4..end.div_ceil(4)).map(move |d| {
        let (from, to) = (at.max(4 * d) - 4 * d, end.min(4 * d + 4) - 4 * d);
        (d, (0xfu8 >> (4 - to)) & (0xf << from))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Lds, Wave, Wave) {
        let mut lds = Lds::default();
        lds.reset(64, true);
        (lds, Wave::new(1, 0, [0; 3]), Wave::new(1, 1, [0; 3]))
    }

    #[test]
    fn a_read_needs_a_barrier_after_another_waves_write() {
        let (mut lds, mut a, mut b) = pair();
        let mut out = [0; 4];
        assert!(lds.write(&mut a, 0, 8, 4, &[7, 0, 0, 0], true));
        assert_eq!(lds.read(&mut a, 0, 8, 4, &mut out), Some([true; 4]));
        assert!(lds.read(&mut b, 3, 8, 4, &mut out).is_none());
        assert!(b.fault.as_ref().unwrap().what.contains("race") && b.fault.unwrap().lane == Some(3));
        let (mut lds, mut a, mut b) = pair();
        assert!(lds.write(&mut a, 0, 8, 4, &[7, 0, 0, 0], true));
        b.epoch = 1;
        assert_eq!((lds.read(&mut b, 3, 8, 4, &mut out), out[0]), (Some([true; 4]), 7));
        // The other direction: a write over what the other wave has just read.
        a.epoch = 1;
        assert!(!lds.write(&mut a, 0, 8, 4, &[9, 0, 0, 0], true));
    }

    #[test]
    fn atomic_updates_go_side_by_side_but_not_beside_reads_and_writes() {
        let (mut lds, mut a, mut b) = pair();
        let mut out = [0; 4];
        assert!(lds.write(&mut a, 0, 8, 4, &[7, 0, 0, 0], true));
        assert!(lds.update(&mut b, 0, 8, true, |x| x + 1).is_none() && b.fault.take().is_some(), "after a write");
        (a.epoch, b.epoch) = (1, 1);
        assert_eq!(lds.update(&mut a, 0, 8, true, |x| x + 1), Some((8, true)));
        assert_eq!(lds.update(&mut b, 0, 8, true, |x| x + 1), Some((9, true)));
        assert!(lds.read(&mut a, 0, 8, 4, &mut out).is_none() && a.fault.take().is_some(), "a read after it");
        assert!(!lds.write(&mut a, 0, 8, 4, &[10, 0, 0, 0], true) && a.fault.take().is_some(), "a write after it");
        (a.epoch, b.epoch) = (2, 2);
        assert_eq!((lds.read(&mut a, 0, 8, 4, &mut out), out[0]), (Some([true; 4]), 10));
        assert!(lds.update(&mut b, 0, 8, true, |x| x + 1).is_none() && b.fault.take().is_some(), "after a read");
        assert_eq!(lds.update(&mut b, 0, 12, true, |x| x), Some((0xffff_ffff, false)));
    }

    #[test]
    fn the_same_once_more_is_no_race_but_still_needs_a_barrier_for_others() {
        let (mut lds, mut a, mut b) = pair();
        let mut c = Wave::new(1, 2, [0; 3]);
        let mut out = [0; 4];
        assert!(lds.write(&mut a, 0, 8, 4, &[7, 0, 0, 0], true) && lds.write(&mut b, 0, 8, 4, &[7, 0, 0, 0], true));
        assert!(lds.read(&mut a, 0, 8, 4, &mut out).is_some() && lds.read(&mut b, 0, 8, 4, &mut out).is_some());
        assert!(lds.read(&mut c, 0, 8, 4, &mut out).is_none());
        assert!(!lds.write(&mut b, 0, 8, 4, &[8, 0, 0, 0], true));
    }

    #[test]
    fn neighbouring_bytes_are_no_race() {
        let (mut lds, mut a, mut b) = pair();
        assert!(lds.write(&mut a, 0, 16, 2, &[1, 0, 0, 0], true) && lds.write(&mut b, 0, 18, 2, &[2, 0, 0, 0], true));
        let mut out = [0; 4];
        assert_eq!(lds.read(&mut a, 0, 16, 4, &mut out), Some([true; 4]));
        assert_eq!(out[0], 0x0002_0001);
    }

    #[test]
    fn unwritten_bytes_and_bytes_in_flight_are_known() {
        let (mut lds, mut a, _) = pair();
        let mut out = [0; 4];
        lds.write(&mut a, 0, 0, 8, &[1, 2, 0, 0], true);
        assert_eq!(lds.read(&mut a, 0, 0, 16, &mut out), Some([true, true, false, false]));
        let to = [32; 64];
        lds.begin_dma(&mut a, &to, 1, 4);
        assert!(lds.read(&mut a, 0, 32, 4, &mut out).is_none());
        assert!(!lds.write(&mut a, 0, 61, 4, &[0; 4], true));
    }
}
