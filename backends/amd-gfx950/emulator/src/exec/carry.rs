//! Vector instructions with a carry mask, and the parts of a division that read or write one.

use super::def;
use crate::{
    isa::{Def, File, Inst, Operand, Sem, W},
    lanes,
    machine::Cx,
};

/// Adds or subtracts, carry from a mask if the opcode takes one; the carry out is zero in inactive lanes.
fn carry(cx: &mut Cx, inst: &Inst, f: fn(i64, i64, i64) -> i64, carries_in: bool) {
    let (a, b) = (cx.lanes(&inst.s[0]), cx.lanes(&inst.s[1]));
    let carry_in = if carries_in { cx.w.pair(inst.s[2].at()) } else { 0 };
    let (exec, mut out, mut mask) = (cx.w.exec(), [0; 64], 0);
    for l in 0..64 {
        let r = f(i64::from(a[l]), i64::from(b[l]), (carry_in >> l & 1) as i64);
        out[l] = r as u32;
        mask |= u64::from(r >> 32 != 0) << l;
    }
    if cx.env.check {
        let mut valid = cx.valid(&inst.s[0]) & cx.valid(&inst.s[1]);
        if carries_in {
            valid &= cx.valid_mask(&inst.s[2]);
        }
        cx.set_valid(&inst.d, valid);
        cx.set_valid_mask(&inst.m, valid | !exec);
    }
    cx.write(inst.d.at(), &out);
    cx.w.set_pair(inst.m.at(), mask & exec);
}

/// `v_mad_u64_u32` and its signed form: 32 x 32 + 64 bits, carry out of 64 bits.
fn mad64(cx: &mut Cx, inst: &Inst, signed: bool) {
    let (a, b, c) = (cx.lanes(&inst.s[0]), cx.lanes(&inst.s[1]), cx.wide(&inst.s[2], false));
    let (exec, mut out, mut mask): (u64, W, u64) = (cx.w.exec(), [0; 64], 0);
    for l in 0..64 {
        let (r, over) = if signed {
            let product = i64::from(a[l] as i32) * i64::from(b[l] as i32);
            let (r, over) = product.overflowing_add(c[l] as i64);
            (r as u64, over)
        } else {
            (u64::from(a[l]) * u64::from(b[l])).overflowing_add(c[l])
        };
        out[l] = r;
        mask |= u64::from(over) << l;
    }
    // Compilers multiply 32 bits with it: whatever lies in the addend's upper half does not reach the lower result.
    let addend = match inst.s[2].file {
        File::Vector | File::Scalar => cx.valid(&Operand { width: 1, ..inst.s[2] }),
        _ => u64::MAX,
    };
    let low = addend & cx.valid(&inst.s[0]) & cx.valid(&inst.s[1]);
    cx.spread_valid(inst);
    if cx.env.check {
        cx.set_valid(&Operand { width: 1, ..inst.d }, low);
    }
    cx.write_wide(&inst.d, &out);
    cx.w.set_pair(inst.m.at(), mask & exec);
}

fn exponent(x: f32) -> i32 {
    (x.to_bits() >> 23 & 255) as i32
}

/// `v_div_scale`: moves numerator or denominator out of ranges in which the division steps would lose bits, and says in the
/// mask whether the quotient must be moved back.
fn div_scale(s0: f32, den: f32, num: f32) -> (f32, bool) {
    let up = |x: f32| (f64::from(x) * 64f64.exp2()) as f32;
    let down = |x: f32| (f64::from(x) * (-64f64).exp2()) as f32;
    let same = |a: f32, b: f32| a.to_bits() == b.to_bits();
    let quotient = (f64::from(num) / f64::from(den)) as f32;
    let reciprocal = (1.0 / f64::from(den)) as f32;
    if num == 0.0 || den == 0.0 {
        (f32::NAN, false)
    } else if exponent(num) - exponent(den) >= 96 {
        (if same(s0, den) { up(s0) } else { s0 }, true)
    } else if den.is_subnormal() {
        (up(s0), false)
    } else if reciprocal.is_subnormal() && quotient.is_subnormal() {
        // The manual prints a factor of 2^64 here, which would overflow the denominator; down is what works.
        (if same(s0, den) { down(s0) } else { s0 }, true)
    } else if reciprocal.is_subnormal() {
        (down(s0), false)
    } else if quotient.is_subnormal() {
        (if same(s0, num) { up(s0) } else { s0 }, true)
    } else if exponent(num) <= 23 {
        (up(s0), false)
    } else {
        (s0, false)
    }
}

fn div_scale_f32(cx: &mut Cx, inst: &Inst) {
    let sources: [_; 3] = std::array::from_fn(|i| cx.lanes(&inst.s[i]));
    let (exec, mut out, mut mask) = (cx.w.exec(), [0; 64], 0);
    for l in 0..64 {
        let (r, scaled) =
            div_scale(f32::from_bits(sources[0][l]), f32::from_bits(sources[1][l]), f32::from_bits(sources[2][l]));
        out[l] = r.to_bits();
        mask |= u64::from(scaled) << l;
    }
    cx.spread_valid(inst);
    cx.write(inst.d.at(), &out);
    cx.w.set_pair(inst.m.at(), mask & exec);
}

