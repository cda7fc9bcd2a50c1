//! Fetching one tile of keys or values from its pages into f32.

use super::TILE;
use crate::{
    kv_write::{Pages, Track},
    simd::{LANES, Simd},
    small_float,
};
use std::ops::Range;
use tokenspeed_backend_api::dtype::DType;

/// One head of one sequence in its pages.
#[derive(Clone, Copy)]
pub struct Head<'a> {
    pub pages: &'a Pages,
    pub track: Track,
    /// Index of the head's first value in a token's row.
    pub first: usize,
    pub dim: usize,
}

/// Rows wanted soon. They lie too far apart for the hardware to guess, and asked for all at once they would stall the
/// work they are to hide behind, so loops over a tile's 64 rows ask for one row each.
#[derive(Clone, Copy)]
pub struct Upcoming {
    row: *const u8,
    stride: usize,
    bytes: usize,
}

impl Upcoming {
    /// Nothing to ask for.
    pub const NONE: Self = Self { row: std::ptr::null(), stride: 0, bytes: 0 };

    /// Start fetching row `i`.
    ///
    /// # Safety
    /// As [`Simd`].
    #[inline(always)]
    pub unsafe fn prefetch<S: Simd>(&self, i: usize) {
        if !self.row.is_null() {
            for line in (0..self.bytes).step_by(64) {
                // SAFETY: any address may be prefetched.
                unsafe { S::prefetch(self.row.wrapping_add(i * self.stride + line)) };
            }
        }
    }
}

impl Head<'_> {
    fn padded(&self) -> usize {
        self.dim.next_multiple_of(LANES)
    }

    /// Call `f` with the pieces of `positions` that lie in one page and on one branch: first position, count, first row.
    ///
    /// # Safety
    /// The table covers the positions.
    #[inline(always)]
    unsafe fn runs(&self, positions: Range<usize>, mut f: impl FnMut(usize, usize, *const u8)) {
        let mut at = positions.start;
        while at < positions.end {
            let left = self.pages.block_tokens - self.track.place(at) % self.pages.block_tokens;
            let count = left.min(positions.end.min(self.track.turn(at)) - at);
            // SAFETY: the caller's promise.
            f(at, count, unsafe { self.pages.row(self.track, at) });
            at += count;
        }
    }

    /// The 64 rows from position `start` on, if they lie in one page; with a branch in them, most of them.
    ///
    /// # Safety
    /// The table covers `start`.
    #[inline(always)]
    pub unsafe fn upcoming(&self, start: usize) -> Upcoming {
        let bytes = self.pages.dtype.block_bytes();
        let mut upcoming =
            Upcoming { row: std::ptr::null(), stride: self.pages.width * bytes, bytes: self.dim * bytes };
        if self.pages.block_tokens.is_multiple_of(TILE) {
            // SAFETY: the caller's promise.
            upcoming.row = unsafe { self.pages.row(self.track, start).add(self.first * bytes) };
        }
        upcoming
    }

    /// Rows `positions` as `[64][padded]` f32; row 0 is the tile's first position, `start`. Other rows are left alone.
    ///
    /// # Safety
    /// As [`Simd`]; the table covers the positions; `out` has 64 rows and `positions` lie in `start..start + 64`.
    #[inline(always)]
    pub unsafe fn fetch<S: Simd>(&self, start: usize, positions: Range<usize>, out: *mut f32) {
        // SAFETY: loads of 16 values stay inside the row when `padded == dim`; the slow path loads one by one.
        unsafe {
            match self.pages.dtype {
                DType::F32 if self.padded() == self.dim => {
                    self.rows::<S>(start, positions, out, |p, d, _| S::load(p.cast::<f32>().add(d)));
                }
                DType::F16 if self.padded() == self.dim => {
                    self.rows::<S>(start, positions, out, |p, d, _| S::load_f16(p.add(2 * d)));
                }
                DType::BF16 if self.padded() == self.dim => {
                    self.rows::<S>(start, positions, out, |p, d, _| S::load_bf16(p.add(2 * d)));
                }
                DType::F8E4M3 if self.padded() == self.dim => {
                    let table = small_float::e4m3_table();
                    self.rows::<S>(start, positions, out, |p, d, _| {
                        let lane: [f32; LANES] = std::array::from_fn(|l| table[usize::from(*p.add(d + l))]);
                        S::load(lane.as_ptr())
                    });
                }
                dtype => self.rows::<S>(start, positions, out, |p, d, n| {
                    let mut lane = [0f32; LANES];
                    for (l, lane) in lane.iter_mut().enumerate().take(n) {
                        *lane = small_float::load(dtype, p, d + l);
                    }
                    S::load(lane.as_ptr())
                }),
            }
        }
    }

    #[inline(always)]
    unsafe fn rows<S: Simd>(
        &self,
        start: usize,
        positions: Range<usize>,
        out: *mut f32,
        load: impl Fn(*const u8, usize, usize) -> S::F,
    ) {
        let row_bytes = self.pages.width * self.pages.dtype.block_bytes();
        let padded = self.padded();
        // SAFETY: the caller's promise.
        unsafe {
            self.runs(positions, |at, count, row| {
                for i in 0..count {
                    let (row, to) = (row.add(i * row_bytes), out.add((at - start + i) * padded));
                    for d in (0..self.dim).step_by(LANES) {
                        S::store(to.add(d), load(row, self.first + d, LANES.min(self.dim - d)));
                    }
                }
            });
        }
    }

    /// Rows `positions` transposed, `[padded][64]`; columns of other positions become whatever was in `staging`.
    ///
    /// # Safety
    /// As [`Head::fetch`]; `staging` has 64 rows.
    #[inline(always)]
    pub unsafe fn fetch_transposed<S: Simd>(
        &self,
        start: usize,
        positions: Range<usize>,
        staging: *mut f32,
        out: *mut f32,
    ) {
        let padded = self.padded();
        // Whole squares of 16 f32 rows in one page need no staging.
        let direct = self.pages.dtype == DType::F32 && padded == self.dim;
        for column in ((positions.start - start) / LANES * LANES..positions.end - start).step_by(LANES) {
            let square = start + column..start + column + LANES;
            let inside = positions.start <= square.start && square.end <= positions.end;
            let left = self.pages.block_tokens - self.track.place(square.start) % self.pages.block_tokens;
            let left = left.min(self.track.turn(square.start) - square.start);
            // SAFETY: squares are inside the page row or `staging`, and inside `out`.
            unsafe {
                let (from, stride) = if direct && inside && left >= LANES {
                    {
                        let row = self.pages.row(self.track, square.start).cast::<f32>();
                        (row.add(self.first).cast_const(), self.pages.width)
                    }
                } else {
                    let part = positions.start.max(square.start)..positions.end.min(square.end);
                    self.fetch::<S>(start, part, staging);
                    (staging.add(column * padded).cast_const(), padded)
                };
                for d in (0..padded).step_by(LANES) {
                    S::transpose16(from.add(d), stride, out.add(d * TILE + column), TILE);
                }
            }
        }
    }
}
