//! Vector compares: a mask of lanes into a scalar pair; inactive lanes give zero.

use super::def;
use crate::{
    isa::{Def, Inst, L, Sem, W},
    lanes,
    machine::Cx,
};

/// Mask of a lane predicate, compiled twice like arithmetic.
macro_rules! c32 {
    ($op:expr, $name:literal, |$a:ident, $b:ident| $e:expr) => {
        def!($op, $name, "A1B1", Vector, Sem::C({
            fn run(x: &L, y: &L) -> u64 {
                // Bytes first: the compiler turns this loop into vector compares, the second one into a few multiplies.
                let mut truth = [0u8; 64];
                lanes::twice! { fn each(x: &L, y: &L, truth: &mut [u8; 64]) {
                    for l in 0..64 { let ($a, $b) = (x[l], y[l]); truth[l] = u8::from($e); }
                } }
                each(x, y, &mut truth);
                let mut mask = 0;
                for (i, eight) in truth.chunks_exact(8).enumerate() {
                    let mut bytes = [0; 8];
                    bytes.copy_from_slice(eight);
                    mask |= (u64::from_le_bytes(bytes).wrapping_mul(0x0102_0408_1020_4080) >> 56) << (8 * i);
                }
                mask
            }
            run
        }))
    };
}
macro_rules! c64 {
    ($op:expr, $name:literal, |$a:ident, $b:ident| $e:expr) => {
        def!(
            $op,
            $name,
            "A2B2",
            Vector,
            Sem::Cw({
                fn run(x: &W, y: &W) -> u64 {
                    lanes::mask(|l| {
                        let ($a, $b) = (x[l], y[l]);
                        $e
                    })
                }
                run
            })
        )
    };
}

const fn f(x: u32) -> f32 {
    f32::from_bits(x)
}
const fn i(x: u32) -> i32 {
    x as i32
}
const fn h(x: u32) -> u16 {
    x as u16
}

/// `v_cmp_class`: bits of the second source name classes that count.
fn class(x: u32) -> u32 {
    let (v, negative) = (f(x), x >> 31 != 0);
    let kind = match v.classify() {
        std::num::FpCategory::Nan => return if x & 0x40_0000 == 0 { 1 } else { 2 },
        std::num::FpCategory::Infinite => 0,
        std::num::FpCategory::Normal => 1,
        std::num::FpCategory::Subnormal => 2,
        std::num::FpCategory::Zero => 3,
    };
    if negative { 4 << kind } else { 0x200 >> kind }
}

/// Sixteen-bit floats, by conversion.
fn compare_f16(cx: &mut Cx, inst: &Inst, test: fn(f32, f32) -> bool) {
    let sources = [cx.lanes_16(&inst.s[0]), cx.lanes_16(&inst.s[1])];
    let value = |s: usize, l: usize| {
        let x = super::formats::f16_to_f32(sources[s][l] as u16);
        if inst.s[s].neg { -x } else { x }
    };
    let exec = cx.w.exec();
    let mask = lanes::mask(|l| test(value(0, l), value(1, l))) & exec;
    cx.spread_valid(inst);
    cx.w.set_pair(inst.d.at(), mask);
}

macro_rules! c16 {
    ($op:expr, $name:literal, |$a:ident, $b:ident| $e:expr) => {
        def!($op, $name, "A1B1", Vector, Sem::X(|cx, inst| compare_f16(cx, inst, |$a, $b| $e)))
    };
}

