//! Dot products of stored rows with activations on vector registers.
//!
//! Lanes run along K: a block of 32 is two vectors (for MXFP4 the even and the odd elements, as the nibbles lie). One
//! accumulator per row and token takes first vectors and second vectors in order of the blocks, then its lanes are
//! folded. How many rows and tokens go together changes nothing of that.

use super::matrix::{BLOCK_K, Inputs, TILE_ROWS, Tile};
use crate::simd::{LANES, Simd};
use tokenspeed_backend_api::{dtype::DType, quant::mxfp4};

/// How far ahead of its use memory is prefetched, into the level-2 cache.
const PREFETCH_BYTES: usize = 8192;

/// `2^(code − 127)` of every E8M0 code, NaN for 255.
static E8M0: std::sync::LazyLock<[f32; 256]> =
    std::sync::LazyLock::new(|| std::array::from_fn(|code| mxfp4::e8m0_to_f32(code as u8)));

/// f32 a panel of `tokens` rows of depth `k` takes.
pub const fn panel_len(tokens: usize, k: usize) -> usize {
    tokens * k.div_ceil(BLOCK_K) * BLOCK_K
}

/// Lay out the activations: whole blocks, zeros past the end; even elements of a block first if `paired`.
///
/// # Safety
/// The rows exist; `panel` has [`panel_len`].
pub unsafe fn build(inputs: &Inputs<'_>, paired: bool, panel: *mut f32) {
    let depth = inputs.blocks() * BLOCK_K;
    for j in 0..inputs.len() {
        // SAFETY: the caller's promise.
        let (from, to) = unsafe {
            let to = panel.add(j * depth);
            to.write_bytes(0, depth);
            (std::slice::from_raw_parts(inputs.row(j), inputs.width), std::slice::from_raw_parts_mut(to, depth))
        };
        if !paired {
            to[..from.len()].copy_from_slice(from);
            continue;
        }
        for (from, to) in from.chunks_exact(BLOCK_K).zip(to.chunks_exact_mut(BLOCK_K)) {
            for (i, pair) in from.chunks_exact(2).enumerate() {
                (to[i], to[LANES + i]) = (pair[0], pair[1]);
            }
        }
    }
}

/// A stored format.
trait Format {
    /// The two vectors of block `b` of a row, of which `left` values remain.
    unsafe fn load<S: Simd>(row: (*const u8, *const u8), b: usize, left: usize) -> (S::F, S::F);
    const BLOCK_BYTES: usize;
}

struct Mx;
impl Format for Mx {
    const BLOCK_BYTES: usize = BLOCK_K / 2;
    #[inline(always)]
    unsafe fn load<S: Simd>((values, scales): (*const u8, *const u8), b: usize, _: usize) -> (S::F, S::F) {
        // SAFETY: block b is inside the row.
        unsafe {
            let scale = S::splat(E8M0[usize::from(*scales.add(b))]);
            let v = S::load_u8(values.add(b * Self::BLOCK_BYTES));
            (S::e2m1(scale, v), S::e2m1(scale, S::i_shr(v, 4)))
        }
    }
}

macro_rules! plain_format {
    ($name:ident, $bytes:literal, |$at:ident| $load:expr) => {
        struct $name;
        impl Format for $name {
            const BLOCK_BYTES: usize = BLOCK_K * $bytes;
            #[inline(always)]
            unsafe fn load<S: Simd>((values, _): (*const u8, *const u8), b: usize, left: usize) -> (S::F, S::F) {
                // SAFETY: the block is inside the row, or copied as far as it is.
                unsafe {
                    let load = |$at: *const u8| $load;
                    let p = values.add(b * Self::BLOCK_BYTES);
                    if left >= BLOCK_K {
                        return (load(p), load(p.add(LANES * $bytes)));
                    }
                    let mut block = [0u8; BLOCK_K * $bytes];
                    std::ptr::copy_nonoverlapping(p, block.as_mut_ptr(), left * $bytes);
                    (load(block.as_ptr()), load(block.as_ptr().add(LANES * $bytes)))
                }
            }
        }
    };
}

plain_format!(F32, 4, |p| S::load(p.cast()));
plain_format!(F16, 2, |p| S::load_f16(p));
plain_format!(Bf16, 2, |p| S::load_bf16(p));

/// The products of a tile with all tokens of a panel: `out[token][16]`.
///
/// # Safety
/// As [`Simd`]; `panel` was built for this format, depth and `tokens`; `out` has `tokens · 16` values.
#[inline(always)]
pub unsafe fn products<S: Simd>(dtype: DType, tile: &Tile, k: usize, panel: *const f32, tokens: usize, out: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe {
        match dtype {
            DType::Mxfp4 => rows::<S, Mx>(tile, k, panel, tokens, out),
            DType::F32 => rows::<S, F32>(tile, k, panel, tokens, out),
            DType::F16 => rows::<S, F16>(tile, k, panel, tokens, out),
            DType::BF16 => rows::<S, Bf16>(tile, k, panel, tokens, out),
            other => unreachable!("{other} is no expert format: `refusal` names it"),
        }
    }
}

#[inline(always)]
unsafe fn rows<S: Simd, F: Format>(tile: &Tile, k: usize, panel: *const f32, tokens: usize, out: *mut f32) {
    let mut token = 0;
    macro_rules! step {
        ($rows:literal, $tokens:literal, $if:expr) => {
            while $if && tokens - token >= $tokens {
                for row in (0..TILE_ROWS).step_by($rows) {
                    // SAFETY: the caller's promise; rows past the last repeat it.
                    unsafe { block::<S, F, $rows, $tokens>(tile, row, k, panel, token, out) };
                }
                token += $tokens;
            }
        };
    }
    // As many sums as registers hold.
    step!(2, 6, S::GEMM_TILES == 2);
    step!(2, 2, true);
    step!(4, 1, true);
}

#[inline(always)]
unsafe fn block<S: Simd, F: Format, const R: usize, const T: usize>(
    tile: &Tile,
    row: usize,
    k: usize,
    panel: *const f32,
    token: usize,
    out: *mut f32,
) {
    let blocks = k.div_ceil(BLOCK_K);
    let mut row_at = [(std::ptr::null(), std::ptr::null()); R];
    for (r, at) in row_at.iter_mut().enumerate() {
        *at = tile.row(row + r);
    }
    // SAFETY: the caller's promise.
    unsafe {
        let x = panel.add(token * blocks * BLOCK_K);
        let mut sums = [[S::splat(0.0); T]; R];
        for b in 0..blocks {
            for (at, sums) in row_at.iter().zip(&mut sums) {
                if b * F::BLOCK_BYTES % 64 == 0 {
                    S::prefetch(at.0.wrapping_add(b * F::BLOCK_BYTES + PREFETCH_BYTES));
                }
                let (first, second) = F::load::<S>(*at, b, k - b * BLOCK_K);
                for (t, sum) in sums.iter_mut().enumerate() {
                    let x = x.add((t * blocks + b) * BLOCK_K);
                    *sum = S::fma(first, S::load(x), *sum);
                    *sum = S::fma(second, S::load(x.add(LANES)), *sum);
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            for (t, sum) in sums.iter().enumerate() {
                *out.add((token + t) * TILE_ROWS + row + r) = S::sum(*sum);
            }
        }
    }
}
