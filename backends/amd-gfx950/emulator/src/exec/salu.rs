//! Scalar arithmetic with two sources.
//!
//! Sources and results are 64 bits wide; 32-bit ones use the low half. The second result is scc, `None` where it stays.

use super::def;
use crate::isa::{Def, Sem};

type Result2 = (u64, Option<bool>);

const fn lo(x: u64) -> u32 {
    x as u32
}

fn keep(r: u32) -> Result2 {
    (u64::from(r), None)
}

fn with(r: u32, scc: bool) -> Result2 {
    (u64::from(r), Some(scc))
}

fn bits32(r: u32) -> Result2 {
    with(r, r != 0)
}

fn bits64(r: u64) -> Result2 {
    (r, Some(r != 0))
}

/// A bit field of up to 64 bits: `offset` and `width` as packed in the second source.
fn field(x: u64, packed: u64, size: u32, signed: bool) -> u64 {
    let offset = packed as u32 & (size - 1);
    let width = (packed >> 16 & 0x7f) as u32;
    if width == 0 {
        return 0;
    }
    let shifted = if signed && size == 32 {
        (i64::from(x as u32 as i32) >> offset) as u64
    } else if signed {
        ((x as i64) >> offset) as u64
    } else {
        x >> offset
    };
    let width = width.min(size);
    let spare = 64 - width;
    let out = if signed { ((shifted << spare) as i64 >> spare) as u64 } else { shifted << spare >> spare };
    if size == 32 { out & 0xffff_ffff } else { out }
}

fn add_carry(a: u64, b: u64, carry: bool) -> Result2 {
    let sum = u64::from(lo(a)) + u64::from(lo(b)) + u64::from(carry);
    with(sum as u32, sum >> 32 != 0)
}

fn sub_borrow(a: u64, b: u64, borrow: bool) -> Result2 {
    let (a, b) = (u64::from(lo(a)), u64::from(lo(b)) + u64::from(borrow));
    with(a.wrapping_sub(b) as u32, b > a)
}

fn shift_add(a: u64, b: u64, shift: u32) -> Result2 {
    let sum = (u64::from(lo(a)) << shift) + u64::from(lo(b));
    with(sum as u32, sum >> 32 != 0)
}

macro_rules! s {
    ($op:literal $name:literal $sig:literal |$a:ident, $b:ident, $c:pat_param| $e:expr) => {
        def!(
            $op,
            $name,
            $sig,
            Scalar,
            Sem::S2({
                fn f($a: u64, $b: u64, $c: bool) -> Result2 {
                    $e
                }
                f
            })
        )
    };
}

