//! The few-rows kernel of the vector tiers: codes go from memory through registers into the sum, without a panel.

use super::{
    layout::{BLOCK_K, TILE_ROWS, tile_bytes},
    panel::{Codes, factors, is_simple, scaled, simple_codes},
    vector::{Work, add_block},
};
use crate::simd::Simd;
use std::ops::Range;
use tokenspeed_backend_api::dtype::DType;

/// How far ahead of its use memory is prefetched, into the level-2 cache; measured: half as far costs a tenth.
const PREFETCH_BYTES: usize = 8192;

/// Whether this kernel takes `rows` rows of depth `k`: their sums fit registers, and no block is ragged. Formats whose codes
/// are put together from several places are left to a panel: they would be put together for each number of rows anew.
pub fn takes<S: Simd>(dtype: DType, rows: usize, k: usize) -> bool {
    is_simple(dtype) && rows <= S::STREAM_ROWS && k.is_multiple_of(BLOCK_K)
}

/// One tile times the rows, by the kernel of the next number of rows there is: a row costs as much as the codes it meets, so
/// there are many. 13 are a request's own token and as many guesses as there are by default.
///
/// # Safety
/// As [`super::gemm`]; `takes` holds; `packed` is the tile.
#[inline(always)]
pub unsafe fn tile<S: Simd>(work: &Work<'_>, packed: *const u8, rows: Range<usize>, tile: usize) {
    macro_rules! up_to {
        ($($r:literal),*) => {
            $(if $r <= S::STREAM_ROWS && rows.len() <= $r {
                // SAFETY: the caller's promise.
                return unsafe { run::<S, $r>(work, work.dtype, packed, rows, tile) };
            })*
        };
    }
    up_to!(1, 2, 3, 4, 6, 8, 10, 13, 16);
    unreachable!("{} rows", rows.len());
}

/// A block's sums of codes times activations, of R rows.
struct Sums<S: Simd, const R: usize> {
    sums: [S::F; R],
    /// Where the block's activations are.
    x: [*const f32; R],
}

impl<S: Simd, const R: usize> Codes<S> for Sums<S, R> {
    #[inline(always)]
    unsafe fn take(&mut self, k: usize, code: S::F) {
        for (sum, x) in self.sums.iter_mut().zip(self.x) {
            // SAFETY: the block is inside the rows.
            *sum = unsafe { S::fma(S::splat(*x.add(k)), code, *sum) };
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
        let bytes = tile_bytes(dtype, args.k);
        for b in 0..work.blocks {
            let (from, to) = (bytes * b / work.blocks, bytes * (b + 1) / work.blocks);
            for at in (from..to).step_by(64) {
                S::prefetch(packed.wrapping_add(PREFETCH_BYTES + at));
            }
            let mut block = Sums::<S, R> { sums: [S::splat(0.0); R], x };
            simple_codes::<S>(dtype, packed, b, &mut block);
            let (scale, offset) =
                if scaled(dtype) { factors::<S>(dtype, packed, b) } else { (S::splat(0.0), S::splat(0.0)) };
            for (r, total) in total.iter_mut().enumerate() {
                let sum = || *work.sums.add((row(r) - work.row) * work.blocks + b);
                *total = add_block::<S>(dtype, *total, block.sums[r], scale, offset, sum);
            }
            for x in &mut x {
                *x = x.add(BLOCK_K);
            }
        }
        for (r, total) in total.iter().enumerate().take(rows.len()) {
            let mut v = *total;
            if !args.bias.is_null() {
                v = S::add(v, S::load_n(args.bias.add(column), lanes));
            }
            S::store_n(args.y.add(row(r) * args.ldy + column), v, lanes);
        }
    }
}
