//! Conversions between formats: the nearest of all values of a format, found by looking through them.

use amdhip64::isa::Encoding;

use crate::bench::{Lane, Random, lanes, names, op, run, v, vector};

/// A small float: sign, exponent and mantissa bits, without the special meaning of the highest exponent.
fn small(bits: u32, exponent_bits: u32, mantissa_bits: u32) -> f64 {
    let mantissa = f64::from(bits % (1 << mantissa_bits)) / f64::from(1 << mantissa_bits);
    let exponent = (bits >> mantissa_bits) % (1 << exponent_bits);
    let bias = (1 << (exponent_bits - 1)) - 1;
    let value = if exponent == 0 {
        mantissa * 2f64.powi(1 - bias)
    } else {
        (1.0 + mantissa) * 2f64.powi(exponent as i32 - bias)
    };
    if bits >> (exponent_bits + mantissa_bits) & 1 == 1 { -value } else { value }
}

/// Value of an f16.
pub fn f16(bits: u16) -> f64 {
    match (bits >> 10 & 31, bits & 0x3ff) {
        (31, 0) => {
            if bits >> 15 == 1 {
                f64::NEG_INFINITY
            } else {
                f64::INFINITY
            }
        }
        (31, _) => f64::NAN,
        _ => small(bits.into(), 5, 10),
    }
}

/// The nearest of `values` (finite, rising, of codes 0, 1, …) to |x|; halfway cases go to the even code.
fn nearest(x: f64, values: &[f64]) -> u32 {
    let above = values.partition_point(|v| *v < x.abs());
    if above == 0 {
        return 0;
    }
    let below = above - 1;
    let (down, up) = (x.abs() - values[below], values.get(above).map_or(f64::INFINITY, |v| v - x.abs()));
    let code = if down < up || down == up && below % 2 == 0 { below } else { above };
    code as u32
}

const CORNERS: [u64; 12] = [
    0,
    0x8000_0000,
    0x3f80_0000,
    0xbf80_0000,
    0x3f80_8000,
    0x3f81_8000,
    0x477f_e000,
    0x477f_f000,
    0x3300_0000,
    0x3380_0000,
    0x387f_e000,
    0x7f7f_ffff,
];

/// A float that is neither NaN nor far from 1.
fn moderate(r: &mut Random) -> u64 {
    let x = r.next();
    x & 0x807f_ffff | (90 + (x >> 40) % 70) << 23
}

#[test]
pub fn to_bf16_and_f16() {
    for seed in 0..3 {
        let lanes = lanes(seed, &CORNERS, moderate);
        let pairs = run(&vector("v_cvt_pk_bf16_f32", 10, [v(4), v(6), 0]), &lanes);
        let halves = run(&vector("v_cvt_f16_f32", 10, [v(4), 0, 0]), &lanes);
        let two_halves = run(&vector("v_cvt_pk_f16_f32", 10, [v(4), v(6), 0]), &lanes);
        let (bf16, half) = (table(8, 7), table(5, 10));
        for (l, x) in lanes.iter().enumerate() {
            let expected = code(x.a as u32, &bf16, 15) | code(x.b as u32, &bf16, 15) << 16;
            assert_eq!(pairs.v[l][0], expected, "v_cvt_pk_bf16_f32, lane {l}: {x:x?}");
            assert_eq!(halves.v[l][0] & 0xffff, code(x.a as u32, &half, 15), "v_cvt_f16_f32, lane {l}: {x:x?}");
            let expected = code(x.a as u32, &half, 15) | code(x.b as u32, &half, 15) << 16;
            assert_eq!(two_halves.v[l][0], expected, "v_cvt_pk_f16_f32, lane {l}: {x:x?}");
        }
    }
}

/// Values of all codes up to infinity's, which counts as one step more than the largest.
fn table(exponent_bits: u32, mantissa_bits: u32) -> Vec<f64> {
    (0..=((1 << exponent_bits) - 1) << mantissa_bits).map(|code| small(code, exponent_bits, mantissa_bits)).collect()
}

fn code(x: u32, values: &[f64], sign: u32) -> u32 {
    nearest(f64::from(f32::from_bits(x)), values).min(values.len() as u32 - 1) | (x >> 31) << sign
}