/// SOP2.
pub static SOP2: &[Def] = &[
    s!(0 "s_add_u32" "D1A1B1" |a, b, _| add_carry(a, b, false)),
    s!(1 "s_sub_u32" "D1A1B1" |a, b, _| sub_borrow(a, b, false)),
    s!(2 "s_add_i32" "D1A1B1" |a, b, _| {
        let (r, overflow) = (lo(a) as i32).overflowing_add(lo(b) as i32);
        with(r as u32, overflow)
    }),
    s!(3 "s_sub_i32" "D1A1B1" |a, b, _| {
        let (r, overflow) = (lo(a) as i32).overflowing_sub(lo(b) as i32);
        with(r as u32, overflow)
    }),
    s!(4 "s_addc_u32" "D1A1B1" |a, b, c| add_carry(a, b, c)),
    s!(5 "s_subb_u32" "D1A1B1" |a, b, c| sub_borrow(a, b, c)),
    s!(6 "s_min_i32" "D1A1B1" |a, b, _| with((lo(a) as i32).min(lo(b) as i32) as u32, (lo(a) as i32) < lo(b) as i32)),
    s!(7 "s_min_u32" "D1A1B1" |a, b, _| with(lo(a).min(lo(b)), lo(a) < lo(b))),
    s!(8 "s_max_i32" "D1A1B1" |a, b, _| with((lo(a) as i32).max(lo(b) as i32) as u32, lo(a) as i32 >= lo(b) as i32)),
    s!(9 "s_max_u32" "D1A1B1" |a, b, _| with(lo(a).max(lo(b)), lo(a) >= lo(b))),
    s!(10 "s_cselect_b32" "D1A1B1" |a, b, c| (if c { a } else { b }, None)),
    s!(11 "s_cselect_b64" "D2A2B2" |a, b, c| (if c { a } else { b }, None)),
    s!(12 "s_and_b32" "D1A1B1" |a, b, _| bits32(lo(a) & lo(b))),
    s!(13 "s_and_b64" "D2A2B2" |a, b, _| bits64(a & b)),
    s!(14 "s_or_b32" "D1A1B1" |a, b, _| bits32(lo(a) | lo(b))),
    s!(15 "s_or_b64" "D2A2B2" |a, b, _| bits64(a | b)),
    s!(16 "s_xor_b32" "D1A1B1" |a, b, _| bits32(lo(a) ^ lo(b))),
    s!(17 "s_xor_b64" "D2A2B2" |a, b, _| bits64(a ^ b)),
    s!(18 "s_andn2_b32" "D1A1B1" |a, b, _| bits32(lo(a) & !lo(b))),
    s!(19 "s_andn2_b64" "D2A2B2" |a, b, _| bits64(a & !b)),
    s!(20 "s_orn2_b32" "D1A1B1" |a, b, _| bits32(lo(a) | !lo(b))),
    s!(21 "s_orn2_b64" "D2A2B2" |a, b, _| bits64(a | !b)),
    s!(22 "s_nand_b32" "D1A1B1" |a, b, _| bits32(!(lo(a) & lo(b)))),
    s!(23 "s_nand_b64" "D2A2B2" |a, b, _| bits64(!(a & b))),
    s!(24 "s_nor_b32" "D1A1B1" |a, b, _| bits32(!(lo(a) | lo(b)))),
    s!(25 "s_nor_b64" "D2A2B2" |a, b, _| bits64(!(a | b))),
    s!(26 "s_xnor_b32" "D1A1B1" |a, b, _| bits32(!(lo(a) ^ lo(b)))),
    s!(27 "s_xnor_b64" "D2A2B2" |a, b, _| bits64(!(a ^ b))),
    s!(28 "s_lshl_b32" "D1A1B1" |a, b, _| bits32(lo(a) << (b & 31))),
    s!(29 "s_lshl_b64" "D2A2B1" |a, b, _| bits64(a << (b & 63))),
    s!(30 "s_lshr_b32" "D1A1B1" |a, b, _| bits32(lo(a) >> (b & 31))),
    s!(31 "s_lshr_b64" "D2A2B1" |a, b, _| bits64(a >> (b & 63))),
    s!(32 "s_ashr_i32" "D1A1B1" |a, b, _| bits32((lo(a) as i32 >> (b & 31)) as u32)),
    s!(33 "s_ashr_i64" "D2A2B1" |a, b, _| bits64((a as i64 >> (b & 63)) as u64)),
    s!(34 "s_bfm_b32" "D1A1B1" |a, b, _| keep(((1u32 << (a & 31)) - 1) << (b & 31))),
    s!(35 "s_bfm_b64" "D2A1B1" |a, b, _| (((1u64 << (a & 63)) - 1) << (b & 63), None)),
    s!(36 "s_mul_i32" "D1A1B1" |a, b, _| keep(lo(a).wrapping_mul(lo(b)))),
    s!(37 "s_bfe_u32" "D1A1B1" |a, b, _| bits32(field(u64::from(lo(a)), b, 32, false) as u32)),
    s!(38 "s_bfe_i32" "D1A1B1" |a, b, _| bits32(field(a, b, 32, true) as u32)),
    s!(39 "s_bfe_u64" "D2A2B1" |a, b, _| bits64(field(a, b, 64, false))),
    s!(40 "s_bfe_i64" "D2A2B1" |a, b, _| bits64(field(a, b, 64, true))),
    s!(42 "s_absdiff_i32" "D1A1B1" |a, b, _| bits32((lo(a) as i32).wrapping_sub(lo(b) as i32).unsigned_abs())),
    s!(44 "s_mul_hi_u32" "D1A1B1" |a, b, _| keep((u64::from(lo(a)) * u64::from(lo(b)) >> 32) as u32)),
    s!(45 "s_mul_hi_i32" "D1A1B1" |a, b, _| {
        keep((i64::from(lo(a) as i32) * i64::from(lo(b) as i32) >> 32) as u32)
    }),
    s!(46 "s_lshl1_add_u32" "D1A1B1" |a, b, _| shift_add(a, b, 1)),
    s!(47 "s_lshl2_add_u32" "D1A1B1" |a, b, _| shift_add(a, b, 2)),
    s!(48 "s_lshl3_add_u32" "D1A1B1" |a, b, _| shift_add(a, b, 3)),
    s!(49 "s_lshl4_add_u32" "D1A1B1" |a, b, _| shift_add(a, b, 4)),
    s!(50 "s_pack_ll_b32_b16" "D1A1B1" |a, b, _| keep(lo(a) & 0xffff | lo(b) << 16)),
    s!(51 "s_pack_lh_b32_b16" "D1A1B1" |a, b, _| keep(lo(a) & 0xffff | lo(b) & 0xffff_0000)),
    s!(52 "s_pack_hh_b32_b16" "D1A1B1" |a, b, _| keep(lo(a) >> 16 | lo(b) & 0xffff_0000)),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn run(name: &str, a: u64, b: u64, scc: bool) -> Result2 {
        let def = SOP2.iter().find(|d| d.name == name).unwrap();
        let Sem::S2(f) = def.sem else { panic!("{name}") };
        f(a, b, scc)
    }

    /// Against arithmetic on wider integers, over the corners of 32 bits.
    #[test]
    fn carries_and_overflows() {
        let corners = [0u32, 1, 2, 0x7fff_ffff, 0x8000_0000, 0xffff_fffe, 0xffff_ffff];
        for a in corners {
            for b in corners {
                let (wa, wb) = (u64::from(a), u64::from(b));
                let (sa, sb) = (i128::from(a as i32), i128::from(b as i32));
                for c in [false, true] {
                    let sum = i128::from(a) + i128::from(b) + i128::from(c);
                    assert_eq!(run("s_addc_u32", wa, wb, c), (sum as u32 as u64, Some(sum > i128::from(u32::MAX))));
                    let diff = i128::from(a) - i128::from(b) - i128::from(c);
                    assert_eq!(run("s_subb_u32", wa, wb, c), (diff as u32 as u64, Some(diff < 0)));
                }
                let overflows = |x: i128| i32::try_from(x).is_err();
                assert_eq!(run("s_add_i32", wa, wb, false).1, Some(overflows(sa + sb)));
                assert_eq!(run("s_sub_i32", wa, wb, false).1, Some(overflows(sa - sb)));
                assert_eq!(run("s_mul_hi_i32", wa, wb, false).0, (sa * sb >> 32) as u32 as u64);
            }
        }
    }

    #[test]
    fn bit_fields() {
        assert_eq!(run("s_bfe_u32", 0xabcd_1234, 8 << 16 | 4, false).0, 0x23);
        assert_eq!(run("s_bfe_i32", 0x0000_0f00, 4 << 16 | 8, false), (0xffff_ffff, Some(true)));
        assert_eq!(run("s_bfe_i32", 0x8000_0000, 8 << 16 | 28, false).0, 0xffff_fff8);
        assert_eq!(run("s_bfe_u64", 0xff00_0000_0000_0000, 8 << 16 | 56, false).0, 0xff);
        assert_eq!(run("s_bfe_u32", 5, 0, false), (0, Some(false)));
        assert_eq!(run("s_bfm_b32", 4, 8, false), (0xf00, None));
    }
}
