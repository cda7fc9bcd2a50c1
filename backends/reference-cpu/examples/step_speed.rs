//! Times whole steps of a SmolLM2-135M-shaped model on synthetic weights (Q4_1 layers, Q8_0 tied head), op by op.
//!
//! `cargo run --release --example step_speed [workers] [tier] [context] [name]`. Prints tokens per second for a 512-token
//! prompt and for decoding 1, 4 and 8 sequences, with each op's share of worker 0's time, barriers included.
//!
//! SAFETY: every call gets buffers made here for the shapes it is given, on a tier that was detected.

use std::{
    cell::Cell,
    time::{Duration, Instant},
};
use tokenspeed_backend_api::{
    abi::{ts_step_row, ts_step_token},
    dtype::DType,
};
use tokenspeed_reference_cpu::{
    Level, Pool, Worker,
    activation::{SiluArgs, silu},
    attention::{self, AttentionArgs, paged_attention},
    embedding::{EmbeddingArgs, embedding},
    gemm::{self, GemmArgs, TILE_ROWS, Weight, gemm_group, pack_tiles, packed_bytes},
    kv_write::{Pages, kv_write},
    rmsnorm::{RmsNormArgs, rmsnorm},
    rope::{RopeArgs, Style, fill_table, rope},
    row_gather::row_gather,
    scratch::{Carver, Scratch},
};

const LAYERS: usize = 30;
const WIDTH: usize = 576;
const HEADS: usize = 9;
const KV_HEADS: usize = 3;
const DIM: usize = 64;
const KV: usize = KV_HEADS * DIM;
const FF: usize = 1536;
const VOCABULARY: usize = 49152;
const BLOCK_TOKENS: usize = 64;
const TOKENS_MAX: usize = 512;
const NAMES: [&str; 11] =
    ["embed", "norm", "qkv", "rope", "kv_write", "attention", "o_proj", "gate_up", "silu_mul", "down", "head"];

#[derive(Clone, Copy)]
struct Packed(usize, DType, usize, usize);

/// A Scratch that lives for the whole run, filled with something harmless.
fn buffer<T: Copy>(n: usize) -> *mut T {
    Box::leak(Box::new(Scratch::new(n * size_of::<T>() + 64))).carve().take(n)
}

fn weight(arena: &mut Carver, dtype: DType, n: usize, k: usize) -> Packed {
    let mut stored: Vec<u8> = (0..n * dtype.bytes(k as u64).unwrap() as usize).map(|i| (i * 7 % 251) as u8).collect();
    for block in stored.chunks_mut(dtype.block_bytes()) {
        block[..2].copy_from_slice(&0x1400u16.to_le_bytes());
        if dtype == DType::Q4_1 {
            block[2..4].copy_from_slice(&0xA000u16.to_le_bytes());
        }
    }
    let bytes = packed_bytes(dtype, n, k);
    let out: *mut u8 = arena.take(bytes);
    // SAFETY: just allocated.
    pack_tiles(dtype, &stored, n, k, 0..n.div_ceil(TILE_ROWS), unsafe { std::slice::from_raw_parts_mut(out, bytes) });
    Packed(out as usize, dtype, n, k)
}

struct Model {
    level: Level,
    layers: Vec<[Packed; 7]>,
    head: Packed,
    table: Vec<u8>,
    norm: Vec<f32>,
    inv_freq: Vec<f32>,
    cache: Vec<[usize; 2]>,
    blocks: usize,
    block_table: Vec<u32>,
    blocks_per_row: usize,
    /// x, h, q, k, v, attention out, gate, up, projected, rope table, gathered, logits.
    act: [usize; 12],
}

impl Model {
    /// Products of the same activations.
    fn products<const N: usize>(&self, w: &mut Worker<'_>, x: usize, weights: [(Packed, usize); N], m: usize) {
        let group = weights.map(|(Packed(data, dtype, n, k), y)| {
            let weight = Weight { data: data as *const u8, dtype, packed: true };
            let (x, y, bias) = (x as *const f32, y as *mut f32, std::ptr::null());
            GemmArgs { x, ldx: k, weight, bias, y, ldy: n, m, n, k }
        });
        // SAFETY: buffers have room for TOKENS_MAX rows.
        unsafe { gemm_group(self.level, w.part(), w.scratch(), &group) }
    }

