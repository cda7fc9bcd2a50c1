//! Vector integer arithmetic of one, two and three sources, 32 and 64 bits; carries.

use amdhip64::isa::Encoding;

use crate::bench::{Lane, Random, lanes, op, run, s_mov, v, v_mov, vector};

const CORNERS: [u64; 14] =
    [0, 1, 2, 3, 31, 32, 33, 63, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 0x7f_ffff, 0x8000_0000_0000_0000, u64::MAX];

/// A signed value of the low `bits` bits.
fn signed(x: u64, bits: u32) -> i128 {
    let x = i128::from(x) % (1i128 << bits);
    if x >= 1i128 << (bits - 1) { x - (1i128 << bits) } else { x }
}

fn low(x: i128, bits: u32) -> u64 {
    x.rem_euclid(1i128 << bits) as u64
}

fn bit(x: u64, i: u32) -> bool {
    x / (1u64 << i) % 2 == 1
}

/// A word made bit by bit.
fn bits(f: impl Fn(u32) -> bool) -> u64 {
    (0..32).map(|i| u64::from(f(i)) << i).sum()
}

fn sorted<const N: usize>(mut x: [i128; N]) -> [i128; N] {
    x.sort_unstable();
    x
}

type Formula = fn(u32, u64, u64, u64) -> u64;

/// Runs each opcode on several sets of lanes. `wide`: sources and result have 64 bits, else the low 32.
fn check(table: &[(&str, Formula)], wide: bool) {
    for (name, formula) in table {
        for seed in 0..4 {
            let lanes = lanes(seed, &CORNERS, Random::next);
            let after = run(&vector(name, 10, [v(4), v(6), v(8)]), &lanes);
            for (l, x) in lanes.iter().enumerate() {
                let cut = |y: u64| if wide { y } else { y & 0xffff_ffff };
                let expected = formula(l as u32, cut(x.a), cut(x.b), cut(x.c));
                let found = u64::from(after.v[l][0]) | if wide { u64::from(after.v[l][1]) << 32 } else { 0 };
                assert_eq!(found, expected, "{name}, lane {l}: {x:x?}");
            }
        }
    }
}

#[test]
pub fn one_source() {
    check(
        &[
            ("v_mov_b32", |_, a, _, _| a),
            ("v_not_b32", |_, a, _, _| bits(|i| !bit(a, i))),
            ("v_bfrev_b32", |_, a, _, _| bits(|i| bit(a, 31 - i))),
            ("v_ffbh_u32", |_, a, _, _| (0..32).find(|i| bit(a, 31 - i)).map_or(0xffff_ffff, u64::from)),
            ("v_ffbl_b32", |_, a, _, _| (0..32).find(|i| bit(a, *i)).map_or(0xffff_ffff, u64::from)),
            ("v_ffbh_i32", |_, a, _, _| (1..32).find(|i| bit(a, 31 - i) != bit(a, 31)).map_or(0xffff_ffff, u64::from)),
        ],
        false,
    );
}

