//! f32 and f64 arithmetic, packed pairs, and functions whose last bits are the hardware's own.

use crate::bench::{Lane, Random, lanes, op, run, v, vector};
use amdhip64::isa::Encoding;

const F32: [u64; 10] = [
    0,
    0x8000_0000,
    0x3f80_0000,
    0xbf80_0000,
    0x0000_0001,
    0x7f7f_ffff,
    0x3f00_0000,
    0x4b00_0001,
    0x7f80_0000,
    0xc2c8_0000,
];

/// Any float but NaN.
fn any(r: &mut Random) -> u64 {
    let x = r.next();
    x & 0x807f_ffff | ((x >> 40) % 255) << 23
}

/// Sixteenths below 2^11: their products and sums are exact in f64, so that one rounding is left.
fn sixteenths(r: &mut Random) -> u64 {
    let x = r.next() % (1 << 16);
    u64::from(((x as f32 - 32768.0) / 16.0).to_bits())
}

fn value(x: u64) -> f64 {
    f64::from(f32::from_bits(x as u32))
}

/// Equal, zeros of either sign included, or both no number.
fn same(found: f64, expected: f64) -> bool {
    found == expected || found.is_nan() && expected.is_nan()
}

type Formula = fn(f64, f64, f64) -> f64;

/// Results are the formula's, rounded once to f32.
fn check(table: &[(&str, Formula)], corners: &[u64], random: fn(&mut Random) -> u64) {
    for (name, formula) in table {
        for seed in 0..4 {
            let lanes = lanes(seed, corners, random);
            let after = run(&vector(name, 10, [v(4), v(6), v(8)]), &lanes);
            for (l, x) in lanes.iter().enumerate() {
                let expected = f64::from(formula(value(x.a), value(x.b), value(x.c)) as f32);
                let found = value(after.v[l][0].into());
                assert!(same(found, expected), "{name}, lane {l}: {x:x?}: {found} for {expected}");
            }
        }
    }
}

#[test]
pub fn sums_products_and_choices() {
    // A sum or a product of two f32 in f64 rounds as the exact one does.
    check(
        &[
            ("v_add_f32", |a, b, _| a + b),
            ("v_sub_f32", |a, b, _| a - b),
            ("v_subrev_f32", |a, b, _| b - a),
            ("v_mul_f32", |a, b, _| a * b),
            ("v_min_f32", |a, b, _| if b < a { b } else { a }),
            ("v_max_f32", |a, b, _| if b > a { b } else { a }),
            ("v_min3_f32", |a, b, c| [a, b, c].into_iter().fold(f64::INFINITY, f64::min)),
            ("v_max3_f32", |a, b, c| [a, b, c].into_iter().fold(f64::NEG_INFINITY, f64::max)),
            ("v_med3_f32", |a, b, c| {
                let mut x = [a, b, c];
                x.sort_by(f64::total_cmp);
                x[1]
            }),
            ("v_trunc_f32", |a, _, _| if a < 0.0 { a.ceil() } else { a.floor() }),
            ("v_ceil_f32", |a, _, _| -(-a).floor()),
            ("v_floor_f32", |a, _, _| a - if a.is_finite() { a.rem_euclid(1.0) } else { 0.0 }),
            ("v_rndne_f32", |a, _, _| {
                let down = a.floor();
                match (a - down).partial_cmp(&0.5) {
                    Some(std::cmp::Ordering::Less) => down,
                    Some(std::cmp::Ordering::Equal) => {
                        if (down / 2.0).floor() * 2.0 == down {
                            down
                        } else {
                            down + 1.0
                        }
                    }
                    Some(std::cmp::Ordering::Greater) => down + 1.0,
                    None => a,
                }
            }),
        ],
        &F32,
        any,
    );
    check(&[("v_fma_f32", |a, b, c| a * b + c)], &[0, 0x3f80_0000, 0xbd80_0000], sixteenths);
}

/// Magnitudes and signs of each source, in this order, before anything is computed.
#[test]
pub fn modifiers() {
    for (absolute, negative) in [(0, 1), (0, 6), (1, 0), (2, 2), (4, 5), (7, 7), (3, 4)] {
        let lanes = lanes(12, &[0x3f80_0000, 0xbf80_0000, 0x8000_0000], sixteenths);
        let [first, second] = vector("v_fma_f32", 10, [v(4), v(6), v(8)]);
        let after = run(&[first | absolute << 8, second | negative << 29], &lanes);
        for (l, x) in lanes.iter().enumerate() {
            let of = |y: u64, source: u32| {
                let y = if absolute >> source & 1 == 1 { value(y).abs() } else { value(y) };
                if negative >> source & 1 == 1 { -y } else { y }
            };
            let expected = of(x.a, 0) * of(x.b, 1) + of(x.c, 2);
            let found = value(after.v[l][0].into());
            assert!(same(found, f64::from(expected as f32)), "{absolute} {negative}, lane {l}: {x:x?}: {found}");
        }
    }
}

