//! Times the experts of one Kimi K3 layer against the machine's read bandwidth.
//!
//! `cargo run --release --example experts_speed [workers] [tier] [format]`. Experts together exceed the caches, and every
//! run takes others. Prints the best of several rounds: the machine's speed, not its load.

use std::time::Instant;
use tokenspeed_backend_api::dtype::DType;
use tokenspeed_reference_cpu::{
    Level, Pool,
    experts::{Act, ExpertsArgs, Matrix, experts, hidden_bytes, scratch_bytes},
    scratch::Scratch,
};

const K: usize = 3584;
const N: usize = 3072;
const TOP: usize = 16;
const EXPERTS: usize = 96;
const TOKENS: [usize; 6] = [1, 2, 4, 16, 64, 512];
const ROUNDS: usize = 4;

/// Pointers that workers share.
#[derive(Clone, Copy)]
struct Shared(ExpertsArgs);
// SAFETY: the kernel's workers write disjoint memory.
unsafe impl Sync for Shared {}
impl Shared {
    fn get(&self) -> &ExpertsArgs {
        &self.0
    }
}

/// Best GB/s of all workers adding up `data`.
fn read_bandwidth(pool: &mut Pool, data: &[u64]) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        pool.run(|w| {
            let mut sums = [0u64; 8];
            for chunk in data[w.part().of(data.len())].chunks_exact(8) {
                sums.iter_mut().zip(chunk).for_each(|(s, v)| *s ^= v);
            }
            std::hint::black_box(sums);
        });
        best = best.min(start.elapsed().as_secs_f64());
    }
    size_of_val(data) as f64 / best / 1e9
}

fn main() {
    let mut args = std::env::args().skip(1);
    let workers = args.next().map_or(2, |s| s.parse().expect("number of workers"));
    let level = args.next().map_or(Level::detect(), |s| s.parse::<Level>().and_then(Level::checked).expect("tier"));
    let wanted = args.next().unwrap_or_else(|| "mxfp4".to_owned());
    let dtype = DType::ALL.into_iter().find(|d| d.name() == wanted).expect("format");
    let mx = dtype == DType::Mxfp4;
    let mut pool = Pool::new(workers).expect("threads");
    // An expert lies in one piece, as published: w1, w3 and w2, each with its scales.
    let (values, scales) = (dtype.bytes((K * N) as u64).unwrap() as usize, if mx { K * N / 32 } else { 0 });
    let (pitch, experts_n) = (3 * (values + scales), if mx { EXPERTS } else { EXPERTS / 4 });
    let file = vec![0x7c7c_7c7c_3c3c_3c3cu64; experts_n * pitch / 8];
    let bandwidth = read_bandwidth(&mut pool, &file);
    println!("{level}, {workers} workers; reading {:.2} GB: {bandwidth:.1} GB/s", (experts_n * pitch) as f64 / 1e9);
    let matrix = |i: usize| {
        let base = file.as_ptr().cast::<u8>().wrapping_add(i * (values + scales));
        let (rows, k) = if i == 2 { (K, N) } else { (N, K) };
        let scales = if mx { base.wrapping_add(values) } else { std::ptr::null() };
        Matrix { dtype, values: base, stride: pitch, scales, scale_stride: pitch, rows, k }
    };
    let slots: Vec<u32> = (0..experts_n as u32).collect();
    let mut memory = Scratch::new(hidden_bytes(N));
    let hidden: *mut f32 = memory.carve().take(hidden_bytes(N) / 4);
    for tokens in TOKENS {
        pool.reserve_scratch(scratch_bytes(level, dtype, tokens, TOP, experts_n, K, N));
        let (x, weights) = (vec![0.01f32; tokens * K], vec![0.1f32; tokens * TOP]);
        let mut y = vec![0f32; tokens * K];
        let mut best = (f64::INFINITY, 0);
        for round in 0..ROUNDS {
            // Tokens of a short step share few experts, those of a long one all of them.
            let id = |i: usize| ((i / TOP * 7 + i % TOP * 5 + round * 31) % experts_n) as u32;
            let ids: Vec<u32> = (0..tokens * TOP).map(id).collect();
            let mut chosen = ids.clone();
            chosen.sort();
            chosen.dedup();
            let args = Shared(ExpertsArgs {
                x: x.as_ptr(),
                ids: ids.as_ptr(),
                weights: weights.as_ptr(),
                slots: slots.as_ptr(),
                w1: matrix(0),
                w3: matrix(1),
                w2: matrix(2),
                y: y.as_mut_ptr(),
                hidden,
                tokens,
                top: TOP,
                experts: experts_n,
                act: Act::Situ { beta: 4.0, linear: 25.0 },
                residency: None,
            });
            let start = Instant::now();
            // SAFETY: operands have the shapes given; the tier is available.
            pool.run(|w| unsafe { experts(level, w, args.get()).expect("experts exist") });
            let seconds = start.elapsed().as_secs_f64();
            if seconds < best.0 {
                best = (seconds, chosen.len() * pitch);
            }
        }
        let (seconds, bytes) = best;
        let rate = bytes as f64 / seconds / 1e9;
        println!(
            "{} tokens {tokens:>4}: {:>9.2} ms, {:>6.1} GB/s of chosen experts ({:>3.0}% of reading), {:>7.1} GFLOP/s",
            dtype.name(),
            seconds * 1e3,
            rate,
            100.0 * rate / bandwidth,
            6.0 * (tokens * TOP * K * N) as f64 / seconds / 1e9
        );
    }
}