#[test]
pub fn two_sources() {
    check(
        &[
            ("v_add_u32", |_, a, b, _| low(i128::from(a) + i128::from(b), 32)),
            ("v_sub_u32", |_, a, b, _| low(i128::from(a) - i128::from(b), 32)),
            ("v_subrev_u32", |_, a, b, _| low(i128::from(b) - i128::from(a), 32)),
            ("v_add_i32", |_, a, b, _| low(i128::from(a) + i128::from(b), 32)),
            ("v_sub_i32", |_, a, b, _| low(i128::from(a) - i128::from(b), 32)),
            ("v_pack_b32_f16", |_, a, b, _| a % 65536 + b % 65536 * 65536),
            ("v_mul_i32_i24", |_, a, b, _| low(signed(a, 24) * signed(b, 24), 32)),
            ("v_mul_hi_i32_i24", |_, a, b, _| low((signed(a, 24) * signed(b, 24)).div_euclid(1 << 32), 32)),
            ("v_mul_u32_u24", |_, a, b, _| low(i128::from(a % (1 << 24)) * i128::from(b % (1 << 24)), 32)),
            ("v_mul_hi_u32_u24", |_, a, b, _| (a % (1 << 24)) * (b % (1 << 24)) / (1 << 32)),
            ("v_mul_lo_u32", |_, a, b, _| low(i128::from(a) * i128::from(b), 32)),
            ("v_mul_hi_u32", |_, a, b, _| (u128::from(a) * u128::from(b) / (1 << 32)) as u64),
            ("v_mul_hi_i32", |_, a, b, _| low((signed(a, 32) * signed(b, 32)).div_euclid(1 << 32), 32)),
            ("v_min_i32", |_, a, b, _| low(sorted([signed(a, 32), signed(b, 32)])[0], 32)),
            ("v_max_i32", |_, a, b, _| low(sorted([signed(a, 32), signed(b, 32)])[1], 32)),
            ("v_min_u32", |_, a, b, _| if a < b { a } else { b }),
            ("v_max_u32", |_, a, b, _| if a < b { b } else { a }),
            ("v_lshlrev_b32", |_, a, b, _| low(i128::from(b) * (1 << (a % 32)), 32)),
            ("v_lshrrev_b32", |_, a, b, _| b / (1 << (a % 32))),
            ("v_ashrrev_i32", |_, a, b, _| low(signed(b, 32).div_euclid(1 << (a % 32)), 32)),
            ("v_and_b32", |_, a, b, _| bits(|i| bit(a, i) && bit(b, i))),
            ("v_or_b32", |_, a, b, _| bits(|i| bit(a, i) || bit(b, i))),
            ("v_xor_b32", |_, a, b, _| bits(|i| bit(a, i) != bit(b, i))),
            ("v_xnor_b32", |_, a, b, _| bits(|i| bit(a, i) == bit(b, i))),
            ("v_bcnt_u32_b32", |_, a, b, _| {
                low(i128::from((0..32).filter(|i| bit(a, *i)).count() as u32) + i128::from(b), 32)
            }),
            ("v_bfm_b32", |_, a, b, _| {
                let (width, offset) = ((a % 32) as u32, (b % 32) as u32);
                bits(|i| i >= offset && i < offset + width)
            }),
            ("v_mbcnt_lo_u32_b32", |lane, a, b, _| {
                low(i128::from((0..32.min(lane)).filter(|i| bit(a, *i)).count() as u32) + i128::from(b), 32)
            }),
            ("v_mbcnt_hi_u32_b32", |lane, a, b, _| {
                let below = (32..64u32).filter(|i| *i < lane && bit(a, i - 32)).count() as u32;
                low(i128::from(below) + i128::from(b), 32)
            }),
            ("v_add_u16", |_, a, b, _| low(i128::from(a) + i128::from(b), 16)),
            ("v_sub_u16", |_, a, b, _| low(i128::from(a) - i128::from(b), 16)),
            ("v_mul_lo_u16", |_, a, b, _| low(i128::from(a) * i128::from(b), 16)),
            ("v_subrev_u16", |_, a, b, _| low(i128::from(b) - i128::from(a), 16)),
            ("v_lshrrev_b16", |_, a, b, _| b % 65536 / (1 << (a % 16))),
            ("v_min_i16", |_, a, b, _| low(sorted([signed(a, 16), signed(b, 16)])[0], 16)),
            ("v_max_i16", |_, a, b, _| low(sorted([signed(a, 16), signed(b, 16)])[1], 16)),
            ("v_min_u16", |_, a, b, _| (a % 65536).min(b % 65536)),
            ("v_max_u16", |_, a, b, _| (a % 65536).max(b % 65536)),
            ("v_lshlrev_b16", |_, a, b, _| low(i128::from(b) * (1 << (a % 16)), 16)),
            ("v_ashrrev_i16", |_, a, b, _| low(signed(b, 16).div_euclid(1 << (a % 16)), 16)),
        ],
        false,
    );
}

/// A byte as `v_perm_b32` selects it.
fn chosen(selector: u64, a: u64, b: u64) -> u64 {
    let bytes: Vec<u64> = (0..8).map(|i| if i < 4 { b >> (8 * i) & 255 } else { a >> (8 * (i - 4)) & 255 }).collect();
    let sign = |byte: usize| if bytes[byte] >= 128 { 255 } else { 0 };
    match selector {
        0..=7 => bytes[selector as usize],
        8 => sign(1),
        9 => sign(3),
        10 => sign(5),
        11 => sign(7),
        12 => 0,
        _ => 255,
    }
}