#[test]
pub fn from_f16_bf16_and_bytes() {
    let lanes = lanes(2, &[0, 0x3c00, 0x8000, 0x0001, 0x7bff, 0x7c00], |r| r.next() & 0xffff_ffff & !0x0400);
    let from_half = run(&vector("v_cvt_f32_f16", 10, [v(4), 0, 0]), &lanes);
    for (l, x) in lanes.iter().enumerate() {
        let expected = f16(x.a as u16);
        let found = f64::from(f32::from_bits(from_half.v[l][0]));
        assert!(found == expected || found.is_nan() && expected.is_nan(), "lane {l}: {x:x?}: {found} for {expected}");
    }
    for (byte, name) in
        ["v_cvt_f32_ubyte0", "v_cvt_f32_ubyte1", "v_cvt_f32_ubyte2", "v_cvt_f32_ubyte3"].iter().enumerate()
    {
        let after = run(&vector(name, 10, [v(4), 0, 0]), &lanes);
        for (l, x) in lanes.iter().enumerate() {
            assert_eq!(f32::from_bits(after.v[l][0]), f32::from((x.a >> (8 * byte)) as u8), "{name}, lane {l}");
        }
    }
}

/// e4m3 (no infinity, largest 448) and e5m2, two at a time into the low half.
#[test]
pub fn to_and_from_fp8() {
    let within = |r: &mut Random| u64::from(((r.next() >> 40) as f32 / 37_000.0 - 220.0).to_bits());
    let lanes = lanes(1, &[0, 0x8000_0000, 0x43e0_0000, 0x3f80_0000, 0x3d80_0000, 0x3a80_0000], within);
    let e4m3: Vec<f64> = (0..0x7f).map(|code| small(code, 4, 3)).collect();
    let e5m2 = table(5, 2);
    for (name, values, back) in
        [("v_cvt_pk_fp8_f32", &e4m3, "v_cvt_f32_fp8"), ("v_cvt_pk_bf8_f32", &e5m2, "v_cvt_f32_bf8")]
    {
        let after = run(&vector(name, 10, [v(4), v(6), 0]), &lanes);
        let codes: Vec<u32> =
            lanes.iter().map(|x| code(x.a as u32, values, 7) | code(x.b as u32, values, 7) << 8).collect();
        for (l, x) in lanes.iter().enumerate() {
            assert_eq!(after.v[l][0] & 0xffff, codes[l], "{name}, lane {l}: {x:x?}");
        }
        let packed: Vec<Lane> = codes.iter().map(|c| Lane { a: (*c).into(), ..Lane::default() }).collect();
        let wide = run(&vector(back, 10, [v(4), 0, 0]), &packed);
        for (l, c) in codes.iter().enumerate() {
            let value = values[(c & 0x7f) as usize] * if c & 0x80 == 0 { 1.0 } else { -1.0 };
            assert_eq!(f64::from(f32::from_bits(wide.v[l][0])), value, "{back}, lane {l}");
        }
    }
}

/// `name v10, sources` with bits of op_sel, which choose a byte or a half of the source or the destination.
fn selecting(name: &str, sources: [u32; 3], op_sel: u32) -> [u32; 2] {
    let [first, second] = vector(name, 10, sources);
    [first | op_sel << 11, second]
}

