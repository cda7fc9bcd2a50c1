//! Values that move between lanes: DPP, swaps of rows, single lanes, permutations through LDS hardware.

use amdhip64::isa::Encoding;

use crate::bench::{Lane, Random, WAIT, ds, lanes, op, run, v, v_mov, vop3};

/// `v_mov_b32_dpp v10, v4`.
fn dpp(control: u32, zero: bool, rows: u32, banks: u32) -> [u32; 2] {
    [v_mov(10, 250), 4 | control << 8 | u32::from(zero) << 19 | banks << 24 | rows << 28]
}

/// Where lane l's value comes from; `None`: from outside.
fn source(control: u32, l: i32) -> Option<i32> {
    let (row, place) = (l / 16 * 16, l % 16);
    let n = (control & 15) as i32;
    let in_row = |at: i32| (0..16).contains(&at).then_some(row + at);
    match control {
        0..=0xff => Some(l / 4 * 4 + (control >> (2 * (l % 4)) & 3) as i32),
        0x101..=0x10f => in_row(place + n),
        0x111..=0x11f => in_row(place - n),
        0x121..=0x12f => Some(row + (place - n).rem_euclid(16)),
        0x140 => Some(row + 15 - place),
        0x141 => Some(row + place / 8 * 8 + 7 - place % 8),
        0x142 => (row > 0).then(|| row - 1),
        0x143 => (l >= 32).then_some(31),
        0x150..=0x15f => Some(row + n),
        _ => panic!("{control:x}"),
    }
}

#[test]
pub fn dpp_controls() {
    let lanes = lanes(1, &[5], Random::next);
    let quads = [0b00_01_10_11, 0b11_10_01_00, 0xb1, 0x4e];
    let rows = [0x101, 0x104, 0x10f, 0x111, 0x112, 0x118, 0x11f, 0x121, 0x127, 0x12f, 0x140, 0x141, 0x150, 0x15b];
    for control in quads.into_iter().chain(rows) {
        for (zero, row_mask, bank_mask) in [(false, 15, 15), (true, 15, 15), (false, 0b1010, 15), (false, 15, 0b0110)] {
            let after = run(&dpp(control, zero, row_mask, bank_mask), &lanes);
            for (l, x) in lanes.iter().enumerate() {
                let written = row_mask >> (l / 16) & 1 == 1 && bank_mask >> (l % 16 / 4) & 1 == 1;
                let expected = match source(control, l as i32) {
                    _ if !written => x.old as u32,
                    Some(from) => lanes[from as usize].a as u32,
                    None if zero => 0,
                    None => x.old as u32,
                };
                assert_eq!(after.v[l][0], expected, "control {control:x} {zero} {row_mask:b} {bank_mask:b}, lane {l}");
            }
        }
    }
    // As compilers use them: only the rows that have a source.
    for (control, row_mask) in [(0x142, 0b1010), (0x143, 0b1100)] {
        let after = run(&dpp(control, false, row_mask, 15), &lanes);
        for (l, x) in lanes.iter().enumerate() {
            let from = source(control, l as i32).filter(|_| row_mask >> (l / 16) & 1 == 1);
            let expected = from.map_or(x.old, |from| lanes[from as usize].a) as u32;
            assert_eq!(after.v[l][0], expected, "control {control:x}, lane {l}");
        }
    }
}

#[test]
pub fn rows_change_places() {
    let lanes = lanes(2, &[5], Random::next);
    for (name, rows) in [("v_permlane16_swap_b32", 16), ("v_permlane32_swap_b32", 32)] {
        let swap = 0x3f << 25 | 10 << 17 | op(Encoding::Vop1, name) << 9 | v(4);
        let after = run(&[swap, v_mov(12, v(4))], &lanes);
        for l in 0..64 {
            // The destination's odd groups and the source's even ones change places.
            let odd = l / rows % 2 == 1;
            let (first, second) =
                if odd { (lanes[l - rows].a, lanes[l].a) } else { (lanes[l].old, lanes[l + rows].old) };
            assert_eq!((after.v[l][0], after.v[l][2]), (first as u32, second as u32), "{name}, lane {l}");
        }
    }
}