fn field(a: u64, b: u64, c: u64, is_signed: bool) -> u64 {
    let (offset, width) = ((b % 32) as u32, (c % 32) as u32);
    if width == 0 {
        return 0;
    }
    let found = (0..width).filter(|i| i + offset < 32 && bit(a, i + offset)).map(|i| 1u64 << i).sum::<u64>();
    // Beyond bit 31 a signed source goes on with its sign.
    let beyond = (0..width).filter(|i| is_signed && i + offset >= 32 && bit(a, 31)).map(|i| 1u64 << i).sum::<u64>();
    if is_signed { low(signed(found + beyond, width), 32) } else { found }
}

#[test]
pub fn three_sources() {
    check(
        &[
            ("v_mad_i32_i24", |_, a, b, c| low(signed(a, 24) * signed(b, 24) + signed(c, 32), 32)),
            ("v_mad_u32_u24", |_, a, b, c| {
                low(i128::from(a % (1 << 24)) * i128::from(b % (1 << 24)) + i128::from(c), 32)
            }),
            ("v_bfe_u32", |_, a, b, c| field(a, b, c, false)),
            ("v_bfe_i32", |_, a, b, c| field(a, b, c, true)),
            ("v_bfi_b32", |_, a, b, c| bits(|i| if bit(a, i) { bit(b, i) } else { bit(c, i) })),
            ("v_alignbit_b32", |_, a, b, c| {
                ((u128::from(a) * (1 << 32) + u128::from(b)) / (1 << (c % 32)) % (1 << 32)) as u64
            }),
            ("v_alignbyte_b32", |_, a, b, c| {
                ((u128::from(a) * (1 << 32) + u128::from(b)) / (1 << (8 * (c % 4))) % (1 << 32)) as u64
            }),
            ("v_min3_i32", |_, a, b, c| low(sorted([a, b, c].map(|x| signed(x, 32)))[0], 32)),
            ("v_med3_i32", |_, a, b, c| low(sorted([a, b, c].map(|x| signed(x, 32)))[1], 32)),
            ("v_max3_i32", |_, a, b, c| low(sorted([a, b, c].map(|x| signed(x, 32)))[2], 32)),
            ("v_min3_u32", |_, a, b, c| sorted([a, b, c].map(i128::from))[0] as u64),
            ("v_med3_u32", |_, a, b, c| sorted([a, b, c].map(i128::from))[1] as u64),
            ("v_max3_u32", |_, a, b, c| sorted([a, b, c].map(i128::from))[2] as u64),
            ("v_perm_b32", |_, a, b, c| (0..4).map(|i| chosen(c >> (8 * i) & 255, a, b) << (8 * i)).sum()),
            ("v_xad_u32", |_, a, b, c| low(i128::from(bits(|i| bit(a, i) != bit(b, i))) + i128::from(c), 32)),
            ("v_lshl_add_u32", |_, a, b, c| low(i128::from(a) * (1 << (b % 32)) + i128::from(c), 32)),
            ("v_add_lshl_u32", |_, a, b, c| low((i128::from(a) + i128::from(b)) * (1 << (c % 32)), 32)),
            ("v_add3_u32", |_, a, b, c| low(i128::from(a) + i128::from(b) + i128::from(c), 32)),
            ("v_lshl_or_b32", |_, a, b, c| {
                let shifted = low(i128::from(a) * (1 << (b % 32)), 32);
                bits(|i| bit(shifted, i) || bit(c, i))
            }),
            ("v_and_or_b32", |_, a, b, c| bits(|i| bit(a, i) && bit(b, i) || bit(c, i))),
            ("v_or3_b32", |_, a, b, c| bits(|i| bit(a, i) || bit(b, i) || bit(c, i))),
        ],
        false,
    );
}

#[test]
pub fn of_64_bits() {
    check(
        &[
            ("v_mov_b64", |_, a, _, _| a),
            ("v_lshlrev_b64", |_, a, b, _| low(i128::from(b) * (1 << (a % 64)), 64)),
            ("v_lshrrev_b64", |_, a, b, _| (u128::from(b) / (1 << (a % 64))) as u64),
            ("v_ashrrev_i64", |_, a, b, _| low(i128::from(b as i64).div_euclid(1 << (a % 64)), 64)),
            ("v_lshl_add_u64", |_, a, b, c| {
                let a = i128::from(a);
                (0..b % 8)
                    .fold(a, |x, _| i128::from(low(2 * x, 64)))
                    .checked_add(i128::from(c))
                    .map_or(0, |x| low(x, 64))
            }),
        ],
        true,
    );
}

