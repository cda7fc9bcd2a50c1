//! Attention over latent rows against f64, and bit for bit against itself for any chunking, batch and worker count.

use super::{
    attention::{MlaArgs, mla_attention, scratch_bytes, slots, workspace_bytes},
    project::{ProjectArgs, mla_absorb, mla_value},
};
use crate::{
    kv_write::Pages,
    level::{Level, testable},
    part::Part,
    pool::Pool,
    scratch::Scratch,
    small_float,
};
use tokenspeed_backend_api::{abi::ts_step_row, dtype::DType};

fn noise(seed: u64) -> impl FnMut() -> f32 {
    let mut state = seed;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// Sequences of latent rows in shuffled pages, and a query per position.
struct World {
    heads: usize,
    width: usize,
    rank: usize,
    dtype: DType,
    block_tokens: usize,
    blocks_per_row: usize,
    table: Vec<u32>,
    cache: Vec<u8>,
    /// `[sequence][position][heads][width]`.
    queries: Vec<Vec<f32>>,
}

impl World {
    fn new(dtype: DType, heads: usize, width: usize, rank: usize, block_tokens: usize, lens: &[usize]) -> Self {
        let mut next = noise(width as u64);
        let blocks_per_row = lens.iter().max().unwrap().div_ceil(block_tokens);
        let blocks = blocks_per_row * lens.len();
        let table = (0..blocks).map(|i| ((i * 17 + 3) % blocks) as u32).collect::<Vec<_>>();
        assert!(!blocks.is_multiple_of(17), "the table is a permutation");
        let values = blocks * block_tokens * width;
        let mut cache = vec![0u8; values * dtype.block_bytes()];
        for i in 0..values {
            // SAFETY: value i is inside the buffer.
            unsafe { small_float::store(dtype, cache.as_mut_ptr(), i, next()) };
        }
        let queries = lens.iter().map(|len| (0..len * heads * width).map(|_| next() * 2.0).collect()).collect();
        Self { heads, width, rank, dtype, block_tokens, blocks_per_row, table, cache, queries }
    }

    fn scale(&self) -> f32 {
        1.0 / (self.width as f32).sqrt()
    }

    /// Run spans (sequence, first position, tokens) as one step.
    fn step(&self, level: Level, workers: usize, spans: &[(usize, usize, usize)]) -> Vec<Vec<f32>> {
        let (mut q, mut rows) = (Vec::new(), Vec::new());
        for &(sequence, first, len) in spans {
            rows.push(ts_step_row {
                table_row: sequence as u32,
                computed: first as u32,
                query_start: (q.len() / self.heads / self.width) as u32,
                query_len: len as u32,
                ..Default::default()
            });
            let per = self.heads * self.width;
            q.extend_from_slice(&self.queries[sequence][first * per..(first + len) * per]);
        }
        let tokens = q.len() / self.heads / self.width;
        let mut y = vec![f32::NAN; tokens * self.heads * self.rank];
        let slots = slots(tokens, self.blocks_per_row * self.block_tokens).min(3);
        let bytes = workspace_bytes(self.heads, self.rank, slots);
        let mut workspace = Scratch::new(bytes);
        let args = MlaArgs {
            q: q.as_ptr(),
            cache: Pages {
                data: self.cache.as_ptr().cast_mut(),
                dtype: self.dtype,
                blocks: self.table.len(),
                block_tokens: self.block_tokens,
                width: self.width,
                table: self.table.as_ptr(),
                blocks_per_row: self.blocks_per_row,
            },
            y: y.as_mut_ptr(),
            rows: &rows,
            heads: self.heads,
            rank: self.rank,
            scale: self.scale(),
            partial: workspace.carve().take(bytes / 4),
            slots,
        };
        let mut pool = Pool::new(workers).unwrap();
        pool.reserve_scratch(scratch_bytes(self.heads, self.width, self.rank));
        let args = Shared(args);
        // SAFETY: shapes as documented; the tier is available.
        pool.run(|worker| unsafe { mla_attention(level, worker, args.get()) });
        let mut at = 0;
        let cut = spans.iter().map(|(_, _, len)| {
            let n = len * self.heads * self.rank;
            at += n;
            y[at - n..at].to_vec()
        });
        cut.collect()
    }

    fn row(&self, sequence: usize, position: usize) -> Vec<f64> {
        let block = self.table[sequence * self.blocks_per_row + position / self.block_tokens] as usize;
        let first = (block * self.block_tokens + position % self.block_tokens) * self.width;
        // SAFETY: the row is inside the buffer.
        (0..self.width)
            .map(|i| f64::from(unsafe { small_float::load(self.dtype, self.cache.as_ptr(), first + i) }))
            .collect()
    }

    fn exact(&self, sequence: usize, position: usize, head: usize) -> Vec<f64> {
        let q = &self.queries[sequence][(position * self.heads + head) * self.width..][..self.width];
        let rows: Vec<Vec<f64>> = (0..=position).map(|p| self.row(sequence, p)).collect();
        let dot = |row: &Vec<f64>| row.iter().zip(q).map(|(r, q)| r * f64::from(*q)).sum::<f64>();
        let scores: Vec<f64> = rows.iter().map(|row| dot(row) * f64::from(self.scale())).collect();
        let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
        let total: f64 = weights.iter().sum();
        (0..self.rank).map(|i| rows.iter().zip(&weights).map(|(row, w)| row[i] * w).sum::<f64>() / total).collect()
    }
}

/// Arguments hold raw pointers; workers share them by the kernel's contract.
struct Shared<'a>(MlaArgs<'a>);
// SAFETY: workers write disjoint rows and meet where they must, which is what is tested.
unsafe impl Sync for Shared<'_> {}
impl<'a> Shared<'a> {
    fn get(&self) -> &MlaArgs<'a> {
        &self.0
    }
}