/// Multiply-adds with a constant behind the instruction, powers of two, and IEEE's maximum and minimum, which no number wins.
#[test]
pub fn with_constants_and_powers() {
    let inputs = lanes(13, &[0, 0x3f80_0000], sixteenths);
    for constant in [2.5f32, -0.125, 1000.0] {
        for (name, formula) in [("v_fmamk_f32", (|a, b, k| a * k + b) as Formula), ("v_fmaak_f32", |a, b, k| a * b + k)]
        {
            let first = op(Encoding::Vop2, name) << 25 | 10 << 17 | 6 << 9 | v(4);
            let after = run(&[first, constant.to_bits()], &inputs);
            for (l, x) in inputs.iter().enumerate() {
                let expected = formula(value(x.a), value(x.b), constant.into()) as f32;
                assert!(same(value(after.v[l][0].into()), expected.into()), "{name} {constant}, lane {l}: {x:x?}");
            }
        }
    }
    // Powers that keep the result normal, and far ones; the step into denormals rounds.
    let mut powers = lanes(14, &F32, any);
    let mut r = Random(3);
    powers.iter_mut().for_each(|x| x.b = u64::from((r.next() % 300) as u32).wrapping_sub(150) & 0xffff_ffff);
    powers[5].b = 0x7fff_ffff;
    powers[6].b = 0x8000_0000;
    let after = run(&vector("v_ldexp_f32", 10, [v(4), v(6), 0]), &powers);
    for (l, x) in powers.iter().enumerate() {
        let n = x.b as u32 as i32;
        // f64 holds every f32 times 2^-400 to 2^400 exactly, and rounds once.
        let expected = (value(x.a) * 2f64.powi(n.clamp(-400, 400))) as f32;
        assert!(same(value(after.v[l][0].into()), expected.into()), "v_ldexp_f32, lane {l}: {x:x?}");
    }
    let corners = [0, 0x8000_0000, 0x7fc0_0000, 0x7f80_0000, 0xff80_0000, 0x3f80_0000];
    let inputs = lanes(15, &corners, any);
    for (name, least) in [("v_maximum3_f32", false), ("v_minimum3_f32", true)] {
        let after = run(&vector(name, 10, [v(4), v(6), v(8)]), &inputs);
        for (l, x) in inputs.iter().enumerate() {
            let mut all = [x.a, x.b, x.c].map(value);
            let found = after.v[l][0];
            if all.iter().any(|x| x.is_nan()) {
                assert!(value(found.into()).is_nan(), "{name}, lane {l}: {x:x?}");
            } else {
                // Signed zeros are in order, too.
                all.sort_by(f64::total_cmp);
                assert_eq!(found, (all[if least { 0 } else { 2 }] as f32).to_bits(), "{name}, lane {l}: {x:x?}");
            }
        }
    }
}

/// Within two units of the last place of the exact result.
#[test]
pub fn functions() {
    let positive = |r: &mut Random| r.next() & 0x007f_ffff | (100 + r.next() % 50) << 23;
    type Function = fn(f64) -> f64;
    let table: [(&str, Function); 5] = [
        ("v_rcp_f32", |a| 1.0 / a),
        ("v_rsq_f32", |a| 1.0 / a.sqrt()),
        ("v_sqrt_f32", f64::sqrt),
        ("v_log_f32", |a| a.ln() / std::f64::consts::LN_2),
        ("v_exp_f32", |a| (a.min(100.0) * std::f64::consts::LN_2).exp()),
    ];
    for (name, formula) in table {
        let lanes = lanes(7, &[0x3f80_0000, 0x4000_0000, 0x3f00_0000, 0x4080_0000], positive);
        let lanes: Vec<Lane> =
            lanes.iter().map(|x| Lane { a: u64::from((value(x.a).min(100.0) as f32).to_bits()), ..*x }).collect();
        let after = run(&vector(name, 10, [v(4), 0, 0]), &lanes);
        for (l, x) in lanes.iter().enumerate() {
            let (found, expected) = (value(after.v[l][0].into()), formula(value(x.a)));
            let off = (found - expected).abs();
            assert!(off <= 2.4e-7 * expected.abs() + 1e-12, "{name}, lane {l}: {x:x?}: {found} for {expected}");
        }
    }
    let lanes = lanes(8, &F32, any);
    let [mantissas, exponents] =
        ["v_frexp_mant_f32", "v_frexp_exp_i32_f32"].map(|name| run(&vector(name, 10, [v(4), 0, 0]), &lanes));
    for (l, x) in lanes.iter().enumerate().filter(|(_, x)| value(x.a).is_finite()) {
        let (m, e) = (value(mantissas.v[l][0].into()), exponents.v[l][0] as i32);
        assert!(m == 0.0 || (0.5..1.0).contains(&m.abs()), "lane {l}: {x:x?}: {m}");
        assert_eq!(m * 2f64.powi(e), value(x.a), "lane {l}: {x:x?}");
    }
}

