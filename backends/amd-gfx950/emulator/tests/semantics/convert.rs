//! Conversions between formats: the nearest of all values of a format, found by looking through them.

use crate::bench::{Lane, Random, lanes, run, v, vector};

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
fn to_bf16_and_f16() {
    for seed in 0..3 {
        let lanes = lanes(seed, &CORNERS, moderate);
        let pairs = run(&vector("v_cvt_pk_bf16_f32", 10, [v(4), v(6), 0]), &lanes);
        let halves = run(&vector("v_cvt_f16_f32", 10, [v(4), 0, 0]), &lanes);
        let (bf16, half) = (table(8, 7), table(5, 10));
        for (l, x) in lanes.iter().enumerate() {
            let expected = code(x.a as u32, &bf16, 15) | code(x.b as u32, &bf16, 15) << 16;
            assert_eq!(pairs.v[l][0], expected, "v_cvt_pk_bf16_f32, lane {l}: {x:x?}");
            assert_eq!(halves.v[l][0] & 0xffff, code(x.a as u32, &half, 15), "v_cvt_f16_f32, lane {l}: {x:x?}");
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
fn from_f16_bf16_and_bytes() {
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
fn to_and_from_fp8() {
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

/// f32 from whole numbers: the nearest with 24 bits; and back: towards zero, to the ends of the range.
#[test]
fn whole_numbers() {
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
