//! Scalar arithmetic and compares, with what they leave in scc.

use amdhip64::isa::Encoding;

use crate::bench::{Lane, Random, WAIT, image, lanes, op, run, s_mov, v_mov};

/// a and b as 64 bits, scc before; the result and scc, `None` where it stays.
type Formula = fn(i128, i128, bool) -> (i128, Option<bool>);

fn unsigned32(x: i128) -> i128 {
    x.rem_euclid(1 << 32)
}

fn signed32(x: i128) -> i128 {
    let x = unsigned32(x);
    if x >= 1 << 31 { x - (1 << 32) } else { x }
}

fn bits(n: u32, f: impl Fn(u32) -> bool) -> (i128, Option<bool>) {
    let x: i128 = (0..n).filter(|i| f(*i)).map(|i| 1i128 << i).sum();
    (x, Some(x != 0))
}

fn bit(x: i128, i: u32) -> bool {
    x >> i & 1 == 1
}

fn overflows(x: i128) -> Option<bool> {
    Some(!(-(1 << 31)..1 << 31).contains(&x))
}

const LOW: i128 = 1 << 32;

/// Name, result dwords, meaning.
const TWO: &[(&str, u32, Formula)] = &[
    ("s_add_u32", 1, |a, b, _| (a % LOW + b % LOW, Some(a % LOW + b % LOW >= LOW))),
    ("s_sub_u32", 1, |a, b, _| (a % LOW - b % LOW, Some(a % LOW < b % LOW))),
    ("s_addc_u32", 1, |a, b, c| (a % LOW + b % LOW + i128::from(c), Some(a % LOW + b % LOW + i128::from(c) >= LOW))),
    ("s_subb_u32", 1, |a, b, c| (a % LOW - b % LOW - i128::from(c), Some(a % LOW < b % LOW + i128::from(c)))),
    ("s_add_i32", 1, |a, b, _| (a + b, overflows(signed32(a) + signed32(b)))),
    ("s_sub_i32", 1, |a, b, _| (a - b, overflows(signed32(a) - signed32(b)))),
    ("s_min_i32", 1, |a, b, _| if signed32(a) < signed32(b) { (a, Some(true)) } else { (b, Some(false)) }),
    ("s_min_u32", 1, |a, b, _| if a % LOW < b % LOW { (a, Some(true)) } else { (b, Some(false)) }),
    ("s_max_i32", 1, |a, b, _| if signed32(a) < signed32(b) { (b, Some(false)) } else { (a, Some(true)) }),
    ("s_max_u32", 1, |a, b, _| if a % LOW < b % LOW { (b, Some(false)) } else { (a, Some(true)) }),
    ("s_cselect_b32", 1, |a, b, c| (if c { a } else { b }, None)),
    ("s_cselect_b64", 2, |a, b, c| (if c { a } else { b }, None)),
    ("s_and_b32", 1, |a, b, _| bits(32, |i| bit(a, i) && bit(b, i))),
    ("s_and_b64", 2, |a, b, _| bits(64, |i| bit(a, i) && bit(b, i))),
    ("s_or_b32", 1, |a, b, _| bits(32, |i| bit(a, i) || bit(b, i))),
    ("s_or_b64", 2, |a, b, _| bits(64, |i| bit(a, i) || bit(b, i))),
    ("s_xor_b32", 1, |a, b, _| bits(32, |i| bit(a, i) != bit(b, i))),
    ("s_xor_b64", 2, |a, b, _| bits(64, |i| bit(a, i) != bit(b, i))),
    ("s_andn2_b32", 1, |a, b, _| bits(32, |i| bit(a, i) && !bit(b, i))),
    ("s_andn2_b64", 2, |a, b, _| bits(64, |i| bit(a, i) && !bit(b, i))),
    ("s_orn2_b32", 1, |a, b, _| bits(32, |i| bit(a, i) || !bit(b, i))),
    ("s_nand_b32", 1, |a, b, _| bits(32, |i| !(bit(a, i) && bit(b, i)))),
    ("s_nand_b64", 2, |a, b, _| bits(64, |i| !(bit(a, i) && bit(b, i)))),
    ("s_orn2_b64", 2, |a, b, _| bits(64, |i| bit(a, i) || !bit(b, i))),
    ("s_nor_b32", 1, |a, b, _| bits(32, |i| !(bit(a, i) || bit(b, i)))),
    ("s_xnor_b64", 2, |a, b, _| bits(64, |i| bit(a, i) == bit(b, i))),
    ("s_nor_b64", 2, |a, b, _| bits(64, |i| !(bit(a, i) || bit(b, i)))),
    ("s_xnor_b32", 1, |a, b, _| bits(32, |i| bit(a, i) == bit(b, i))),
    ("s_lshl_b32", 1, |a, b, _| bits(32, |i| i >= (b % 32) as u32 && bit(a, i - (b % 32) as u32))),
    ("s_lshl_b64", 2, |a, b, _| bits(64, |i| i >= (b % 64) as u32 && bit(a, i - (b % 64) as u32))),
    ("s_lshr_b32", 1, |a, b, _| bits(32, |i| i + ((b % 32) as u32) < 32 && bit(a, i + (b % 32) as u32))),
    ("s_lshr_b64", 2, |a, b, _| bits(64, |i| i + ((b % 64) as u32) < 64 && bit(a, i + (b % 64) as u32))),
    ("s_ashr_i32", 1, |a, b, _| bits(32, |i| bit(a, (i + (b % 32) as u32).min(31)))),
    ("s_ashr_i64", 2, |a, b, _| bits(64, |i| bit(a, (i + (b % 64) as u32).min(63)))),
    ("s_bfm_b32", 1, |a, b, _| ((((1 << (a % 32)) - 1) << (b % 32)) % LOW, None)),
    ("s_bfm_b64", 2, |a, b, _| ((((1 << (a % 64)) - 1) << (b % 64)) % (1 << 64), None)),
    ("s_mul_i32", 1, |a, b, _| ((a % LOW) * (b % LOW), None)),
    ("s_mul_hi_u32", 1, |a, b, _| ((a % LOW) * (b % LOW) / LOW, None)),
    ("s_mul_hi_i32", 1, |a, b, _| ((signed32(a) * signed32(b)).div_euclid(LOW), None)),
    ("s_bfe_u32", 1, |a, b, _| {
        let (offset, width) = ((b % 32) as u32, (b >> 16 & 127) as u32);
        bits(32, |i| i < width && i + offset < 32 && bit(a, i + offset))
    }),
    ("s_bfe_i32", 1, |a, b, _| {
        // Beyond bit 31 a signed source goes on with its sign, as it is shifted.
        let (offset, width) = ((b % 32) as u32, (b >> 16 & 127) as u32);
        bits(32, |i| width > 0 && bit(a, (i.min(width - 1) + offset).min(31)))
    }),
    ("s_bfe_u64", 2, |a, b, _| {
        let (offset, width) = ((b % 64) as u32, (b >> 16 & 127) as u32);
        bits(64, |i| i < width && i + offset < 64 && bit(a, i + offset))
    }),
    ("s_absdiff_i32", 1, |a, b, _| {
        let difference = unsigned32(signed32(a) - signed32(b));
        let difference = if difference >= 1 << 31 { LOW - difference } else { difference };
        (difference, Some(difference != 0))
    }),
    ("s_lshl1_add_u32", 1, |a, b, _| (2 * (a % LOW) + b % LOW, Some(2 * (a % LOW) + b % LOW >= LOW))),
    ("s_lshl2_add_u32", 1, |a, b, _| (4 * (a % LOW) + b % LOW, Some(4 * (a % LOW) + b % LOW >= LOW))),
    ("s_lshl3_add_u32", 1, |a, b, _| (8 * (a % LOW) + b % LOW, Some(8 * (a % LOW) + b % LOW >= LOW))),
    ("s_lshl4_add_u32", 1, |a, b, _| (16 * (a % LOW) + b % LOW, Some(16 * (a % LOW) + b % LOW >= LOW))),
    ("s_pack_ll_b32_b16", 1, |a, b, _| (a % 65536 + b % 65536 * 65536, None)),
    ("s_pack_lh_b32_b16", 1, |a, b, _| (a % 65536 + b % LOW / 65536 * 65536, None)),
    ("s_pack_hh_b32_b16", 1, |a, b, _| (a % LOW / 65536 + b % LOW / 65536 * 65536, None)),
];

