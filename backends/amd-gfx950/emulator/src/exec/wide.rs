//! Vector arithmetic with 64-bit operands.

use super::def;
use crate::{
    isa::{Def, File, Inst, Operand, Sem, W},
    machine::Cx,
};

const fn f(x: u64) -> f64 {
    f64::from_bits(x)
}

/// x·2^n, rounded once.
fn ldexp(x: f64, n: i32) -> f64 {
    if x == 0.0 || !x.is_finite() {
        return x;
    }
    // Every finite number as m·2^e with 1 ≤ |m| < 2.
    let (normal, shift) = if x.is_subnormal() { (x * 64f64.exp2(), 64) } else { (x, 0) };
    let e = (normal.to_bits() >> 52 & 0x7ff) as i32 - 1023;
    let m = f64::from_bits(normal.to_bits() & !(0x7ff << 52) | 1023 << 52);
    let to = (e - shift).saturating_add(n);
    match to {
        1024.. => f64::INFINITY.copysign(x),
        -1022..1024 => m * f64::from(to).exp2(),
        // Exact down to the smallest normal number; the last product rounds.
        _ => m * (-1022f64).exp2() * f64::from((to + 1022).max(-60)).exp2(),
    }
}

macro_rules! w {
    ($op:literal $name:literal $sig:literal |$a:ident, $b:ident, $c:ident| $e:expr) => {
        def!(
            $op,
            $name,
            $sig,
            Vector,
            Sem::W3({
                #[allow(unused_variables)]
                fn run(x: &W, y: &W, z: &W, out: &mut W) {
                    for l in 0..64 {
                        let ($a, $b, $c) = (x[l], y[l], z[l]);
                        out[l] = $e;
                    }
                }
                run
            })
        )
    };
}

/// Copies a pair. Compilers move pairs of which one half means nothing, so each half keeps its own initialised lanes.
fn mov_b64(cx: &mut Cx, inst: &Inst) {
    let o = &inst.s[0];
    let value = cx.wide(o, false);
    let halves = [0, 32].map(|shift| value.map(|v| (v >> shift) as u32));
    let valid = [0, 1].map(|part| match o.file {
        File::Vector | File::Scalar => cx.valid(&Operand { index: o.index + part, width: 1, ..*o }),
        _ => u64::MAX,
    });
    for (part, (half, valid)) in halves.iter().zip(valid).enumerate() {
        cx.write_half(&inst.d, part, half, valid);
    }
}

/// VOP1 with a 64-bit side.
pub static VOP1: &[Def] = &[
    w!(15 "v_cvt_f32_f64" "D1A2" |a, _b, _c| u64::from((f(a) as f32).to_bits())),
    w!(16 "v_cvt_f64_f32" "D2A1" |a, _b, _c| f64::from(f32::from_bits(a as u32)).to_bits()),
    w!(4 "v_cvt_f64_i32" "D2A1" |a, _b, _c| f64::from(a as u32 as i32).to_bits()),
    w!(22 "v_cvt_f64_u32" "D2A1" |a, _b, _c| f64::from(a as u32).to_bits()),
    w!(3 "v_cvt_i32_f64" "D1A2" |a, _b, _c| u64::from(f(a) as i32 as u32)),
    w!(21 "v_cvt_u32_f64" "D1A2" |a, _b, _c| u64::from(f(a) as u32)),
    def!(56, "v_mov_b64", "D2A2", Vector, Sem::X(mov_b64)),
];

/// VOP2 with 64-bit operands.
pub static VOP2: &[Def] = &[w!(4 "v_fmac_f64" "D2A2B2c2" |a, b, c| f(a).mul_add(f(b), f(c)).to_bits())];

/// VOP3 with 64-bit operands.
pub static VOP3: &[Def] = &[
    w!(460 "v_fma_f64" "D2A2B2C2" |a, b, c| f(a).mul_add(f(b), f(c)).to_bits()),
    w!(520 "v_lshl_add_u64" "D2A2B1C2" |a, b, c| (a << (b & 7)).wrapping_add(c)),
    w!(640 "v_add_f64" "D2A2B2" |a, b, _c| (f(a) + f(b)).to_bits()),
    w!(641 "v_mul_f64" "D2A2B2" |a, b, _c| (f(a) * f(b)).to_bits()),
    w!(642 "v_min_f64" "D2A2B2" |a, b, _c| f(a).min(f(b)).to_bits()),
    w!(643 "v_max_f64" "D2A2B2" |a, b, _c| f(a).max(f(b)).to_bits()),
    w!(644 "v_ldexp_f64" "D2A2B1" |a, b, _c| ldexp(f(a), b as u32 as i32).to_bits()),
    w!(655 "v_lshlrev_b64" "D2A1B2" |a, b, _c| b << (a & 63)),
    w!(656 "v_lshrrev_b64" "D2A1B2" |a, b, _c| b >> (a & 63)),
    w!(657 "v_ashrrev_i64" "D2A1B2" |a, b, _c| (b as i64 >> (a & 63)) as u64),
];
