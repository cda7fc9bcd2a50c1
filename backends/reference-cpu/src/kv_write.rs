//! `kv_write`: per-token rows into the pages of a cache tensor.

use crate::{
    part::Part,
    small_float::{is_float, store},
};
use tokenspeed_backend_api::{
    abi::{ts_step_row, ts_step_token},
    dtype::DType,
};

/// The pages of one cache tensor and the table that maps positions to them.
#[derive(Clone, Copy, Debug)]
pub struct Pages {
    /// `[blocks, block_tokens, width]` of `dtype`.
    pub data: *mut u8,
    /// f32, f16, bf16 or e4m3.
    pub dtype: DType,
    /// Number of blocks.
    pub blocks: usize,
    /// Tokens per block.
    pub block_tokens: usize,
    /// Values per token.
    pub width: usize,
    /// `[table rows, blocks_per_row]`.
    pub table: *const u32,
    /// Entries per table row.
    pub blocks_per_row: usize,
}

/// The cache rows of one row of a step, by position: those from `computed` on may be a branch's, further behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Track {
    /// Row of the block table.
    pub table_row: usize,
    /// Positions before the step.
    pub computed: usize,
    /// How much further the rows of later positions lie.
    pub branch_offset: usize,
}

impl From<&ts_step_row> for Track {
    fn from(row: &ts_step_row) -> Self {
        let [table_row, computed, branch_offset] =
            [row.table_row, row.computed, row.branch_offset].map(|value| value as usize);
        Self { table_row, computed, branch_offset }
    }
}

impl Track {
    /// Cache row of `position`.
    #[inline(always)]
    pub fn place(&self, position: usize) -> usize {
        if position < self.computed { position } else { position + self.branch_offset }
    }

    /// The first position after `position` that need not lie in the next cache row.
    #[inline(always)]
    pub fn turn(&self, position: usize) -> usize {
        if position < self.computed && self.branch_offset > 0 { self.computed } else { usize::MAX }
    }
}

impl Pages {
    /// Where the row of `position` starts.
    ///
    /// # Safety
    /// The table covers the track's rows, with entries below `blocks`.
    #[inline(always)]
    pub unsafe fn row(&self, track: Track, position: usize) -> *mut u8 {
        let place = track.place(position);
        // SAFETY: the caller's promise.
        unsafe {
            let block = *self.table.add(track.table_row * self.blocks_per_row + place / self.block_tokens) as usize;
            debug_assert!(block < self.blocks);
            let row = block * self.block_tokens + place % self.block_tokens;
            self.data.add(row * self.width * self.dtype.block_bytes())
        }
    }
}

/// Write this worker's tokens of `x`, `[tokens, width]` f32.
///
/// # Safety
/// `pages` describes live memory whose table covers every token's position; `x` holds a row per token; no two tokens
/// of the step share a cache row.
pub unsafe fn kv_write(part: Part, x: *const f32, tokens: &[ts_step_token], rows: &[ts_step_row], pages: Pages) {
    debug_assert!(is_float(pages.dtype));
    for t in part.of(tokens.len()) {
        let token = tokens[t];
        let track = Track::from(&rows[token.row as usize]);
        // SAFETY: the caller's promise covers the page row and row t of x.
        unsafe {
            let (from, to) = (x.add(t * pages.width), pages.row(track, token.position as usize));
            if pages.dtype == DType::F32 {
                std::ptr::copy_nonoverlapping(from.cast::<u8>(), to, 4 * pages.width);
            } else {
                for i in 0..pages.width {
                    store(pages.dtype, to, i, *from.add(i));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::dequantise;

    #[test]
    fn rows_land_in_the_slot_of_their_position_and_nowhere_else() {
        for dtype in [DType::F32, DType::F16, DType::BF16, DType::F8E4M3] {
            let (blocks, block_tokens, width) = (4, 2, 3);
            let n = blocks * block_tokens * width;
            let mut data = vec![0u8; n * dtype.block_bytes()];
            let table = [9, 9, 3, 1u32];
            let pages = Pages {
                data: data.as_mut_ptr(),
                dtype,
                blocks,
                block_tokens,
                width,
                table: table.as_ptr(),
                blocks_per_row: 2,
            };
            let rows = [ts_step_row { table_row: 1, ..Default::default() }];
            let tokens = [1, 2].map(|position| ts_step_token { position, ..Default::default() });
            let x = [1f32, 2.0, 3.0, 4.0, 5.0, 6.0];
            for index in 0..2 {
                // SAFETY: positions 1 and 2 map to blocks 3 and 1.
                unsafe { kv_write(Part { index, count: 2 }, x.as_ptr(), &tokens, &rows, pages) };
            }
            let mut got = vec![0f32; n];
            dequantise(dtype, &data, 0, &mut got);
            let mut want = vec![0f32; n];
            want[(3 * 2 + 1) * 3..][..3].copy_from_slice(&x[..3]);
            want[2 * 3..][..3].copy_from_slice(&x[3..]);
            assert_eq!(got, want, "{dtype}");
        }
    }
}
