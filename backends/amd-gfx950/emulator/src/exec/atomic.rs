//! Read-modify-write of device memory, with host atomics, lane after lane.
//!
//! SAFETY: each access is inside an allocation that `View::find` returned for its whole range, and aligned (checked here).

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::{
    formats::{f16_to_f32, f32_to_f16, to_bf16},
    transfer::{self, Addresses, Data},
};
use crate::{
    isa::{Inst, L},
    lanes,
    machine::{Cx, Merge},
};

/// New value from old value, operand and (for compare-and-swap) comparand.
pub type Update = fn(u64, u64, u64) -> u64;

fn f(x: u64) -> f32 {
    f32::from_bits(x as u32)
}

fn halves(a: u64, b: u64, g: fn(u32, u32) -> u32) -> u64 {
    u64::from(g(a as u32 & 0xffff, b as u32 & 0xffff) & 0xffff | g(a as u32 >> 16, b as u32 >> 16) << 16)
}

/// The operation that a mnemonic names, for 32 or 64 bits.
pub fn update(name: &str) -> Option<Update> {
    let wide = name.ends_with("_x2") || name.ends_with("f64");
    let op = name.split_once("_atomic_")?.1.trim_end_matches("_x2");
    Some(match (op, wide) {
        ("swap", _) => |_, b, _| b,
        ("cmpswap", _) => |old, b, c| if old == c { b } else { old },
        ("add", false) => |a, b, _| u64::from((a as u32).wrapping_add(b as u32)),
        ("add", true) => |a, b, _| a.wrapping_add(b),
        ("sub", false) => |a, b, _| u64::from((a as u32).wrapping_sub(b as u32)),
        ("sub", true) => |a, b, _| a.wrapping_sub(b),
        ("smin", false) => |a, b, _| u64::from((a as i32).min(b as i32) as u32),
        ("smin", true) => |a, b, _| (a as i64).min(b as i64) as u64,
        ("smax", false) => |a, b, _| u64::from((a as i32).max(b as i32) as u32),
        ("smax", true) => |a, b, _| (a as i64).max(b as i64) as u64,
        ("umin", _) => |a, b, _| a.min(b),
        ("umax", _) => |a, b, _| a.max(b),
        ("and", _) => |a, b, _| a & b,
        ("or", _) => |a, b, _| a | b,
        ("xor", _) => |a, b, _| a ^ b,
        // Wrapping counters: up to the operand, or down from it.
        ("inc", _) => |a, b, _| if a >= b { 0 } else { a + 1 },
        ("dec", _) => |a, b, _| if a == 0 || a > b { b } else { a - 1 },
        ("add_f32", _) => |a, b, _| u64::from((f(a) + f(b)).to_bits()),
        ("add_f64", _) => |a, b, _| (f64::from_bits(a) + f64::from_bits(b)).to_bits(),
        ("min_f64", _) => |a, b, _| f64::from_bits(a).min(f64::from_bits(b)).to_bits(),
        ("max_f64", _) => |a, b, _| f64::from_bits(a).max(f64::from_bits(b)).to_bits(),
        ("pk_add_f16", _) => {
            |a, b, _| halves(a, b, |x, y| u32::from(f32_to_f16(f16_to_f32(x as u16) + f16_to_f32(y as u16), false)))
        }
        ("pk_add_bf16", _) => {
            |a, b, _| halves(a, b, |x, y| to_bf16((f32::from_bits(x << 16) + f32::from_bits(y << 16)).to_bits()))
        }
        _ => return None,
    })
}