const ONE: &[(&str, u32, Formula)] = &[
    ("s_mov_b64", 2, |a, _, _| (a, None)),
    ("s_not_b32", 1, |a, _, _| bits(32, |i| !bit(a, i))),
    ("s_not_b64", 2, |a, _, _| bits(64, |i| !bit(a, i))),
    ("s_brev_b32", 1, |a, _, _| (bits(32, |i| bit(a, 31 - i)).0, None)),
    ("s_brev_b64", 2, |a, _, _| (bits(64, |i| bit(a, 63 - i)).0, None)),
    ("s_bcnt1_i32_b32", 1, |a, _, _| counted(a, 32, true)),
    ("s_bcnt1_i32_b64", 1, |a, _, _| counted(a, 64, true)),
    ("s_bcnt0_i32_b32", 1, |a, _, _| counted(a, 32, false)),
    ("s_bcnt0_i32_b64", 1, |a, _, _| counted(a, 64, false)),
    ("s_ff1_i32_b32", 1, |a, _, _| ((0..32).find(|i| bit(a, *i)).map_or(-1, i128::from), None)),
    ("s_ff1_i32_b64", 1, |a, _, _| ((0..64).find(|i| bit(a, *i)).map_or(-1, i128::from), None)),
    ("s_flbit_i32_b32", 1, |a, _, _| ((0..32).find(|i| bit(a, 31 - *i)).map_or(-1, i128::from), None)),
    ("s_flbit_i32_b64", 1, |a, _, _| ((0..64).find(|i| bit(a, 63 - *i)).map_or(-1, i128::from), None)),
    ("s_sext_i32_i8", 1, |a, _, _| (a % 256 - if bit(a, 7) { 256 } else { 0 }, None)),
    ("s_sext_i32_i16", 1, |a, _, _| (a % 65536 - if bit(a, 15) { 65536 } else { 0 }, None)),
    ("s_abs_i32", 1, |a, _, _| (unsigned32(signed32(a).abs()), Some(unsigned32(a) != 0))),
];

