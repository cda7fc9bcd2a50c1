//! Vector arithmetic with three 32-bit sources, and two-source operations that exist in the long encoding only.

use super::{
    def,
    valu2::{max_f32, min_f32},
};
use crate::{
    isa::{Def, Inst, Sem},
    lanes::lane,
    machine::Cx,
};

#[inline(always)]
const fn f(x: u32) -> f32 {
    f32::from_bits(x)
}

#[inline(always)]
fn bfe_u32(a: u32, b: u32, c: u32) -> u32 {
    a >> (b & 31) & ((1 << (c & 31)) - 1)
}

#[inline(always)]
fn bfe_i32(a: u32, b: u32, c: u32) -> u32 {
    let width = c & 31;
    if width == 0 {
        return 0;
    }
    let shifted = (i64::from(a as i32) >> (b & 31)) as u64;
    ((shifted << (64 - width)) as i64 >> (64 - width)) as u32
}

/// Bytes 0-3 are those of `b`, 4-7 those of `a`; selectors above 7 give signs and constants.
fn perm(a: u32, b: u32, selectors: u32) -> u32 {
    let data = u64::from(a) << 32 | u64::from(b);
    let byte = |n: u32| (data >> (8 * n) & 255) as u32;
    (0..4).fold(0, |all, i| {
        let selected = match selectors >> (8 * i) & 255 {
            n @ 0..=7 => byte(n),
            n @ 8..=11 => 255 * (byte(2 * (n - 8) + 1) >> 7),
            12 => 0,
            _ => 255,
        };
        all | selected << (8 * i)
    })
}

/// Two doubles' worth of precision: the quotient's last step with denormal, infinite and NaN cases.
fn div_fixup(q: u32, d: u32, n: u32) -> u32 {
    let (q, den, num) = (f(q), f(d), f(n));
    let sign = (d ^ n) & 0x8000_0000;
    let signed = |magnitude: u32| sign | magnitude & 0x7fff_ffff;
    if num.is_nan() {
        return n | 0x40_0000;
    }
    if den.is_nan() {
        return d | 0x40_0000;
    }
    if num == 0.0 && den == 0.0 || num.is_infinite() && den.is_infinite() {
        return 0xffc0_0000;
    }
    if den == 0.0 || num.is_infinite() {
        return signed(f32::INFINITY.to_bits());
    }
    if den.is_infinite() || num == 0.0 {
        return signed(0);
    }
    // So far below the smallest denormal that the steps before may have lost themselves.
    let exponent = |x: u32| (x >> 23 & 255) as i32;
    if exponent(n) - exponent(d) < -150 {
        return signed(0);
    }
    signed(q.to_bits())
}

#[inline(always)]
fn maximum3(a: u32, b: u32, c: u32) -> u32 {
    let nan = f(a).is_nan() || f(b).is_nan() || f(c).is_nan();
    if nan { 0x7fc0_0000 } else { max_f32(max_f32(a, b), c) }
}

#[inline(always)]
fn minimum3(a: u32, b: u32, c: u32) -> u32 {
    let nan = f(a).is_nan() || f(b).is_nan() || f(c).is_nan();
    if nan { 0x7fc0_0000 } else { min_f32(min_f32(a, b), c) }
}

fn med3_f32(a: u32, b: u32, c: u32) -> u32 {
    if f(a).is_nan() || f(b).is_nan() || f(c).is_nan() {
        return min_f32(min_f32(a, b), c);
    }
    max_f32(min_f32(a, b), min_f32(max_f32(a, b), c))
}

/// Any function of three bits, by truth table: bit 4·a + 2·b + c of the table.
fn bitop3(cx: &mut Cx, inst: &Inst) {
    let (a, b, c) = (cx.lanes(&inst.s[0]), cx.lanes(&inst.s[1]), cx.lanes(&inst.s[2]));
    let mut out = [0; 64];
    for q in 0..8 {
        if inst.f.imm >> q & 1 != 0 {
            let pick = |x: u32, bit: u32| if q >> bit & 1 != 0 { x } else { !x };
            for l in 0..64 {
                out[l] |= pick(a[l], 2) & pick(b[l], 1) & pick(c[l], 0);
            }
        }
    }
    if inst.def.name == "v_bitop3_b16" {
        out.iter_mut().for_each(|x| *x &= 0xffff);
    }
    cx.spread_valid(inst);
    cx.write(inst.d.at(), &out);
}

macro_rules! v {
    ($op:literal $name:literal |$a:ident, $b:ident, $c:ident| $e:expr) => {
        def!($op, $name, "D1A1B1C1", Vector, Sem::V3(lane!(|$a, $b, $c| $e)))
    };
    ($op:literal $name:literal |$a:ident, $b:ident| $e:expr) => {
        def!($op, $name, "D1A1B1", Vector, Sem::V2(lane!(|$a, $b| $e)))
    };
}