/// Conversions that divide or multiply by the power of two that an f32's exponent bits say, whatever its sign and fraction.
#[test]
pub fn scaled_by_an_exponent() {
    let e4m3: Vec<f64> = (0..0x7f).map(|code| small(code, 4, 3)).collect();
    let (e5m2, e2m1) = (table(5, 2), (0..8).map(|code| small(code, 2, 1)).collect::<Vec<_>>());
    let power = |scale: u64| 2f64.powi((scale >> 23 & 255) as i32 - 127);
    let scale = |r: &mut Random| r.next() & 0x807f_ffff | (100 + (r.next() >> 40) % 50) << 23;
    // Small values from f32: a and b over c's power.
    for (name, values, bits, limit) in [
        ("v_cvt_scalef32_pk_fp8_f32", &e4m3, 8, 448.0),
        ("v_cvt_scalef32_pk_bf8_f32", &e5m2, 8, 57344.0),
        ("v_cvt_scalef32_pk_fp4_f32", &e2m1, 4, 6.0),
    ] {
        // The destination's byte by two bits, its half by the upper one.
        for place in if bits == 4 { 0..4 } else { 0..2u32 } {
            let mut lanes = lanes(place.into(), &[0x3f80_0000, 0xbfff_ffff], scale);
            let mut r = Random(u64::from(place) + 5);
            for x in &mut lanes {
                let mut value = || match r.next() {
                    pick if pick.is_multiple_of(5) => limit,
                    pick if pick % 5 == 1 => 0.0,
                    pick => limit * ((pick >> 11) as f64 / 2f64.powi(52) - 1.0),
                };
                let (a, b) = (value() * power(x.c), value() * power(x.c));
                (x.a, x.b) = (u64::from((a as f32).to_bits()), u64::from((b as f32).to_bits()));
            }
            let op_sel = if bits == 4 { place << 2 } else { place << 3 };
            let after = run(&selecting(name, [v(4), v(6), v(8)], op_sel), &lanes);
            for (l, x) in lanes.iter().enumerate() {
                let one = |y: u64| {
                    let value = f64::from(f32::from_bits(y as u32)) / power(x.c);
                    nearest(value, values) | u32::from(value.is_sign_negative()) << (bits - 1)
                };
                let at = 2 * bits * place;
                let kept = x.old as u32 & !(((1 << (2 * bits)) - 1) << at);
                let expected = kept | (one(x.a) | one(x.b) << bits) << at;
                assert_eq!(after.v[l][0], expected, "{name} {place}, lane {l}: {x:x?}");
            }
        }
    }
    // And back: two of a's small values times b's power, as f32 or as bf16.
    for (name, values, bits, wide) in [
        ("v_cvt_scalef32_pk_f32_fp8", &e4m3, 8, true),
        ("v_cvt_scalef32_pk_bf16_fp8", &e4m3, 8, false),
        ("v_cvt_scalef32_pk_f32_fp4", &e2m1, 4, true),
        ("v_cvt_scalef32_pk_bf16_fp4", &e2m1, 4, false),
    ] {
        for place in if bits == 4 { 0..4 } else { 0..2u32 } {
            let mut lanes = lanes(u64::from(place) + 9, &[0x3f80_0000], scale);
            let mut r = Random(u64::from(place) + 40);
            // Any codes but those that are no number.
            let byte = |pick: u64| ((pick >> 8) % 0x7f) | ((pick & 1) << 7);
            lanes.iter_mut().for_each(|x| {
                x.a = if bits == 4 { r.next() } else { (0..8).map(|i| byte(r.next()) << (8 * i)).sum() };
            });
            let after = run(&selecting(name, [v(4), v(6), 0], place), &lanes);
            for (l, x) in lanes.iter().enumerate() {
                let one = |which: u32| {
                    let code = (x.a >> (2 * bits * place + bits * which)) as u32 % (1 << bits);
                    let sign = if code >> (bits - 1) == 1 { -1.0 } else { 1.0 };
                    ((sign * values[(code % (1 << (bits - 1))) as usize] * power(x.b)) as f32).to_bits()
                };
                let expected = match wide {
                    true => [one(0), one(1)],
                    false => [one(0) >> 16 | one(1) & 0xffff_0000, (x.old >> 32) as u32],
                };
                assert!(wide || one(0).is_multiple_of(65536), "a bf16 has them all");
                assert_eq!(after.v[l][..2], expected, "{name} {place}, lane {l}: {x:x?}");
            }
        }
    }
}

