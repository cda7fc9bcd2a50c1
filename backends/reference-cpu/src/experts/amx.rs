//! Dot products of stored rows with activations on AMX tiles.
//!
//! A row of weights is a row of tile A as it lies in memory, so nothing is repacked: bf16 as such, MXFP4 as value times
//! scale, which is exact in bf16. Tile B holds activations, each f32 as three bf16 that sum to it ([`crate::gemm`] does
//! the same), in columns of their own: 5 tokens to 16 columns. A column is summed over all of K in the accumulator, and
//! a token's three columns are added last. No column knows its neighbours, so a token's bits are the same alone (a
//! decode step) and among many (a prompt).
//!
//! Rejected: weights as tile B with one row of activations per token, which is the cheaper product for many tokens, but
//! wants weights interleaved by sixteen rows: a copy of every expert.

use super::matrix::{BLOCK_K, Inputs, TILE_ROWS, Tile};
use crate::{
    gemm::amx::tiles::{self, Configured},
    scratch::{Carver, region_bytes},
    simd::{Avx512, Simd},
};
use std::arch::x86_64::*;
use tokenspeed_backend_api::{dtype::DType, quant::mxfp4};

const TILE_BYTES: usize = 1024;
/// Tokens in one tile of activations.
const TILE_TOKENS: usize = 5;
/// Tokens in the two tiles that are multiplied together.
const COLUMN_TOKENS: usize = 2 * TILE_TOKENS;
/// Expanded blocks in flight for few tokens.
const RING: usize = 4;
/// How many blocks expansion runs ahead of multiplication.
const AHEAD: usize = 2;

/// Formats whose values are exact in bf16.
pub const fn takes(dtype: DType) -> bool {
    matches!(dtype, DType::Mxfp4 | DType::BF16)
}

/// Bytes a panel of `tokens` rows of depth `k` takes.
pub const fn panel_bytes(tokens: usize, k: usize) -> usize {
    tokens.div_ceil(COLUMN_TOKENS) * k.div_ceil(BLOCK_K) * 2 * TILE_BYTES
}

/// Scratch of one worker.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// `[2][blocks]` expanded tiles of weights.
    weights: *mut u8,
    /// `[2][16 rows][16 blocks]`: what is added to bf16 pairs to scale them.
    deltas: *mut u32,
    /// `[4][16][16]` finished accumulators, and one of them transposed.
    products: *mut f32,
}

impl Work {
    /// Scratch for depth `k`.
    pub const fn bytes(k: usize) -> usize {
        let blocks = k.div_ceil(BLOCK_K);
        let blocks = if blocks < RING { RING } else { blocks };
        region_bytes::<u8>(2 * blocks * TILE_BYTES) + region_bytes::<u32>(2 * 256) + region_bytes::<f32>(5 * 256)
    }

    pub fn new(carver: &mut Carver, k: usize) -> Self {
        let blocks = k.div_ceil(BLOCK_K).max(RING);
        Self {
            weights: carver.take(2 * blocks * TILE_BYTES),
            deltas: carver.take(2 * 256),
            products: carver.take(5 * 256),
        }
    }
}

/// Lay out activations as tiles, `[column tokens][block][2]`.
///
/// # Safety
/// AVX-512; the rows exist; `panel` has [`panel_bytes`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub unsafe fn build(inputs: &Inputs<'_>, panel: *mut u8) {
    let (tokens, blocks) = (inputs.len(), inputs.blocks());
    for first in (0..tokens).step_by(TILE_TOKENS) {
        let (column, half) = (first / COLUMN_TOKENS, first / TILE_TOKENS % 2);
        for b in 0..blocks {
            let valid = BLOCK_K.min(inputs.width - b * BLOCK_K);
            let mut rows = [0u32; 256];
            // SAFETY: `valid` values of each row follow; the tile is inside the panel.
            unsafe {
                for j in first..tokens.min(first + TILE_TOKENS) {
                    let x = inputs.row(j).add(b * BLOCK_K);
                    split(x, valid, rows.as_mut_ptr().add((j - first) * 48));
                }
                let tile = panel.add(((column * blocks + b) * 2 + half) * TILE_BYTES);
                Avx512::transpose16(rows.as_ptr().cast(), 16, tile.cast(), 16);
            }
        }
    }
}

