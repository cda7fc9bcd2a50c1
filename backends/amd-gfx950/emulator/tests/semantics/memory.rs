//! LDS and device memory: widths, halves and signs, two places at a time, atomics.

use amdhip64::isa::Encoding;

use crate::{
    bench::{Random, WAIT, ds, global, image, lanes, op, run, v_mov, vector},
    widths::{LOADS, STORES, signed},
};

/// v14 = 8 v0: each lane's own eight bytes of LDS.
fn own() -> Vec<u32> {
    vector("v_lshlrev_b32", 14, [131, 256, 0]).to_vec()
}

#[test]
pub fn widths_of_lds() {
    let lanes = lanes(1, &[0xff80_7f00_8000_7fff], Random::next);
    let write = [&own()[..], &ds("ds_write_b64", 14, 4, 0, 0), &[WAIT]].concat();
    type Narrow = fn(u64, u64) -> u64;
    let table: [(&str, u32, Narrow); 11] = [
        ("ds_read_b32", 4, |x, _| x >> 32),
        ("ds_read_u8", 5, |x, _| x >> 40 & 0xff),
        ("ds_read_i8", 3, |x, _| signed(x >> 24, 8) as u64),
        ("ds_read_u16", 2, |x, _| x >> 16 & 0xffff),
        ("ds_read_i16", 6, |x, _| signed(x >> 48, 16) as u64),
        ("ds_read_u8_d16", 1, |x, old| x >> 8 & 0xff | old & 0xffff_0000),
        ("ds_read_u8_d16_hi", 1, |x, old| (x >> 8 & 0xff) << 16 | old & 0xffff),
        ("ds_read_i8_d16", 7, |x, old| signed(x >> 56, 8) as u64 & 0xffff | old & 0xffff_0000),
        ("ds_read_u16_d16", 4, |x, old| x >> 32 & 0xffff | old & 0xffff_0000),
        ("ds_read_u16_d16_hi", 4, |x, old| (x >> 32 & 0xffff) << 16 | old & 0xffff),
        ("ds_read_i8_d16_hi", 3, |x, old| (signed(x >> 24, 8) as u64 & 0xffff) << 16 | old & 0xffff),
    ];
    for (name, offset, formula) in table {
        let after = run(&[&write[..], &ds(name, 14, 0, 10, offset)].concat(), &lanes);
        for (l, x) in lanes.iter().enumerate() {
            assert_eq!(after.v[l][0], formula(x.a, x.old & 0xffff_ffff) as u32, "{name}, lane {l}: {x:x?}");
        }
    }
    // Narrow writes leave the rest.
    for (name, offset, low, bits) in [
        ("ds_write_b8", 2, 0, 8),
        ("ds_write_b16", 4, 0, 16),
        ("ds_write_b8_d16_hi", 1, 16, 8),
        ("ds_write_b16_d16_hi", 6, 16, 16),
    ] {
        let code = [&write[..], &ds(name, 14, 6, 0, offset), &[WAIT], &ds("ds_read_b64", 14, 0, 10, 0)].concat();
        let after = run(&code, &lanes);
        for (l, x) in lanes.iter().enumerate() {
            let mut bytes = x.a.to_le_bytes();
            let new = (x.b >> low).to_le_bytes();
            let n = bits / 8;
            bytes[offset as usize..offset as usize + n].copy_from_slice(&new[..n]);
            let found = u64::from(after.v[l][0]) | u64::from(after.v[l][1]) << 32;
            assert_eq!(found, u64::from_le_bytes(bytes), "{name}, lane {l}: {x:x?}");
        }
    }
}