/// VOPC.
#[rustfmt::skip]
pub static VOPC: &[Def] = &[
    c32!(16, "v_cmp_class_f32", |a, b| class(a) & b != 0),
    c16!(33, "v_cmp_lt_f16", |a, b| a < b),
    c16!(34, "v_cmp_eq_f16", |a, b| a == b),
    c16!(35, "v_cmp_le_f16", |a, b| a <= b),
    c16!(36, "v_cmp_gt_f16", |a, b| a > b),
    c16!(37, "v_cmp_lg_f16", |a, b| a < b || a > b),
    c16!(38, "v_cmp_ge_f16", |a, b| a >= b),
    c32!(65, "v_cmp_lt_f32", |a, b| f(a) < f(b)),
    c32!(66, "v_cmp_eq_f32", |a, b| f(a) == f(b)),
    c32!(67, "v_cmp_le_f32", |a, b| f(a) <= f(b)),
    c32!(68, "v_cmp_gt_f32", |a, b| f(a) > f(b)),
    c32!(69, "v_cmp_lg_f32", |a, b| f(a) < f(b) || f(a) > f(b)),
    c32!(70, "v_cmp_ge_f32", |a, b| f(a) >= f(b)),
    c32!(71, "v_cmp_o_f32", |a, b| !f(a).is_nan() & !f(b).is_nan()),
    c32!(72, "v_cmp_u_f32", |a, b| f(a).is_nan() | f(b).is_nan()),
    c32!(73, "v_cmp_nge_f32", |a, b| !(f(a) >= f(b))),
    c32!(74, "v_cmp_nlg_f32", |a, b| !(f(a) < f(b) || f(a) > f(b))),
    c32!(75, "v_cmp_ngt_f32", |a, b| !(f(a) > f(b))),
    c32!(76, "v_cmp_nle_f32", |a, b| !(f(a) <= f(b))),
    c32!(77, "v_cmp_neq_f32", |a, b| f(a) != f(b)),
    c32!(78, "v_cmp_nlt_f32", |a, b| !(f(a) < f(b))),
    c64!(97, "v_cmp_lt_f64", |a, b| f64::from_bits(a) < f64::from_bits(b)),
    c64!(98, "v_cmp_eq_f64", |a, b| f64::from_bits(a) == f64::from_bits(b)),
    c64!(99, "v_cmp_le_f64", |a, b| f64::from_bits(a) <= f64::from_bits(b)),
    c64!(100, "v_cmp_gt_f64", |a, b| f64::from_bits(a) > f64::from_bits(b)),
    c64!(101, "v_cmp_lg_f64", |a, b| f64::from_bits(a) < f64::from_bits(b) || f64::from_bits(a) > f64::from_bits(b)),
    c64!(102, "v_cmp_ge_f64", |a, b| f64::from_bits(a) >= f64::from_bits(b)),
    c64!(103, "v_cmp_o_f64", |a, b| !f64::from_bits(a).is_nan() && !f64::from_bits(b).is_nan()),
    c64!(104, "v_cmp_u_f64", |a, b| f64::from_bits(a).is_nan() || f64::from_bits(b).is_nan()),
    c64!(105, "v_cmp_nge_f64", |a, b| !(f64::from_bits(a) >= f64::from_bits(b))),
    c64!(106, "v_cmp_nlg_f64", |a, b| {
        !(f64::from_bits(a) < f64::from_bits(b) || f64::from_bits(a) > f64::from_bits(b))
    }),
    c64!(107, "v_cmp_ngt_f64", |a, b| !(f64::from_bits(a) > f64::from_bits(b))),
    c64!(108, "v_cmp_nle_f64", |a, b| !(f64::from_bits(a) <= f64::from_bits(b))),
    c64!(109, "v_cmp_neq_f64", |a, b| f64::from_bits(a) != f64::from_bits(b)),
    c64!(110, "v_cmp_nlt_f64", |a, b| !(f64::from_bits(a) < f64::from_bits(b))),
    c32!(161, "v_cmp_lt_i16", |a, b| (h(a) as i16) < h(b) as i16),
    c32!(162, "v_cmp_eq_i16", |a, b| h(a) == h(b)),
    c32!(163, "v_cmp_le_i16", |a, b| h(a) as i16 <= h(b) as i16),
    c32!(164, "v_cmp_gt_i16", |a, b| h(a) as i16 > h(b) as i16),
    c32!(165, "v_cmp_ne_i16", |a, b| h(a) != h(b)),
    c32!(166, "v_cmp_ge_i16", |a, b| h(a) as i16 >= h(b) as i16),
    c32!(169, "v_cmp_lt_u16", |a, b| h(a) < h(b)),
    c32!(170, "v_cmp_eq_u16", |a, b| h(a) == h(b)),
    c32!(171, "v_cmp_le_u16", |a, b| h(a) <= h(b)),
    c32!(172, "v_cmp_gt_u16", |a, b| h(a) > h(b)),
    c32!(173, "v_cmp_ne_u16", |a, b| h(a) != h(b)),
    c32!(174, "v_cmp_ge_u16", |a, b| h(a) >= h(b)),
    c32!(193, "v_cmp_lt_i32", |a, b| i(a) < i(b)),
    c32!(194, "v_cmp_eq_i32", |a, b| a == b),
    c32!(195, "v_cmp_le_i32", |a, b| i(a) <= i(b)),
    c32!(196, "v_cmp_gt_i32", |a, b| i(a) > i(b)),
    c32!(197, "v_cmp_ne_i32", |a, b| a != b),
    c32!(198, "v_cmp_ge_i32", |a, b| i(a) >= i(b)),
    c32!(201, "v_cmp_lt_u32", |a, b| a < b),
    c32!(202, "v_cmp_eq_u32", |a, b| a == b),
    c32!(203, "v_cmp_le_u32", |a, b| a <= b),
    c32!(204, "v_cmp_gt_u32", |a, b| a > b),
    c32!(205, "v_cmp_ne_u32", |a, b| a != b),
    c32!(206, "v_cmp_ge_u32", |a, b| a >= b),
    c64!(225, "v_cmp_lt_i64", |a, b| (a as i64) < b as i64),
    c64!(226, "v_cmp_eq_i64", |a, b| a == b),
    c64!(227, "v_cmp_le_i64", |a, b| a as i64 <= b as i64),
    c64!(228, "v_cmp_gt_i64", |a, b| a as i64 > b as i64),
    c64!(229, "v_cmp_ne_i64", |a, b| a != b),
    c64!(230, "v_cmp_ge_i64", |a, b| a as i64 >= b as i64),
    c64!(233, "v_cmp_lt_u64", |a, b| a < b),
    c64!(234, "v_cmp_eq_u64", |a, b| a == b),
    c64!(235, "v_cmp_le_u64", |a, b| a <= b),
    c64!(236, "v_cmp_gt_u64", |a, b| a > b),
    c64!(237, "v_cmp_ne_u64", |a, b| a != b),
    c64!(238, "v_cmp_ge_u64", |a, b| a >= b),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_have_one_bit_per_lane() {
        let def = VOPC.iter().find(|d| d.name == "v_cmp_lt_u32").unwrap();
        let Sem::C(run) = def.sem else { panic!() };
        let x: L = std::array::from_fn(|l| (l as u32).wrapping_mul(0x9e37_79b9));
        let y: L = std::array::from_fn(|l| (l as u32 + 7).wrapping_mul(0x85eb_ca6b));
        assert_eq!(run(&x, &y), lanes::mask(|l| x[l] < y[l]));
    }

    #[test]
    fn classes() {
        for (x, want) in
            [(f32::NEG_INFINITY, 4), (-1.0, 8), (-1e-40, 16), (-0.0, 32), (0.0, 64), (1e-40, 128), (1.0, 256)]
        {
            assert_eq!(class(x.to_bits()), want, "{x}");
        }
        assert_eq!((class(0x7f80_0000), class(0x7fc0_0000), class(0x7f80_0001)), (512, 2, 1));
    }
}
