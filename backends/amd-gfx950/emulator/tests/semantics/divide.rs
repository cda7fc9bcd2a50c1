//! Division: the corrections of the last step, and the whole macro that compilers emit on quotients without extremes.
//!
//! What the first step scales where exponents are extreme is not shown here: the manual contradicts itself.

use amdhip64::isa::Encoding;

use crate::bench::{Lane, Random, WAIT, lanes, op, run, v, vector, vop3};

fn f(x: u64) -> f64 {
    f64::from(f32::from_bits(x as u32))
}

/// The manual's cases of a quotient q of n and d.
fn fixed(q: u32, d: u32, n: u32) -> u32 {
    let (den, num) = (f(d.into()), f(n.into()));
    let sign = (d >> 31 ^ n >> 31) << 31;
    let exponent = |x: u32| (x >> 23 & 255) as i32;
    if num.is_nan() {
        n | 1 << 22
    } else if den.is_nan() {
        d | 1 << 22
    } else if den == 0.0 && num == 0.0 || den.is_infinite() && num.is_infinite() {
        0xffc0_0000
    } else if den == 0.0 || num.is_infinite() {
        sign + 0x7f80_0000
    } else if den.is_infinite() || num == 0.0 {
        sign
    } else {
        assert!(exponent(n) - exponent(d) >= -150);
        sign + q % (1 << 31)
    }
}

#[test]
pub fn quotients() {
    const CORNERS: [u64; 8] =
        [0, 0x8000_0000, 0x7f80_0000, 0xff80_0000, 0x7fc0_1234, 0xffa0_0001, 0x3f80_0000, 0xbf80_0001];
    for seed in 0..4 {
        let any = |r: &mut Random| r.next() & 0x807f_ffff | (70 + (r.next() >> 40) % 120) << 23;
        let lanes = lanes(seed, &CORNERS, any);
        let after = run(&vector("v_div_fixup_f32", 10, [v(4), v(6), v(8)]), &lanes);
        for (l, x) in lanes.iter().enumerate() {
            let expected = fixed(x.a as u32, x.b as u32, x.c as u32);
            assert_eq!(after.v[l][0], expected, "v_div_fixup_f32, lane {l}: {x:x?}");
        }
    }
    // n / d in v4, v6: the macro gives the nearest f32.
    let scale = |to: u32, of: u32| {
        let number = op(Encoding::Vop3, "v_div_scale_f32");
        [0x34 << 26 | number << 16 | 106 << 8 | to, v(of) | v(6) << 9 | v(4) << 18]
    };
    let fma = |to: u32, sources: [u32; 3], negated: bool| {
        let [first, second] = vop3(op(Encoding::Vop3, "v_fma_f32"), to, sources);
        [first, second | u32::from(negated) << 29]
    };
    let code = [
        &scale(14, 6)[..],
        &scale(15, 4),
        &vector("v_rcp_f32", 16, [v(14), 0, 0]),
        // Its error, the better reciprocal, the quotient and twice what is left of it.
        &fma(17, [v(14), v(16), 242], true),
        &fma(16, [v(17), v(16), v(16)], false),
        &vector("v_mul_f32", 18, [v(15), v(16), 0]),
        &fma(19, [v(14), v(18), v(15)], true),
        &fma(18, [v(19), v(16), v(18)], false),
        &fma(19, [v(14), v(18), v(15)], true),
        &vector("v_div_fmas_f32", 18, [v(19), v(16), v(18)]),
        &vector("v_div_fixup_f32", 10, [v(18), v(6), v(4)]),
        &[WAIT],
    ];
    for seed in 0..8 {
        let moderate = |r: &mut Random| r.next() & 0x807f_ffff | (100 + (r.next() >> 40) % 54) << 23;
        let lanes: Vec<Lane> = lanes(seed, &[0x3f80_0000, 0x4040_0000, 0xbf80_0001], moderate);
        let after = run(&code.concat(), &lanes);
        for (l, x) in lanes.iter().enumerate() {
            // Twice rounded, and yet right: f64 has more than twice the bits.
            let expected = (f(x.a) / f(x.b)) as f32;
            assert_eq!(f32::from_bits(after.v[l][0]), expected, "lane {l}: {x:x?}");
        }
    }
}