/// Applies an update in the lanes of `mask`; returns old values if the instruction wants them.
pub fn run(cx: &mut Cx, inst: &Inst, addresses: &Addresses, mask: u64) {
    let name = inst.def.name;
    let Some(update) = update(name) else {
        cx.w.fail("this atomic is not modelled", None);
        return;
    };
    let (source, compares) = (inst.s[3], name.contains("cmpswap"));
    if !cx.require(&source, "atomic operand") {
        return;
    }
    let width = source.width as usize / if compares { 2 } else { 1 };
    let bytes = 4 * width;
    let registers: Vec<L> = (0..source.width as usize).map(|i| cx.w.v[source.at() + i]).collect();
    let value = |at: usize, l: usize| (0..width).fold(0, |v, i| v | u64::from(registers[at + i][l]) << (32 * i));
    let mut old = vec![[0; 64]; width];
    let mut valid = u64::MAX;
    for l in lanes::of(mask) {
        let address = addresses[l] as usize;
        let found = cx.env.memory.find(address, bytes).filter(|_| address.is_multiple_of(bytes));
        let Some(allocation) = found.cloned() else {
            let place = cx.env.memory.describe(address);
            cx.w.fail(format!("atomic at {address:#x}: not aligned or out of bounds, {place}"), Some(l as u32));
            return;
        };
        if cx.env.check && !(0..width).all(|i| allocation.written(address + 4 * i, 4)) {
            valid &= !(1 << l);
            if !name.contains("swap") {
                cx.w.fail("atomic on memory that nobody wrote", Some(l as u32));
                return;
            }
        }
        let (operand, comparand) = (value(0, l), if compares { value(width, l) } else { 0 });
        let before = if width == 1 {
            // SAFETY: in bounds and aligned.
            let cell = unsafe { AtomicU32::from_ptr(address as *mut u32) };
            let step = |x: u32| Some(update(u64::from(x), operand, comparand) as u32);
            u64::from(cell.fetch_update(Ordering::AcqRel, Ordering::Acquire, step).unwrap_or_else(|x| x))
        } else {
            // SAFETY: in bounds and aligned.
            let cell = unsafe { AtomicU64::from_ptr(address as *mut u64) };
            let step = |x: u64| Some(update(x, operand, comparand));
            cell.fetch_update(Ordering::AcqRel, Ordering::Acquire, step).unwrap_or_else(|x| x)
        };
        allocation.mark(address, bytes, true);
        for (i, word) in old.iter_mut().enumerate() {
            word[l] = (before >> (32 * i)) as u32;
        }
    }
    let moved = u64::from(mask.count_ones()) * bytes as u64;
    cx.count.global_read_bytes += moved;
    cx.count.global_write_bytes += moved;
    if let Some(detail) = &mut cx.count.detail {
        detail.global(addresses, mask, bytes, false);
        detail.global(addresses, mask, bytes, true);
    }
    if inst.d.width > 0 {
        let data = Data { words: old, valid: vec![valid; width] };
        let exec = cx.w.exec();
        transfer::deliver(cx, inst.d, data, exec, Merge::Full);
    } else {
        transfer::issued(cx);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_follow_the_mnemonic() {
        let run = |name: &str, a: u64, b: u64| update(name).unwrap()(a, b, 7);
        assert_eq!(run("global_atomic_add", 0xffff_ffff, 2), 1);
        assert_eq!(run("global_atomic_add_x2", 0xffff_ffff, 2), 0x1_0000_0001);
        assert_eq!(
            (run("global_atomic_smin", 0xffff_ffff, 1), run("global_atomic_umin", 0xffff_ffff, 1)),
            (0xffff_ffff, 1)
        );
        assert_eq!(
            (run("global_atomic_inc", 3, 3), run("global_atomic_inc", 2, 3), run("global_atomic_dec", 0, 5)),
            (0, 3, 5)
        );
        assert_eq!((run("global_atomic_cmpswap", 7, 9), run("global_atomic_cmpswap", 8, 9)), (9, 8));
        assert_eq!(run("buffer_atomic_pk_add_bf16", 0x3f80_4000, 0x3f80_3f80), 0x4000_4040);
        assert!(update("global_atomic_nothing").is_none());
    }
}
