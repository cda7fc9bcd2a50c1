//! Instructions per second on one core: `cargo bench -p tokenspeed-emulator`. Targets: 20 M vector instructions and
//! 300 k bf16 matrix instructions per second without checks, 4 M and 100 k with all of them.
//!
//! The best of many short runs: on a busy machine a run of a millisecond or two is sometimes left alone, a longer one never is.

use std::time::Instant;

use amdhip64::{
    code::Kernel,
    machine::{Dispatch, Memory, Mode, launch},
};

/// `repeat` copies of some instructions in a loop of `rounds`.
fn looped(body: &[u32], repeat: usize, rounds: u32) -> Vec<u32> {
    let mut words = Vec::new();
    // v_mov_b32 v1..v31, 1.0, so that everything is initialised.
    for register in 1..32 {
        words.push(0x3f << 25 | register << 17 | 1 << 9 | 242);
    }
    // s_mov_b32 s8, rounds
    words.extend([0b1_0111_1101 << 23 | 8 << 16 | 255, rounds]);
    let start = words.len();
    (0..repeat).for_each(|_| words.extend(body));
    // s_sub_u32 s8, s8, 1; s_cmp_lg_u32 s8, 0; s_cbranch_scc1 start; s_endpgm
    words.push(0b10 << 30 | 1 << 23 | 8 << 16 | 129 << 8 | 8);
    words.push(0b1_0111_1110 << 23 | 7 << 16 | 128 << 8 | 8);
    let back = start as i32 - words.len() as i32 - 1;
    words.push(0b1_0111_1111 << 23 | 5 << 16 | (back as u32 & 0xffff));
    words.push(0xbf81_0000);
    words
}

/// Runs, of which the best counts.
const RUNS: usize = 300;

fn rate(name: &str, body: &[u32], per_body: u64, rounds: u32) {
    for check in [false, true] {
        let kernel = Kernel::bare(name, &looped(body, 50, rounds), 32).expect("code");
        let dispatch = Dispatch { groups: [1, 1, 1], block: [64, 1, 1], ..Dispatch::default() };
        let mode = Mode { check, seed: 0, threads: 1, max_steps: u64::MAX, ..Mode::default() };
        let run = |_| {
            let start = Instant::now();
            launch(&kernel, &Memory::default(), None, &dispatch, mode).expect("a run");
            start.elapsed().as_secs_f64()
        };
        let best = (0..RUNS).map(run).fold(f64::INFINITY, f64::min);
        let per_second = (50 * u64::from(rounds) * per_body) as f64 / best;
        println!("{name:12} checks {check:5}: {:10.0} thousand/s", per_second / 1e3);
    }
}

fn main() {
    // v_add_f32 v1, v2, v1; v_add_u32 v3, v4, v3; v_and_b32 v5, v6, v5; v_fma_f32 v7, v8, v9, v7
    let vop2 = |op: u32, d: u32, a: u32| op << 25 | d << 17 | d << 9 | (256 + a);
    let fma = [0b11_0100 << 26 | 459 << 16 | 7, 264 | 265 << 9 | 263 << 18];
    rate("vector", &[vop2(1, 1, 2), vop2(52, 3, 4), vop2(19, 5, 6), fma[0], fma[1]], 4, 200);
    // v_mfma_f32_16x16x32_bf16 v[0:3], v[4:7], v[8:11], v[0:3] with a lane's number in v0 as any other value
    let mfma = |op: u32, d: u32| [0x1a7 << 23 | op << 16 | d, 260 | 264 << 9 | (256 + d) << 18];
    rate("16x16x32", &mfma(53, 12), 1, 20);
    rate("32x32x16", &mfma(55, 16), 1, 20);
}
