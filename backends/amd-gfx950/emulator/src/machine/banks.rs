//! LDS phases and bank conflicts.
//!
//! 64 banks of 4 bytes: reads take 256 bytes a cycle (CDNA4 white paper), writes behave as 32 banks, 128 bytes a cycle. A wave
//! access is served in phases of a few lanes; conflicts only count inside a phase, lanes that want the same dword share it,
//! and inactive lanes want nothing. Which lanes form a phase is not in the manual. Reads and 8-byte writes are as two public
//! experiments found them (HipKittens, AMD's kernel optimisation guide at nod-ai, which agree); other writes are inferred
//! from the width of 128 bytes: as many consecutive lanes as fill it. Rejected: counting conflicts over a whole
//! wave, which calls every 16-byte read four-way.

use crate::{isa::L, lanes};

/// Kind of access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Loads, the transposing ones included.
    Read,
    /// Stores and atomics.
    Write,
}

const READ_BANKS: u64 = 64;
const WRITE_BANKS: u64 = 32;

/// Lanes of the first of two phases of 32 lanes in 16-byte reads; the second has the rest of them.
const WIDE: u64 = 0x0ff0_f00f;

/// Lanes in `N` groups, one behind the other.
const fn consecutive<const N: usize>() -> [u64; N] {
    let lanes = 64 / N;
    let ones = if lanes == 64 { u64::MAX } else { (1 << lanes) - 1 };
    let mut out = [0; N];
    let mut i = 0;
    while i < N {
        out[i] = ones << (i * lanes);
        i += 1;
    }
    out
}

static ALL: [u64; 1] = consecutive();
static HALVES: [u64; 2] = consecutive();
static QUARTERS: [u64; 4] = consecutive();
static EIGHTHS: [u64; 8] = consecutive();
static WIDE_READS: [u64; 4] = [WIDE, !WIDE & 0xffff_ffff, WIDE << 32, (!WIDE & 0xffff_ffff) << 32];

/// Lanes that are served together.
fn phases(access: Access, bytes: usize) -> &'static [u64] {
    match (access, bytes) {
        (Access::Read, 0..=4) => &ALL,
        (Access::Read, 8) | (Access::Write, 0..=4) => &HALVES,
        (Access::Read, 12) => &EIGHTHS,
        (Access::Read, _) => &WIDE_READS,
        (Access::Write, 8) => &QUARTERS,
        (Access::Write, _) => &EIGHTHS,
    }
}

/// Cycles of an access without conflicts (its phases with an active lane), and what conflicts add.
pub fn cycles(access: Access, addresses: &L, offset: u32, mask: u64, bytes: usize) -> (u64, u64) {
    let banks = if access == Access::Read { READ_BANKS } else { WRITE_BANKS };
    let (mut count, mut extra) = (0, 0);
    for active in phases(access, bytes).iter().map(|phase| phase & mask).filter(|active| *active != 0) {
        // Of each bank the dword that came first; what wants another one of its dwords is looked at below, and mostly there is nothing.
        let mut first = [u64::MAX; READ_BANKS as usize];
        let mut others: Vec<u64> = Vec::new();
        for l in lanes::of(active) {
            let at = u64::from(addresses[l].wrapping_add(offset));
            for dword in at / 4..(at + bytes as u64).div_ceil(4) {
                let bank = &mut first[(dword % banks) as usize];
                if *bank == u64::MAX {
                    *bank = dword;
                } else if *bank != dword {
                    others.push(dword);
                }
            }
        }
        count += 1;
        others.sort_unstable();
        others.dedup();
        let mut load = [0u64; READ_BANKS as usize];
        others.iter().for_each(|dword| load[(dword % banks) as usize] += 1);
        extra += load.iter().max().copied().unwrap_or(0);
    }
    (count, extra)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(f: impl Fn(u32) -> u32) -> L {
        std::array::from_fn(|l| f(l as u32))
    }

    #[test]
    fn phases_cover_every_lane_once() {
        for access in [Access::Read, Access::Write] {
            for bytes in [1, 2, 4, 8, 12, 16] {
                let phases = phases(access, bytes);
                assert_eq!(phases.iter().fold(0, |all, p| all ^ p), u64::MAX, "{access:?} {bytes}");
                assert_eq!(phases.iter().map(|p| p.count_ones()).sum::<u32>(), 64);
            }
        }
        // The lanes that the sources name.
        let first: Vec<usize> = lanes::of(phases(Access::Read, 16)[0]).collect();
        assert_eq!(first, [0, 1, 2, 3, 12, 13, 14, 15, 20, 21, 22, 23, 24, 25, 26, 27]);
    }

    #[test]
    fn contiguous_accesses_have_no_conflicts() {
        for (access, bytes, phases) in [
            (Access::Read, 4, 1),
            (Access::Read, 8, 2),
            (Access::Read, 16, 4),
            (Access::Write, 4, 2),
            (Access::Write, 16, 8),
        ] {
            let got = cycles(access, &at(|l| l * bytes as u32), 64, u64::MAX, bytes);
            assert_eq!(got, (phases, 0), "{access:?} {bytes}");
        }
    }

    #[test]
    fn conflicts_by_hand() {
        // One dword for all is a broadcast; a stride of 64 dwords puts 64 lanes on one bank, of 32 on two.
        assert_eq!(cycles(Access::Read, &at(|_| 8), 0, u64::MAX, 4), (1, 0));
        assert_eq!(cycles(Access::Read, &at(|l| 256 * l), 0, u64::MAX, 4), (1, 63));
        assert_eq!(cycles(Access::Read, &at(|l| 128 * l), 0, u64::MAX, 4), (1, 31));
        // 33 dwords apart: every lane another bank of 64, and of 32 in each half of a write.
        assert_eq!(cycles(Access::Read, &at(|l| 132 * l), 0, u64::MAX, 4), (1, 0));
        assert_eq!(cycles(Access::Write, &at(|l| 132 * l), 0, u64::MAX, 4), (2, 0));
        // Sixteen-byte reads of rows of 128 bytes: sixteen lanes of a phase start on banks 0 and 32, eight each.
        assert_eq!(cycles(Access::Read, &at(|l| 128 * l), 0, u64::MAX, 16), (4, 4 * 7));
        // Inactive lanes want nothing: the second half of the wave, and one lane of two.
        assert_eq!(cycles(Access::Read, &at(|l| 256 * l), 0, 0x3, 4), (1, 1));
        assert_eq!(cycles(Access::Read, &at(|l| 8 * l), 0, 0xffff_ffff, 8), (1, 0));
        // Bytes of one dword do not conflict.
        assert_eq!(cycles(Access::Read, &at(|l| l), 0, u64::MAX, 1), (1, 0));
    }
}