/// The low, middle and high bf16 of 32 values, sixteen pairs each.
#[inline(always)]
unsafe fn split(x: *const f32, valid: usize, out: *mut u32) {
    // SAFETY: `valid` values at x, 48 at out.
    unsafe {
        let first = ((1u32 << valid.min(16)) - 1) as __mmask16;
        let second = ((1u32 << valid.saturating_sub(16)) - 1) as __mmask16;
        let mut a = _mm512_maskz_loadu_ps(first, x);
        let mut b = _mm512_maskz_loadu_ps(second, x.wrapping_add(16));
        let keep = _mm512_set1_epi32(0xFFFF_0000u32 as i32);
        let mut odd = [0u16; 32];
        let mut i = 0;
        while i < 32 {
            odd[i] = 2 * i as u16 + 1;
            i += 1;
        }
        let odd = _mm512_loadu_si512(odd.as_ptr().cast());
        for part in [2, 1, 0] {
            let (bits_a, bits_b) = (_mm512_castps_si512(a), _mm512_castps_si512(b));
            let high = _mm512_permutex2var_epi16(bits_a, odd, bits_b);
            _mm512_storeu_si512(out.add(part * 16).cast(), high);
            a = _mm512_sub_ps(a, _mm512_castsi512_ps(_mm512_and_si512(bits_a, keep)));
            b = _mm512_sub_ps(b, _mm512_castsi512_ps(_mm512_and_si512(bits_b, keep)));
        }
    }
}

/// The products of two tiles with all tokens of a panel: `out[tile][token][16]`. `ahead` are the tiles wanted next.
///
/// # Safety
/// AMX is available; `inputs` are what `panel` was built from; `out` has `2 · tokens · 16` values.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub unsafe fn products(
    dtype: DType,
    pair: &[Tile; 2],
    inputs: &Inputs<'_>,
    panel: *const u8,
    work: &Work,
    out: *mut f32,
    ahead: &[Tile; 2],
) {
    // SAFETY: the caller's promise.
    let extreme = unsafe {
        match dtype {
            DType::Mxfp4 => run::<true>(pair, inputs, panel, work, out, ahead),
            _ => run::<false>(pair, inputs, panel, work, out, ahead),
        }
    };
    for (i, tile) in pair.iter().enumerate().filter(|(i, _)| extreme[*i]) {
        for j in 0..inputs.len() {
            for r in 0..tile.rows {
                // SAFETY: the row and the token exist.
                unsafe { *out.add((i * inputs.len() + j) * TILE_ROWS + r) = exactly(tile.row(r), inputs, j) };
            }
        }
    }
}

/// One product of an MXFP4 row whose scales leave the range of bf16, in f64.
#[cold]
unsafe fn exactly((values, scales): (*const u8, *const u8), inputs: &Inputs<'_>, j: usize) -> f32 {
    let mut sum = 0f64;
    for b in 0..inputs.blocks() {
        let mut w = [0f32; BLOCK_K];
        // SAFETY: block b of the row and of the activations exists; MXFP4 rows are whole blocks.
        let x = unsafe {
            let bytes = std::slice::from_raw_parts(values.add(b * BLOCK_K / 2), BLOCK_K / 2);
            mxfp4::decode_row(bytes, std::slice::from_raw_parts(scales.add(b), 1), &mut w);
            std::slice::from_raw_parts(inputs.row(j).add(b * BLOCK_K), BLOCK_K)
        };
        sum += w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum::<f64>();
    }
    sum as f32
}

