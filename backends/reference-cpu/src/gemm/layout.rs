//! The packed form of a weight matrix: tiles of 16 output rows, interleaved so that one vector holds one k of 16 rows.
//!
//! A tile is a sequence of units along K; a unit holds 32 k (256 for the K-quants). Inside a unit, with `n` a row of the
//! tile and k counted from the unit's (or 32-sub-block's) start:
//! * f32, f16, e4m3: `[k][n]`;
//! * bf16: 16 vectors of u32 lanes; lane n of vector r holds k = r (low half) and k = r + 16 (high half);
//! * 4-bit codes: 4 vectors; lane n of vector i holds k = 4i + j + 16h in bits 16h + 4j..;
//! * 8-bit codes: 8 vectors; lane n of vector i holds k = 2i + j + 16h in byte 2j + h;
//! * fifth bits: one vector; lane n holds k in bit k;
//! * high bit pairs (`Q6_K`): two vectors; lane n of vector h holds k = r + 16h in bits 2r..;
//! * then f16 scales `[n]` and, where the format has one, f16 minimums `[n]`.
//!
//! K-quants keep their 6-bit (`Q6_K`: 8-bit) sub-scales after the codes. Packed size is at most 1.03 times the stored
//! size (up to a padded last tile and, for plain formats, K rounded up to 32). The pairing of k with k + 16 is what AMX
//! tiles of bf16 want; the vector tiers do not care.
//!
//! Rejected: expanding to bf16 or f32 at load, which would double to octuple what decoding must read.

use tokenspeed_backend_api::dtype::DType;

/// Output rows per tile.
pub const TILE_ROWS: usize = 16;
/// Depth of one partial sum, and of one AMX tile.
pub const BLOCK_K: usize = 32;

/// k values per unit.
pub const fn unit_k(dtype: DType) -> usize {
    match dtype {
        DType::Q4K | DType::Q5K | DType::Q6K => 256,
        _ => BLOCK_K,
    }
}

/// Bytes per unit of 16 rows.
pub const fn unit_bytes(dtype: DType) -> usize {
    match dtype {
        DType::F32 => 2048,
        DType::F16 | DType::BF16 => 1024,
        DType::F8E4M3 => 512,
        DType::Q8_0 => 512 + 32,
        DType::Q4_0 => 256 + 32,
        DType::Q4_1 => 256 + 64,
        DType::Q5_0 => 256 + 64 + 32,
        DType::Q5_1 => 256 + 64 + 64,
        DType::Q4K => 8 * 256 + 8 * 32 + 64,
        DType::Q5K => 8 * (256 + 64) + 8 * 32 + 64,
        DType::Q6K => 8 * (256 + 128) + 16 * 16 + 32,
        _ => panic!("not a weight format"),
    }
}

/// Bytes of the codes of one 32-deep sub-block (codes and extra bits), for the block formats.
pub const fn codes_bytes(dtype: DType) -> usize {
    match dtype {
        DType::Q8_0 => 512,
        DType::Q4_0 | DType::Q4_1 | DType::Q4K => 256,
        DType::Q5_0 | DType::Q5_1 | DType::Q5K => 256 + 64,
        DType::Q6K => 256 + 128,
        _ => unit_bytes(dtype),
    }
}

/// Bytes of one tile.
pub const fn tile_bytes(dtype: DType, k: usize) -> usize {
    k.div_ceil(unit_k(dtype)) * unit_bytes(dtype)
}

/// Bytes of a packed `[n, k]` matrix.
pub const fn packed_bytes(dtype: DType, n: usize, k: usize) -> usize {
    n.div_ceil(TILE_ROWS) * tile_bytes(dtype, k)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::tests::FORMATS;

    #[test]
    fn packing_adds_at_most_a_thirtieth() {
        for dtype in FORMATS {
            let stored = 64 * dtype.bytes(1024).unwrap() as usize;
            let packed = packed_bytes(dtype, 64, 1024);
            assert!(packed >= stored && packed * 30 <= stored * 31, "{dtype}: {stored} became {packed}");
        }
    }
}