/// VOP3 on 32-bit lanes.
pub static VOP3: &[Def] = &[
    v!(450 "v_mad_i32_i24" |a, b, c| ((a as i32) << 8 >> 8).wrapping_mul((b as i32) << 8 >> 8).wrapping_add(c as i32) as u32),
    v!(451 "v_mad_u32_u24" |a, b, c| (a & 0xff_ffff).wrapping_mul(b & 0xff_ffff).wrapping_add(c)),
    v!(456 "v_bfe_u32" |a, b, c| bfe_u32(a, b, c)),
    v!(457 "v_bfe_i32" |a, b, c| bfe_i32(a, b, c)),
    v!(458 "v_bfi_b32" |a, b, c| a & b | !a & c),
    v!(459 "v_fma_f32" |a, b, c| f(a).mul_add(f(b), f(c)).to_bits()),
    v!(462 "v_alignbit_b32" |a, b, c| ((u64::from(a) << 32 | u64::from(b)) >> (c & 31)) as u32),
    v!(463 "v_alignbyte_b32" |a, b, c| ((u64::from(a) << 32 | u64::from(b)) >> (8 * (c & 3))) as u32),
    v!(464 "v_min3_f32" |a, b, c| min_f32(min_f32(a, b), c)),
    v!(465 "v_min3_i32" |a, b, c| (a as i32).min(b as i32).min(c as i32) as u32),
    v!(466 "v_min3_u32" |a, b, c| a.min(b).min(c)),
    v!(467 "v_max3_f32" |a, b, c| max_f32(max_f32(a, b), c)),
    v!(468 "v_max3_i32" |a, b, c| (a as i32).max(b as i32).max(c as i32) as u32),
    v!(469 "v_max3_u32" |a, b, c| a.max(b).max(c)),
    v!(470 "v_med3_f32" |a, b, c| med3_f32(a, b, c)),
    v!(471 "v_med3_i32" |a, b, c| (a as i32).min(b as i32).max((a as i32).max(b as i32).min(c as i32)) as u32),
    v!(472 "v_med3_u32" |a, b, c| a.min(b).max(a.max(b).min(c))),
    v!(478 "v_div_fixup_f32" |a, b, c| div_fixup(a, b, c)),
    v!(493 "v_perm_b32" |a, b, c| perm(a, b, c)),
    v!(499 "v_xad_u32" |a, b, c| (a ^ b).wrapping_add(c)),
    v!(509 "v_lshl_add_u32" |a, b, c| (a << (b & 31)).wrapping_add(c)),
    v!(510 "v_add_lshl_u32" |a, b, c| a.wrapping_add(b) << (c & 31)),
    v!(511 "v_add3_u32" |a, b, c| a.wrapping_add(b).wrapping_add(c)),
    v!(512 "v_lshl_or_b32" |a, b, c| a << (b & 31) | c),
    v!(513 "v_and_or_b32" |a, b, c| a & b | c),
    v!(514 "v_or3_b32" |a, b, c| a | b | c),
    def!(563, "v_bitop3_b16", "D1A1B1C1", Vector, Sem::X(bitop3)),
    def!(564, "v_bitop3_b32", "D1A1B1C1", Vector, Sem::X(bitop3)),
    v!(645 "v_mul_lo_u32" |a, b| a.wrapping_mul(b)),
    v!(646 "v_mul_hi_u32" |a, b| (u64::from(a) * u64::from(b) >> 32) as u32),
    v!(647 "v_mul_hi_i32" |a, b| (i64::from(a as i32) * i64::from(b as i32) >> 32) as u32),
    v!(648 "v_ldexp_f32" |a, b| ((f64::from(f(a)) * f64::from((b as i32).clamp(-300, 300)).exp2()) as f32).to_bits()),
    v!(651 "v_bcnt_u32_b32" |a, b| a.count_ones().wrapping_add(b)),
    v!(659 "v_bfm_b32" |a, b| ((1 << (a & 31)) - 1) << (b & 31)),
    v!(668 "v_add_i32" |a, b| a.wrapping_add(b)),
    v!(669 "v_sub_i32" |a, b| a.wrapping_sub(b)),
    v!(672 "v_pack_b32_f16" |a, b| a & 0xffff | b << 16),
    v!(680 "v_minimum3_f32" |a, b, c| minimum3(a, b, c)),
    v!(681 "v_maximum3_f32" |a, b, c| maximum3(a, b, c)),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permutation_selects_bytes_signs_and_constants() {
        assert_eq!(perm(0x8765_4321, 0x0fed_cba9, 0x0706_0504), 0x8765_4321);
        assert_eq!(perm(0x8765_4321, 0x0fed_cba9, 0x0300_0700), 0x0fa9_87a9);
        assert_eq!(perm(0x8000_0000, 0x0000_8000, 0x0d0c_0b08), 0xff00_ffff);
    }

    #[test]
    fn fields_of_bits() {
        assert_eq!((bfe_u32(0xabcd, 4, 8), bfe_u32(5, 0, 0)), (0xbc, 0));
        assert_eq!((bfe_i32(0xf0, 4, 4), bfe_i32(0x70, 4, 4), bfe_i32(u32::MAX, 31, 5)), (u32::MAX, 7, u32::MAX));
    }

    #[test]
    fn quotients_at_the_edges() {
        let bits = |x: f32| x.to_bits();
        assert_eq!(div_fixup(bits(0.5), bits(2.0), bits(-1.0)), bits(-0.5));
        assert_eq!(div_fixup(0, bits(0.0), bits(-1.0)), bits(f32::NEG_INFINITY));
        assert!(f(div_fixup(0, bits(0.0), bits(0.0))).is_nan());
        assert_eq!(div_fixup(bits(7.0), bits(f32::INFINITY), bits(3.0)), 0);
    }
}
