//! Up to 16 rows: weights stream through once, limited by memory.
//!
//! Per block of 32 k and 16 outputs: codes are expanded into a small ring two blocks ahead of the tile product that reads
//! them; products are stored one block behind and scaled two blocks behind, and memory is prefetched far ahead. So the
//! long latencies overlap inside the window of out-of-order execution.
//!
//! Up to five rows fit one tile three times: their low, middle and high parts are stacked as rows, one tile product
//! yields all three, and vector adds do what the tile's accumulator does for more rows. TDPBF16PS sums the block on its
//! own and adds the accumulator last (Intel SDM), so both ways round alike; tile arithmetic flushes denormals, so do we.

use super::{
    Bf16, Codes, Job, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q8_0,
    split::{ROW_BYTES, split_row},
    tiles::{self, Configured},
    with_codes,
};
use crate::{
    gemm::layout::{BLOCK_K, TILE_ROWS, tile_bytes},
    scratch::{Carver, region_bytes},
};
use std::{arch::x86_64::*, ops::Range};
use tokenspeed_backend_api::dtype::DType;

/// Rows this kernel takes.
pub const ROWS_MAX: usize = 16;
const TILE_BYTES: usize = 1024;
/// How far ahead of its use memory is prefetched.
const PREFETCH_BYTES: usize = 4096;
/// Expanded blocks in flight.
const RING: usize = 4;

/// Scratch for depth `k`.
pub fn scratch_bytes(k: usize) -> usize {
    let blocks = k.div_ceil(BLOCK_K);
    region_bytes::<u8>(blocks * 3 * ROWS_MAX * ROW_BYTES)
        + region_bytes::<f32>(blocks * ROWS_MAX)
        + 2 * region_bytes::<u8>(RING * TILE_BYTES)
}

