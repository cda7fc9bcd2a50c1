//! Vector arithmetic with two 32-bit sources, and fused multiply-add into the destination.

use super::def;
use crate::{
    isa::{Def, Form, Inst, Sem},
    lanes::{self, lane},
    machine::{Cx, place, selected},
};

#[inline(always)]
const fn f(x: u32) -> f32 {
    f32::from_bits(x)
}

/// The smaller operand; a NaN loses against a number, and -0 is smaller than +0.
#[inline(always)]
pub fn min_f32(a: u32, b: u32) -> u32 {
    let (x, y) = (f(a), f(b));
    if x.is_nan() {
        return if y.is_nan() { a | 0x40_0000 } else { b };
    }
    if y.is_nan() || x < y || x == y && a >> 31 != 0 { a } else { b }
}

/// The larger operand; a NaN loses against a number, and +0 is larger than -0.
#[inline(always)]
pub fn max_f32(a: u32, b: u32) -> u32 {
    let (x, y) = (f(a), f(b));
    if x.is_nan() {
        return if y.is_nan() { a | 0x40_0000 } else { b };
    }
    if y.is_nan() || x > y || x == y && a >> 31 == 0 { a } else { b }
}

#[inline(always)]
fn i24(x: u32) -> i32 {
    (x as i32) << 8 >> 8
}

/// Low half of a 16-bit operation; the high half is cleared.
#[inline(always)]
fn h(x: u32) -> u32 {
    x & 0xffff
}

macro_rules! v {
    ($op:literal $name:literal |$a:ident, $b:ident| $e:expr) => {
        def!($op, $name, "D1A1B1", Vector, Sem::V2(lane!(|$a, $b| $e)))
    };
}

/// `v_cndmask`: the second source in lanes whose mask bit is set.
fn select(cx: &mut Cx, inst: &Inst) {
    let narrow = matches!(inst.form, Form::Sdwa { .. });
    let [a, b] = [0, 1].map(|i| if narrow { selected(cx, &inst.s[i], true) } else { cx.lanes(&inst.s[i]) });
    let mask = match inst.s[2].file {
        crate::isa::File::Scalar => cx.w.pair(inst.s[2].at()),
        _ => crate::machine::scalar_source(cx.w, &inst.s[2]),
    };
    let mut out = a;
    lanes::merge(&mut out, &b, mask);
    if let Form::Sdwa { dst_sel, dst_unused } = inst.form {
        place(dst_sel, dst_unused, &cx.w.v[inst.d.at()], &mut out);
    }
    if cx.env.check {
        let (va, vb, vm) = (cx.valid(&inst.s[0]), cx.valid(&inst.s[1]), cx.valid_mask(&inst.s[2]));
        cx.set_valid(&inst.d, vm & (va & !mask | vb & mask));
    }
    cx.write(inst.d.at(), &out);
}

