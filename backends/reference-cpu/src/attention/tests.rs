//! Attention against a naive f64 loop, and bit for bit against itself under any batching.

use super::*;
use crate::{blocks::tests::noise, kv_write::kv_write, level::testable, small_float};
use tokenspeed_backend_api::{abi::ts_step_token, dtype::DType};

#[derive(Clone, Copy)]
struct Shape {
    heads: usize,
    kv_heads: usize,
    dim: usize,
    window: usize,
    block_tokens: usize,
    dtype: DType,
}

/// Sequences of given lengths with their own q, k, v and pages in scrambled order; unwritten page slots are NaN.
struct World {
    shape: Shape,
    lengths: Vec<usize>,
    q: Vec<Vec<f32>>,
    pages: [Vec<u8>; 2],
    kv: [Vec<Vec<f32>>; 2],
    table: Vec<u32>,
    blocks_per_row: usize,
}

impl World {
    fn new(shape: Shape, lengths: &[usize]) -> Self {
        let mut next = noise(42);
        let mut values = |n: usize| (0..n).map(|_| next() as f32 / u32::MAX as f32 * 4.0 - 2.0).collect::<Vec<f32>>();
        let q = lengths.iter().map(|n| values(n * shape.heads * shape.dim)).collect();
        let kv: [Vec<Vec<f32>>; 2] =
            [0, 1].map(|_| lengths.iter().map(|n| values(n * shape.kv_heads * shape.dim)).collect());
        let blocks_per_row = lengths.iter().max().unwrap().div_ceil(shape.block_tokens);
        let blocks = blocks_per_row * lengths.len();
        // A permutation that is not the identity; 7 does not divide the count used here.
        let table: Vec<u32> = (0..blocks).map(|i| ((i * 7 + 3) % blocks) as u32).collect();
        assert!(!blocks.is_multiple_of(7));
        let bytes = blocks * shape.block_tokens * shape.kv_heads * shape.dim * shape.dtype.block_bytes();
        let mut world = Self {
            shape,
            lengths: lengths.to_vec(),
            q,
            pages: [vec![0xFF; bytes], vec![0xFF; bytes]],
            kv,
            table,
            blocks_per_row,
        };
        for which in 0..2 {
            for (row, n) in lengths.iter().enumerate() {
                let tokens: Vec<_> =
                    (0..*n as u32).map(|position| ts_step_token { position, ..Default::default() }).collect();
                let rows = [ts_step_row { table_row: row as u32, ..Default::default() }];
                let pages = world.pages(which);
                // SAFETY: the table covers the sequence.
                unsafe { kv_write(Part::WHOLE, world.kv[which][row].as_ptr(), &tokens, &rows, pages) };
            }
        }
        world
    }

    fn pages(&mut self, which: usize) -> Pages {
        Pages {
            data: self.pages[which].as_mut_ptr(),
            dtype: self.shape.dtype,
            blocks: self.table.len(),
            block_tokens: self.shape.block_tokens,
            width: self.shape.kv_heads * self.shape.dim,
            table: self.table.as_ptr(),
            blocks_per_row: self.blocks_per_row,
        }
    }

    /// One step over chunks (row, first position, tokens); results per chunk.
    fn step(&mut self, level: Level, workers: usize, chunks: &[(usize, usize, usize)]) -> Vec<Vec<f32>> {
        let width = self.shape.heads * self.shape.dim;
        let mut rows = Vec::new();
        let mut q = Vec::new();
        for &(row, first, len) in chunks {
            rows.push(ts_step_row {
                table_row: row as u32,
                computed: first as u32,
                query_start: (q.len() / width) as u32,
                query_len: len as u32,
                ..Default::default()
            });
            q.extend_from_slice(&self.q[row][first * width..][..len * width]);
        }
        let mut y = vec![f32::NAN; q.len()];
        let Shape { heads, kv_heads, dim, window, .. } = self.shape;
        let args = AttentionArgs {
            q: q.as_ptr(),
            k: self.pages(0),
            v: self.pages(1),
            y: y.as_mut_ptr(),
            rows: &rows,
            heads,
            kv_heads,
            head_dim: dim,
            scale: 1.0 / (dim as f32).sqrt(),
            window,
        };
        let mut scratch = Scratch::new(scratch_bytes(heads, kv_heads, dim));
        for index in 0..workers {
            // SAFETY: shapes as documented; the tier is available.
            unsafe { paged_attention(level, Part { index, count: workers }, &mut scratch, &args) };
        }
        let mut rest = &y[..];
        chunks
            .iter()
            .map(|(_, _, len)| {
                let (chunk, after) = rest.split_at(len * width);
                rest = after;
                chunk.to_vec()
            })
            .collect()
    }

