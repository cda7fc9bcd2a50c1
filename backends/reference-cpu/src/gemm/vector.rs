//! GEMM on vector registers.
//!
//! The sum over K of one output: blocks of 32 k, each block's codes times activations summed in order of k from zero;
//! block sums are scaled and added in order. Rows do not interact, so one row alone gives the bits it gives among a
//! thousand: the few-rows kernel ([`super::stream`]) and this one differ in where codes wait, not in what is computed.

use super::{
    GemmArgs,
    layout::{BLOCK_K, TILE_ROWS, tile_bytes},
    panel::{expand, factors, has_offset, scaled},
    stream,
};
use crate::{
    scratch::{Carver, region_bytes},
    simd::{Kernel, LANES, Simd},
};
use std::ops::Range;
use tokenspeed_backend_api::dtype::DType;

/// Blocks of 32 k per panel: 256 k of 32 outputs are 32 KiB, two thirds of the level-1 cache.
const PANEL_BLOCKS: usize = 4;
/// Most tiles per panel.
const TILES_MAX: usize = 2;
/// Rows that are taken through one panel before the next: their activations stay in the level-2 cache.
const CHUNK_ROWS: usize = 240;

/// Scratch for depth `k`.
pub fn scratch_bytes(m: usize, k: usize) -> usize {
    region_bytes::<f32>(TILES_MAX * PANEL_BLOCKS * BLOCK_K * TILE_ROWS)
        + region_bytes::<f32>(TILES_MAX * PANEL_BLOCKS * 2 * TILE_ROWS)
        + region_bytes::<f32>(CHUNK_ROWS.min(m) * k.div_ceil(BLOCK_K))
}

/// One rectangle of the output, from packed tiles.
pub struct VectorGemm<'a> {
    pub args: &'a GemmArgs,
    pub dtype: DType,
    /// First byte of tile `tiles.start`.
    pub packed: *const u8,
    pub rows: Range<usize>,
    pub tiles: Range<usize>,
    /// With [`scratch_bytes`].
    pub scratch: Carver,
}

/// Scratch regions and the shape of a chunk of rows.
pub(super) struct Work<'a> {
    pub args: &'a GemmArgs,
    pub dtype: DType,
    /// Blocks of K.
    pub blocks: usize,
    /// First row of the chunk.
    pub row: usize,
    /// `[tile][block of panel][32][16]`: codes.
    panel: *mut f32,
    /// `[tile][block of panel][2][16]`: scale, offset.
    factors: *mut f32,
    /// `[row of chunk][block]`: sums of activations, for formats with an offset.
    pub sums: *mut f32,
}

impl Kernel for VectorGemm<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let (args, dtype) = (self.args, self.dtype);
        let blocks = args.k.div_ceil(BLOCK_K);
        let mut work = Work {
            args,
            dtype,
            blocks,
            row: 0,
            panel: self.scratch.take(TILES_MAX * PANEL_BLOCKS * BLOCK_K * TILE_ROWS),
            factors: self.scratch.take(TILES_MAX * PANEL_BLOCKS * 2 * TILE_ROWS),
            sums: self.scratch.take(CHUNK_ROWS.min(args.m) * blocks),
        };
        let bytes = tile_bytes(dtype, args.k);
        for first in self.rows.clone().step_by(CHUNK_ROWS) {
            let rows = first..self.rows.end.min(first + CHUNK_ROWS);
            work.row = first;
            // SAFETY: the caller's promise about args and packed; regions are sized by the constants.
            unsafe {
                if has_offset(dtype) {
                    sum_blocks::<S>(&work, rows.clone());
                }
                let mut tile = self.tiles.start;
                while tile < self.tiles.end {
                    let packed = self.packed.add((tile - self.tiles.start) * bytes);
                    if stream::takes::<S>(dtype, rows.len(), args.k) {
                        stream::tile::<S>(&work, packed, rows.clone(), tile);
                        tile += 1;
                    } else if S::GEMM_TILES == 2 && self.tiles.end - tile >= 2 {
                        panels::<S, 2>(&work, packed, rows.clone(), tile);
                        tile += 2;
                    } else {
                        panels::<S, 1>(&work, packed, rows.clone(), tile);
                        tile += 1;
                    }
                }
            }
        }
    }
}

/// Sum of each block of activations: lanes k and k + 16 first, then as [`Simd::sum`].
#[inline(always)]
unsafe fn sum_blocks<S: Simd>(work: &Work<'_>, rows: Range<usize>) {
    let args = work.args;
    for (r, row) in rows.enumerate() {
        for b in 0..work.blocks {
            let left = args.k - b * BLOCK_K;
            // SAFETY: `left` values of the row follow; the loads take no more.
            unsafe {
                let x = args.x.add(row * args.ldx + b * BLOCK_K);
                let low = S::load_n(x, left.min(LANES));
                let high = S::load_n(x.wrapping_add(LANES), left.saturating_sub(LANES).min(LANES));
                *work.sums.add(r * work.blocks + b) = S::sum(S::add(low, high));
            }
        }
    }
}

