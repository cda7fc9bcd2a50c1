//! Many rows: limited by the tile multiplier.
//!
//! K is cut into chunks. For each, activations of up to 256 rows are split once, and groups of four weight tiles are
//! expanded once and swept over all rows, 16 at a time: each load of the three activation tiles serves four weight tiles.
//! Products are scaled one block behind, into totals that live in the output between chunks of K.

use super::{
    Bf16, Codes, Job, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q8_0,
    split::{ROW_BYTES, split_row},
    tiles::{self, Configured},
    with_codes,
};
use crate::{
    gemm::{
        GemmArgs,
        layout::{BLOCK_K, TILE_ROWS, tile_bytes},
    },
    scratch::{Carver, region_bytes},
};
use std::{arch::x86_64::*, ops::Range};
use tokenspeed_backend_api::dtype::DType;

const TILE_BYTES: usize = 1024;
/// Blocks of 32 k per chunk of K.
const CHUNK_BLOCKS: usize = 18;
/// Groups of 16 rows per sweep.
const CHUNK_GROUPS: usize = 16;
/// Weight tiles per sweep.
const WIDTH: usize = 4;

/// Scratch, independent of the shape.
pub fn scratch_bytes() -> usize {
    region_bytes::<u8>(CHUNK_GROUPS * CHUNK_BLOCKS * 3 * TILE_BYTES)
        + region_bytes::<f32>(CHUNK_GROUPS * CHUNK_BLOCKS * TILE_ROWS)
        + region_bytes::<u8>(WIDTH * CHUNK_BLOCKS * TILE_BYTES)
        + 2 * region_bytes::<f32>(WIDTH * CHUNK_BLOCKS * TILE_ROWS)
        + region_bytes::<u8>(2 * WIDTH * TILE_BYTES)
        + region_bytes::<u8>(WIDTH * TILE_BYTES)
}

/// Where things stand in scratch.
struct Work {
    /// `[group][block][part][16 rows][32]` bf16.
    parts: *mut u8,
    /// `[group][block][16]`.
    sums: *mut f32,
    /// `[tile][block]` expanded weights.
    weights: *mut u8,
    /// `[tile][block][16]`.
    scales: *mut f32,
    offsets: *mut f32,
    /// `[2][tile][16][16]`.
    products: *mut f32,
    /// `[tile][16 rows][16]`.
    totals: *mut f32,
}

/// Any number of rows times all jobs' tiles.
///
/// # Safety
/// As [`super::gemm`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub unsafe fn gemm(jobs: &[Job<'_>], rows: Range<usize>, carver: &mut Carver) {
    let work = Work {
        parts: carver.take(CHUNK_GROUPS * CHUNK_BLOCKS * 3 * TILE_BYTES),
        sums: carver.take(CHUNK_GROUPS * CHUNK_BLOCKS * TILE_ROWS),
        weights: carver.take(WIDTH * CHUNK_BLOCKS * TILE_BYTES),
        scales: carver.take(WIDTH * CHUNK_BLOCKS * TILE_ROWS),
        offsets: carver.take(WIDTH * CHUNK_BLOCKS * TILE_ROWS),
        products: carver.take(2 * WIDTH * TILE_BYTES / 4),
        totals: carver.take(WIDTH * TILE_BYTES / 4),
    };
    let args = jobs[0].args;
    let blocks = args.k.div_ceil(BLOCK_K);
    // SAFETY: rows, tiles and blocks addressed exist; scratch regions are sized by the chunk constants.
    unsafe {
        let _configured = Configured::new([16; 8]);
        for first_row in rows.clone().step_by(16 * CHUNK_GROUPS) {
            let rows = first_row..rows.end.min(first_row + 16 * CHUNK_GROUPS);
            for b0 in (0..blocks).step_by(CHUNK_BLOCKS) {
                let chunk = b0..blocks.min(b0 + CHUNK_BLOCKS);
                split_rows(args, &work, rows.clone(), chunk.clone());
                for job in jobs {
                    let dtype = job.args.weight.dtype;
                    with_codes!(dtype, C => sweep_tiles::<C>(job, &work, rows.clone(), chunk.clone(), blocks));
                }
            }
        }
    }
}

/// All tiles of a job over one chunk of rows and K.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn sweep_tiles<C: Codes>(job: &Job<'_>, work: &Work, rows: Range<usize>, chunk: Range<usize>, blocks: usize) {
    let bytes = tile_bytes(job.args.weight.dtype, job.args.k);
    let mut tile = job.tiles.start;
    while tile < job.tiles.end {
        let width = WIDTH.min(job.tiles.end - tile);
        // SAFETY: the tiles exist; places are inside the chunk.
        unsafe {
            for j in 0..width {
                let weights = job.packed.add((tile - job.tiles.start + j) * bytes);
                expand_tile::<C>(work, weights, j, chunk.clone());
            }
            for (group, row) in rows.clone().step_by(16).enumerate() {
                let place = Place { row, row_end: rows.end, group, tile, chunk: chunk.clone(), blocks };
                match width {
                    1 => sweep::<C, 1>(job.args, work, &place),
                    2 => sweep::<C, 2>(job.args, work, &place),
                    3 => sweep::<C, 3>(job.args, work, &place),
                    _ => sweep::<C, 4>(job.args, work, &place),
                }
            }
        }
        tile += width;
    }
}

