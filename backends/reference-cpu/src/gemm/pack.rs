//! Stored weights to packed tiles.

use super::layout::{BLOCK_K, TILE_ROWS, codes_bytes, tile_bytes, unit_bytes, unit_k};
use crate::blocks::{code, k_scale_min};
use std::ops::Range;
use tokenspeed_backend_api::dtype::DType;

/// Pack the tiles `tiles` of a stored `[n, k]` matrix; `out` holds exactly those tiles. Rows past `n` become zeros.
///
/// `k` must be whole blocks of `dtype`. Different tiles may be packed by different threads.
pub fn pack_tiles(dtype: DType, source: &[u8], n: usize, k: usize, tiles: Range<usize>, out: &mut [u8]) {
    let row_bytes = k / dtype.block_len() * dtype.block_bytes();
    assert!(k.is_multiple_of(dtype.block_len()), "K = {k} is not whole blocks of {dtype}");
    assert!(source.len() >= n * row_bytes, "weight of [{n}, {k}] {dtype} has only {} bytes", source.len());
    let bytes = tile_bytes(dtype, k);
    assert_eq!(out.len(), tiles.len() * bytes);
    for (tile, out) in tiles.zip(out.chunks_mut(bytes)) {
        out.fill(0);
        for lane in 0..TILE_ROWS.min(n - tile * TILE_ROWS) {
            let row = &source[(tile * TILE_ROWS + lane) * row_bytes..][..row_bytes];
            pack_row(dtype, row, lane, out);
        }
    }
}

fn pack_row(dtype: DType, row: &[u8], lane: usize, out: &mut [u8]) {
    match dtype {
        DType::F32 => pack_plain::<4>(row, lane, out, |k| k),
        DType::F16 => pack_plain::<2>(row, lane, out, |k| k),
        DType::F8E4M3 => pack_plain::<1>(row, lane, out, |k| k),
        DType::BF16 => pack_pairs(row, lane, out),
        DType::Q8_0 => pack_blocks(DType::Q8_0, row, lane, out),
        DType::Q4_0 => pack_blocks(DType::Q4_0, row, lane, out),
        DType::Q4_1 => pack_blocks(DType::Q4_1, row, lane, out),
        DType::Q5_0 => pack_blocks(DType::Q5_0, row, lane, out),
        DType::Q5_1 => pack_blocks(DType::Q5_1, row, lane, out),
        DType::Q4K => pack_blocks(DType::Q4K, row, lane, out),
        DType::Q5K => pack_blocks(DType::Q5K, row, lane, out),
        DType::Q6K => pack_blocks(DType::Q6K, row, lane, out),
        _ => panic!("{dtype} is not a weight format"),
    }
}

fn pack_plain<const BYTES: usize>(row: &[u8], lane: usize, out: &mut [u8], slot: impl Fn(usize) -> usize) {
    for (k, value) in row.chunks_exact(BYTES).enumerate() {
        out[(slot(k) * TILE_ROWS + lane) * BYTES..][..BYTES].copy_from_slice(value);
    }
}

fn pack_pairs(row: &[u8], lane: usize, out: &mut [u8]) {
    for (k, value) in row.chunks_exact(2).enumerate() {
        let (block, r, half) = (k / BLOCK_K, k % 16, k % BLOCK_K / 16);
        out[block * 1024 + r * 64 + lane * 4 + half * 2..][..2].copy_from_slice(value);
    }
}

/// Generic over the format by constant propagation: every caller passes a literal.
#[inline(always)]
fn pack_blocks(dtype: DType, row: &[u8], lane: usize, out: &mut [u8]) {
    // Packed codes are unsigned, except the signed bytes of Q8_0.
    let bias = match dtype {
        DType::Q4_0 => 8,
        DType::Q5_0 => 16,
        DType::Q6K => 32,
        _ => 0,
    };
    let (bytes, subs, codes) = (dtype.block_bytes(), unit_k(dtype) / BLOCK_K, codes_bytes(dtype));
    for (block, unit) in row.chunks_exact(bytes).zip(out.chunks_exact_mut(unit_bytes(dtype))) {
        for sub in 0..subs {
            let tile = &mut unit[sub * codes..][..codes];
            for k in 0..BLOCK_K {
                put_code(dtype, tile, lane, k, (code(dtype, block, sub * BLOCK_K + k) + bias) as u32);
            }
        }
        put_scales(dtype, &mut unit[subs * codes..], lane, block);
    }
}

#[inline(always)]
fn put_code(dtype: DType, tile: &mut [u8], lane: usize, k: usize, code: u32) {
    let (r, half) = (k % 16, k / 16);
    if dtype == DType::Q8_0 {
        tile[64 * (r / 2) + 4 * lane + 2 * (r % 2) + half] = code as u8;
        return;
    }
    tile[64 * (r / 4) + 4 * lane + 2 * half + r % 4 / 2] |= ((code & 15) << (4 * (r % 2))) as u8;
    match dtype {
        DType::Q5_0 | DType::Q5_1 | DType::Q5K => tile[256 + 4 * lane + k / 8] |= ((code >> 4) << (k % 8)) as u8,
        DType::Q6K => tile[256 + 64 * half + 4 * lane + r / 4] |= ((code >> 4) << (2 * (r % 4))) as u8,
        _ => {}
    }
}

#[inline(always)]
fn put_scales(dtype: DType, tail: &mut [u8], lane: usize, block: &[u8]) {
    let mut put = |at: usize, from: usize| tail[at + 2 * lane..][..2].copy_from_slice(&block[from..from + 2]);
    match dtype {
        DType::Q8_0 | DType::Q4_0 | DType::Q5_0 => put(0, 0),
        DType::Q4_1 | DType::Q5_1 => {
            put(0, 0);
            put(32, 2);
        }
        DType::Q4K | DType::Q5K => {
            put(256, 0);
            put(256 + 32, 2);
            for sub in 0..8 {
                let (scale, min) = k_scale_min(&block[4..16], sub);
                tail[32 * sub + lane] = scale;
                tail[32 * sub + 16 + lane] = min;
            }
        }
        DType::Q6K => {
            put(256, 208);
            for group in 0..16 {
                tail[16 * group + lane] = block[192 + group];
            }
        }
        _ => panic!("{dtype} has no scales"),
    }
}