/// Clamped sums and differences end at the ends of the range.
#[test]
pub fn saturation() {
    type Exact = fn(i128, i128) -> i128;
    let table: [(&str, Exact); 3] =
        [("v_add_u32", |a, b| a + b), ("v_sub_u32", |a, b| a - b), ("v_subrev_u32", |a, b| b - a)];
    for (name, exact) in table {
        let lanes = lanes(6, &CORNERS, Random::next);
        let [first, second] = vector(name, 10, [v(4), v(6), 0]);
        let after = run(&[first | 1 << 15, second], &lanes);
        for (l, x) in lanes.iter().enumerate() {
            let expected = exact((x.a as u32).into(), (x.b as u32).into()).clamp(0, (1 << 32) - 1);
            assert_eq!(i128::from(after.v[l][0]), expected, "{name} clamp, lane {l}: {x:x?}");
        }
    }
}

/// Any function of three bits: bit 4 a + 2 b + c of the table, which stands where other opcodes have modifiers.
#[test]
pub fn truth_tables() {
    let lanes = lanes(8, &CORNERS, Random::next);
    for (name, width) in [("v_bitop3_b32", 32), ("v_bitop3_b16", 16)] {
        for table in (0..256u32).step_by(if width == 32 { 1 } else { 7 }) {
            let [first, second] = vector(name, 10, [v(4), v(6), v(8)]);
            // {output scaling, magnitude, negation}
            let code = [first | (table >> 3 & 7) << 8, second | (table >> 6) << 27 | (table & 7) << 29];
            let after = run(&code, &lanes);
            for (l, x) in lanes.iter().enumerate() {
                let place = |i: u32| 4 * u32::from(bit(x.a, i)) + 2 * u32::from(bit(x.b, i)) + u32::from(bit(x.c, i));
                let expected = bits(|i| i < width && bit(table.into(), place(i)));
                assert_eq!(u64::from(after.v[l][0]), expected, "{name} {table:x}, lane {l}: {x:x?}");
            }
        }
    }
}

/// Sums and differences with carries in vcc, and the wide products.
#[test]
pub fn carries() {
    type Carry = fn(i128, i128, i128) -> i128;
    let table: [(&str, Carry); 6] = [
        ("v_add_co_u32", |a, b, _| a + b),
        ("v_sub_co_u32", |a, b, _| a - b),
        ("v_subrev_co_u32", |a, b, _| b - a),
        ("v_addc_co_u32", |a, b, c| a + b + c),
        ("v_subb_co_u32", |a, b, c| a - b - c),
        ("v_subbrev_co_u32", |a, b, c| b - a - c),
    ];
    for (name, formula) in table {
        for seed in 0..4 {
            let lanes = lanes(seed, &CORNERS, Random::next);
            let before = Random(seed + 9).next();
            let instruction = op(Encoding::Vop2, name) << 25 | 10 << 17 | 6 << 9 | v(4);
            let set = [s_mov(106, before as u32), s_mov(107, (before >> 32) as u32)].concat();
            let code = [&set[..], &[instruction, v_mov(12, 106), v_mov(13, 107)]].concat();
            let after = run(&code, &lanes);
            for (l, x) in lanes.iter().enumerate() {
                let exact = formula(i128::from(x.a as u32), i128::from(x.b as u32), (before >> l & 1).into());
                assert_eq!(u64::from(after.v[l][0]), low(exact, 32), "{name}, lane {l}: {x:x?}");
                let mask = u64::from(after.v[l][2]) | u64::from(after.v[l][3]) << 32;
                assert_eq!(mask >> l & 1 == 1, !(0..1 << 32).contains(&exact), "{name}, carry of lane {l}: {x:x?}");
            }
        }
    }
    for (name, is_signed) in [("v_mad_u64_u32", false), ("v_mad_i64_i32", true)] {
        let lanes: Vec<Lane> = lanes(3, &CORNERS, Random::next);
        let number = op(Encoding::Vop3, name);
        let code = [0x34 << 26 | number << 16 | 106 << 8 | 10, v(4) | v(6) << 9 | v(8) << 18];
        let after = run(&code, &lanes);
        for (l, x) in lanes.iter().enumerate() {
            let of = |y: u64| if is_signed { i128::from(y as u32 as i32) } else { i128::from(y as u32) };
            let expected = low(of(x.a) * of(x.b) + i128::from(x.c), 64);
            let found = u64::from(after.v[l][0]) | u64::from(after.v[l][1]) << 32;
            assert_eq!(found, expected, "{name}, lane {l}: {x:x?}");
        }
    }
}