/// Bytes and halves as sources and destination of plain arithmetic.
#[test]
pub fn sub_dwords() {
    type Formula = fn(u32, u32) -> u32;
    let table: [(&str, Formula); 4] = [
        ("v_add_u32", u32::wrapping_add),
        ("v_lshlrev_b32", |a, b| b << (a % 32)),
        ("v_or_b32", |a, b| a | b),
        ("v_mul_u32_u24", |a, b| (a % (1 << 24)).wrapping_mul(b % (1 << 24))),
    ];
    // Place and width of a selection.
    let part = |selection: u32| match selection {
        0..4 => (8 * selection, 8),
        4..6 => (16 * (selection - 4), 16),
        _ => (0, 32),
    };
    let chosen = |x: u64, selection: u32, signed: bool| {
        let (at, width) = part(selection);
        let field = (x as u32) << (32 - width - at);
        if signed { (field as i32 >> (32 - width)) as u32 } else { field >> (32 - width) }
    };
    let lanes = lanes(3, &[0x8091_7ff0, 0xffff_ffff], Random::next);
    for (n, (name, formula)) in table.into_iter().enumerate() {
        for round in 0..42u32 {
            let [to, a, b] = [round % 7, (round / 7 + n as u32) % 7, (round * 3 + 1) % 7];
            let (signed_a, signed_b, keeps) =
                (round.is_multiple_of(3), round.is_multiple_of(5), round.is_multiple_of(2));
            let modes = u32::from(keeps) << 12 | u32::from(signed_a) << 19 | u32::from(signed_b) << 27;
            let first = op(Encoding::Vop2, name) << 25 | 10 << 17 | 6 << 9 | 249;
            let after = run(&[first, 4 | to << 8 | a << 16 | b << 24 | modes], &lanes);
            for (l, x) in lanes.iter().enumerate() {
                let result = formula(chosen(x.a, a, signed_a), chosen(x.b, b, signed_b));
                let (at, width) = part(to);
                let mask = (u32::MAX >> (32 - width)) << at;
                let expected = result << at & mask | if keeps { x.old as u32 & !mask } else { 0 };
                assert_eq!(after.v[l][0], expected, "{name} {to} {a} {b} {modes:x}, lane {l}: {x:x?}");
            }
        }
    }
}

/// f32 from whole numbers: the nearest with 24 bits; and back: towards zero, to the ends of the range.
#[test]
pub fn whole_numbers() {
    let lanes = lanes(4, &[0, 1, 0x0100_0001, 0x0100_0003, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff], Random::next);
    let nearest24 = |x: i128| -> f64 {
        let mut unit = 1i128;
        while x.abs() / unit >= 1 << 24 {
            unit *= 2;
        }
        let (down, rest) = (x.div_euclid(unit), x.rem_euclid(unit));
        let up = 2 * rest > unit || 2 * rest == unit && down.rem_euclid(2) == 1;
        ((down + i128::from(up)) * unit) as f64
    };
    let [from_i, from_u] = ["v_cvt_f32_i32", "v_cvt_f32_u32"].map(|n| run(&vector(n, 10, [v(4), 0, 0]), &lanes));
    for (l, x) in lanes.iter().enumerate() {
        let a = x.a as u32;
        assert_eq!(f64::from(f32::from_bits(from_i.v[l][0])), nearest24((a as i32).into()), "v_cvt_f32_i32, lane {l}");
        assert_eq!(f64::from(f32::from_bits(from_u.v[l][0])), nearest24(a.into()), "v_cvt_f32_u32, lane {l}");
    }
    let floats = crate::bench::lanes(5, &[0x4f00_0000, 0xcf00_0000, 0x4f80_0000, 0x7f80_0000, 0xff80_0000, 0], |r| {
        r.next() & 0x80ff_ffff | (r.next() % 40 + 120) << 23
    });
    let [to_i, to_u] = ["v_cvt_i32_f32", "v_cvt_u32_f32"].map(|n| run(&vector(n, 10, [v(4), 0, 0]), &floats));
    for (l, x) in floats.iter().enumerate() {
        let value = f64::from(f32::from_bits(x.a as u32)).trunc();
        let inside = |least: f64, most: f64| value.max(least).min(most);
        assert_eq!(
            f64::from(to_i.v[l][0] as i32),
            inside(-2147483648.0, 2147483647.0),
            "v_cvt_i32_f32, lane {l}: {x:x?}"
        );
        assert_eq!(f64::from(to_u.v[l][0]), inside(0.0, 4294967295.0), "v_cvt_u32_f32, lane {l}: {x:x?}");
    }
}