/// Returns which tiles have scales that bf16 cannot hold.
#[inline(always)]
unsafe fn run<const MX: bool>(
    pair: &[Tile; 2],
    inputs: &Inputs<'_>,
    panel: *const u8,
    work: &Work,
    out: *mut f32,
    ahead: &[Tile; 2],
) -> [bool; 2] {
    let (tokens, blocks, k) = (inputs.len(), inputs.blocks(), inputs.width);
    let mut extreme = [false; 2];
    // SAFETY: blocks, tiles and tokens addressed exist; scratch is sized for them.
    unsafe {
        let _configured = Configured::new([16; 8]);
        if tokens <= COLUMN_TOKENS {
            for b in 0..AHEAD.min(blocks) {
                expand::<MX>(pair, b, k, work, b % RING, ahead, &mut extreme);
            }
            zero();
            for b in 0..blocks {
                let (weights, x) = (work.weights.add(b % RING * 2 * TILE_BYTES), panel.add(b * 2 * TILE_BYTES));
                if tokens > TILE_TOKENS {
                    multiply::<2>(weights, x)
                } else {
                    multiply::<1>(weights, x)
                }
                if b + AHEAD < blocks {
                    expand::<MX>(pair, b + AHEAD, k, work, (b + AHEAD) % RING, ahead, &mut extreme);
                }
            }
            finish(work, 0, tokens, out);
            return extreme;
        }
        for b in 0..blocks {
            expand::<MX>(pair, b, k, work, b, ahead, &mut extreme);
        }
        for first in (0..tokens).step_by(COLUMN_TOKENS) {
            let panel = panel.add(first / COLUMN_TOKENS * blocks * 2 * TILE_BYTES);
            zero();
            if tokens - first > TILE_TOKENS {
                for b in 0..blocks {
                    multiply::<2>(work.weights.add(b * 2 * TILE_BYTES), panel.add(b * 2 * TILE_BYTES));
                }
            } else {
                for b in 0..blocks {
                    multiply::<1>(work.weights.add(b * 2 * TILE_BYTES), panel.add(b * 2 * TILE_BYTES));
                }
            }
            finish(work, first, tokens, out);
        }
    }
    extreme
}

/// Expand block `b` of both tiles to place `slot`, and ask for what will be wanted.
///
/// A function, not a closure: a closure that is not inlined is compiled without the tier's features.
#[inline(always)]
unsafe fn expand<const MX: bool>(
    pair: &[Tile; 2],
    b: usize,
    k: usize,
    work: &Work,
    slot: usize,
    ahead: &[Tile; 2],
    extreme: &mut [bool; 2],
) {
    // SAFETY: block b and place `slot` exist.
    unsafe {
        for (i, tile) in pair.iter().enumerate() {
            let deltas = work.deltas.add(i * 256);
            if MX && b.is_multiple_of(16) {
                extreme[i] |= scale_deltas(tile, b, k.div_ceil(BLOCK_K), deltas);
            }
            let to = work.weights.add((2 * slot + i) * TILE_BYTES);
            if MX {
                expand_mx(tile, b, deltas, to)
            } else {
                copy_bf16(tile, b, k, to)
            }
            prefetch::<MX>(&ahead[i], b);
        }
    }
}

#[inline(always)]
unsafe fn zero() {
    // SAFETY: tiles are configured.
    unsafe {
        tiles::zero!(0);
        tiles::zero!(1);
        tiles::zero!(2);
        tiles::zero!(3);
    }
}

/// One block of both weight tiles times one or two tiles of activations.
#[inline(always)]
unsafe fn multiply<const COLUMNS: usize>(weights: *const u8, x: *const u8) {
    // SAFETY: tiles are configured; 2 KiB at both.
    unsafe {
        tiles::load!(4, weights, 64);
        tiles::load!(6, x, 64);
        tiles::multiply!(0, 4, 6);
        tiles::load!(5, weights.add(TILE_BYTES), 64);
        tiles::multiply!(2, 5, 6);
        if COLUMNS == 2 {
            tiles::load!(7, x.add(TILE_BYTES), 64);
            tiles::multiply!(1, 4, 7);
            tiles::multiply!(3, 5, 7);
        }
    }
}

/// Add up the parts of tokens `first..first + 10` of both tiles.
#[inline(always)]
unsafe fn finish(work: &Work, first: usize, tokens: usize, out: *mut f32) {
    // SAFETY: tiles are configured; scratch holds five tiles, `out` all tokens.
    unsafe {
        let product = |i: usize| work.products.add(i * 256);
        tiles::store!(0, product(0), 64);
        tiles::store!(1, product(1), 64);
        tiles::store!(2, product(2), 64);
        tiles::store!(3, product(3), 64);
        for tile in 0..2 {
            for half in 0..2 {
                let first = first + half * TILE_TOKENS;
                if first >= tokens {
                    continue;
                }
                let columns = product(4);
                Avx512::transpose16(product(2 * tile + half), 16, columns, 16);
                for j in 0..TILE_TOKENS.min(tokens - first) {
                    let part = |i: usize| _mm512_loadu_ps(columns.add((3 * j + i) * 16));
                    let sum = _mm512_add_ps(_mm512_add_ps(part(0), part(1)), part(2));
                    _mm512_storeu_ps(out.add((tile * tokens + first + j) * TILE_ROWS), sum);
                }
            }
        }
    }
}

