//! What a launch did to memory and LDS in detail: lines, conflicts. Counted on demand, since it costs a map of all lines.
//!
//! Lines are 128 bytes, as L1 and L2 keep them. Five views of global memory, from no cache to a perfect one and beyond:
//! * [`Counters`](super::Counters): bytes that lanes asked for.
//! * [`Detail::access_lines`]: lines that each wave access touches, summed: what a compute unit asks of its caches.
//! * [`Detail::group_lines`]: lines that each work-group touches, summed: one fetch per work-group.
//! * [`Detail::footprint`]: lines that the launch touches at all: what an ideal cache would move to and from HBM.
//! * [`Detail::hbm`]: lines that a memory-side cache, which keeps its contents from launch to launch, moves to and from HBM.
//!
//! A launch may be sampled: work-groups at a few coordinates per axis run, all combinations of them. Everything that is summed
//! over work-groups is then scaled by their number. A line counts once for every coordinate of an axis along which no
//! two of the sampled work-groups share it: exact where what a work-group touches is a product of its coordinates (panels of
//! matrices, rows of tokens), an estimate where it depends on data. Rejected: scaling the lines found by the number of
//! work-groups, which counts every shared panel as often as it is shared.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

use super::{
    banks::{self, Access},
    side_cache::{Traffic, access},
};
use crate::{isa::L, lanes};

/// Bytes of a line.
pub const LINE_BYTES: u64 = 128;

/// Not a work-group.
const NOBODY: [u32; 3] = [u32::MAX; 3];

/// Hashes lines: a multiplication spreads addresses well enough, and there are millions of them.
#[derive(Debug, Clone, Default)]
pub struct LineHasher(u64);

impl Hasher for LineHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.write_u64(self.0 ^ u64::from(*b)));
    }

    fn write_u64(&mut self, n: u64) {
        let mixed = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }
}

/// For maps of lines.
pub type LineHash = BuildHasherDefault<LineHasher>;

/// Work-group coordinates of one axis.
pub type Axis = Vec<u32>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Line {
    /// Dwords read and written, a bit each.
    read: u32,
    written: u32,
    /// The first work-group that touched it, and axes along which another one did.
    first: [u32; 3],
    shared: [bool; 3],
    /// The last ones that read and that wrote it.
    last: [[u32; 3]; 2],
}

/// Lines and dwords that a launch touches.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Footprint {
    /// Lines read.
    pub read_lines: f64,
    /// Lines written.
    pub written_lines: f64,
    /// Bytes read, in dwords.
    pub read_bytes: f64,
    /// Bytes written, in dwords.
    pub written_bytes: f64,
}

/// Details of a launch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Detail {
    /// Lines touched by loads and by stores, once per wave access.
    pub access_lines: [u64; 2],
    /// Cycles of L1: a 64-byte half of a line each, once per wave access; two for accesses of 8 bytes per lane.
    pub l1_cycles: u64,
    /// Lines read and lines written, once per work-group.
    pub group_lines: u64,
    /// Cycles of LDS: one per phase of an access, and per conflict in it.
    pub lds_cycles: u64,
    /// Those of them that conflicts cost.
    pub lds_conflict_cycles: u64,
    /// Traffic with HBM, where a memory-side cache is modelled.
    pub hbm: Option<Traffic>,
    /// First accesses of the work-group to each line, in order, for a memory-side cache; `None` without one.
    pub(super) fresh: Option<Vec<u64>>,
    pub(super) group: [u32; 3],
    pub(super) lines: HashMap<u64, Line, LineHash>,
}

impl Detail {
    /// Accesses from now on are those of this work-group.
    pub fn enter(&mut self, group: [u32; 3]) {
        self.group = group;
    }