/// What is larger than a small float can say: without the MODE bit for it no number (e4m3, which has no infinity) or infinity, with it
/// the largest number; no number stays none.
#[test]
pub fn overflows() {
    let far = [500.0f32, -449.0e3, 1e30, -1e38, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -f32::NAN];
    let lanes: Vec<Lane> = (0..64)
        .map(|l| Lane {
            a: far[l % 8].abs().max(61441.0).copysign(far[l % 8]).to_bits().into(),
            b: if far[l / 8].is_nan() { far[l / 8] } else { far[l / 8] * 200.0 }.to_bits().into(),
            c: 0x3f80_0000,
            old: 0,
        })
        .collect();
    assert!(names(Encoding::Sopk, "s_setreg").contains(&"s_setreg_imm32_b32"));
    for (name, largest, infinity) in [
        ("v_cvt_pk_fp8_f32", 0x7e, None),
        ("v_cvt_pk_bf8_f32", 0x7b, Some(0x7c)),
        ("v_cvt_scalef32_pk_fp8_f32", 0x7e, None),
        ("v_cvt_scalef32_pk_bf8_f32", 0x7b, Some(0x7c)),
    ] {
        for clamps in [false, true] {
            // Bit 23 of register 1, one bit wide.
            let set = 0b1011 << 28 | op(Encoding::Sopk, "s_setreg_imm32_b32") << 23 | 23 << 6 | 1;
            let code = [&[set, u32::from(clamps)][..], &vector(name, 10, [v(4), v(6), v(8)])].concat();
            let after = run(&code, &lanes);
            for (l, x) in lanes.iter().enumerate() {
                for (at, from) in [(0, x.a), (8, x.b)] {
                    let (value, found) = (f32::from_bits(from as u32), after.v[l][0] >> at & 0xff);
                    let is_none = match infinity {
                        Some(infinity) => found & 0x7f > infinity,
                        None => found & 0x7f == 0x7f,
                    };
                    if value.is_nan() || !clamps && infinity.is_none() {
                        assert!(is_none, "{name} of {value}, clamps: {clamps}: {found:x}");
                    } else {
                        let expected = if clamps { largest } else { infinity.unwrap_or_default() };
                        let sign = if value < 0.0 { 0x80 } else { 0 };
                        assert_eq!(found, expected | sign, "{name} of {value}, clamps: {clamps}");
                    }
                }
            }
        }
    }
}

/// f64 to and from whole numbers and f32.
#[test]
pub fn doubles() {
    let ints = lanes(2, &[0, 1, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff], Random::next);
    let [signed, unsigned] = ["v_cvt_f64_i32", "v_cvt_f64_u32"].map(|n| run(&vector(n, 10, [v(4), 0, 0]), &ints));
    let wide = |x: &[u32; 4]| f64::from_bits(u64::from(x[0]) | u64::from(x[1]) << 32);
    for (l, x) in ints.iter().enumerate() {
        assert_eq!(wide(&signed.v[l]), f64::from(x.a as u32 as i32), "v_cvt_f64_i32, lane {l}");
        assert_eq!(wide(&unsigned.v[l]), f64::from(x.a as u32), "v_cvt_f64_u32, lane {l}");
    }
    let corners = [0.0f64, -0.0, 2147483647.5, -2147483648.9, 4294967295.9, -1.5, 1e300, -1e300, f64::INFINITY];
    let corners = corners.map(f64::to_bits);
    let near = |r: &mut Random| ((r.next() as f64 / 2f64.powi(31)) - 4294967296.0).to_bits();
    let floats = lanes(3, &corners, near);
    let [to_i, to_u] = ["v_cvt_i32_f64", "v_cvt_u32_f64"].map(|n| run(&vector(n, 10, [v(4), 0, 0]), &floats));
    let narrow = run(&vector("v_cvt_f32_f64", 10, [v(4), 0, 0]), &floats);
    for (l, x) in floats.iter().enumerate() {
        let value = f64::from_bits(x.a);
        let inside = |least: f64, most: f64| value.trunc().max(least).min(most);
        assert_eq!(f64::from(to_i.v[l][0] as i32), inside(-2147483648.0, 2147483647.0), "v_cvt_i32_f64, {value}");
        assert_eq!(f64::from(to_u.v[l][0]), inside(0.0, 4294967295.0), "v_cvt_u32_f64, {value}");
        // The nearer of the two f32 around it, an even one of two; beyond them infinity.
        let found = f32::from_bits(narrow.v[l][0]);
        if value.abs() < 1e38 {
            let off = |y: f32| (f64::from(y) - value).abs();
            let [below, above] = [found.next_down(), found.next_up()];
            assert!(off(found) <= off(below) && off(found) <= off(above), "v_cvt_f32_f64 of {value}: {found}");
            let tie = off(found) == off(below) || off(found) == off(above);
            assert!(!tie || narrow.v[l][0].is_multiple_of(2), "v_cvt_f32_f64 of {value}: {found}");
        } else {
            assert_eq!(f64::from(found), f64::INFINITY.copysign(value), "v_cvt_f32_f64 of {value}");
        }
    }
}