#[test]
pub fn single_lanes() {
    let lanes = lanes(3, &[5], Random::next);
    let read = vop3(op(Encoding::Vop3, "v_readlane_b32"), 14, [v(4), 128 + 37, 0]);
    let write = vop3(op(Encoding::Vop3, "v_writelane_b32"), 10, [14, 128 + 21, 0]);
    let first = 0x3f << 25 | 15 << 17 | op(Encoding::Vop1, "v_readfirstlane_b32") << 9 | v(6);
    let after = run(&[&read[..], &write, &[first, v_mov(12, 15)]].concat(), &lanes);
    for (l, x) in lanes.iter().enumerate() {
        let expected = if l == 21 { lanes[37].a } else { x.old };
        assert_eq!((after.v[l][0], after.v[l][2]), (expected as u32, lanes[0].b as u32), "lane {l}");
    }
}

#[test]
pub fn permutations() {
    let mut lanes = lanes(4, &[5], Random::next);
    let pull = run(&ds("ds_bpermute_b32", 6, 4, 10, 0), &lanes);
    for (l, x) in lanes.iter().enumerate() {
        assert_eq!(pull.v[l][0], lanes[(x.b / 4 % 64) as usize].a as u32, "ds_bpermute_b32, lane {l}");
    }
    let to = |l: usize| (37 * l + 5) % 64;
    for (l, x) in lanes.iter_mut().enumerate() {
        *x = Lane { b: 4 * to(l) as u64, ..*x };
    }
    let push = run(&ds("ds_permute_b32", 6, 4, 10, 0), &lanes);
    for (l, x) in lanes.iter().enumerate() {
        assert_eq!(push.v[to(l)][0], x.a as u32, "ds_permute_b32, to lane {}", to(l));
    }
    // Quads by selection; groups of 32 by and, or, xor of five bits.
    for (offset, from) in [
        (0x8000 | 0b00_11_10_01, (|l| l / 4 * 4 + [1, 2, 3, 0][l % 4]) as fn(usize) -> usize),
        (0x1f | 16 << 10, |l| l / 32 * 32 + ((l % 32) ^ 16)),
        (0x18 | 3 << 5, |l| l / 32 * 32 + ((l % 32 / 8 * 8) | 3)),
    ] {
        let after = run(&[&ds("ds_swizzle_b32", 4, 0, 10, offset)[..], &[WAIT]].concat(), &lanes);
        for l in 0..64 {
            assert_eq!(after.v[l][0], lanes[from(l)].a as u32, "ds_swizzle_b32 {offset:x}, lane {l}");
        }
    }
}

/// There, from one to another, and back.
#[test]
pub fn accumulators() {
    let lanes = lanes(5, &[5], Random::next);
    let mai = |name: &str, d: u32, source: u32| [0x1a7 << 23 | op(Encoding::Mai, name) << 16 | d, v(source)];
    let mov = 0x3f << 25 | 3 << 17 | op(Encoding::Vop1, "v_accvgpr_mov_b32") << 9 | v(1);
    let code = [&mai("v_accvgpr_write_b32", 1, 4)[..], &mai("v_accvgpr_write_b32", 2, 6), &[mov]].concat();
    let after = run(
        &[
            &code[..],
            &mai("v_accvgpr_read_b32", 10, 3),
            &mai("v_accvgpr_read_b32", 11, 2),
            &mai("v_accvgpr_read_b32", 12, 1),
        ]
        .concat(),
        &lanes,
    );
    for (l, x) in lanes.iter().enumerate() {
        assert_eq!(after.v[l][..3], [x.a as u32, x.b as u32, x.a as u32], "lane {l}");
    }
}