fn counted(a: i128, n: u32, what: bool) -> (i128, Option<bool>) {
    let count = (0..n).filter(|i| bit(a, *i) == what).count() as i128;
    (count, Some(count != 0))
}

const CORNERS: [u64; 12] = [
    0,
    1,
    2,
    31,
    33,
    0x0008_0004,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    u64::MAX,
];

/// s[10:11] = a, s[12:13] = b, scc; s[14:15] is 0.
fn before(a: u64, b: u64, scc: bool) -> Vec<u32> {
    let halves = |x: u64| [x as u32, (x >> 32) as u32];
    let mut code: Vec<u32> = Vec::new();
    for (register, value) in (10..).zip([halves(a), halves(b), [0, 0]].concat()) {
        code.extend(s_mov(register, value));
    }
    // s_cmp_eq_u32 0, 0 or s_cmp_lg_u32 0, 0
    code.push(if scc { 0xbf06_8080 } else { 0xbf07_8080 });
    code
}

/// v[10:11] = s[14:15], v12 = scc.
fn behind() -> Vec<u32> {
    let select = 0b10 << 30 | op(Encoding::Sop2, "s_cselect_b32") << 23 | 16 << 16 | 128 << 8 | 129;
    vec![v_mov(10, 14), v_mov(11, 15), select, v_mov(12, 16)]
}

