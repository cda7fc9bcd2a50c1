//! Up to 16 rows: weights stream through once, limited by memory.
//!
//! Per block of 32 k and 16 outputs: codes are expanded into a small ring, one block ahead of the tile products that
//! read them; products are stored and scaled one block behind. So the long latencies overlap inside the window of
//! out-of-order execution.

use super::{
    codes::Codes,
    split::{ROW_BYTES, split_row},
    tiles::{self, Configured},
};
use crate::{
    gemm::{
        GemmArgs,
        layout::{BLOCK_K, TILE_ROWS, tile_bytes},
    },
    scratch::{Carver, region_bytes},
};
use std::{arch::x86_64::*, ops::Range};

/// Rows this kernel takes.
pub const ROWS_MAX: usize = 16;
const TILE_BYTES: usize = 1024;
/// Expanded blocks in flight.
const RING: usize = 4;

/// Scratch for depth `k`.
pub fn scratch_bytes(k: usize) -> usize {
    let blocks = k.div_ceil(BLOCK_K);
    region_bytes::<u8>(blocks * 3 * ROWS_MAX * ROW_BYTES)
        + region_bytes::<f32>(blocks * ROWS_MAX)
        + 2 * region_bytes::<u8>(RING * TILE_BYTES)
}

/// `rows.len() ≤ R` rows times all tiles.
///
/// # Safety
/// As [`super::gemm`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub unsafe fn gemm<C: Codes, const R: usize>(
    args: &GemmArgs,
    packed: *const u8,
    rows: Range<usize>,
    tiles: Range<usize>,
    carver: &mut Carver,
) {
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
        let r = R as u8;
        let _configured = Configured::new([r, r, 16, 16, r, r, r, 16]);
        let bytes = tile_bytes(args.weight.dtype, args.k);
        for (i, tile) in tiles.enumerate() {
            let total = dot::<C, R>(packed.add(i * bytes), blocks, parts, sums, ring, products);
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

/// One tile of weights times R rows.
#[inline(always)]
unsafe fn dot<C: Codes, const R: usize>(
    tile: *const u8,
    blocks: usize,
    parts: *const u8,
    sums: *const f32,
    ring: *mut u8,
    products: *mut f32,
) -> [__m512; R] {
    // SAFETY: block indices stay below `blocks`, ring slots below RING; tiles are configured for R rows.
    unsafe {
        let mut total = [_mm512_setzero_ps(); R];
        if !C::DIRECT {
            C::expand(tile, 0, ring);
        }
        for b in 0..blocks + 1 {
            if b < blocks {
                if !C::DIRECT && b + 1 < blocks {
                    C::expand(tile, b + 1, ring.add((b + 1) % RING * TILE_BYTES));
                }
                let weights = if C::DIRECT { C::codes(tile, b) } else { ring.add(b % RING * TILE_BYTES).cast_const() };
                let product = products.add(b % RING * TILE_BYTES / 4);
                let part = parts.add(b * 3 * R * ROW_BYTES);
                tiles::zero!(0);
                tiles::load!(2, weights, 64);
                tiles::load!(4, part, ROW_BYTES);
                tiles::load!(5, part.add(R * ROW_BYTES), ROW_BYTES);
                tiles::load!(6, part.add(2 * R * ROW_BYTES), ROW_BYTES);
                tiles::multiply!(0, 4, 2);
                tiles::multiply!(0, 5, 2);
                tiles::multiply!(0, 6, 2);
                tiles::store!(0, product, 64);
            }
            if b > 0 {
                let b = b - 1;
                let product = products.add(b % RING * TILE_BYTES / 4).cast_const();
                let (scale, offset) = C::factors(tile, b);
                for (r, total) in total.iter_mut().enumerate() {
                    let p = _mm512_load_ps(product.add(r * TILE_ROWS));
                    *total = if C::SCALED { _mm512_fmadd_ps(scale, p, *total) } else { _mm512_add_ps(*total, p) };
                    if C::OFFSET {
                        *total = _mm512_fmadd_ps(offset, _mm512_set1_ps(*sums.add(b * R + r)), *total);
                    }
                }
            }
        }
        total
    }
}