#[inline(always)]
unsafe fn split_rows(args: &GemmArgs, work: &Work, rows: Range<usize>, chunk: Range<usize>) {
    for row in 0..rows.len().next_multiple_of(16) {
        for (i, b) in chunk.clone().enumerate() {
            let valid = if row < rows.len() { BLOCK_K.min(args.k - b * BLOCK_K) } else { 0 };
            let x = args.x.wrapping_add((rows.start + row) * args.ldx + b * BLOCK_K);
            let (slot, r) = (row / 16 * CHUNK_BLOCKS + i, row % 16);
            // SAFETY: `valid` values exist; the slot is inside the chunk.
            unsafe {
                let out = work.parts.add(slot * 3 * TILE_BYTES + r * ROW_BYTES);
                *work.sums.add(slot * TILE_ROWS + r) = split_row(x, valid, out, TILE_BYTES);
            }
        }
    }
}

#[inline(always)]
unsafe fn expand_tile<C: Codes>(work: &Work, tile: *const u8, j: usize, chunk: Range<usize>) {
    for (i, b) in chunk.enumerate() {
        let slot = j * CHUNK_BLOCKS + i;
        // SAFETY: block b is inside the tile, the slot inside the chunk.
        unsafe {
            for q in 0..4 {
                C::expand(tile, b, q, work.weights.add(slot * TILE_BYTES));
            }
            let (scale, offset) = C::factors(tile, b);
            _mm512_store_ps(work.scales.add(slot * TILE_ROWS), scale);
            _mm512_store_ps(work.offsets.add(slot * TILE_ROWS), offset);
        }
    }
}

/// Which 16 rows, tiles and blocks a sweep step is about.
struct Place {
    row: usize,
    row_end: usize,
    group: usize,
    tile: usize,
    chunk: Range<usize>,
    blocks: usize,
}

/// 16 rows times W tiles over one chunk of K.
#[inline(always)]
unsafe fn sweep<C: Codes, const W: usize>(args: &GemmArgs, work: &Work, place: &Place) {
    let rows = 16.min(place.row_end - place.row);
    let count = place.chunk.len();
    // SAFETY: slots are inside the chunk; rows past the last are dropped, lanes past n masked.
    unsafe {
        let lanes = |j: usize| {
            let column = (place.tile + j) * TILE_ROWS;
            (column, ((1u32 << TILE_ROWS.min(args.n - column)) - 1) as __mmask16)
        };
        for j in 0..W {
            let (column, lanes) = lanes(j);
            for r in 0..16 {
                let mut v = _mm512_setzero_ps();
                if place.chunk.start > 0 && r < rows {
                    v = _mm512_maskz_loadu_ps(lanes, args.y.add((place.row + r) * args.ldy + column));
                }
                _mm512_store_ps(work.totals.add((j * 16 + r) * TILE_ROWS), v);
            }
        }
        for i in 0..count {
            let part = work.parts.add((place.group * CHUNK_BLOCKS + i) * 3 * TILE_BYTES);
            let weights = |j: usize| work.weights.add((j * CHUNK_BLOCKS + i) * TILE_BYTES);
            let product = |j: usize| work.products.add((i % 2 * WIDTH + j) * TILE_BYTES / 4);
            tiles::load!(4, part, ROW_BYTES);
            tiles::load!(5, part.add(TILE_BYTES), ROW_BYTES);
            tiles::load!(6, part.add(2 * TILE_BYTES), ROW_BYTES);
            macro_rules! product_tile {
                ($j:literal) => {
                    if $j < W {
                        tiles::zero!($j);
                        tiles::load!(7, weights($j), 64);
                        tiles::multiply!($j, 4, 7);
                        tiles::multiply!($j, 5, 7);
                        tiles::multiply!($j, 6, 7);
                        tiles::store!($j, product($j), 64);
                        // The next block's activations: 48 lines over the tiles of this one.
                        for line in $j * 48 / W..($j + 1) * 48 / W {
                            _mm_prefetch::<_MM_HINT_T0>(part.wrapping_add(3 * TILE_BYTES + 64 * line).cast());
                        }
                        // Between tile instructions, not after them: those alone fill the out-of-order window.
                        if i > 0 {
                            accumulate::<C>(work, place.group, i - 1, $j);
                        }
                    }
                };
            }
            product_tile!(0);
            product_tile!(1);
            product_tile!(2);
            product_tile!(3);
        }
        for j in 0..W {
            accumulate::<C>(work, place.group, count - 1, j);
        }
        let last = place.chunk.end == place.blocks;
        for j in 0..W {
            let (column, lanes) = lanes(j);
            for r in 0..rows {
                let mut v = _mm512_load_ps(work.totals.add((j * 16 + r) * TILE_ROWS));
                if last && !args.bias.is_null() {
                    v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(lanes, args.bias.add(column)));
                }
                _mm512_mask_storeu_ps(args.y.add((place.row + r) * args.ldy + column), lanes, v);
            }
        }
    }
}

/// Scale the products of weight tile `j` and block `i` of the chunk into the totals.
#[inline(always)]
unsafe fn accumulate<C: Codes>(work: &Work, group: usize, i: usize, j: usize) {
    // SAFETY: as in `sweep`.
    unsafe {
        let sums = work.sums.add((group * CHUNK_BLOCKS + i) * TILE_ROWS);
        let slot = (j * CHUNK_BLOCKS + i) * TILE_ROWS;
        let (scale, offset) = (_mm512_load_ps(work.scales.add(slot)), _mm512_load_ps(work.offsets.add(slot)));
        let products = work.products.add((i % 2 * WIDTH + j) * TILE_BYTES / 4);
        for r in 0..16 {
            let at = work.totals.add((j * 16 + r) * TILE_ROWS);
            let p = _mm512_load_ps(products.add(r * TILE_ROWS));
            let t = _mm512_load_ps(at);
            let mut t = if C::SCALED { _mm512_fmadd_ps(scale, p, t) } else { _mm512_add_ps(t, p) };
            if C::OFFSET {
                t = _mm512_fmadd_ps(offset, _mm512_set1_ps(*sums.add(r)), t);
            }
            _mm512_store_ps(at, t);
        }
    }
}