#[test]
fn attention_is_close_to_f64_across_chunks_and_formats() {
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::F8E4M3] {
        for (heads, width, rank, block_tokens) in [(3, 80, 64, 64), (2, 37, 33, 16)] {
            let world = World::new(dtype, heads, width, rank, block_tokens, &[1300, 9]);
            for level in testable() {
                for (sequence, position) in [(1, 0), (1, 8), (0, 63), (0, 1023), (0, 1024), (0, 1299)] {
                    let y = world.step(level, 2, &[(sequence, position, 1)]).remove(0);
                    for head in 0..heads {
                        for (got, want) in y[head * rank..].iter().zip(world.exact(sequence, position, head)) {
                            let error = (f64::from(*got) - want).abs();
                            assert!(error < 5e-6, "{level} {dtype} position {position}: {got}, not {want}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn attention_has_the_same_bits_for_any_chunking_batch_and_number_of_workers() {
    for (dtype, heads, width, rank) in [(DType::BF16, 5, 48, 32), (DType::F32, 70, 24, 16)] {
        let world = World::new(dtype, heads, width, rank, 16, &[1300, 300, 5]);
        let per = heads * rank;
        for level in testable() {
            let all = world.step(level, 1, &[(0, 1000, 100), (1, 0, 300), (2, 0, 5)]);
            assert_eq!(all, world.step(level, 2, &[(0, 1000, 100), (1, 0, 300), (2, 0, 5)]), "{level}: two workers");
            for (first, len) in [(1000, 1), (1023, 1), (1024, 1), (1099, 1), (1018, 12), (1001, 3)] {
                let want = &all[0][(first - 1000) * per..][..len * per];
                for workers in [1, 2, 5] {
                    let alone = world.step(level, workers, &[(0, first, len)]).remove(0);
                    assert_eq!(alone, want, "{level} {dtype}: tokens {first}+{len}, {workers} workers");
                }
                let mixed = world.step(level, 2, &[(2, 4, 1), (0, first, len), (1, 200, 100)]);
                assert_eq!(mixed[1], want, "{level}: mixed batch, tokens {first}+{len}");
                assert_eq!(mixed[0], all[2][4 * per..], "{level}");
                assert_eq!(mixed[2], all[1][200 * per..], "{level}");
            }
        }
    }
}

#[test]
fn projections_have_the_same_bits_for_any_batch_and_number_of_workers() {
    for (dtype, rank, x_width) in [(DType::BF16, 96, 40), (DType::F32, 300, 19), (DType::F16, 33, 7)] {
        let (heads, tokens, rope, dim) = (3, 13, 5, 11);
        let (nope, per_head) = (x_width - rope, x_width - rope + dim);
        let mut next = noise(rank as u64);
        let mut w = vec![0u8; heads * per_head * rank * dtype.block_bytes()];
        for i in 0..heads * per_head * rank {
            // SAFETY: value i is inside the buffer.
            unsafe { small_float::store(dtype, w.as_mut_ptr(), i, next()) };
        }
        let weight = |head: usize, row: usize, r: usize| {
            // SAFETY: as above.
            f64::from(unsafe { small_float::load(dtype, w.as_ptr(), (head * per_head + row) * rank + r) })
        };
        for value in [false, true] {
            let (xw, yw) = if value { (rank, dim) } else { (x_width, rank + rope) };
            let x: Vec<f32> = (0..tokens * heads * xw).map(|_| next()).collect();
            let run = |level, workers: usize, first: usize, count: usize| {
                let mut y = vec![f32::NAN; count * heads * yw];
                let args = ProjectArgs {
                    x: x[first * heads * xw..].as_ptr(),
                    x_width: xw,
                    w: w.as_ptr(),
                    dtype,
                    per_head,
                    rank,
                    y: y.as_mut_ptr(),
                    y_width: yw,
                    tokens: count,
                    heads,
                };
                for index in 0..workers {
                    let part = Part { index, count: workers };
                    // SAFETY: shapes as documented; the tier is available.
                    unsafe { if value { mla_value(level, part, &args) } else { mla_absorb(level, part, &args) } }
                }
                y
            };
            for level in testable() {
                let all = run(level, 1, 0, tokens);
                for (first, count) in [(0, 1), (12, 1), (3, 5), (1, 9)] {
                    assert_eq!(run(level, 2, first, count), all[first * heads * yw..][..count * heads * yw], "{level}");
                }
                for (i, got) in all.iter().enumerate() {
                    let (t, head, c) = (i / yw / heads, i / yw % heads, i % yw);
                    let x = |k: usize| f64::from(x[(t * heads + head) * xw + k]);
                    let want = match value {
                        true => (0..rank).map(|r| x(r) * weight(head, nope + c, r)).sum(),
                        false if c < rank => (0..nope).map(|k| x(k) * weight(head, k, c)).sum(),
                        false => x(nope + c - rank),
                    };
                    let error: f64 = f64::from(*got) - want;
                    assert!(error.abs() < 1e-4, "{level} {dtype} value={value}: {got}, not {want}");
                }
            }
        }
    }
}