/// `v_div_fmas`: the last refinement, moved back by 2^64 where vcc says so. Up after a scaled denominator (the quotient is
/// then above one), down after a scaled numerator. The manual prints a factor of 2^32 whatever was scaled, which undoes
/// neither; this reading makes the macro that compilers emit a correct division over the whole range of exponents.
fn div_fmas_f32(cx: &mut Cx, inst: &Inst) {
    let sources: [_; 3] = std::array::from_fn(|i| cx.lanes(&inst.s[i]));
    let (vcc, mut out) = (cx.w.pair(106), [0; 64]);
    for l in 0..64 {
        let [a, b, c] = [0, 1, 2].map(|i| f32::from_bits(sources[i][l]));
        let mut r = a.mul_add(b, c);
        if vcc >> l & 1 != 0 {
            let power = if c.abs() >= 1.0 { 64f64 } else { -64f64 };
            r = (f64::from(r) * power.exp2()) as f32;
        }
        out[l] = r.to_bits();
    }
    if cx.env.check {
        let masked = Operand::scalar(106, 2);
        let valid = inst.s[..3].iter().fold(u64::MAX, |all, s| all & cx.valid(s)) & cx.valid_mask(&masked);
        cx.set_valid(&inst.d, valid);
    }
    cx.write(inst.d.at(), &out);
}

macro_rules! c {
    ($op:literal $name:literal $sig:literal $in:literal |$a:ident, $b:ident, $c:pat_param| $e:expr) => {
        def!($op, $name, $sig, Vector, Sem::X(|cx, inst| carry(cx, inst, |$a, $b, $c| $e, $in)))
    };
}

/// VOP2 with carry.
pub static VOP2: &[Def] = &[
    c!(25 "v_add_co_u32" "D1M2A1B1" false |a, b, _| a + b),
    c!(26 "v_sub_co_u32" "D1M2A1B1" false |a, b, _| a - b),
    c!(27 "v_subrev_co_u32" "D1M2A1B1" false |a, b, _| b - a),
    c!(28 "v_addc_co_u32" "D1M2A1B1C2" true |a, b, c| a + b + c),
    c!(29 "v_subb_co_u32" "D1M2A1B1C2" true |a, b, c| a - b - c),
    c!(30 "v_subbrev_co_u32" "D1M2A1B1C2" true |a, b, c| b - a - c),
];

/// VOP3 with a mask.
pub static VOP3: &[Def] = &[
    def!(480, "v_div_scale_f32", "D1M2A1B1C1", Vector, Sem::X(div_scale_f32)),
    def!(482, "v_div_fmas_f32", "D1A1B1C1", Vector, Sem::X(div_fmas_f32)),
    def!(488, "v_mad_u64_u32", "D2M2A1B1C2", Vector, Sem::X(|cx, inst| mad64(cx, inst, false))),
    def!(489, "v_mad_i64_i32", "D2M2A1B1C2", Vector, Sem::X(|cx, inst| mad64(cx, inst, true))),
    def!(652, "v_mbcnt_lo_u32_b32", "D1A1B1", Vector, Sem::X(|cx, inst| count_below(cx, inst, 0))),
    def!(653, "v_mbcnt_hi_u32_b32", "D1A1B1", Vector, Sem::X(|cx, inst| count_below(cx, inst, 32))),
];

/// Counts bits of a mask below the own lane, within 32 lanes from `first`.
fn count_below(cx: &mut Cx, inst: &Inst, first: usize) {
    let (mask, base) = (cx.lanes(&inst.s[0]), cx.lanes(&inst.s[1]));
    let mut out = [0; 64];
    for l in 0..64 {
        let below = usize::saturating_sub(l, first).min(32);
        let bits = u64::from(mask[l]) & ((1u64 << below) - 1);
        out[l] = bits.count_ones().wrapping_add(base[l]);
    }
    cx.spread_valid(inst);
    let exec = cx.w.exec();
    lanes::merge(&mut cx.w.v[inst.d.at()], &out, exec);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The macro that compilers emit for a division, on every pair of edge exponents, against a correctly rounded division.
    #[test]
    fn divisions_are_correctly_rounded() {
        let numbers = [1.0f32, 3.0, 1e-38, 1.2e-39, 7e-45, 3e38, 1e30, 5e-30, 0.1];
        for n in numbers {
            for d in numbers {
                let (sd, _) = div_scale(d, d, n);
                let (sn, moved) = div_scale(n, d, n);
                let rcp = (1.0 / f64::from(sd)) as f32;
                let e = (-sd).mul_add(rcp, 1.0);
                let r = e.mul_add(rcp, rcp);
                let q = sn * r;
                let e2 = (-sd).mul_add(q, sn);
                let q2 = e2.mul_add(r, q);
                let e3 = (-sd).mul_add(q2, sn);
                let mut out = e3.mul_add(r, q2);
                if moved {
                    let power = if q2.abs() >= 1.0 { 64f64 } else { -64f64 };
                    out = (f64::from(out) * power.exp2()) as f32;
                }
                let want = n / d;
                let close = (out.to_bits() as i64 - want.to_bits() as i64).abs() <= 1;
                // A quotient of overflow or of nothing is the fix-up's business.
                assert!(close || !want.is_finite() || want == 0.0, "{n} / {d} = {out}, not {want}");
            }
        }
    }
}
