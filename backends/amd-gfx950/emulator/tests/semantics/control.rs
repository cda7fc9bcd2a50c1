//! Branches: taken or not, by scc, vcc and exec; and what changes nothing.

use amdhip64::isa::Encoding;

use crate::bench::{Lane, Random, lanes, op, run, s_mov, v, v_mov, vector};

/// `name` over the `dwords` behind it.
fn branch(name: &str, dwords: u32) -> u32 {
    0b1_0111_1111 << 23 | op(Encoding::Sopp, name) << 16 | dwords
}

#[test]
pub fn branches() {
    // Of scc, vcc and exec.
    type Taken = fn(bool, u64, u64) -> bool;
    let table: [(&str, Taken); 7] = [
        ("s_branch", |_, _, _| true),
        ("s_cbranch_scc0", |scc, _, _| !scc),
        ("s_cbranch_scc1", |scc, _, _| scc),
        ("s_cbranch_vccz", |_, vcc, _| vcc == 0),
        ("s_cbranch_vccnz", |_, vcc, _| vcc != 0),
        ("s_cbranch_execz", |_, _, exec| exec == 0),
        ("s_cbranch_execnz", |_, _, exec| exec != 0),
    ];
    let masks = [0, 1, 1 << 31, 1 << 32, 1 << 63, u64::MAX];
    for (name, taken) in table {
        for (i, scc) in [false, true].into_iter().enumerate() {
            for (n, vcc) in masks.into_iter().enumerate() {
                let exec = masks[(n + 1 + 2 * i) % masks.len()];
                let pair = |at: u32, x: u64| [s_mov(at, x as u32), s_mov(at + 1, (x >> 32) as u32)].concat();
                let code = [
                    &pair(106, vcc)[..],
                    &s_mov(14, 1),
                    &pair(126, exec),
                    // s_cmp_eq_u32 0, 0 or s_cmp_lg_u32 0, 0
                    &[if scc { 0xbf06_8080 } else { 0xbf07_8080 }, branch(name, 2)],
                    &s_mov(14, 2),
                    &pair(126, u64::MAX),
                    &[v_mov(10, 14)],
                ];
                let after = run(&code.concat(), &[Lane::default(); 64]);
                let expected = if taken(scc, vcc, exec) { 1 } else { 2 };
                assert_eq!(after.v[0][0], expected, "{name}: scc {scc}, vcc {vcc:x}, exec {exec:x}");
            }
        }
    }
    // Backwards: a loop of five rounds.
    let back = branch("s_cbranch_scc0", 0xffff & -3i32 as u32);
    let add = 0b10 << 30 | op(Encoding::Sop2, "s_add_u32") << 23 | 14 << 16 | 129 << 8 | 14;
    let until = 0b1_0111_1110 << 23 | op(Encoding::Sopc, "s_cmp_ge_u32") << 16 | (128 + 5) << 8 | 14;
    let after = run(&[&s_mov(14, 0)[..], &[add, until, back, v_mov(10, 14)]].concat(), &[Lane::default(); 64]);
    assert_eq!(after.v[0][0], 5);
}

/// Neither values nor scc, vcc or exec; what they hint at is the hardware's own.
#[test]
pub fn hints() {
    let lanes = lanes(1, &[1], Random::next);
    for name in ["s_nop", "s_setprio", "s_sleep"] {
        let hint = branch(name, 1);
        let compare = 0b1_0111_1110 << 23 | op(Encoding::Sopc, "s_cmp_eq_u32") << 16 | 129 << 8 | 129;
        let select = 0b10 << 30 | op(Encoding::Sop2, "s_cselect_b32") << 23 | 14 << 16 | 128 << 8 | 129;
        let vcc = [s_mov(106, 0x1234_5678), s_mov(107, 0x9abc_def0)].concat();
        let sum = vector("v_add_u32", 10, [v(4), v(6), 0]);
        let code = [&vcc[..], &[compare, hint], &sum, &[hint, select, v_mov(11, 14), v_mov(12, 106), v_mov(13, 107)]];
        let after = run(&code.concat(), &lanes);
        for (l, x) in lanes.iter().enumerate() {
            let sum = (x.a as u32).wrapping_add(x.b as u32);
            assert_eq!(after.v[l], [sum, 1, 0x1234_5678, 0x9abc_def0], "{name}, lane {l}");
        }
    }
}
