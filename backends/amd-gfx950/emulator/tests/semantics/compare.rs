//! Every compare of the decoder's table: the name says the condition and the type.

use std::cmp::Ordering;

use amdhip64::isa::Encoding;

use crate::{
    bench::{Lane, Random, lanes, names, op, run, v, v_mov, vop3},
    convert::f16,
};

const CORNERS: [u64; 16] = [
    0,
    1,
    0x7fff,
    0x8000,
    0xffff,
    0x3c00,
    0x7e00,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x7fc0_0000,
    0x7f80_0000,
    0x3f80_0000,
    0x7ff8_0000_0000_0000,
    0x8000_0000_0000_0000,
    0x3ff0_0000_0000_0000,
];

/// How two values of a type compare; `None` if one is no number.
fn order(kind: &str, a: u64, b: u64) -> Option<Ordering> {
    let signed = |x: u64, bits: u32| (i128::from(x) << (128 - bits)) >> (128 - bits);
    match kind {
        "i16" => Some(signed(a, 16).cmp(&signed(b, 16))),
        "u16" => Some((a % (1 << 16)).cmp(&(b % (1 << 16)))),
        "i32" => Some(signed(a, 32).cmp(&signed(b, 32))),
        "u32" => Some((a % (1 << 32)).cmp(&(b % (1 << 32)))),
        "i64" => Some(signed(a, 64).cmp(&signed(b, 64))),
        "u64" => Some(a.cmp(&b)),
        "f16" => f16(a as u16).partial_cmp(&f16(b as u16)),
        "f32" => f32::from_bits(a as u32).partial_cmp(&f32::from_bits(b as u32)),
        "f64" => f64::from_bits(a).partial_cmp(&f64::from_bits(b)),
        _ => panic!("{kind}"),
    }
}

fn holds(condition: &str, order: Option<Ordering>) -> bool {
    use Ordering::{Equal, Greater, Less};
    match condition {
        "lt" => order == Some(Less),
        "eq" => order == Some(Equal),
        "le" => matches!(order, Some(Less | Equal)),
        "gt" => order == Some(Greater),
        "ne" => order != Some(Equal),
        "lg" => matches!(order, Some(Less | Greater)),
        "ge" => matches!(order, Some(Greater | Equal)),
        "o" => order.is_some(),
        "u" => order.is_none(),
        "nlt" | "neq" | "nle" | "ngt" | "nlg" | "nge" => !holds(&condition[1..], order),
        _ => panic!("{condition}"),
    }
}

#[test]
pub fn every_condition_of_every_type() {
    let all = names(Encoding::Vopc, "v_cmp_");
    assert!(all.len() > 40, "{all:?}");
    for name in all.into_iter().filter(|n| !n.contains("class")) {
        let (condition, kind) = name["v_cmp_".len()..].split_once('_').expect("a condition and a type");
        // The result goes to vcc, and from there to every lane.
        let number = op(Encoding::Vopc, name);
        let code = [&vop3(number, 106, [v(4), v(6), 0])[..], &[v_mov(10, 106), v_mov(11, 107)]].concat();
        for seed in 0..3 {
            let lanes = lanes(seed, &CORNERS, Random::next);
            let expected: u64 =
                lanes.iter().enumerate().map(|(l, x)| u64::from(holds(condition, order(kind, x.a, x.b))) << l).sum();
            let after = run(&code, &lanes);
            let found = u64::from(after.v[5][0]) | u64::from(after.v[5][1]) << 32;
            assert_eq!(found, expected, "{name}");
        }
    }
}

/// Ten classes of f32, one bit of b for each.
#[test]
pub fn classes() {
    let number = op(Encoding::Vopc, "v_cmp_class_f32");
    let code = [&vop3(number, 106, [v(4), v(6), 0])[..], &[v_mov(10, 106), v_mov(11, 107)]].concat();
    // Their ends, by the bit that stands for them; negative ones first.
    let ends = [
        (0, 0x7f80_0001, 0x7fbf_ffff),
        (1, 0x7fc0_0000, 0x7fff_ffff),
        (2, 0xff80_0000, 0xff80_0000),
        (3, 0x8080_0000, 0xff7f_ffff),
        (4, 0x8000_0001, 0x807f_ffff),
        (5, 0x8000_0000, 0x8000_0000),
        (6, 0, 0),
        (7, 1, 0x007f_ffff),
        (8, 0x0080_0000, 0x7f7f_ffff),
        (9, 0x7f80_0000, 0x7f80_0000u64),
    ];
    let holds = |x: u64, bits: u64| {
        // No number is none of either sign.
        let x = if x & 0x7fff_ffff > 0x7f80_0000 { x & 0x7fff_ffff } else { x };
        ends.iter().any(|(bit, from, to)| (*from..=*to).contains(&x) && bits >> bit & 1 == 1)
    };
    for seed in 0..6 {
        let mut r = Random(seed);
        let inputs = lanes(seed, &[0, u64::MAX], Random::next);
        let lanes: Vec<Lane> = inputs
            .into_iter()
            .map(|x| {
                let (_, from, to) = ends[(r.next() % 10) as usize];
                let a = match r.next() % 3 {
                    0 => from,
                    1 => to,
                    _ => from + r.next() % (to - from + 1),
                };
                Lane { a: if from >> 31 == 0 && from > 0x7f80_0000 { a | (r.next() & 1) << 31 } else { a }, ..x }
            })
            .collect();
        let after = run(&code, &lanes);
        for (l, x) in lanes.iter().enumerate() {
            let found = after.v[5][l / 32] >> (l % 32) & 1 == 1;
            assert_eq!(found, holds(x.a & 0xffff_ffff, x.b), "lane {l}: {x:x?}");
        }
    }
}
