//! Times absorbed latent attention of one Kimi K3 layer over long contexts, one token at a time.
//!
//! `cargo run --release --example mla_speed [workers] [tier] [heads]`. Prints the cache bytes and operations per second of
//! the best of several rounds: with 96 heads on a row of 1152 bytes arithmetic is the limit, with few heads memory is.

use std::time::Instant;
use tokenspeed_backend_api::{abi::ts_step_row, dtype::DType};
use tokenspeed_reference_cpu::{
    Level, Pool,
    kv_write::Pages,
    mla::attention::{MlaArgs, mla_attention, scratch_bytes, slots, workspace_bytes},
    scratch::Scratch,
};

const RANK: usize = 512;
const WIDTH: usize = RANK + 64;
const PAGE: usize = 64;
const CONTEXTS: [usize; 3] = [1024, 8192, 32768];

/// Pointers that workers share.
struct Shared<'a>(MlaArgs<'a>);
// SAFETY: the kernel's workers write disjoint memory.
unsafe impl Sync for Shared<'_> {}
impl<'a> Shared<'a> {
    fn get(&self) -> &MlaArgs<'a> {
        &self.0
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let workers = args.next().map_or(2, |s| s.parse().expect("number of workers"));
    let level = args.next().map_or(Level::detect(), |s| s.parse::<Level>().and_then(Level::checked).expect("tier"));
    let heads: usize = args.next().map_or(96, |s| s.parse().expect("number of heads"));
    let mut pool = Pool::new(workers).expect("threads");
    pool.reserve_scratch(scratch_bytes(heads, WIDTH, RANK));
    println!("{level}, {workers} workers, {heads} heads");
    for dtype in [DType::BF16, DType::F32, DType::F8E4M3] {
        for context in CONTEXTS {
            let blocks = context / PAGE;
            let mut cache = vec![0x11u8; context * WIDTH * dtype.block_bytes()];
            let table: Vec<u32> = (0..blocks as u32).rev().collect();
            let (q, mut y) = (vec![0.5f32; heads * WIDTH], vec![0f32; heads * RANK]);
            let slots = slots(1, context);
            let bytes = workspace_bytes(heads, RANK, slots);
            let mut workspace = Scratch::new(bytes);
            let rows = [ts_step_row { computed: context as u32 - 1, query_len: 1, ..Default::default() }];
            let args = Shared(MlaArgs {
                q: q.as_ptr(),
                cache: Pages {
                    data: cache.as_mut_ptr(),
                    dtype,
                    blocks,
                    block_tokens: PAGE,
                    width: WIDTH,
                    table: table.as_ptr(),
                    blocks_per_row: blocks,
                },
                y: y.as_mut_ptr(),
                rows: &rows,
                heads,
                rank: RANK,
                scale: 0.07,
                partial: workspace.carve().take(bytes / 4),
                slots,
            });
            let mut best = f64::INFINITY;
            for _ in 0..5 {
                let start = Instant::now();
                // SAFETY: operands have the shapes given; the tier is available.
                pool.run(|w| unsafe { mla_attention(level, w, args.get()) });
                best = best.min(start.elapsed().as_secs_f64());
            }
            println!(
                "{:>8} context {context:>6}: {:>8.2} ms, {:>6.2} GB/s of cache, {:>6.1} GFLOP/s",
                dtype.name(),
                best * 1e3,
                cache.len() as f64 / best / 1e9,
                2.0 * (context * heads * (WIDTH + RANK)) as f64 / best / 1e9
            );
        }
    }
}