fn check(name: &str, dwords: u32, formula: Formula, instruction: u32) {
    let inputs: Vec<Lane> = lanes(name.len() as u64, &CORNERS, Random::next);
    for (n, Lane { a, b, .. }) in inputs.into_iter().take(24).enumerate() {
        let scc = n % 2 == 0;
        let code = [&before(a, b, scc)[..], &[instruction], &behind()].concat();
        let after = run(&code, &[Lane::default(); 64]);
        let (result, left) = formula(a.into(), b.into(), scc);
        let result = result.rem_euclid(1i128 << (32 * dwords)) as u64;
        let [low, high, found_scc, _] = after.v[63];
        assert_eq!(u64::from(low) | u64::from(high) << 32, result, "{name} of {a:x} and {b:x}, scc {scc}");
        assert_eq!(found_scc == 1, left.unwrap_or(scc), "{name} of {a:x} and {b:x}: scc");
    }
}

#[test]
pub fn two_sources() {
    for (name, dwords, formula) in TWO {
        check(name, *dwords, *formula, 0b10 << 30 | op(Encoding::Sop2, name) << 23 | 14 << 16 | 12 << 8 | 10);
    }
}

#[test]
pub fn one_source() {
    for (name, dwords, formula) in ONE {
        check(name, *dwords, *formula, 0b1_0111_1101 << 23 | 14 << 16 | op(Encoding::Sop1, name) << 8 | 10);
    }
}

#[test]
pub fn compares() {
    type Holds = fn(i128, i128) -> bool;
    let table: [(&str, Holds); 18] = [
        ("s_cmp_eq_i32", |a, b| a % LOW == b % LOW),
        ("s_cmp_lg_i32", |a, b| a % LOW != b % LOW),
        ("s_cmp_gt_i32", |a, b| signed32(a) > signed32(b)),
        ("s_cmp_ge_i32", |a, b| signed32(a) >= signed32(b)),
        ("s_cmp_lt_i32", |a, b| signed32(a) < signed32(b)),
        ("s_cmp_le_i32", |a, b| signed32(a) <= signed32(b)),
        ("s_cmp_eq_u32", |a, b| a % LOW == b % LOW),
        ("s_cmp_lg_u32", |a, b| a % LOW != b % LOW),
        ("s_cmp_gt_u32", |a, b| a % LOW > b % LOW),
        ("s_cmp_ge_u32", |a, b| a % LOW >= b % LOW),
        ("s_cmp_lt_u32", |a, b| a % LOW < b % LOW),
        ("s_cmp_le_u32", |a, b| a % LOW <= b % LOW),
        ("s_bitcmp0_b32", |a, b| !bit(a, (b % 32) as u32)),
        ("s_bitcmp1_b32", |a, b| bit(a, (b % 32) as u32)),
        ("s_bitcmp0_b64", |a, b| !bit(a, (b % 64) as u32)),
        ("s_bitcmp1_b64", |a, b| bit(a, (b % 64) as u32)),
        ("s_cmp_eq_u64", |a, b| a == b),
        ("s_cmp_lg_u64", |a, b| a != b),
    ];
    for (name, holds) in table {
        let inputs = lanes(name.len() as u64, &CORNERS, Random::next);
        for Lane { a, b, .. } in inputs.into_iter().take(16) {
            let compare = 0b1_0111_1110 << 23 | op(Encoding::Sopc, name) << 16 | 12 << 8 | 10;
            let code = [&before(a, b, false)[..], &[compare], &behind()].concat();
            let after = run(&code, &[Lane::default(); 64]);
            assert_eq!(after.v[0][2] == 1, holds(a.into(), b.into()), "{name} of {a:x} and {b:x}");
        }
    }
}