#[test]
pub fn doubles() {
    let table: [(&str, Formula); 5] = [
        ("v_add_f64", |a, b, _| a + b),
        ("v_mul_f64", |a, b, _| a * b),
        ("v_min_f64", |a, b, _| if b < a { b } else { a }),
        ("v_max_f64", |a, b, _| if b > a { b } else { a }),
        // Whole numbers below 2^20: exact.
        ("v_fma_f64", |a, b, c| a * b + c),
    ];
    for (name, formula) in table {
        let whole = |r: &mut Random| ((r.next() % (1 << 20)) as f64 - 500_000.0).to_bits();
        let lanes = lanes(3, &[0, 0x3ff0_0000_0000_0000, 0xc010_0000_0000_0000], whole);
        let after = run(&vector(name, 10, [v(4), v(6), v(8)]), &lanes);
        for (l, x) in lanes.iter().enumerate() {
            let expected = formula(f64::from_bits(x.a), f64::from_bits(x.b), f64::from_bits(x.c));
            let found = f64::from_bits(u64::from(after.v[l][0]) | u64::from(after.v[l][1]) << 32);
            assert!(same(found, expected), "{name}, lane {l}: {x:x?}: {found} for {expected}");
        }
    }
    // By doubling or halving once per step; halving rounds only at the end of the range, which these stay away from.
    let scaled =
        lanes(5, &[0, 0x3ff0_0000_0000_0000, 0xbff8_0000_0000_0000], |r| (r.next() % 200) | 0x4000_0000_0000_0000);
    let scaled: Vec<Lane> =
        scaled.iter().enumerate().map(|(l, x)| Lane { b: (l as i32 * 13 - 400) as u32 as u64, ..*x }).collect();
    let after = run(&vector("v_ldexp_f64", 10, [v(4), v(6), 0]), &scaled);
    for (l, x) in scaled.iter().enumerate() {
        let (n, a) = (x.b as u32 as i32, f64::from_bits(x.a));
        let expected = (0..n.unsigned_abs()).fold(a, |y, _| if n > 0 { y * 2.0 } else { y / 2.0 });
        let found = f64::from_bits(u64::from(after.v[l][0]) | u64::from(after.v[l][1]) << 32);
        assert_eq!(found, expected, "v_ldexp_f64, lane {l}: {x:x?}");
    }
    let conversions = lanes(6, &F32, any);
    let wide = run(&vector("v_cvt_f64_f32", 10, [v(4), 0, 0]), &conversions);
    for (l, x) in conversions.iter().enumerate() {
        let found = f64::from_bits(u64::from(wide.v[l][0]) | u64::from(wide.v[l][1]) << 32);
        assert!(same(found, value(x.a)), "v_cvt_f64_f32, lane {l}: {x:x?}");
    }
}

/// `name v[10:11], v[4:5], v[6:7], v[8:9]`, halves chosen by op_sel (for low results) and op_sel_hi (for high ones).
fn packed(name: &str, op_sel: u32, op_sel_hi: u32) -> [u32; 2] {
    let word = 0x1a7 << 23 | (op_sel_hi >> 2 & 1) << 14 | op(Encoding::Vop3p, name) << 16 | op_sel << 11 | 10;
    [word, v(4) | v(6) << 9 | v(8) << 18 | (op_sel_hi & 3) << 27]
}