/// W tiles times all rows of the chunk.
#[inline(always)]
unsafe fn panels<S: Simd, const W: usize>(work: &Work<'_>, packed: *const u8, rows: Range<usize>, tile: usize) {
    let (dtype, bytes) = (work.dtype, tile_bytes(work.dtype, work.args.k));
    for b0 in (0..work.blocks).step_by(PANEL_BLOCKS) {
        let panel = b0..work.blocks.min(b0 + PANEL_BLOCKS);
        // SAFETY: the tiles cover K, panel slots PANEL_BLOCKS.
        unsafe {
            for w in 0..W {
                let packed = packed.add(w * bytes);
                for (i, b) in panel.clone().enumerate() {
                    let slot = w * PANEL_BLOCKS + i;
                    expand::<S>(dtype, packed, b, work.panel.add(slot * BLOCK_K * TILE_ROWS));
                    if scaled(dtype) {
                        let (scale, offset) = factors::<S>(dtype, packed, b);
                        S::store(work.factors.add(slot * 2 * TILE_ROWS), scale);
                        S::store(work.factors.add((slot * 2 + 1) * TILE_ROWS), offset);
                    }
                }
            }
            let mut row = rows.start;
            macro_rules! step {
                ($r:literal) => {
                    while $r <= S::GEMM_ROWS && rows.end - row >= $r {
                        multiply::<S, $r, W>(work, row, tile, panel.clone());
                        row += $r;
                    }
                };
            }
            step!(12);
            step!(6);
            step!(4);
            step!(2);
            step!(1);
        }
    }
}

#[inline(always)]
unsafe fn multiply<S: Simd, const R: usize, const W: usize>(
    work: &Work<'_>,
    row: usize,
    tile: usize,
    panel: Range<usize>,
) {
    let args = work.args;
    // SAFETY: the rows and columns addressed exist; lanes past n are not touched.
    unsafe {
        let y = |r: usize, w: usize| {
            let column = (tile + w) * TILE_ROWS;
            (args.y.add((row + r) * args.ldy + column), TILE_ROWS.min(args.n - column))
        };
        let mut total = [[[0f32; TILE_ROWS]; W]; R];
        if panel.start > 0 {
            for (r, total) in total.iter_mut().enumerate() {
                for (w, total) in total.iter_mut().enumerate() {
                    let (y, lanes) = y(r, w);
                    S::store(total.as_mut_ptr(), S::load_n(y, lanes));
                }
            }
        }
        for (i, b) in panel.clone().enumerate() {
            let x = args.x.add(row * args.ldx + b * BLOCK_K);
            let codes = |w: usize| work.panel.add((w * PANEL_BLOCKS + i) * BLOCK_K * TILE_ROWS);
            let mut partial = [[S::splat(0.0); W]; R];
            for k in 0..BLOCK_K.min(args.k - b * BLOCK_K) {
                let mut c = [S::splat(0.0); W];
                for (w, c) in c.iter_mut().enumerate() {
                    *c = S::load(codes(w).add(k * TILE_ROWS));
                }
                for (r, partial) in partial.iter_mut().enumerate() {
                    let x = S::splat(*x.add(r * args.ldx + k));
                    for (p, c) in partial.iter_mut().zip(c) {
                        *p = S::fma(x, c, *p);
                    }
                }
            }
            for w in 0..W {
                let factors = work.factors.add((w * PANEL_BLOCKS + i) * 2 * TILE_ROWS);
                let (scale, offset) = (S::load(factors), S::load(factors.add(TILE_ROWS)));
                for r in 0..R {
                    let sum = || *work.sums.add((row + r - work.row) * work.blocks + b);
                    let t = S::load(total[r][w].as_ptr());
                    let t = add_block::<S>(work.dtype, t, partial[r][w], scale, offset, sum);
                    S::store(total[r][w].as_mut_ptr(), t);
                }
            }
        }
        let last = panel.end == work.blocks;
        for (r, total) in total.iter().enumerate() {
            for (w, total) in total.iter().enumerate() {
                let (y, lanes) = y(r, w);
                let mut v = S::load(total.as_ptr());
                if last && !args.bias.is_null() {
                    v = S::add(v, S::load_n(args.bias.add((tile + w) * TILE_ROWS), lanes));
                }
                S::store_n(y, v, lanes);
            }
        }
    }
}

/// The total with one more block: the one place that fixes how block sums add up.
///
/// # Safety
/// As [`Simd`].
#[inline(always)]
pub(super) unsafe fn add_block<S: Simd>(
    dtype: DType,
    total: S::F,
    partial: S::F,
    scale: S::F,
    offset: S::F,
    sum: impl FnOnce() -> f32,
) -> S::F {
    // SAFETY: arithmetic only.
    unsafe {
        let total = if scaled(dtype) { S::fma(scale, partial, total) } else { S::add(total, partial) };
        if has_offset(dtype) { S::fma(offset, S::splat(sum()), total) } else { total }
    }
}
