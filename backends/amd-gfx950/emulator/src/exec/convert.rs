//! Conversions between f32 and smaller floats.

use super::{
    def,
    formats::{self, f16_to_f32, f32_to_f16, to_bf16, to_e2m1, to_e4m3, to_e5m2},
};
use crate::{
    isa::{Def, Inst, L, Sem, W},
    lanes::lane,
    machine::Cx,
};

/// MODE bit that clamps overflows of small floats.
fn clamps(cx: &Cx) -> bool {
    cx.w.mode >> 23 & 1 != 0
}

/// The scale of a scaled conversion: the exponent byte of an f32.
fn scale(bits: u32) -> f64 {
    formats::e8m0((bits >> 23) as u8)
}

/// Selected sub-dword of a source (SDWA), or the half that op_sel names.
fn selected(inst: &Inst, x: u32) -> u32 {
    match inst.s[0].sel {
        sel @ 0..=3 => x >> (8 * sel) & 255,
        sel @ 4..=5 => x >> (16 * (sel - 4)) & 0xffff,
        _ if inst.f.op_sel & 1 != 0 => x >> 16,
        _ => x,
    }
}

/// Two results into half a dword of the destination; the other half stays.
fn pack_half(cx: &mut Cx, inst: &Inst, sources: usize, f: impl Fn(&Cx, [u32; 3]) -> u32) {
    let s: [L; 3] = std::array::from_fn(|i| if i < sources { cx.lanes(&inst.s[i]) } else { [0; 64] });
    let shift = if inst.f.op_sel & 8 != 0 { 16 } else { 0 };
    let mut out = cx.w.v[inst.d.at()];
    for l in 0..64 {
        let r = f(cx, [s[0][l], s[1][l], s[2][l]]);
        out[l] = out[l] & !(0xffff << shift) | (r & 0xffff) << shift;
    }
    cx.spread_valid(inst);
    cx.write(inst.d.at(), &out);
}

/// Two f32 results from two small values.
fn unpack_pair(cx: &mut Cx, inst: &Inst, f: impl Fn(u32, u32) -> (f32, f32)) {
    let (a, b) = (cx.lanes(&inst.s[0]), cx.lanes(&inst.s[1]));
    let mut out: W = [0; 64];
    for l in 0..64 {
        let (x, y) = f(a[l], b[l]);
        out[l] = u64::from(x.to_bits()) | u64::from(y.to_bits()) << 32;
    }
    cx.spread_valid(inst);
    cx.write_wide(&inst.d, &out);
}

fn single(cx: &mut Cx, inst: &Inst, f: impl Fn(u32) -> u32) {
    let a = cx.lanes(&inst.s[0]);
    let out = a.map(f);
    cx.spread_valid(inst);
    cx.write(inst.d.at(), &out);
}

/// Two bf16 results of a scaled conversion.
fn pair_bf16(x: f64, y: f64) -> u32 {
    to_bf16((x as f32).to_bits()) | to_bf16((y as f32).to_bits()) << 16
}

const fn byte(x: u32, n: u32) -> u8 {
    (x >> (8 * n)) as u8
}

const fn f(x: u32) -> f64 {
    f32::from_bits(x) as f64
}

/// VOP1.
pub static VOP1: &[Def] = &[
    def!(10, "v_cvt_f16_f32", "D1A1", Vector, Sem::V1(lane!(|a| u32::from(f32_to_f16(f32::from_bits(a), false))))),
    def!(11, "v_cvt_f32_f16", "D1A1", Vector, Sem::V1(lane!(|a| f16_to_f32(a as u16).to_bits()))),
    def!(
        84,
        "v_cvt_f32_fp8",
        "D1A1",
        Vector,
        Sem::X(|cx, inst| {
            single(cx, inst, |a| formats::e4m3(selected(inst, a) as u8).to_bits());
        })
    ),
    def!(
        85,
        "v_cvt_f32_bf8",
        "D1A1",
        Vector,
        Sem::X(|cx, inst| {
            single(cx, inst, |a| formats::e5m2(selected(inst, a) as u8).to_bits());
        })
    ),
    def!(
        86,
        "v_cvt_pk_f32_fp8",
        "D2A1",
        Vector,
        Sem::X(|cx, inst| {
            unpack_pair(cx, inst, |a, _| {
                let x = selected(inst, a);
                (formats::e4m3(byte(x, 0)), formats::e4m3(byte(x, 1)))
            });
        })
    ),
    def!(
        87,
        "v_cvt_pk_f32_bf8",
        "D2A1",
        Vector,
        Sem::X(|cx, inst| {
            unpack_pair(cx, inst, |a, _| {
                let x = selected(inst, a);
                (formats::e5m2(byte(x, 0)), formats::e5m2(byte(x, 1)))
            });
        })
    ),
    def!(91, "v_cvt_f32_bf16", "D1A1", Vector, Sem::V1(lane!(|a| a << 16))),
];