fn sop1(name: &str, d: u32, source: u32) -> u32 {
    0b1_0111_1101 << 23 | d << 16 | op(Encoding::Sop1, name) << 8 | source
}

/// `s_..._saveexec_b64`: the destination gets EXEC, EXEC a function of the source and of what it was, scc whether a lane is left.
#[test]
pub fn exec_from_masks() {
    type Function = fn(bool, bool) -> bool;
    let table: [(&str, Function); 7] = [
        ("s_and_saveexec_b64", |s, e| s && e),
        ("s_or_saveexec_b64", |s, e| s || e),
        ("s_xor_saveexec_b64", |s, e| s != e),
        ("s_andn2_saveexec_b64", |s, e| s && !e),
        ("s_orn2_saveexec_b64", |s, e| s || !e),
        ("s_andn1_saveexec_b64", |s, e| !s && e),
        ("s_orn1_saveexec_b64", |s, e| !s || e),
    ];
    for (name, function) in table {
        let inputs = lanes(name.len() as u64, &CORNERS, Random::next);
        for Lane { a: source, b: exec, .. } in inputs.into_iter().take(24) {
            let select = 0b10 << 30 | op(Encoding::Sop2, "s_cselect_b32") << 23 | 16 << 16 | 128 << 8 | 129;
            let mov = |d, source| sop1("s_mov_b64", d, source);
            let body = [mov(126, 12), sop1(name, 14, 10), mov(18, 126), select, mov(126, 193)];
            let result =
                (0..64).filter(|i| function(source >> i & 1 == 1, exec >> i & 1 == 1)).map(|i| 1u64 << i).sum();
            for (registers, expected) in [([14, 15], exec), ([18, 19], result), ([16, 128], u64::from(result != 0))] {
                let show = registers.map(|r| r as u32);
                let code = [
                    &before(source, exec, exec.is_multiple_of(2))[..],
                    &body,
                    &[v_mov(10, show[0]), v_mov(11, show[1])],
                ];
                let after = run(&code.concat(), &[Lane::default(); 64]);
                let found = u64::from(after.v[17][0]) | u64::from(after.v[17][1]) << 32;
                assert_eq!(found, expected, "{name} of {source:x}, exec {exec:x}: {registers:?}");
            }
        }
    }
}

/// One bit of the destination, by the low five bits of the source.
#[test]
pub fn single_bits() {
    for (name, to) in [("s_bitset0_b32", false), ("s_bitset1_b32", true)] {
        let inputs = lanes(name.len() as u64, &CORNERS, Random::next);
        for (n, Lane { a, b, .. }) in inputs.into_iter().take(16).enumerate() {
            let scc = n % 2 == 0;
            let code = [&before(a, b, scc)[..], &[sop1("s_mov_b32", 14, 12), sop1(name, 14, 10)], &behind()];
            let after = run(&code.concat(), &[Lane::default(); 64]);
            let place = (a % 32) as u32;
            let (expected, _) = bits(32, |i| if i == place { to } else { bit(b.into(), i) });
            assert_eq!(i128::from(after.v[0][0]), expected, "{name} of {a:x} in {b:x}");
            assert_eq!(after.v[0][2] == 1, scc, "{name}: scc");
        }
    }
}

