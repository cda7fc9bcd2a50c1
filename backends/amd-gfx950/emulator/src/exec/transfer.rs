//! Bytes between lanes and device memory: bounds, initialised-ness, counting, landing.
//!
//! SAFETY: each access is inside an allocation that `View::find` returned for its whole range and that the view keeps alive.

use std::sync::Arc;

use crate::{
    isa::{Encoding, Inst, L, Operand},
    lanes,
    machine::{Access, Allocation, Cx, Landing, Merge, Pending},
};

/// One address per lane.
pub type Addresses = [u64; 64];

/// What lanes read: up to four dwords each, and which of them hold written data.
#[derive(Debug, Clone)]
pub struct Data {
    /// Values, narrow ones zero-extended.
    pub words: Vec<L>,
    /// Initialised lanes per dword.
    pub valid: Vec<u64>,
}

/// Finds allocations lane by lane; neighbours nearly always share one.
struct Finder<'a> {
    view: &'a crate::machine::View,
    last: Option<&'a Arc<Allocation>>,
}

impl<'a> Finder<'a> {
    #[inline(always)]
    fn find(&mut self, address: usize, bytes: usize) -> Option<&'a Arc<Allocation>> {
        let holds = |a: &&Arc<Allocation>| address >= a.base && address - a.base + bytes <= a.len;
        if let Some(a) = self.last.filter(holds) {
            return Some(a);
        }
        self.last = self.view.find(address, bytes);
        self.last
    }
}

#[cold]
fn out_of_bounds(cx: &mut Cx, what: &str, address: usize, bytes: usize, lane: usize) {
    let place = cx.env.memory.describe(address);
    cx.w.fail(format!("{what} of {bytes} bytes at {address:#x}: out of bounds, {place}"), Some(lane as u32));
}

/// The first lane that stores another value to an address that a lane before it stores to: which of them stays is not
/// defined. Lanes whose addresses rise, nearly all of them, are told at a glance.
fn contradiction(addresses: &Addresses, mask: u64, bytes: usize, words: &[L]) -> Option<usize> {
    let mut end = 0;
    let rise = lanes::of(mask).all(|l| {
        let fine = addresses[l] >= end;
        end = addresses[l] + bytes as u64;
        fine
    });
    if rise {
        return None;
    }
    let mut order: Vec<usize> = lanes::of(mask).collect();
    order.sort_by_key(|l| (addresses[*l], *l));
    // Whole values that lie on each other; partly overlapping ones do not occur in aligned stores.
    let narrow = if bytes < 4 { (1u32 << (8 * bytes)) - 1 } else { u32::MAX };
    order.windows(2).find_map(|pair| {
        let [a, b] = [pair[0], pair[1]];
        let differ = addresses[a] == addresses[b] && words.iter().any(|w| (w[a] ^ w[b]) & narrow != 0);
        differ.then_some(b)
    })
}

/// Counts lines in lane order: an access of neighbours touches a line once.
pub fn count_lines(cx: &mut Cx, addresses: &Addresses, mask: u64, bytes: usize, write: bool) {
    if let Some(detail) = &mut cx.count.detail {
        detail.global(addresses, mask, bytes, write);
    }
    let mut last = u64::MAX;
    for l in lanes::of(mask) {
        let line = addresses[l] / 128;
        cx.count.global_lines += u64::from(line != last);
        last = line;
    }
}

/// Reads `bytes` (1, 2, 4, 8, 12, 16) per lane of `mask`. `None` after a fault.
pub fn gather(cx: &mut Cx, addresses: &Addresses, mask: u64, bytes: usize) -> Option<Data> {
    let count = bytes.div_ceil(4);
    let mut data = Data { words: vec![[0; 64]; count], valid: vec![u64::MAX; count] };
    let mut finder = Finder { view: cx.env.memory, last: None };
    let check = cx.env.check;
    for l in lanes::of(mask) {
        let address = addresses[l] as usize;
        let Some(allocation) = finder.find(address, bytes) else {
            out_of_bounds(cx, "load", address, bytes, l);
            return None;
        };
        match bytes {
            // SAFETY: in bounds.
            1 => data.words[0][l] = u32::from(unsafe { *(address as *const u8) }),
            // SAFETY: in bounds.
            2 => data.words[0][l] = u32::from(unsafe { (address as *const u16).read_unaligned() }),
            _ => {
                for (i, word) in data.words.iter_mut().enumerate() {
                    // SAFETY: in bounds.
                    word[l] = unsafe { (address as *const u32).add(i).read_unaligned() };
                }
            }
        }
        if check && allocation.tracked() {
            for (i, valid) in data.valid.iter_mut().enumerate() {
                let written = allocation.written(address + 4 * i, bytes.min(4));
                *valid &= !(u64::from(!written) << l);
            }
        }
    }
    cx.count.global_read_bytes += u64::from(mask.count_ones()) * bytes as u64;
    count_lines(cx, addresses, mask, bytes, false);
    Some(data)
}

