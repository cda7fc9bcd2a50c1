//! Packed arithmetic: two f32, two 16-bit values, and dot products of 16-bit pairs.

use super::{
    def,
    formats::{f16_to_f32, f32_to_f16},
};
use crate::{
    isa::{Def, File, Inst, L, Operand, Sem},
    machine::Cx,
};

/// A half of a 64-bit source: `high` selects the second register.
fn half64(cx: &mut Cx, inst: &Inst, source: usize, high: bool) -> L {
    let o = &inst.s[source];
    let select = if high { inst.f.op_sel_hi } else { inst.f.op_sel } >> source & 1;
    let negate = if high { inst.f.neg_hi >> source & 1 != 0 } else { o.neg };
    let mut out = match o.file {
        File::Vector => cx.w.v[o.at() + select as usize],
        File::Scalar => [cx.w.s[o.at() + select as usize]; 64],
        _ => {
            if select != 0 {
                // What the upper half of an inline constant holds is not documented; compilers never ask for it.
                cx.w.fail("the upper half of a constant", None);
            }
            [o.value; 64]
        }
    };
    if negate {
        out.iter_mut().for_each(|x| *x ^= 0x8000_0000);
    }
    out
}

/// Initialised lanes of what [`half64`] reads: the other register of the pair may hold anything.
fn half_valid(cx: &Cx, inst: &Inst, source: usize, select: u8) -> u64 {
    let o = &inst.s[source];
    cx.valid(&Operand { index: o.index + u16::from(select >> source & 1), width: 1, ..*o })
}

fn pk_f32(cx: &mut Cx, inst: &Inst, sources: usize, f: fn([f32; 3]) -> f32) {
    let mut results = [[0; 64]; 2];
    for (high, out) in results.iter_mut().enumerate() {
        let s: [L; 3] = std::array::from_fn(|i| if i < sources { half64(cx, inst, i, high == 1) } else { [0; 64] });
        for l in 0..64 {
            out[l] = f([f32::from_bits(s[0][l]), f32::from_bits(s[1][l]), f32::from_bits(s[2][l])]).to_bits();
        }
    }
    if cx.env.check {
        // Each half is made of the registers that it selects: the others may hold anything.
        let valid: [u64; 2] = std::array::from_fn(|high| {
            (0..sources).fold(u64::MAX, |all, i| all & cx.valid(&chosen64(inst, i, high == 1)))
        });
        for (part, valid) in valid.into_iter().enumerate() {
            let half = Operand { width: 1, index: inst.d.index + part as u16, ..inst.d };
            cx.set_valid(&half, valid);
        }
    }
    for (part, out) in results.iter().enumerate() {
        cx.write(inst.d.at() + part, out);
    }
}

/// The register of a 64-bit source that a half of the result is made of.
fn chosen64(inst: &Inst, source: usize, high: bool) -> Operand {
    let o = inst.s[source];
    let select = if high { inst.f.op_sel_hi } else { inst.f.op_sel } >> source & 1;
    match o.file {
        File::Vector | File::Scalar => Operand { width: 1, index: o.index + u16::from(select), ..o },
        _ => o,
    }
}

/// Two independent 16-bit operations; each source half is chosen by op_sel.
fn pk_16(cx: &mut Cx, inst: &Inst, sources: usize, sign: bool, f: fn([u16; 3]) -> u16) {
    let s: [L; 3] = std::array::from_fn(|i| if i < sources { cx.lanes_16(&inst.s[i]) } else { [0; 64] });
    let mut out = [0; 64];
    for l in 0..64 {
        let pick = |high: bool| -> [u16; 3] {
            std::array::from_fn(|i| {
                let select = if high { inst.f.op_sel_hi } else { inst.f.op_sel } >> i & 1;
                let negate = if high { inst.f.neg_hi >> i & 1 != 0 } else { inst.s[i].neg };
                let half = (s[i][l] >> (16 * select)) as u16;
                if negate && sign { half ^ 0x8000 } else { half }
            })
        };
        out[l] = u32::from(f(pick(false))) | u32::from(f(pick(true))) << 16;
    }
    cx.spread_valid(inst);
    cx.write(inst.d.at(), &out);
}

