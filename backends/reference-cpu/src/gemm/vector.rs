//! GEMM on vector registers: expand a piece of a tile to f32, then multiply any number of rows by it.
//!
//! The sum over K of one output: blocks of 32 k, each summed in order of k from zero, block sums added in order. Rows
//! do not interact, so one row alone gives the bits it gives among a thousand.
//!
//! Rejected: separate kernels for one row that keep codes in registers. They save a store and a load per 16 weights,
//! where memory is the limit anyway.

use super::{
    GemmArgs,
    layout::{BLOCK_K, TILE_ROWS, tile_bytes},
    panel::expand,
};
use crate::simd::{Kernel, Simd};
use std::ops::Range;
use tokenspeed_backend_api::dtype::DType;

/// Depth of a panel: 256 k of 16 rows are 16 KiB, a third of the level-1 cache.
const PANEL_K: usize = 256;
/// f32 elements of scratch the kernel needs.
pub const PANEL_VALUES: usize = PANEL_K * TILE_ROWS;
/// Rows that are taken through one panel before the next: their activations stay in the level-2 cache.
const CHUNK_ROWS: usize = 240;

/// One rectangle of the output, from packed tiles.
pub struct VectorGemm<'a> {
    pub args: &'a GemmArgs,
    pub dtype: DType,
    /// First byte of tile `tiles.start`.
    pub packed: *const u8,
    pub rows: Range<usize>,
    pub tiles: Range<usize>,
    /// [`PANEL_VALUES`] f32.
    pub panel: *mut f32,
}

impl Kernel for VectorGemm<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (k, dtype) = (self.args.k, self.dtype);
        for first in self.rows.clone().step_by(CHUNK_ROWS) {
            let rows = first..self.rows.end.min(first + CHUNK_ROWS);
            for (i, tile) in self.tiles.clone().enumerate() {
                for k0 in (0..k).step_by(PANEL_K) {
                    let depth = PANEL_K.min(k - k0);
                    // SAFETY: the tile covers K, the panel PANEL_K.
                    unsafe {
                        let packed = self.packed.add(i * tile_bytes(dtype, k));
                        expand::<S>(dtype, packed, k0 / BLOCK_K, depth.div_ceil(BLOCK_K), self.panel);
                        multiply_rows::<S>(&self, rows.clone(), tile, k0, depth);
                    }
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn multiply_rows<S: Simd>(g: &VectorGemm<'_>, rows: Range<usize>, tile: usize, k0: usize, depth: usize) {
    let mut row = rows.start;
    macro_rules! step {
        ($r:literal) => {
            while $r <= S::GEMM_ROWS && rows.end - row >= $r {
                // SAFETY: rows row..row + $r exist.
                unsafe { multiply::<S, $r>(g, row, tile, k0, depth) };
                row += $r;
            }
        };
    }
    step!(24);
    step!(12);
    step!(6);
    step!(4);
    step!(2);
    step!(1);
}

#[inline(always)]
unsafe fn multiply<S: Simd, const R: usize>(g: &VectorGemm<'_>, row: usize, tile: usize, k0: usize, depth: usize) {
    let args = g.args;
    let column = tile * TILE_ROWS;
    let lanes = TILE_ROWS.min(args.n - column);
    // SAFETY: the rows and columns addressed exist; lanes past n are not touched.
    unsafe {
        let x = args.x.add(row * args.ldx + k0);
        let y = args.y.add(row * args.ldy + column);
        let mut total = [[0f32; TILE_ROWS]; R];
        if k0 > 0 {
            for (r, t) in total.iter_mut().enumerate() {
                S::store(t.as_mut_ptr(), S::load_n(y.add(r * args.ldy), lanes));
            }
        }
        for b in (0..depth).step_by(BLOCK_K) {
            let mut partial = [S::splat(0.0); R];
            for k in b..depth.min(b + BLOCK_K) {
                let w = S::load(g.panel.add(k * TILE_ROWS));
                for (r, p) in partial.iter_mut().enumerate() {
                    *p = S::fma(S::splat(*x.add(r * args.ldx + k)), w, *p);
                }
            }
            for (t, p) in total.iter_mut().zip(partial) {
                S::store(t.as_mut_ptr(), S::add(S::load(t.as_ptr()), p));
            }
        }
        let last = k0 + depth == args.k;
        for (r, t) in total.iter().enumerate() {
            let mut v = S::load(t.as_ptr());
            if last && !args.bias.is_null() {
                v = S::add(v, S::load_n(args.bias.add(column), lanes));
            }
            S::store_n(y.add(r * args.ldy), v, lanes);
        }
    }
}
