//! Times the GEMM shapes of a small Llama (SmolLM2-135M) for each weight format and number of rows.
//!
//! `cargo run --release --example gemm_speed [workers] [tier] [format,...]`. Weights are cycled through copies that
//! exceed the caches, as in a model. Prints the best of several rounds: the machine's speed, not its load.

use std::time::Instant;
use tokenspeed_backend_api::dtype::DType;
use tokenspeed_reference_cpu::{
    Level, Pool,
    gemm::{GemmArgs, TILE_ROWS, Weight, gemm, pack_tiles, packed_bytes, scratch_bytes},
    scratch::Scratch,
};

/// (outputs, depth).
const SHAPES: [(usize, usize); 5] = [(576, 576), (192, 576), (1536, 576), (576, 1536), (49152, 576)];
const ROWS: [usize; 6] = [1, 4, 8, 16, 64, 512];
/// Copies of one weight together exceed this many bytes.
const WORKING_SET_BYTES: usize = 24 << 20;

fn main() {
    let mut args = std::env::args().skip(1);
    let workers = args.next().map_or(2, |s| s.parse().expect("number of workers"));
    let level = args.next().map_or(Level::detect(), |s| s.parse::<Level>().and_then(Level::checked).expect("tier"));
    let wanted = args.next().unwrap_or_else(|| "q4_1,q8_0,bf16".to_owned());
    let mut pool = Pool::new(workers).expect("threads");
    println!("{level}, {workers} workers");
    for dtype in DType::ALL.into_iter().filter(|d| wanted.split(',').any(|w| w == d.name())) {
        for (n, k) in SHAPES {
            pool.reserve_scratch(scratch_bytes(level, dtype, 512, k));
            let bytes = packed_bytes(dtype, n, k);
            let copies = WORKING_SET_BYTES.div_ceil(bytes);
            let mut weights = Scratch::new(copies * bytes);
            let base: *mut u8 = weights.carve().take(copies * bytes);
            let stored: Vec<u8> = (0..n * dtype.bytes(k as u64).unwrap() as usize).map(|i| (i % 61) as u8).collect();
            for copy in 0..copies {
                // SAFETY: copy `copy` is inside the buffer.
                let out = unsafe { std::slice::from_raw_parts_mut(base.add(copy * bytes), bytes) };
                if copy == 0 {
                    pack_tiles(dtype, &stored, n, k, 0..n.div_ceil(TILE_ROWS), out);
                } else {
                    // SAFETY: copies do not overlap.
                    unsafe { std::ptr::copy_nonoverlapping(base, out.as_mut_ptr(), bytes) };
                }
            }
            for m in ROWS {
                let x = vec![0.5f32; m * k];
                let mut y = vec![0f32; m * n];
                let (x, y, data) = (x.as_ptr() as usize, y.as_mut_ptr() as usize, base as usize);
                let work = 2.0 * (m * n * k) as f64;
                let runs = ((2e9 / work) as usize).clamp(1, copies);
                let mut best = f64::INFINITY;
                let begin = Instant::now();
                while begin.elapsed().as_secs_f64() < 0.06 {
                    let start = Instant::now();
                    pool.run(|w| {
                        for run in 0..runs {
                            let data = (data + run * bytes) as *const u8;
                            let weight = Weight { data, dtype, packed: true };
                            let (x, y, bias) = (x as *const f32, y as *mut f32, std::ptr::null());
                            let args = GemmArgs { x, ldx: k, weight, bias, y, ldy: n, m, n, k };
                            // SAFETY: operands have the shapes given; the tier is available.
                            unsafe { gemm(level, w.part(), w.scratch(), &args) };
                            w.barrier();
                        }
                    });
                    best = best.min(start.elapsed().as_secs_f64() / runs as f64);
                }
                println!(
                    "{:>5} {n:>6}x{k:<5} m {m:>4} {:>9.1} us {:>8.1} GFLOP/s {:>6.1} GB/s of weights",
                    dtype.name(),
                    best * 1e6,
                    work / best / 1e9,
                    bytes as f64 / best / 1e9
                );
            }
        }
    }
}