#[test]
pub fn pairs() {
    let table: [(&str, Formula); 3] =
        [("v_pk_add_f32", |a, b, _| a + b), ("v_pk_mul_f32", |a, b, _| a * b), ("v_pk_fma_f32", |a, b, c| a * b + c)];
    for (name, formula) in table {
        for (op_sel, op_sel_hi) in [(0, 7), (0, 0), (7, 7), (1, 6), (2, 5)] {
            let pair = |r: &mut Random| sixteenths(r) | sixteenths(r) << 32;
            let lanes = lanes(9, &[0x3f80_0000_4000_0000], pair);
            let after = run(&packed(name, op_sel, op_sel_hi), &lanes);
            for (l, x) in lanes.iter().enumerate() {
                for (half, selection) in [op_sel, op_sel_hi].into_iter().enumerate() {
                    let of = |y: u64, source: u32| value(if selection >> source & 1 == 1 { y >> 32 } else { y });
                    let expected = formula(of(x.a, 0), of(x.b, 1), of(x.c, 2));
                    let found = value(after.v[l][half].into());
                    assert_eq!(found, f64::from(expected as f32), "{name} {op_sel} {op_sel_hi}, lane {l}: {x:x?}");
                }
            }
        }
    }
    // Each half of the result from its own source, op_sel saying which half of it.
    for op_sel in 0..4 {
        let lanes = lanes(10, &[1], Random::next);
        let after = run(&packed("v_pk_mov_b32", op_sel, 3), &lanes);
        for (l, x) in lanes.iter().enumerate() {
            let of = |y: u64, source: u32| (y >> (32 * (op_sel >> source & 1))) as u32;
            assert_eq!(after.v[l][..2], [of(x.a, 0), of(x.b, 1)], "v_pk_mov_b32 {op_sel}, lane {l}: {x:x?}");
        }
    }
    type Words = fn(u32, u32) -> u32;
    let table: [(&str, Words); 7] = [
        ("v_pk_add_u16", |a, b| a + b),
        ("v_pk_add_i16", |a, b| a + b),
        ("v_pk_sub_u16", |a, b| a + 65536 - b),
        ("v_pk_lshrrev_b16", |a, b| b >> (a % 16)),
        ("v_pk_sub_i16", |a, b| a + 65536 - b),
        ("v_pk_mul_lo_u16", u32::wrapping_mul),
        ("v_pk_lshlrev_b16", |a, b| b << (a % 16)),
    ];
    for (name, formula) in table {
        let lanes = lanes(2, &[0, 0xffff_ffff, 0x8000_0001], Random::next);
        let after = run(&packed(name, 0, 3), &lanes);
        for (l, x) in lanes.iter().enumerate() {
            let half = |shift: u32| formula((x.a >> shift) as u32 & 0xffff, (x.b >> shift) as u32 & 0xffff) & 0xffff;
            assert_eq!(after.v[l][0], half(0) | half(16) << 16, "{name}, lane {l}: {x:x?}");
        }
    }
}

/// Value of an f16, from its fields.
fn half(bits: u64) -> f64 {
    let (exponent, fraction) = ((bits >> 10 & 31) as i32, (bits & 1023) as f64);
    let magnitude = match exponent {
        0 => fraction * 2f64.powi(-24),
        _ => (1024.0 + fraction) * 2f64.powi(exponent - 25),
    };
    if bits >> 15 & 1 == 1 { -magnitude } else { magnitude }
}

/// The finite f16 nearest to x, an even one of two.
fn nearest_half(x: f64) -> u32 {
    let finite = (0..0x7c00u64).flat_map(|bits| [bits, bits | 0x8000]);
    let same_sign = finite.filter(|bits| (bits >> 15 == 1) == x.is_sign_negative());
    let far = |bits: &u64| (half(*bits) - x).abs();
    same_sign.min_by(|a, b| far(a).total_cmp(&far(b)).then((a & 1).cmp(&(b & 1)))).expect("there are some") as u32
}

#[test]
pub fn mixed_multiply_adds() {
    // Sources a, b, c in v4, v6, v8; a bit of `halves` makes one an f16, and then one of `upper` takes its upper half.
    for (name, part) in [("v_fma_mix_f32", None), ("v_fma_mixlo_f16", Some(0)), ("v_fma_mixhi_f16", Some(16))] {
        for (halves, upper, negative, magnitude) in
            [(7, 0, 0, 0), (7, 5, 2, 0), (0, 0, 4, 1), (5, 4, 1, 3), (2, 2, 0, 6)]
        {
            let [mut first, mut second] = packed(name, upper, halves);
            first |= magnitude << 8;
            second |= negative << 29;
            // Both halves are small f16s, and the whole is a small f32.
            let pair = |r: &mut Random| (r.next() & 0x83f0) | (0x3c00 | r.next() & 0x83f0) << 16;
            let lanes = lanes(11, &[0x3c00_3c00, 0xbc00_4000], pair);
            let after = run(&[first, second], &lanes);
            for (l, x) in lanes.iter().enumerate() {
                let source = |i: usize, y: u64| {
                    let bit = |set: u32| set >> i & 1 == 1;
                    let plain = match (bit(halves), bit(upper)) {
                        (true, true) => half(y >> 16),
                        (true, false) => half(y),
                        _ => value(y),
                    };
                    let plain = if bit(magnitude) { plain.abs() } else { plain };
                    if bit(negative) { -plain } else { plain }
                };
                let sum = (source(0, x.a) * source(1, x.b) + source(2, x.c)) as f32;
                let found = after.v[l][0];
                let expected = match part {
                    None => sum.to_bits(),
                    Some(shift) => x.old as u32 & !(0xffff << shift) | nearest_half(sum.into()) << shift,
                };
                assert_eq!(found, expected, "{name} {halves} {upper} {negative} {magnitude}, lane {l}: {x:x?}");
            }
        }
    }
}