    /// A wave's access to global memory.
    pub fn global(&mut self, addresses: &[u64; 64], mask: u64, bytes: usize, write: bool) {
        let mut touched = [(u64::MAX, 0u32); 128];
        let mut count = 0;
        for l in lanes::of(mask) {
            let (mut at, end) = (addresses[l] / 4, (addresses[l] + bytes as u64).div_ceil(4));
            while at < end {
                let line = at / 32;
                let take = (end - at).min(32 - at % 32);
                let bits = (((1u64 << take) - 1) << (at % 32)) as u32;
                at += take;
                // Neighbouring lanes mostly share the line that was met last.
                match touched[..count].iter_mut().rev().find(|(known, _)| *known == line) {
                    Some((_, dwords)) => *dwords |= bits,
                    None => {
                        touched[count] = (line, bits);
                        count += 1;
                    }
                }
            }
        }
        self.access_lines[usize::from(write)] += count as u64;
        let halves = |(_, dwords): &(u64, u32)| u64::from(dwords & 0xffff != 0) + u64::from(dwords >> 16 != 0);
        self.l1_cycles += touched[..count].iter().map(halves).sum::<u64>() * if bytes == 8 { 2 } else { 1 };
        for (line, bits) in &touched[..count] {
            self.touch(*line, *bits, write);
        }
    }

    /// A scalar load.
    pub fn scalar(&mut self, address: u64, bytes: usize) {
        let mut addresses = [0; 64];
        addresses[0] = address;
        self.global(&addresses, 1, bytes, false);
    }

    fn touch(&mut self, line: u64, bits: u32, write: bool) {
        let group = self.group;
        let fresh = Line { read: 0, written: 0, first: group, shared: [false; 3], last: [NOBODY; 2] };
        let entry = self.lines.entry(line).or_insert(fresh);
        *(if write { &mut entry.written } else { &mut entry.read }) |= bits;
        let last = &mut entry.last[usize::from(write)];
        if *last != group {
            *last = group;
            self.group_lines += 1;
            if let Some(fresh) = &mut self.fresh {
                fresh.push(access(line, write));
            }
            entry.meet(group);
        }
    }

    /// A wave's access to LDS.
    pub fn lds(&mut self, access: Access, addresses: &L, offset: u32, mask: u64, bytes: usize) {
        let (phases, conflicts) = banks::cycles(access, addresses, offset, mask, bytes);
        self.lds_cycles += phases + conflicts;
        self.lds_conflict_cycles += conflicts;
    }

    /// Adds another thread's part of the launch.
    pub fn add(&mut self, other: &Self) {
        for (a, b) in self.access_lines.iter_mut().zip(other.access_lines) {
            *a += b;
        }
        self.l1_cycles += other.l1_cycles;
        self.group_lines += other.group_lines;
        self.lds_cycles += other.lds_cycles;
        self.lds_conflict_cycles += other.lds_conflict_cycles;
        for (line, theirs) in &other.lines {
            let mine = self.lines.entry(*line).or_insert(*theirs);
            mine.read |= theirs.read;
            mine.written |= theirs.written;
            mine.meet(theirs.first);
            mine.shared.iter_mut().zip(theirs.shared).for_each(|(a, b)| *a |= b);
        }
    }

    /// What a whole grid touches, of which the work-groups at `sampled` coordinates ran.
    pub fn footprint(&self, grid: [u32; 3], sampled: &[Axis; 3]) -> Footprint {
        let factor = |axis: usize| f64::from(grid[axis]) / sampled[axis].len().max(1) as f64;
        let factors = [factor(0), factor(1), factor(2)];
        let mut all = Footprint::default();
        for line in self.lines.values() {
            let alone = line.shared.iter().zip(factors).filter(|(shared, _)| !**shared);
            let times: f64 = alone.map(|(_, factor)| factor).product();
            let of = |dwords: u32| if dwords == 0 { 0.0 } else { times };
            all.read_lines += of(line.read);
            all.written_lines += of(line.written);
            all.read_bytes += f64::from(4 * line.read.count_ones()) * times;
            all.written_bytes += f64::from(4 * line.written.count_ones()) * times;
        }
        all
    }
}

impl Line {
    fn meet(&mut self, group: [u32; 3]) {
        for axis in 0..3 {
            self.shared[axis] |= self.first[axis] != group[axis];
        }
    }
}