/// An f16 operation, computed exactly in f32 and rounded once (sums and products of two f16 are exact there).
fn h(f: f32) -> u16 {
    f32_to_f16(f, false)
}

fn dot2(cx: &mut Cx, inst: &Inst, value: fn(u16) -> f32) {
    let s: [L; 3] = std::array::from_fn(|i| cx.lanes(&inst.s[i]));
    let mut out = [0; 64];
    for l in 0..64 {
        let product = |high: u32| {
            f64::from(value((s[0][l] >> (16 * high)) as u16)) * f64::from(value((s[1][l] >> (16 * high)) as u16))
        };
        out[l] = ((product(0) + product(1) + f64::from(f32::from_bits(s[2][l]))) as f32).to_bits();
    }
    cx.spread_valid(inst);
    cx.write(inst.d.at(), &out);
}

/// A source of a mixed multiply-add as f32: a whole register, or where op_sel_hi asks for it the half that op_sel picks, as f16.
fn mixed(cx: &mut Cx, inst: &Inst, i: usize) -> L {
    let o = &inst.s[i];
    let half = inst.f.op_sel >> i & 1;
    let mut out = match inst.f.op_sel_hi >> i & 1 {
        0 => {
            if half != 0 {
                // What op_sel means beside an f32 is not documented; compilers leave it 0.
                cx.w.fail("op_sel of an f32 source", None);
            }
            cx.lanes(&Operand { neg: false, abs: false, ..*o })
        }
        _ => cx.lanes_16(o).map(|x| f16_to_f32((x >> (16 * half)) as u16).to_bits()),
    };
    for x in &mut out {
        *x = if o.abs { *x & 0x7fff_ffff } else { *x } ^ if o.neg { 0x8000_0000 } else { 0 };
    }
    out
}

/// `a * b + c` of such sources, rounded once to f32; `half` of the destination takes it rounded again to f16, the other half stays.
fn fma_mix(cx: &mut Cx, inst: &Inst, half: Option<u32>) {
    let s: [L; 3] = std::array::from_fn(|i| mixed(cx, inst, i));
    let old = cx.w.v[inst.d.at()];
    let mut out = [0; 64];
    for l in 0..64 {
        let [a, b, c] = [s[0][l], s[1][l], s[2][l]].map(f32::from_bits);
        out[l] = match half {
            None => a.mul_add(b, c).to_bits(),
            Some(high) => {
                let value = u32::from(f32_to_f16(a.mul_add(b, c), false));
                old[l] & !(0xffff << (16 * high)) | value << (16 * high)
            }
        };
    }
    // By registers: the other half may not be there yet.
    cx.spread_valid(inst);
    cx.write(inst.d.at(), &out);
}

fn pk_mov(cx: &mut Cx, inst: &Inst) {
    let pick = |cx: &Cx, i: usize, bit: u8| -> L {
        let o = &inst.s[i];
        match o.file {
            File::Vector => cx.w.v[o.at() + bit as usize],
            File::Scalar => [cx.w.s[o.at() + bit as usize]; 64],
            _ => [o.value; 64],
        }
    };
    let (low, high) = (pick(cx, 0, inst.f.op_sel & 1), pick(cx, 1, inst.f.op_sel >> 1 & 1));
    let valid = [half_valid(cx, inst, 0, inst.f.op_sel), half_valid(cx, inst, 1, inst.f.op_sel)];
    cx.write_half(&inst.d, 0, &low, valid[0]);
    cx.write_half(&inst.d, 1, &high, valid[1]);
}

macro_rules! p32 {
    ($op:literal $name:literal $sig:literal $n:literal |$s:ident| $e:expr) => {
        def!($op, $name, $sig, Vector, Sem::X(|cx, inst| pk_f32(cx, inst, $n, |$s| $e)))
    };
}
macro_rules! p16 {
    ($op:literal $name:literal $sig:literal $n:literal $sign:literal |$s:ident| $e:expr) => {
        def!($op, $name, $sig, Vector, Sem::X(|cx, inst| pk_16(cx, inst, $n, $sign, |$s| $e)))
    };
}

