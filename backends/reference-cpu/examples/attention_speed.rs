//! Times paged attention (9 query heads, 3 key/value heads of 64) on one worker, pages in cache.
//!
//! `cargo run --release --example attention_speed [tier] [context]`.

use std::time::Instant;
use tokenspeed_backend_api::{abi::ts_step_row, dtype::DType};
use tokenspeed_reference_cpu::{
    Level, Part,
    attention::{AttentionArgs, paged_attention, scratch_bytes},
    kv_write::Pages,
    scratch::Scratch,
};

fn main() {
    let mut args = std::env::args().skip(1);
    let level = args.next().map_or(Level::detect(), |s| s.parse::<Level>().and_then(Level::checked).expect("tier"));
    let context: usize = args.next().map_or(512, |s| s.parse().expect("context length"));
    let (heads, kv_heads, dim, block_tokens) = (9, 3, 64, 64);
    let blocks = context.div_ceil(block_tokens);
    let table: Vec<u32> = (0..blocks as u32).collect();
    let mut memory = Scratch::new(2 * blocks * block_tokens * kv_heads * dim * 4);
    let mut carver = memory.carve();
    let mut pages = || Pages {
        data: carver.take::<u8>(blocks * block_tokens * kv_heads * dim * 4),
        dtype: DType::F32,
        blocks,
        block_tokens,
        width: kv_heads * dim,
        table: table.as_ptr(),
        blocks_per_row: blocks,
    };
    let (k, v) = (pages(), pages());
    let mut scratch = Scratch::new(scratch_bytes(heads, kv_heads, dim));
    for len in [1, 4, 64, context] {
        let q = vec![0.01f32; len * heads * dim];
        let mut y = vec![0f32; len * heads * dim];
        let rows = [ts_step_row { computed: (context - len) as u32, query_len: len as u32, ..Default::default() }];
        let args = AttentionArgs {
            q: q.as_ptr(),
            k,
            v,
            y: y.as_mut_ptr(),
            rows: &rows,
            heads,
            kv_heads,
            head_dim: dim,
            scale: 0.125,
            window: 0,
        };
        let mut best = f64::INFINITY;
        let begin = Instant::now();
        while begin.elapsed().as_secs_f64() < 0.2 {
            let start = Instant::now();
            // SAFETY: shapes as documented; the tier is available.
            unsafe { paged_attention(level, Part::WHOLE, &mut scratch, &args) };
            best = best.min(start.elapsed().as_secs_f64());
        }
        let pairs: usize = (0..len).map(|i| context - len + i + 1).sum();
        let flops = (pairs * heads * dim * 4) as f64;
        let tiles = context.div_ceil(64) * kv_heads;
        println!(
            "{level} context {context} queries {len:>4}: {:8.1} us, {:6.1} GFLOP/s, {:.2} us per tile",
            best * 1e6,
            flops / best / 1e9,
            best * 1e6 / tiles as f64
        );
    }
}