/// Offsets of the two places count elements, or 64 of them.
#[test]
pub fn two_places_of_lds() {
    let lanes = lanes(2, &[1], Random::next);
    let write = [&own()[..], &ds("ds_write_b64", 14, 4, 0, 0), &[WAIT]].concat();
    let both = run(&[&write[..], &ds("ds_read2_b32", 14, 0, 10, 1)].concat(), &lanes);
    // Lane l and lane l + 32, for the first 32 lanes; the others read from LDS that was written as well.
    let far = ds("ds_read2st64_b32", 14, 0, 10, 0);
    let near = run(&[&write[..], &far].concat(), &lanes);
    for (l, x) in lanes.iter().enumerate() {
        assert_eq!(both.v[l][..2], [(x.a >> 32) as u32, x.a as u32], "ds_read2_b32, lane {l}");
        assert_eq!(near.v[l][..2], [x.a as u32, x.a as u32], "ds_read2st64_b32, lane {l}");
    }
    let swapped = [&own()[..], &ds("ds_write2_b32", 14, 4, 6, 1), &[WAIT]].concat();
    let mut words = swapped;
    // data1 is in bits 16 to 23 of the second dword.
    let at = words.len() - 2;
    words[at] = 14 | 4 << 8 | 6 << 16;
    words.extend(ds("ds_read_b64", 14, 0, 10, 0));
    let after = run(&words, &lanes);
    for (l, x) in lanes.iter().enumerate() {
        assert_eq!(after.v[l][..2], [x.b as u32, x.a as u32], "ds_write2_b32, lane {l}");
    }
}

/// Global loads and stores of all widths: at a pair of registers and a signed offset, or at a scalar base and 32 bits of a register.
#[test]
pub fn global_widths() {
    // v14 = 64 v0 + 32: behind the base in s[8:9], the middle of a lane's record.
    let place = [vector("v_lshlrev_b32", 14, [134, 256, 0]), vector("v_add_u32", 14, [128 + 32, 256 + 14, 0])].concat();
    let at = |name: &str, data: u32, d: u32, scalar: bool, offset: i32| {
        let (address, base) = if scalar { (14, 8) } else { (2, 0x7f) };
        let first = 0b11_0111 << 26 | op(Encoding::Global, name) << 18 | 2 << 14 | offset as u32 & 0x1fff;
        [first, address | data << 8 | base << 16 | d << 24]
    };
    let lanes = lanes(3, &[0x8000_7fff_0080_ff00], Random::next);
    let begin = image(&lanes);
    for (n, kind) in LOADS.into_iter().enumerate() {
        let (name, bytes) = (format!("global_load_{}", kind.0), kind.1);
        // From the start of the record, and from its middle.
        for (scalar, offset) in [(false, (3 * n % 13) as i32), (true, -20 + n as i32)] {
            let after = run(&[&place[..], &at(&name, 0, 10, scalar, offset)].concat(), &lanes);
            for (l, x) in lanes.iter().enumerate() {
                let from = (64 * l + if scalar { 32 } else { 0 }).wrapping_add_signed(offset as isize);
                let mut expected = [x.old as u32, (x.old >> 32) as u32, 0, 0];
                for (to, part) in expected.iter_mut().zip(begin[from..from + bytes].chunks(4)) {
                    let found = part.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte));
                    *to = kind.register(*to, found);
                }
                assert_eq!(after.v[l], expected, "{name} {scalar} {offset}, lane {l}");
            }
        }
    }
    for (n, (kind, bytes, low)) in STORES.into_iter().enumerate() {
        for (scalar, offset) in [(false, 48 + (16 - bytes as i32) / 2), (true, -32 + n as i32)] {
            let name = format!("global_store_{kind}");
            let after = run(&[&place[..], &at(&name, 4, 0, scalar, offset), &[WAIT]].concat(), &lanes);
            let mut expected = begin.clone();
            for (l, x) in lanes.iter().enumerate() {
                let to = (64 * l + if scalar { 32 } else { 0 }).wrapping_add_signed(offset as isize);
                let data = [(x.a >> low).to_le_bytes(), x.b.to_le_bytes()].concat();
                expected[to..to + bytes].copy_from_slice(&data[..bytes]);
            }
            assert!(after.image == expected, "{name} {scalar} {offset}");
        }
    }
}

type Change = fn(u64, u64, u32) -> u64;

fn low(x: i128, bits: u32) -> u64 {
    x.rem_euclid(1i128 << bits) as u64
}