/// VOP3.
pub static VOP3: &[Def] = &[
    def!(
        565,
        "v_cvt_scalef32_pk_fp8_f32",
        "D1A1B1C1",
        Vector,
        Sem::X(|cx, inst| {
            pack_half(cx, inst, 3, |cx, [a, b, s]| {
                let s = scale(s);
                u32::from(to_e4m3(f(a) / s, clamps(cx))) | u32::from(to_e4m3(f(b) / s, clamps(cx))) << 8
            });
        })
    ),
    def!(
        566,
        "v_cvt_scalef32_pk_bf8_f32",
        "D1A1B1C1",
        Vector,
        Sem::X(|cx, inst| {
            pack_half(cx, inst, 3, |cx, [a, b, s]| {
                let s = scale(s);
                u32::from(to_e5m2(f(a) / s, clamps(cx))) | u32::from(to_e5m2(f(b) / s, clamps(cx))) << 8
            });
        })
    ),
    def!(
        569,
        "v_cvt_scalef32_pk_f32_fp8",
        "D2A1B1",
        Vector,
        Sem::X(|cx, inst| {
            unpack_pair(cx, inst, |a, s| {
                let (x, s) = (selected(inst, a), scale(s));
                let value = |n| (f64::from(formats::e4m3(byte(x, n))) * s) as f32;
                (value(0), value(1))
            });
        })
    ),
    def!(
        573,
        "v_cvt_scalef32_pk_fp4_f32",
        "D1A1B1C1",
        Vector,
        Sem::X(|cx, inst| {
            let s: [L; 3] = std::array::from_fn(|i| cx.lanes(&inst.s[i]));
            let shift = 8 * u32::from(inst.f.op_sel >> 2 & 3);
            let mut out = cx.w.v[inst.d.at()];
            for l in 0..64 {
                let by = scale(s[2][l]);
                let r = u32::from(to_e2m1(f(s[0][l]) / by)) | u32::from(to_e2m1(f(s[1][l]) / by)) << 4;
                out[l] = out[l] & !(255 << shift) | r << shift;
            }
            cx.spread_valid(inst);
            cx.write(inst.d.at(), &out);
        })
    ),
    def!(
        575,
        "v_cvt_scalef32_pk_f32_fp4",
        "D2A1B1",
        Vector,
        Sem::X(|cx, inst| {
            unpack_pair(cx, inst, |a, s| {
                let (x, s) = (byte(a, u32::from(inst.f.op_sel & 3)), scale(s));
                ((f64::from(formats::e2m1(x & 15)) * s) as f32, (f64::from(formats::e2m1(x >> 4)) * s) as f32)
            });
        })
    ),
    def!(
        593,
        "v_cvt_scalef32_pk_bf16_fp4",
        "D1A1B1",
        Vector,
        Sem::X(|cx, inst| {
            let (a, s) = (cx.lanes(&inst.s[0]), cx.lanes(&inst.s[1]));
            let out: L = std::array::from_fn(|l| {
                let (x, s) = (byte(a[l], u32::from(inst.f.op_sel & 3)), scale(s[l]));
                pair_bf16(f64::from(formats::e2m1(x & 15)) * s, f64::from(formats::e2m1(x >> 4)) * s)
            });
            cx.spread_valid(inst);
            cx.write(inst.d.at(), &out);
        })
    ),
    def!(
        615,
        "v_cvt_pk_f16_f32",
        "D1A1B1",
        Vector,
        Sem::V2(lane!(|a, b| {
            u32::from(f32_to_f16(f32::from_bits(a), false)) | u32::from(f32_to_f16(f32::from_bits(b), false)) << 16
        }))
    ),
    def!(616, "v_cvt_pk_bf16_f32", "D1A1B1", Vector, Sem::V2(lane!(|a, b| to_bf16(a) | to_bf16(b) << 16))),
    def!(
        617,
        "v_cvt_scalef32_pk_bf16_fp8",
        "D1A1B1",
        Vector,
        Sem::X(|cx, inst| {
            let (a, s) = (cx.lanes(&inst.s[0]), cx.lanes(&inst.s[1]));
            let out: L = std::array::from_fn(|l| {
                let (x, s) = (selected(inst, a[l]), scale(s[l]));
                pair_bf16(f64::from(formats::e4m3(byte(x, 0))) * s, f64::from(formats::e4m3(byte(x, 1))) * s)
            });
            cx.spread_valid(inst);
            cx.write(inst.d.at(), &out);
        })
    ),
    def!(
        662,
        "v_cvt_pkrtz_f16_f32",
        "D1A1B1",
        Vector,
        Sem::V2(lane!(|a, b| {
            u32::from(f32_to_f16(f32::from_bits(a), true)) | u32::from(f32_to_f16(f32::from_bits(b), true)) << 16
        }))
    ),
    def!(
        674,
        "v_cvt_pk_fp8_f32",
        "D1A1B1",
        Vector,
        Sem::X(|cx, inst| {
            pack_half(cx, inst, 2, |cx, [a, b, _]| {
                u32::from(to_e4m3(f(a), clamps(cx))) | u32::from(to_e4m3(f(b), clamps(cx))) << 8
            });
        })
    ),
    def!(
        675,
        "v_cvt_pk_bf8_f32",
        "D1A1B1",
        Vector,
        Sem::X(|cx, inst| {
            pack_half(cx, inst, 2, |cx, [a, b, _]| {
                u32::from(to_e5m2(f(a), clamps(cx))) | u32::from(to_e5m2(f(b), clamps(cx))) << 8
            });
        })
    ),
];