/// VOP2 on 32-bit lanes.
pub static VOP2: &[Def] = &[
    def!(0, "v_cndmask_b32", "D1A1B1C2", Vector, Sem::X(select)),
    v!(1 "v_add_f32" |a, b| (f(a) + f(b)).to_bits()),
    v!(2 "v_sub_f32" |a, b| (f(a) - f(b)).to_bits()),
    v!(3 "v_subrev_f32" |a, b| (f(b) - f(a)).to_bits()),
    v!(5 "v_mul_f32" |a, b| (f(a) * f(b)).to_bits()),
    v!(6 "v_mul_i32_i24" |a, b| i24(a).wrapping_mul(i24(b)) as u32),
    v!(7 "v_mul_hi_i32_i24" |a, b| (i64::from(i24(a)) * i64::from(i24(b)) >> 32) as u32),
    v!(8 "v_mul_u32_u24" |a, b| (a & 0xff_ffff).wrapping_mul(b & 0xff_ffff)),
    v!(9 "v_mul_hi_u32_u24" |a, b| (u64::from(a & 0xff_ffff) * u64::from(b & 0xff_ffff) >> 32) as u32),
    v!(10 "v_min_f32" |a, b| min_f32(a, b)),
    v!(11 "v_max_f32" |a, b| max_f32(a, b)),
    v!(12 "v_min_i32" |a, b| (a as i32).min(b as i32) as u32),
    v!(13 "v_max_i32" |a, b| (a as i32).max(b as i32) as u32),
    v!(14 "v_min_u32" |a, b| a.min(b)),
    v!(15 "v_max_u32" |a, b| a.max(b)),
    v!(16 "v_lshrrev_b32" |a, b| b >> (a & 31)),
    v!(17 "v_ashrrev_i32" |a, b| (b as i32 >> (a & 31)) as u32),
    v!(18 "v_lshlrev_b32" |a, b| b << (a & 31)),
    v!(19 "v_and_b32" |a, b| a & b),
    v!(20 "v_or_b32" |a, b| a | b),
    v!(21 "v_xor_b32" |a, b| a ^ b),
    def!(23, "v_fmamk_f32", "D1A1B1C1", Vector, Sem::V3(lane!(|a, b, c| f(a).mul_add(f(b), f(c)).to_bits()))),
    def!(24, "v_fmaak_f32", "D1A1B1C1", Vector, Sem::V3(lane!(|a, b, c| f(a).mul_add(f(b), f(c)).to_bits()))),
    v!(38 "v_add_u16" |a, b| h(a.wrapping_add(b))),
    v!(39 "v_sub_u16" |a, b| h(a.wrapping_sub(b))),
    v!(40 "v_subrev_u16" |a, b| h(b.wrapping_sub(a))),
    v!(41 "v_mul_lo_u16" |a, b| h(a.wrapping_mul(b))),
    v!(42 "v_lshlrev_b16" |a, b| h(b << (a & 15))),
    v!(43 "v_lshrrev_b16" |a, b| h(b) >> (a & 15)),
    v!(44 "v_ashrrev_i16" |a, b| h((i32::from(b as i16) >> (a & 15)) as u32)),
    v!(47 "v_max_u16" |a, b| h(a).max(h(b))),
    v!(48 "v_max_i16" |a, b| h((a as i16).max(b as i16) as u32)),
    v!(49 "v_min_u16" |a, b| h(a).min(h(b))),
    v!(50 "v_min_i16" |a, b| h((a as i16).min(b as i16) as u32)),
    v!(52 "v_add_u32" |a, b| a.wrapping_add(b)),
    v!(53 "v_sub_u32" |a, b| a.wrapping_sub(b)),
    v!(54 "v_subrev_u32" |a, b| b.wrapping_sub(a)),
    def!(59, "v_fmac_f32", "D1A1B1c1", Vector, Sem::V3(lane!(|a, b, c| f(a).mul_add(f(b), f(c)).to_bits()))),
    v!(61 "v_xnor_b32" |a, b| !(a ^ b)),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minimum_and_maximum_order_zeros_and_drop_nan() {
        let (p, n, nan, one) = (0f32.to_bits(), (-0f32).to_bits(), f32::NAN.to_bits(), 1f32.to_bits());
        assert_eq!((min_f32(p, n), min_f32(n, p), max_f32(p, n), max_f32(n, p)), (n, n, p, p));
        assert_eq!((min_f32(nan, one), max_f32(one, nan)), (one, one));
        assert!(f(min_f32(nan, nan)).is_nan());
    }

    /// A fused multiply-add rounds once: this product needs 48 bits.
    #[test]
    fn multiply_add_rounds_once() {
        let def = VOP2.iter().find(|d| d.name == "v_fmac_f32").unwrap();
        let Sem::V3(g) = def.sem else { panic!() };
        let (x, mut out) = (1.0 + 2f32.powi(-12), [0; 64]);
        g(&[x.to_bits(); 64], &[x.to_bits(); 64], &[(-1f32).to_bits(); 64], &mut out);
        let exact = f64::from(x) * f64::from(x) - 1.0;
        assert_eq!(f64::from(f(out[0])), exact as f32 as f64);
        assert_ne!(f(out[0]), x * x - 1.0);
    }
}