    fn pages(&self, layer: usize, which: usize) -> Pages {
        Pages {
            data: self.cache[layer][which] as *mut u8,
            dtype: DType::F32,
            blocks: self.blocks,
            block_tokens: BLOCK_TOKENS,
            width: KV,
            table: self.block_table.as_ptr(),
            blocks_per_row: self.blocks_per_row,
        }
    }

    /// One step; `times[i]` gets worker 0's time in op `NAMES[i]`.
    fn step(
        &self,
        w: &mut Worker<'_>,
        tokens: &[ts_step_token],
        rows: &[ts_step_row],
        logit_rows: &[u32],
        times: &[Cell<Duration>],
    ) {
        let (level, t) = (self.level, tokens.len());
        let [x, h, q, k, v, a, gate, up, p, angles, gathered, logits] = self.act;
        let f = |p: usize| p as *mut f32;
        let mark = Cell::new(Instant::now());
        let done = |w: &Worker<'_>, op: usize| {
            w.barrier();
            if w.part().index == 0 {
                let now = Instant::now();
                times[op].set(times[op].get() + (now - mark.get()));
                mark.set(now);
            }
        };
        let norm = |w: &Worker<'_>, residual: bool, rows: usize, from: usize, to: usize| {
            let args = RmsNormArgs {
                x: f(from),
                residual: if residual { f(p) } else { std::ptr::null() },
                sum: f(from),
                weight: self.norm.as_ptr(),
                y: f(to),
                rows,
                width: WIDTH,
                eps: 1e-5,
            };
            // SAFETY: buffers have room for TOKENS_MAX rows.
            unsafe { rmsnorm(level, w.part(), args) };
        };
        // SAFETY (all blocks below): buffers have room for TOKENS_MAX rows; the block table covers all positions.
        unsafe {
            let args = EmbeddingArgs { table: &self.table, dtype: DType::Q8_0, width: WIDTH, y: f(x), tokens: t };
            embedding(w.part(), args, |i| tokens[i].id as i64).expect("ids are small");
            let position = |i: usize| tokens[i].position;
            fill_table(w.part(), Style::Pairs, &self.inv_freq, 1.0, t, position, f(angles));
        }
        done(w, 0);
        for layer in 0..LAYERS {
            let [wq, wk, wv, wo, wgate, wup, wdown] = self.layers[layer];
            norm(w, layer > 0, t, x, h);
            done(w, 1);
            self.products(w, h, [(wq, q), (wk, k), (wv, v)], t);
            done(w, 2);
            for (x, heads) in [(q, HEADS), (k, KV_HEADS)] {
                let style = Style::Pairs;
                let args =
                    RopeArgs { x: f(x), y: f(x), table: f(angles), tokens: t, heads, width: DIM, rotated: DIM, style };
                unsafe { rope(level, w.part(), args) };
            }
            done(w, 3);
            unsafe {
                kv_write(w.part(), f(k), tokens, rows, self.pages(layer, 0));
                kv_write(w.part(), f(v), tokens, rows, self.pages(layer, 1));
            }
            done(w, 4);
            let args = AttentionArgs {
                q: f(q),
                k: self.pages(layer, 0),
                v: self.pages(layer, 1),
                y: f(a),
                rows,
                heads: HEADS,
                kv_heads: KV_HEADS,
                head_dim: DIM,
                scale: 0.125,
                window: 0,
            };
            unsafe { paged_attention(level, w.part(), w.scratch(), &args) };
            done(w, 5);
            self.products(w, a, [(wo, p)], t);
            done(w, 6);
            norm(w, true, t, x, h);
            done(w, 1);
            self.products(w, h, [(wgate, gate), (wup, up)], t);
            done(w, 7);
            let args = SiluArgs { x: f(gate), up: f(up), y: f(gate), n: t * FF };
            unsafe { silu(level, w.part(), args) };
            done(w, 8);
            self.products(w, gate, [(wdown, p)], t);
            done(w, 9);
        }
        unsafe { row_gather(w.part(), f(x), WIDTH, logit_rows, f(gathered)) };
        done(w, 1);
        norm(w, false, logit_rows.len(), gathered, h);
        done(w, 1);
        self.products(w, h, [(self.head, logits)], logit_rows.len());
        done(w, 10);
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let workers = args.next().map_or(2, |s| s.parse().expect("number of workers"));
    let level = args.next().map_or(Level::detect(), |s| s.parse::<Level>().and_then(Level::checked).expect("tier"));
    let context: usize = args.next().map_or(64, |s| s.parse().expect("context length"));
    let only = args.next();
    let blocks_per_row = (context + TOKENS_MAX).div_ceil(BLOCK_TOKENS) + 1;
    let blocks = blocks_per_row * 8;
    let shapes = [(WIDTH, WIDTH), (KV, WIDTH), (KV, WIDTH), (WIDTH, WIDTH), (FF, WIDTH), (FF, WIDTH), (WIDTH, FF)];
    let sizes = [WIDTH, WIDTH, WIDTH, KV, KV, WIDTH, FF, FF, WIDTH, 2 * DIM, WIDTH];
    let mut act = [0; 12];
    for (act, size) in act.iter_mut().zip(sizes) {
        *act = buffer::<f32>(TOKENS_MAX * size) as usize;
    }
    act[11] = buffer::<f32>(8 * VOCABULARY) as usize;
    let layer_bytes: usize = shapes.iter().map(|(n, k)| packed_bytes(DType::Q4_1, *n, *k)).sum();
    let weight_bytes = LAYERS * layer_bytes + packed_bytes(DType::Q8_0, VOCABULARY, WIDTH);
    let arena = &mut Box::leak(Box::new(Scratch::new(weight_bytes))).carve();
    let kv_values = blocks * BLOCK_TOKENS * KV;
    let cache = &mut Box::leak(Box::new(Scratch::new(LAYERS * 2 * kv_values * 4))).carve();
    let model = Model {
        level,
        layers: (0..LAYERS).map(|_| shapes.map(|(n, k)| weight(arena, DType::Q4_1, n, k))).collect(),
        head: weight(arena, DType::Q8_0, VOCABULARY, WIDTH),
        table: vec![1; 1000 * DType::Q8_0.bytes(WIDTH as u64).unwrap() as usize],
        norm: vec![1.0; WIDTH],
        inv_freq: (0..DIM / 2).map(|d| 10000f32.powf(-(d as f32) / 32.0)).collect(),
        cache: (0..LAYERS).map(|_| [0; 2].map(|_| cache.take::<f32>(kv_values) as usize)).collect(),
        blocks,
        block_table: (0..blocks as u32).collect(),
        blocks_per_row,
        act,
    };
    let mut pool = Pool::new(workers).expect("threads");
    let scratch = [(DType::Q4_1, FF), (DType::Q8_0, WIDTH)].map(|(d, k)| gemm::scratch_bytes(level, d, TOKENS_MAX, k));
    pool.reserve_scratch(scratch[0].max(scratch[1]).max(attention::scratch_bytes(HEADS, KV_HEADS, DIM)));
    println!("{level}, {workers} workers, context {context}");
    for (name, sequences, len, computed) in
        [("decode 1", 1, 1, context), ("decode 4", 4, 1, context), ("decode 8", 8, 1, context), ("prompt", 1, 512, 0)]
    {
        if only.as_ref().is_some_and(|only| !name.contains(only.as_str())) {
            continue;
        }
        let mut tokens = Vec::new();
        let mut rows = Vec::new();
        for row in 0..sequences as u32 {
            let query_start = tokens.len() as u32;
            for i in 0..len as u32 {
                let position = computed as u32 + i;
                tokens.push(ts_step_token { id: (7 * i % 1000) as i32, position, row, reserved: 0 });
            }
            let (computed, query_len) = (computed as u32, len as u32);
            rows.push(ts_step_row { table_row: row, computed, query_start, query_len, ..Default::default() });
        }
        let logit_rows: Vec<u32> = rows.iter().map(|r| r.query_start + r.query_len - 1).collect();
        let (mut best, mut shares) = (Duration::MAX, Vec::new());
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(400) {
            let times = Times((0..NAMES.len()).map(|_| Cell::default()).collect());
            let start = Instant::now();
            pool.run(|w| {
                let times = &times;
                model.step(w, &tokens, &rows, &logit_rows, &times.0);
            });
            let took = start.elapsed();
            if took < best {
                best = took;
                shares = times.0.iter().map(|t| t.get().as_secs_f64()).collect();
            }
        }
        let rate = tokens.len() as f64 / best.as_secs_f64();
        println!("{name:>9}: {:8.0} us, {rate:7.0} tokens/s", best.as_secs_f64() * 1e6);
        for (name, share) in NAMES.iter().zip(&shares) {
            print!("  {name} {:.0}", share * 1e6);
        }
        println!(" (us)");
    }
}

/// Only worker 0 touches the cells.
struct Times(Vec<Cell<Duration>>);
// SAFETY: see above.
unsafe impl Sync for Times {}