/// Writes `bytes` per lane of `mask`. False after a fault.
pub fn scatter(cx: &mut Cx, addresses: &Addresses, mask: u64, bytes: usize, words: &[L]) -> bool {
    if cx.env.check
        && let Some(lane) = contradiction(addresses, mask, bytes, words)
    {
        let what = format!("two lanes store different values at one address, {:#x}", addresses[lane]);
        cx.w.fail(what, Some(lane as u32));
        return false;
    }
    let mut finder = Finder { view: cx.env.memory, last: None };
    for l in lanes::of(mask) {
        let address = addresses[l] as usize;
        let Some(allocation) = finder.find(address, bytes) else {
            out_of_bounds(cx, "store", address, bytes, l);
            return false;
        };
        match bytes {
            // SAFETY: in bounds.
            1 => unsafe { *(address as *mut u8) = words[0][l] as u8 },
            // SAFETY: in bounds.
            2 => unsafe { (address as *mut u16).write_unaligned(words[0][l] as u16) },
            _ => {
                for (i, word) in words.iter().enumerate() {
                    // SAFETY: in bounds.
                    unsafe { (address as *mut u32).add(i).write_unaligned(word[l]) };
                }
            }
        }
        allocation.mark(address, bytes, true);
    }
    cx.count.global_write_bytes += u64::from(mask.count_ones()) * bytes as u64;
    count_lines(cx, addresses, mask, bytes, true);
    true
}

/// Width and extension of a load or store, from its name's ending.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    /// Bytes per lane.
    pub bytes: usize,
    /// Sign-extends to 32 bits.
    pub signed: bool,
    /// Which part of the register.
    pub merge: Merge,
}

/// Reads [`Kind`] off a mnemonic such as `global_load_sbyte_d16_hi`.
pub fn kind(name: &str) -> Kind {
    let merge = match name {
        n if n.ends_with("_d16_hi") => Merge::High,
        n if n.ends_with("_d16") => Merge::Low,
        _ => Merge::Full,
    };
    let bytes = match name {
        n if n.contains("byte") => 1,
        n if n.contains("short") => 2,
        n if n.contains("dwordx2") => 8,
        n if n.contains("dwordx3") => 12,
        n if n.contains("dwordx4") => 16,
        _ => 4,
    };
    Kind { bytes, signed: name.contains("sbyte") || name.contains("sshort"), merge }
}

/// Sign extension of narrow loads.
pub fn extend(kind: Kind, words: &mut [L]) {
    if kind.signed {
        let shift = 32 - 8 * kind.bytes as u32;
        words[0].iter_mut().for_each(|x| *x = ((*x as i32) << shift >> shift) as u32);
    }
}

/// Puts loaded data on its way into registers; lands at once if landing is not late.
pub fn deliver(cx: &mut Cx, d: Operand, data: Data, mask: u64, merge: Merge) {
    let landing = Landing { d, data: data.words, valid: data.valid, mask, merge };
    if cx.env.check {
        cx.w.queues.mark(&d, true);
        cx.w.queues.vector.push_back(Pending::Load(landing));
    } else {
        cx.land(&landing);
    }
}

/// Data registers of a store, whose active lanes must be initialised; `High` uses the upper halves.
pub fn stored(cx: &mut Cx, source: &Operand, kind: Kind) -> Option<Vec<L>> {
    if !cx.require(source, "data stored") {
        return None;
    }
    let mut words: Vec<L> = (source.at()..source.at() + source.width as usize).map(|r| cx.w.v[r]).collect();
    if kind.merge == Merge::High {
        words[0].iter_mut().for_each(|x| *x >>= 16);
    }
    Some(words)
}

/// Counts an operation that has nothing to land.
pub fn issued(cx: &mut Cx) {
    if cx.env.check {
        cx.w.queues.vector.push_back(Pending::Store);
    }
}

/// Sends loaded data to LDS: lane l at base + l·stride. Global loads ignore the lowest bits of the base.
pub fn to_lds(cx: &mut Cx, inst: &Inst, data: Data, mask: u64, bytes: usize) {
    let m0 = Operand::scalar(124, 1);
    if !cx.require_scalar(&m0, "LDS base in m0") {
        return;
    }
    let stride = if bytes > 4 { 16 } else { 4 };
    let base = cx.w.s[124] & 0x3_ffff;
    if inst.encoding == Encoding::Mubuf && !base.is_multiple_of(4) {
        cx.w.fail(format!("an LDS base in m0 that is no multiple of four, {base:#x}"), None);
        return;
    }
    let base = (base & !3).wrapping_add(inst.f.offset as u32);
    let to: L = std::array::from_fn(|l| base + stride * l as u32);
    if let Some(detail) = &mut cx.count.detail {
        detail.lds(Access::Write, &to, 0, mask, bytes.max(4));
    }
    if cx.env.check {
        cx.lds.begin_dma(cx.w, &to, mask, bytes);
        cx.w.queues.vector.push_back(Pending::Dma { to, data: data.words, valid: data.valid, mask });
    } else {
        cx.land_dma(&to, &data.words, &data.valid, mask);
    }
}
