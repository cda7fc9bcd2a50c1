//! The few-rows kernel of the vector tiers: codes go from memory through registers into the sum, without a panel.

use super::{
    layout::{BLOCK_K, TILE_ROWS, tile_bytes, unit_bytes},
    panel::{bytes, factors, nibbles},
    vector::{Work, add_block},
};
use crate::simd::Simd;
use std::ops::Range;
use tokenspeed_backend_api::dtype::DType;

/// Most rows: beyond, expanding codes once per row costs more than a panel.
const ROWS_MAX: usize = 4;
/// How far ahead of its use memory is prefetched.
const PREFETCH_BYTES: usize = 4096;

/// Whether this kernel takes `rows` rows of a format.
pub fn takes(dtype: DType, rows: usize) -> bool {
    rows <= ROWS_MAX && matches!(dtype, DType::Q4_0 | DType::Q4_1 | DType::Q8_0)
}

/// One tile times the rows.
///
/// # Safety
/// As [`super::gemm`]; `takes` holds; `packed` is the tile.
#[inline(always)]
pub unsafe fn tile<S: Simd>(work: &Work<'_>, packed: *const u8, rows: Range<usize>, tile: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match (work.dtype, rows.len()) {
            (DType::Q4_0, 1) => run::<S, 1>(work, DType::Q4_0, packed, rows, tile),
            (DType::Q4_1, 1) => run::<S, 1>(work, DType::Q4_1, packed, rows, tile),
            (DType::Q8_0, 1) => run::<S, 1>(work, DType::Q8_0, packed, rows, tile),
            (DType::Q4_0, _) => run::<S, 4>(work, DType::Q4_0, packed, rows, tile),
            (DType::Q4_1, _) => run::<S, 4>(work, DType::Q4_1, packed, rows, tile),
            _ => run::<S, 4>(work, DType::Q8_0, packed, rows, tile),
        }
    }
}

#[inline(always)]
unsafe fn run<S: Simd, const R: usize>(
    work: &Work<'_>,
    dtype: DType,
    packed: *const u8,
    rows: Range<usize>,
    tile: usize,
) {
    let args = work.args;
    let column = tile * TILE_ROWS;
    let lanes = TILE_ROWS.min(args.n - column);
    // SAFETY: rows past the last repeat the last one and are not stored; K is whole blocks for these formats.
    unsafe {
        let row = |r: usize| rows.start + r.min(rows.len() - 1);
        let mut x = [args.x; R];
        for (r, x) in x.iter_mut().enumerate() {
            *x = args.x.add(row(r) * args.ldx);
        }
        let mut total = [S::splat(0.0); R];
        for b in 0..work.blocks {
            let codes = packed.add(b * unit_bytes(dtype));
            for line in 0..unit_bytes(dtype).div_ceil(64) {
                S::prefetch(codes.wrapping_add(PREFETCH_BYTES + 64 * line));
            }
            let mut partial = [S::splat(0.0); R];
            let step = |k: usize, code: S::F| {
                for (p, x) in partial.iter_mut().zip(x) {
                    *p = S::fma(S::splat(*x.add(b * BLOCK_K + k)), code, *p);
                }
            };
            if dtype == DType::Q8_0 {
                bytes::<S>(codes, step)
            } else {
                nibbles::<S>(codes, step)
            }
            let (scale, offset) = factors::<S>(dtype, packed, b);
            for (r, total) in total.iter_mut().enumerate() {
                let sum = || *work.sums.add((row(r) - work.row) * work.blocks + b);
                *total = add_block::<S>(dtype, *total, partial[r], scale, offset, sum);
            }
        }
        debug_assert_eq!(work.blocks * unit_bytes(dtype), tile_bytes(dtype, args.k));
        for (r, total) in total.iter().enumerate().take(rows.len()) {
            let mut v = *total;
            if !args.bias.is_null() {
                v = S::add(v, S::load_n(args.bias.add(column), lanes));
            }
            S::store_n(args.y.add(row(r) * args.ldy + column), v, lanes);
        }
    }
}
