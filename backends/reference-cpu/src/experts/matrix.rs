//! Where the rows of an expert's matrix stand, and the activations they meet.

use super::routes::Route;
use crate::simd::LANES;
use tokenspeed_backend_api::{dtype::DType, quant::mxfp4};

/// Depth of a block: the values that share an MXFP4 scale, and the depth of one AMX tile.
pub const BLOCK_K: usize = mxfp4::GROUP;
/// Rows of a matrix that are worked on together.
pub const TILE_ROWS: usize = 16;
const _: () = assert!(TILE_ROWS == LANES, "a vector holds one value per row of a tile");

/// One matrix of all experts, `[experts, rows, k]`, in the stored layout.
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    /// MXFP4, f32, f16 or bf16.
    pub dtype: DType,
    pub values: *const u8,
    /// Bytes from one expert to the next.
    pub stride: usize,
    /// E8M0 bytes, `[experts, rows, k / 32]`; null unless MXFP4.
    pub scales: *const u8,
    /// Bytes from one expert's scales to the next's.
    pub scale_stride: usize,
    pub rows: usize,
    pub k: usize,
}

impl Matrix {
    pub fn tiles(&self) -> usize {
        self.rows.div_ceil(TILE_ROWS)
    }

    pub fn row_bytes(&self) -> usize {
        self.k / self.dtype.block_len() * self.dtype.block_bytes()
    }

    /// Tile `tile` of the expert at `slot`; wraps to tile 0 beyond the last, where only a hint is wanted.
    pub fn tile(&self, slot: u32, tile: usize) -> Tile {
        let (slot, first) = (slot as usize, tile % self.tiles() * TILE_ROWS);
        let (row_bytes, scale_bytes) = (self.row_bytes(), self.k / BLOCK_K);
        Tile {
            values: self.values.wrapping_add(slot * self.stride + first * row_bytes),
            scales: self.scales.wrapping_add(slot * self.scale_stride + first * scale_bytes),
            row_bytes,
            scale_bytes,
            rows: TILE_ROWS.min(self.rows - first),
        }
    }
}

/// At most sixteen consecutive rows of one expert.
#[derive(Clone, Copy, Debug)]
pub struct Tile {
    pub values: *const u8,
    pub scales: *const u8,
    pub row_bytes: usize,
    pub scale_bytes: usize,
    /// At least 1.
    pub rows: usize,
}

impl Tile {
    /// Row `r`; the last one for rows past the end, whose results are dropped.
    #[inline(always)]
    pub fn row(&self, r: usize) -> (*const u8, *const u8) {
        let r = r.min(self.rows - 1);
        (self.values.wrapping_add(r * self.row_bytes), self.scales.wrapping_add(r * self.scale_bytes))
    }
}

/// The activations of a group: rows of `width` f32.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    pub base: *const f32,
    pub width: usize,
    pub routes: &'a [Route],
    /// Row `j` is that of route j's token, or row j of `base`.
    pub by_token: bool,
}

impl Inputs<'_> {
    pub fn row(&self, j: usize) -> *const f32 {
        let row = if self.by_token { self.routes[j].token as usize } else { j };
        self.base.wrapping_add(row * self.width)
    }

    pub fn len(&self) -> usize {
        self.routes.len()
    }

    pub fn blocks(&self) -> usize {
        self.width.div_ceil(BLOCK_K)
    }
}