/// What an atomic leaves, by the last part of its name, for values of so many bits.
fn changes() -> [(&'static str, Change); 12] {
    [
        ("add", |old, x, bits| low(i128::from(old) + i128::from(x), bits)),
        ("sub", |old, x, bits| low(i128::from(old) - i128::from(x), bits)),
        ("smin", |old, x, bits| if signed(x, bits) < signed(old, bits) { x } else { old }),
        ("smax", |old, x, bits| if signed(x, bits) > signed(old, bits) { x } else { old }),
        ("umin", |old, x, _| if x < old { x } else { old }),
        ("umax", |old, x, _| if x > old { x } else { old }),
        ("and", |old, x, _| (0..64).filter(|i| old >> i & x >> i & 1 == 1).map(|i| 1 << i).sum()),
        ("or", |old, x, _| (0..64).filter(|i| (old >> i | x >> i) & 1 == 1).map(|i| 1 << i).sum()),
        ("xor", |old, x, _| (0..64).filter(|i| (old >> i & 1) != (x >> i & 1)).map(|i| 1 << i).sum()),
        ("inc", |old, x, _| if old >= x { 0 } else { old + 1 }),
        ("dec", |old, x, _| if old == 0 || old > x { x } else { old - 1 }),
        ("swap", |_, x, _| x),
    ]
}

#[test]
pub fn atomics_in_memory() {
    const CORNERS: [u64; 6] = [0, 1, 0x7fff_ffff, 0x8000_0000, 0x8000_0000_0000_0000, u64::MAX];
    for (what, formula) in changes() {
        for (bits, suffix) in [(32, ""), (64, "_x2")] {
            let name = format!("global_atomic_{what}{suffix}");
            for seed in 0..3 {
                let lanes = lanes(seed, &CORNERS, Random::next);
                let after = run(&global(&name, 6, 10, 0, true), &lanes);
                for (l, x) in lanes.iter().enumerate() {
                    let cut = |y: u64| if bits == 32 { y & 0xffff_ffff } else { y };
                    let expected = formula(cut(x.a), cut(x.b), bits);
                    assert_eq!(cut(after.memory[l]), expected, "{name}, lane {l}: {x:x?}");
                    let returned = u64::from(after.v[l][0]) | u64::from(after.v[l][1]) << 32;
                    assert_eq!(cut(returned), cut(x.a), "{name} returns what was there, lane {l}: {x:x?}");
                }
            }
        }
    }
}

#[test]
pub fn atomics_in_lds() {
    let of = |what: &str| match what {
        "add" | "sub" => format!("ds_{what}_rtn_u32"),
        "smin" | "smax" => format!("ds_{}_rtn_i32", &what[1..]),
        "umin" | "umax" => format!("ds_{}_rtn_u32", &what[1..]),
        "swap" => "ds_wrxchg_rtn_b32".into(),
        _ => format!("ds_{what}_rtn_b32"),
    };
    let write = [&own()[..], &ds("ds_write_b32", 14, 4, 0, 0), &[WAIT]].concat();
    for (what, formula) in changes().into_iter().filter(|(what, _)| !matches!(*what, "inc" | "dec")) {
        let lanes = lanes(5, &[0, 1, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff], Random::next);
        let name = of(what);
        let code = [&write[..], &ds(&name, 14, 6, 10, 0), &[WAIT], &ds("ds_read_b32", 14, 0, 12, 0)].concat();
        let after = run(&code, &lanes);
        for (l, x) in lanes.iter().enumerate() {
            let (a, b) = (x.a & 0xffff_ffff, x.b & 0xffff_ffff);
            assert_eq!(u64::from(after.v[l][2]), formula(a, b, 32), "{name}, lane {l}: {x:x?}");
            assert_eq!(u64::from(after.v[l][0]), a, "{name} returns what was there, lane {l}");
        }
        // And without a result; a swap has no such form.
        if what != "swap" {
            let name = name.replace("_rtn", "");
            let code = [&write[..], &ds(&name, 14, 6, 0, 0), &[WAIT], &ds("ds_read_b32", 14, 0, 12, 0)].concat();
            let left = |v: &[[u32; 4]]| v.iter().map(|v| v[2]).collect::<Vec<_>>();
            assert_eq!(left(&run(&code, &lanes).v), left(&after.v), "{name}");
        }
    }
    // All lanes on one place: a sum has no order.
    let lanes = lanes(6, &[1], Random::next);
    let zero = [v_mov(14, 128), v_mov(15, 128)];
    let code =
        [&zero[..], &ds("ds_write_b32", 14, 15, 0, 0), &[WAIT], &ds("ds_add_u32", 14, 4, 0, 0), &[WAIT]].concat();
    let after = run(&[&code[..], &ds("ds_read_b32", 14, 0, 10, 0)].concat(), &lanes);
    let sum = lanes.iter().map(|x| x.a & 0xffff_ffff).sum::<u64>() as u32;
    assert!(after.v.iter().all(|v| v[0] == sum));
}
