//! Fetching one tile of keys or values from its pages into f32.

use crate::{
    kv_write::Pages,
    simd::{LANES, Simd},
    small_float,
};
use std::ops::Range;
use tokenspeed_backend_api::dtype::DType;

/// Rows `positions` of head `kv_head`, as `[.., padded]` f32, to `out`; `out` row 0 is position `positions.start`.
///
/// # Safety
/// As [`Simd`]; the table covers the positions; `out` has room.
#[inline(always)]
pub unsafe fn fetch<S: Simd>(
    pages: &Pages,
    table_row: usize,
    positions: Range<usize>,
    kv_head: usize,
    head_dim: usize,
    out: *mut f32,
) {
    let padded = head_dim.next_multiple_of(LANES);
    let first = kv_head * head_dim;
    for (i, position) in positions.enumerate() {
        // SAFETY: the page row holds `width` values, head `kv_head` stands inside.
        unsafe {
            let row = pages.row(table_row, position);
            let to = out.add(i * padded);
            for d in (0..head_dim).step_by(LANES) {
                let n = LANES.min(head_dim - d);
                let v = match pages.dtype {
                    DType::F32 => S::load_n(row.cast::<f32>().add(first + d), n),
                    DType::F16 if n == LANES => S::load_f16(row.add(2 * (first + d))),
                    DType::BF16 if n == LANES => S::load_bf16(row.add(2 * (first + d))),
                    dtype => {
                        let mut lane = [0f32; LANES];
                        for (l, lane) in lane.iter_mut().enumerate().take(n) {
                            *lane = small_float::load(dtype, row, first + d + l);
                        }
                        S::load(lane.as_ptr())
                    }
                };
                S::store(to.add(d), v);
            }
        }
    }
}

/// Keys `[64][padded]` to `[padded][64]`.
///
/// # Safety
/// As [`Simd`]; both buffers have that size.
#[inline(always)]
pub unsafe fn transpose<S: Simd>(from: *const f32, padded: usize, to: *mut f32) {
    for p in (0..super::TILE).step_by(LANES) {
        for d in (0..padded).step_by(LANES) {
            // SAFETY: a 16 × 16 square inside both.
            unsafe { S::transpose16(from.add(p * padded + d), padded, to.add(d * super::TILE + p), super::TILE) };
        }
    }
}