/// Compares and arithmetic with sixteen bits of the instruction, which unsigned compares extend with zeros and all others with the sign.
#[test]
pub fn immediates() {
    type Holds = fn(i128, i128) -> bool;
    let table: [(&str, Holds); 6] = [
        ("eq", |a, b| a == b),
        ("lg", |a, b| a != b),
        ("gt", |a, b| a > b),
        ("ge", |a, b| a >= b),
        ("lt", |a, b| a < b),
        ("le", |a, b| a <= b),
    ];
    let constants = [0u32, 1, 0x7fff, 0x8000, 0xffff, 0xfffe, 0x1234];
    let corners = [0, 1, 0x7fff, 0x8000, 0xffff, 0xffff_8000, 0xffff_ffff, 0x7fff_ffff, 0x8000_0000];
    let sopk = |name: &str, register: u32, constant: u32| {
        0b1011 << 28 | op(Encoding::Sopk, name) << 23 | register << 16 | constant
    };
    let signed16 = |x: u32| i128::from(x) - if x >= 1 << 15 { 1 << 16 } else { 0 };
    for (n, constant) in constants.into_iter().enumerate() {
        let inputs = lanes(n as u64, &corners, Random::next);
        for Lane { a, .. } in inputs.into_iter().take(10) {
            let low = i128::from(a) % LOW;
            for (condition, holds) in table {
                for (kind, a, b) in [("i32", signed32(low), signed16(constant)), ("u32", low, constant.into())] {
                    let name = format!("s_cmpk_{condition}_{kind}");
                    let code = [&before(low as u64, 0, !holds(a, b))[..], &[sopk(&name, 10, constant)], &behind()];
                    let after = run(&code.concat(), &[Lane::default(); 64]);
                    assert_eq!(after.v[0][2] == 1, holds(a, b), "{name} of {a:x} and {b:x}");
                }
            }
            let exact = |x: i128| (unsigned32(x) as u32, overflows(x) == Some(true));
            let (sum, over) = exact(signed32(low) + signed16(constant));
            for (name, result, scc) in [
                ("s_movk_i32", unsigned32(signed16(constant)) as u32, None),
                ("s_addk_i32", sum, Some(over)),
                ("s_mulk_i32", unsigned32(signed32(low) * signed16(constant)) as u32, None),
            ] {
                for start in [false, true] {
                    let copy = sop1("s_mov_b32", 14, 10);
                    let code = [&before(low as u64, 0, start)[..], &[sopk(name, 10, constant), copy], &behind()];
                    let after = run(&code.concat(), &[Lane::default(); 64]);
                    let [found, _, found_scc, _] = after.v[0];
                    assert_eq!((found, found_scc == 1), (result, scc.unwrap_or(start)), "{name} {low:x} {constant:x}");
                }
            }
        }
    }
}

/// Dwords from a base and offsets of the instruction, of a register, or both; the two lowest bits of the sum do not count.
#[test]
pub fn loads() {
    let inputs = lanes(1, &[7], Random::next);
    let image = image(&inputs);
    for (name, dwords) in [
        ("s_load_dword", 1),
        ("s_load_dwordx2", 2),
        ("s_load_dwordx4", 4),
        ("s_load_dwordx8", 8),
        ("s_load_dwordx16", 16),
    ] {
        let number = op(Encoding::Smem, name);
        // s[24:39] from s[8:9]; s20 = 72.
        for (form, second, at) in [
            (1 << 17, 100, 100),
            (1 << 17, 103, 100),
            (0, 20, 72),
            (1 << 17 | 1 << 14, 20 << 25 | 36, 108),
            (1 << 17 | 1 << 14, 20 << 25 | 0x1f_ffc0, 8),
        ] {
            let load = [0b11_0000 << 26 | number << 18 | form | 24 << 6 | 4, second];
            for part in (0..dwords).step_by(4) {
                let shown = (part..dwords.min(part + 4)).enumerate();
                let show: Vec<u32> = shown.clone().map(|(i, from)| v_mov(10 + i as u32, 24 + from as u32)).collect();
                let after = run(&[&s_mov(20, 72)[..], &load, &[WAIT], &show].concat(), &inputs);
                for (i, from) in shown {
                    let place = at + 4 * from;
                    let expected = u32::from_le_bytes(image[place..place + 4].try_into().unwrap());
                    assert_eq!(after.v[40][i], expected, "{name}, form {form:x}, {second:x}, dword {from}");
                }
            }
        }
    }
}