/// `rows.len() ≤ R` rows times all jobs' tiles.
///
/// # Safety
/// As [`super::gemm`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub unsafe fn gemm<const R: usize>(jobs: &[Job<'_>], rows: Range<usize>, carver: &mut Carver) {
    let args = jobs[0].args;
    let blocks = args.k.div_ceil(BLOCK_K);
    let part_bytes = R * ROW_BYTES;
    let parts: *mut u8 = carver.take(blocks * 3 * part_bytes);
    let sums: *mut f32 = carver.take(blocks * R);
    let ring: *mut u8 = carver.take(RING * TILE_BYTES);
    let products: *mut f32 = carver.take(RING * TILE_BYTES / 4);
    // SAFETY: regions are as large as addressed; rows past the last are zeros and their results are dropped.
    unsafe {
        for b in 0..blocks {
            for r in 0..R {
                let valid = if r < rows.len() { BLOCK_K.min(args.k - b * BLOCK_K) } else { 0 };
                let x = args.x.wrapping_add((rows.start + r) * args.ldx + b * BLOCK_K);
                *sums.add(b * R + r) = split_row(x, valid, parts.add(b * 3 * part_bytes + r * ROW_BYTES), part_bytes);
            }
        }
        let r = if stacked::<R>() { 3 * R } else { R } as u8;
        let _configured = Configured::new([r, r, 16, 16, r, r, r, 16]);
        for job in jobs {
            let dtype = job.args.weight.dtype;
            let block_bytes = tile_bytes(dtype, args.k) / blocks;
            let stream = Stream { parts, sums, ring, products, block_bytes };
            with_codes!(dtype, C => job_rows::<C, R>(job, rows.clone(), blocks, &stream));
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn job_rows<C: Codes, const R: usize>(job: &Job<'_>, rows: Range<usize>, blocks: usize, stream: &Stream) {
    let args = job.args;
    let bytes = tile_bytes(args.weight.dtype, args.k);
    for (i, tile) in job.tiles.clone().enumerate() {
        // SAFETY: the tile exists; lanes past n are masked, rows past the last dropped.
        unsafe {
            let total = dot::<C, R>(job.packed.add(i * bytes), blocks, stream);
            let column = tile * TILE_ROWS;
            let lanes = ((1u32 << TILE_ROWS.min(args.n - column)) - 1) as __mmask16;
            for (r, total) in total.iter().enumerate().take(rows.len()) {
                let mut v = *total;
                if !args.bias.is_null() {
                    v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(lanes, args.bias.add(column)));
                }
                _mm512_mask_storeu_ps(args.y.add((rows.start + r) * args.ldy + column), lanes, v);
            }
        }
    }
}

/// Whether the three parts of R rows fit one tile.
const fn stacked<const R: usize>() -> bool {
    3 * R <= ROWS_MAX
}

/// Buffers of [`dot`].
struct Stream {
    /// `[block][part][R rows][32]` bf16.
    parts: *const u8,
    /// `[block][R]`.
    sums: *const f32,
    /// `[RING]` expanded tiles.
    ring: *mut u8,
    /// `[RING]` product tiles.
    products: *mut f32,
    /// Packed bytes per block, for prefetching.
    block_bytes: usize,
}

/// One tile of weights times R rows.
#[inline(always)]
unsafe fn dot<C: Codes, const R: usize>(tile: *const u8, blocks: usize, s: &Stream) -> [__m512; R] {
    // SAFETY: block indices stay below `blocks`, ring slots below RING; tiles are configured for R rows.
    unsafe {
        let mut total = [_mm512_setzero_ps(); R];
        if !C::DIRECT {
            for b in 0..blocks.min(2) {
                for q in 0..4 {
                    C::expand(tile, b, q, s.ring.add(b * TILE_BYTES));
                }
            }
        }
        macro_rules! step {
            ($b:expr, $c:literal, $w:literal, $other:literal) => {
                let b = $b;
                let ahead = s.ring.add((b + 2) % RING * TILE_BYTES);
                let expand = |q: usize| {
                    if !C::DIRECT && b + 2 < blocks {
                        C::expand(tile, b + 2, q, ahead);
                    }
                };
                if b < blocks {
                    for line in 0..s.block_bytes.div_ceil(64) {
                        let p = tile.wrapping_add(b * s.block_bytes + PREFETCH_BYTES + 64 * line);
                        _mm_prefetch::<_MM_HINT_T0>(p.cast());
                    }
                    let ring = s.ring.add(b % RING * TILE_BYTES).cast_const();
                    let weights = if C::DIRECT { C::codes(tile, b) } else { ring };
                    let part = s.parts.add(b * 3 * R * ROW_BYTES);
                    tiles::zero!($c);
                    tiles::load!($w, weights, 64);
                    tiles::load!(4, part, ROW_BYTES);
                    expand(0);
                    expand(1);
                    tiles::multiply!($c, 4, $w);
                    if !stacked::<R>() {
                        tiles::load!(5, part.add(R * ROW_BYTES), ROW_BYTES);
                        tiles::load!(6, part.add(2 * R * ROW_BYTES), ROW_BYTES);
                        tiles::multiply!($c, 5, $w);
                        tiles::multiply!($c, 6, $w);
                    }
                    expand(2);
                    expand(3);
                }
                if b > 0 && b <= blocks {
                    tiles::store!($other, s.products.add((b - 1) % RING * TILE_BYTES / 4), 64);
                }
                if b > 1 {
                    accumulate::<C, R>(tile, b - 2, s, &mut total);
                }
            };
        }
        for b in (0..blocks + 2).step_by(2) {
            step!(b, 0, 2, 1);
            if b + 1 < blocks + 2 {
                step!(b + 1, 1, 3, 0);
            }
        }
        total
    }
}

/// Scale block `b`'s product into the totals.
#[inline(always)]
unsafe fn accumulate<C: Codes, const R: usize>(tile: *const u8, b: usize, s: &Stream, total: &mut [__m512; R]) {
    // SAFETY: as in `dot`.
    unsafe {
        let product = s.products.add(b % RING * TILE_BYTES / 4).cast_const();
        let (scale, offset) = C::factors(tile, b);
        for (r, total) in total.iter_mut().enumerate() {
            let row = |part: usize| _mm512_load_ps(product.add((part * R + r) * TILE_ROWS));
            let p = if stacked::<R>() {
                flush(_mm512_add_ps(flush(_mm512_add_ps(row(0), row(1))), row(2)))
            } else {
                row(0)
            };
            *total = if C::SCALED { _mm512_fmadd_ps(scale, p, *total) } else { _mm512_add_ps(*total, p) };
            if C::OFFSET {
                *total = _mm512_fmadd_ps(offset, _mm512_set1_ps(*s.sums.add(b * R + r)), *total);
            }
        }
    }
}

/// Denormals to zero.
#[inline(always)]
unsafe fn flush(v: __m512) -> __m512 {
    const DENORMAL: i32 = 0x20;
    // SAFETY: no memory.
    unsafe { _mm512_maskz_mov_ps(!_mm512_fpclass_ps_mask::<DENORMAL>(v), v) }
}