    /// Naive f64 attention of one query.
    fn exact(&self, row: usize, position: usize, head: usize) -> Vec<f64> {
        let Shape { heads, kv_heads, dim, window, dtype, .. } = self.shape;
        let stored = |which: usize, p: usize, d: usize| {
            let x = self.kv[which][row][(p * kv_heads + head / (heads / kv_heads)) * dim + d];
            let mut bytes = [0u8; 4];
            // SAFETY: four bytes hold any float format.
            unsafe {
                small_float::store(dtype, bytes.as_mut_ptr(), 0, x);
                small_float::load(dtype, bytes.as_ptr(), 0) as f64
            }
        };
        let first = if window == 0 { 0 } else { (position + 1).saturating_sub(window) };
        let q = &self.q[row][(position * heads + head) * dim..][..dim];
        let scores: Vec<f64> = (first..=position)
            .map(|p| (0..dim).map(|d| q[d] as f64 * stored(0, p, d)).sum::<f64>() / (dim as f64).sqrt())
            .collect();
        let max = scores.iter().cloned().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
        let total: f64 = weights.iter().sum();
        (0..dim).map(|d| weights.iter().enumerate().map(|(i, w)| w / total * stored(1, first + i, d)).sum()).collect()
    }
}

const PLAIN: Shape = Shape { heads: 6, kv_heads: 2, dim: 64, window: 0, block_tokens: 16, dtype: DType::F32 };

#[test]
fn close_to_f64_for_every_cache_format_window_and_head_shape() {
    let shapes = [
        PLAIN,
        Shape { window: 10, ..PLAIN },
        Shape { window: 70, block_tokens: 5, ..PLAIN },
        Shape { dim: 40, heads: 4, kv_heads: 4, ..PLAIN },
        Shape { dim: 128, heads: 5, kv_heads: 1, ..PLAIN },
        Shape { dim: 7, ..PLAIN },
        Shape { dtype: DType::F16, ..PLAIN },
        Shape { dtype: DType::BF16, dim: 24, ..PLAIN },
        Shape { dtype: DType::F8E4M3, window: 33, ..PLAIN },
    ];
    for shape in shapes {
        let mut world = World::new(shape, &[150, 31]);
        let width = shape.heads * shape.dim;
        for level in testable() {
            let results = world.step(level, 1, &[(0, 0, 150), (1, 0, 31)]);
            for (row, y) in results.iter().enumerate() {
                for position in (0..world.lengths[row]).step_by(7) {
                    for head in 0..shape.heads {
                        let exact = world.exact(row, position, head);
                        let got = &y[position * width + head * shape.dim..][..shape.dim];
                        for (got, exact) in got.iter().zip(exact) {
                            assert!(
                                (*got as f64 - exact).abs() < 2e-6,
                                "{level} {:?} window {}: row {row} position {position}: {got} for {exact}",
                                shape.dtype,
                                shape.window
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn same_bits_for_any_chunking_batch_and_number_of_workers() {
    for shape in [PLAIN, Shape { window: 50, block_tokens: 24, ..PLAIN }, Shape { dim: 40, ..PLAIN }] {
        let mut world = World::new(shape, &[200, 77, 5]);
        for level in testable() {
            let all = world.step(level, 1, &[(0, 0, 200), (1, 0, 77), (2, 0, 5)]);
            assert_eq!(all, world.step(level, 2, &[(0, 0, 200), (1, 0, 77), (2, 0, 5)]), "{level}: two workers");
            let width = shape.heads * shape.dim;
            for (first, len) in [(0, 1), (63, 1), (64, 1), (199, 1), (0, 64), (10, 100), (65, 2), (130, 70)] {
                let alone = world.step(level, 1, &[(0, first, len)]).remove(0);
                assert_eq!(alone, all[0][first * width..][..len * width], "{level}: tokens {first}+{len}");
                let mixed = world.step(level, 2, &[(2, 4, 1), (0, first, len), (1, 20, 57)]);
                assert_eq!(mixed[1], alone, "{level}: mixed batch, tokens {first}+{len}");
                assert_eq!(mixed[2], all[1][20 * width..], "{level}");
            }
        }
    }
}