/// Coordinates of an axis of which at most `most` run: evenly spaced, the first and the last among them; 0 = all.
pub fn sample(extent: u32, most: u32) -> Axis {
    if most == 0 || extent <= most {
        return (0..extent).collect();
    }
    let last = u64::from(extent - 1);
    let at = |i: u32| (u64::from(i) * last + u64::from(most - 1) / 2) / u64::from((most - 1).max(1));
    (0..most).map(|i| at(i) as u32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(first: u64, stride: u64) -> [u64; 64] {
        std::array::from_fn(|l| first + stride * l as u64)
    }

    #[test]
    fn lines_of_an_access_are_counted_once() {
        let mut d = Detail::default();
        d.global(&rows(0x1000, 4), u64::MAX, 4, false);
        assert_eq!((d.access_lines, d.l1_cycles), ([2, 0], 4), "64 dwords side by side are two lines");
        d.global(&rows(0x1000, 16), u64::MAX, 16, false);
        assert_eq!((d.access_lines, d.l1_cycles), ([10, 0], 20), "a KiB is eight");
        d.global(&rows(0x8000, 512), 0xf, 4, true);
        assert_eq!(
            (d.access_lines, d.l1_cycles),
            ([10, 4], 24),
            "each of four lanes has a line of its own, and half of it"
        );
        d.global(&rows(0x9000 - 8, 0), 1, 16, true);
        assert_eq!(d.access_lines, [10, 6], "across an edge");
        assert_eq!(d.group_lines, 8 + 4 + 2);
        let before = d.l1_cycles;
        d.global(&rows(0x1000, 8), u64::MAX, 8, false);
        assert_eq!(d.l1_cycles - before, 16, "8 bytes per lane are as slow as 16");
        let all = d.footprint([1; 3], &[vec![0], vec![0], vec![0]]);
        let want = Footprint { read_lines: 8.0, written_lines: 6.0, read_bytes: 1024.0, written_bytes: 32.0 };
        assert_eq!(all, want);
    }

    #[test]
    fn a_sampled_product_has_the_footprint_of_the_whole() {
        // Work-group (x, y) reads panel x of one matrix and panel y of another, and writes a tile of its own.
        let run = |axes: &[Axis; 3]| {
            let mut d = Detail::default();
            for y in &axes[1] {
                for x in &axes[0] {
                    d.enter([*x, *y, 0]);
                    d.global(&rows(u64::from(*x) * 0x1000, 16), u64::MAX, 16, false);
                    d.global(&rows(0x100_0000 + u64::from(*y) * 0x1000, 16), u64::MAX, 16, false);
                    d.global(&rows(0x200_0000 + u64::from(x * 100 + y) * 0x1000, 4), u64::MAX, 4, true);
                }
            }
            d
        };
        let grid = [9, 7, 1];
        let whole = [sample(9, 0), sample(7, 0), sample(1, 0)];
        let some = [sample(9, 3), sample(7, 2), sample(1, 3)];
        let (all, part) = (run(&whole), run(&some));
        assert_eq!(all.footprint(grid, &whole).read_lines, 8.0 * 16.0);
        let (a, b) = (all.footprint(grid, &whole), part.footprint(grid, &some));
        for (a, b) in [(a.read_lines, b.read_lines), (a.written_bytes, b.written_bytes)] {
            assert!((a - b).abs() < 1e-9 * a, "{a} and {b}");
        }
        // In two threads' parts it is the same.
        let mut halves = run(&[whole[0][..4].to_vec(), whole[1].clone(), vec![0]]);
        halves.add(&run(&[whole[0][4..].to_vec(), whole[1].clone(), vec![0]]));
        assert_eq!(halves.footprint(grid, &whole), all.footprint(grid, &whole));
        assert_eq!(halves.group_lines, all.group_lines);
    }

    #[test]
    fn samples_are_spread_and_keep_both_ends() {
        assert_eq!(sample(5, 0), [0, 1, 2, 3, 4]);
        assert_eq!(sample(3, 4), [0, 1, 2]);
        assert_eq!((sample(100, 2), sample(101, 3)), (vec![0, 99], vec![0, 50, 100]));
        assert_eq!(sample(10, 1), [0]);
        for (extent, most) in [(7, 6), (1000, 7), (4_000_000_000, 5)] {
            let s = sample(extent, most);
            assert!(s.windows(2).all(|w| w[0] < w[1]) && s.len() == most as usize && s.last() == Some(&(extent - 1)));
        }
    }
}