/// VOP3P.
pub static VOP3P: &[Def] = &[
    p16!(1 "v_pk_mul_lo_u16" "D1A1B1" 2 false |s| s[0].wrapping_mul(s[1])),
    p16!(2 "v_pk_add_i16" "D1A1B1" 2 false |s| s[0].wrapping_add(s[1])),
    p16!(3 "v_pk_sub_i16" "D1A1B1" 2 false |s| s[0].wrapping_sub(s[1])),
    p16!(4 "v_pk_lshlrev_b16" "D1A1B1" 2 false |s| s[1] << (s[0] & 15)),
    p16!(5 "v_pk_lshrrev_b16" "D1A1B1" 2 false |s| s[1] >> (s[0] & 15)),
    p16!(10 "v_pk_add_u16" "D1A1B1" 2 false |s| s[0].wrapping_add(s[1])),
    p16!(11 "v_pk_sub_u16" "D1A1B1" 2 false |s| s[0].wrapping_sub(s[1])),
    p16!(14 "v_pk_fma_f16" "D1A1B1C1" 3 true |s| {
        // The product is exact in f64 and so is the sum, but for bits far below half a step of the result.
        h_f64(f64::from(f16_to_f32(s[0])) * f64::from(f16_to_f32(s[1])) + f64::from(f16_to_f32(s[2])))
    }),
    p16!(15 "v_pk_add_f16" "D1A1B1" 2 true |s| h(f16_to_f32(s[0]) + f16_to_f32(s[1]))),
    p16!(16 "v_pk_mul_f16" "D1A1B1" 2 true |s| h(f16_to_f32(s[0]) * f16_to_f32(s[1]))),
    p16!(17 "v_pk_min_f16" "D1A1B1" 2 true |s| h(f16_to_f32(s[0]).min(f16_to_f32(s[1])))),
    p16!(18 "v_pk_max_f16" "D1A1B1" 2 true |s| h(f16_to_f32(s[0]).max(f16_to_f32(s[1])))),
    def!(
        26,
        "v_dot2_f32_bf16",
        "D1A1B1C1",
        Vector,
        Sem::X(|cx, inst| {
            dot2(cx, inst, |b| f32::from_bits(u32::from(b) << 16));
        })
    ),
    def!(32, "v_fma_mix_f32", "D1A1B1C1", Vector, Sem::X(|cx, inst| fma_mix(cx, inst, None))),
    def!(33, "v_fma_mixlo_f16", "D1A1B1C1", Vector, Sem::X(|cx, inst| fma_mix(cx, inst, Some(0)))),
    def!(34, "v_fma_mixhi_f16", "D1A1B1C1", Vector, Sem::X(|cx, inst| fma_mix(cx, inst, Some(1)))),
    def!(35, "v_dot2_f32_f16", "D1A1B1C1", Vector, Sem::X(|cx, inst| dot2(cx, inst, f16_to_f32))),
    p32!(48 "v_pk_fma_f32" "D2A2B2C2" 3 |s| s[0].mul_add(s[1], s[2])),
    p32!(49 "v_pk_mul_f32" "D2A2B2" 2 |s| s[0] * s[1]),
    p32!(50 "v_pk_add_f32" "D2A2B2" 2 |s| s[0] + s[1]),
    def!(51, "v_pk_mov_b32", "D2A2B2", Vector, Sem::X(pk_mov)),
];

/// f64 to f16 with one rounding: through f32 made odd, so that the second rounding sees what the first dropped.
fn h_f64(x: f64) -> u16 {
    let near = x as f32;
    let exact = f64::from(near) == x || !x.is_finite();
    let odd = if exact || near.to_bits() & 1 != 0 {
        near
    } else if (f64::from(near) < x) == (x > 0.0) {
        f32::from_bits(near.to_bits() | 1)
    } else {
        f32::from_bits((near.to_bits() - 1) | 1)
    };
    f32_to_f16(odd, false)
}