/// Ask for the sixteenth of the tile that block `b` is of this one.
#[inline(always)]
unsafe fn prefetch<const MX: bool>(tile: &Tile, b: usize) {
    let bytes = TILE_ROWS * if MX { BLOCK_K / 2 } else { 2 * BLOCK_K };
    for line in (0..bytes).step_by(64) {
        // SAFETY: any address may be prefetched.
        unsafe { Avx512::prefetch(tile.values.wrapping_add(b * bytes + line)) };
    }
    if MX && b.is_multiple_of(4) {
        // SAFETY: as above.
        unsafe { Avx512::prefetch(tile.scales.wrapping_add(b * TILE_ROWS)) };
    }
}

/// bf16 of the E2M1 numbers, twice over: the index of a word permute has five bits.
static E2M1: [u16; 32] = {
    let magnitudes = [0u16, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0];
    let mut out = [0; 32];
    let mut i = 0;
    while i < 32 {
        out[i] = magnitudes[i % 8] | ((i as u16) >> 3 & 1) << 15;
        i += 1;
    }
    out
};
/// All but the zeros, which a scale leaves alone.
const SCALED: __mmask32 = 0xfefe_fefe;

/// From the scales of blocks `b..b + 16`: what to add to the bf16 of a value so that its exponent is scaled.
///
/// Returns whether a scale is so small or large that some value leaves the normal range.
#[inline(always)]
unsafe fn scale_deltas(tile: &Tile, b: usize, blocks: usize, out: *mut u32) -> bool {
    let count = 16.min(blocks - b);
    let mask = ((1u32 << count) - 1) as __mmask16;
    let mut extreme = 0;
    for r in 0..TILE_ROWS {
        // SAFETY: `count` scales of the row follow; 16 values of each row at `out`.
        unsafe {
            let scales = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(mask, tile.row(r).1.add(b).cast()));
            let above = _mm512_sub_epi32(scales, _mm512_set1_epi32(2));
            extreme |= _mm512_mask_cmpgt_epu32_mask(mask, above, _mm512_set1_epi32(250));
            let delta = _mm512_slli_epi32::<7>(_mm512_sub_epi32(scales, _mm512_set1_epi32(127)));
            let low = _mm512_and_si512(delta, _mm512_set1_epi32(0xffff));
            _mm512_storeu_si512(out.add(16 * r).cast(), _mm512_or_si512(low, _mm512_slli_epi32::<16>(delta)));
        }
    }
    extreme != 0
}

/// Block `b` of sixteen MXFP4 rows as bf16.
#[inline(always)]
unsafe fn expand_mx(tile: &Tile, b: usize, deltas: *const u32, out: *mut u8) {
    // SAFETY: 16 bytes of each row, 1 KiB out.
    unsafe {
        let base = _mm512_loadu_si512(E2M1.as_ptr().cast());
        for r in 0..TILE_ROWS {
            let v = _mm512_cvtepu8_epi32(_mm_loadu_si128(tile.row(r).0.add(b * BLOCK_K / 2).cast()));
            // The low nibble indexes for the lower word of a lane, the high one, moved up, for the upper word.
            let index = _mm512_or_si512(v, _mm512_slli_epi32::<12>(v));
            let delta = _mm512_set1_epi32(*deltas.add(16 * r + b % 16) as i32);
            let table = _mm512_mask_add_epi16(base, SCALED, base, delta);
            _mm512_store_si512(out.add(64 * r).cast(), _mm512_permutexvar_epi16(index, table));
        }
    }
}

/// Block `b` of sixteen bf16 rows, zeros past the end.
#[inline(always)]
unsafe fn copy_bf16(tile: &Tile, b: usize, k: usize, out: *mut u8) {
    let mask = (u64::MAX >> (64 - BLOCK_K.min(k - b * BLOCK_K))) as __mmask32;
    for r in 0..TILE_ROWS {
        // SAFETY: as many values as the mask has bits follow; 1 KiB out.
        unsafe {
            let v = _mm512_maskz_loadu_epi16(mask, tile.row(r).0.add(b * 2 * BLOCK_K).cast());
            _mm512_store_si512(out.add(64 * r).cast(), v);
        }
    }
}
