//! One chunk of positions for some query rows, and the merging of chunks.
//!
//! A row's state is 16 + rank values: largest score, sum of weights, and from place 16 on the weighted sum of values.

use super::attention::{CHUNK, MlaArgs};
use crate::{
    attention::{
        TILE,
        tile::{Head, Upcoming},
    },
    exp::exp,
    kv_write::Track,
    scratch::{Carver, region_bytes},
    simd::{Kernel, LANES, Simd},
};
use std::ops::Range;

/// Vectors of 16 positions in a tile.
const TILE_VECTORS: usize = TILE / LANES;

/// f32 of one query row's state.
pub const fn state_len(rank: usize) -> usize {
    LANES + rank.next_multiple_of(LANES)
}

/// Some query rows of consecutive tokens of one sequence. A token has a row per head, and the tokens' rows follow each
/// other, as in the operands.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    pub track: Track,
    /// First token in the step, and its position.
    pub token: usize,
    pub position: usize,
    /// Rows of a token.
    pub heads: usize,
    /// Rows of these tokens before the first one here, and how many are here: at least one.
    pub first: usize,
    pub rows: usize,
}

impl Block {
    /// Position of the last row.
    pub fn last(&self) -> usize {
        self.position_of(self.rows - 1)
    }

    pub fn position_of(&self, q: usize) -> usize {
        self.position + (self.first + q) / self.heads
    }

    /// Index of row `q` among `[tokens, heads]`.
    fn index(&self, q: usize) -> usize {
        self.token * self.heads + self.first + q
    }

    /// Only these of its rows.
    pub fn part(self, rows: Range<usize>) -> Self {
        Self { first: self.first + rows.start, rows: rows.len(), ..self }
    }
}

/// Scratch regions of one worker.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// `[queries][padded width]`, scaled.
    q: *mut f32,
    /// `[queries][16]`: sums of weights by lane.
    sums: *mut f32,
    /// `[queries][64]`: scores, then weights, of the current tile.
    scores: *mut f32,
    /// `[padded width][64]`: rows of the tile, transposed.
    keys: *mut f32,
    /// `[64][padded rank]`.
    values: *mut f32,
    /// `[64][padded width]`: rows before transposing.
    staging: *mut f32,
    /// `[queries]` states: one chunk's, and the chunks so far.
    pub partial: *mut f32,
    pub merged: *mut f32,
}

impl Work {
    pub fn bytes(queries: usize, width: usize, rank: usize) -> usize {
        let (width, values) = (width.next_multiple_of(LANES), rank.next_multiple_of(LANES));
        region_bytes::<f32>(queries * width)
            + region_bytes::<f32>(queries * LANES)
            + region_bytes::<f32>(queries * TILE)
            + 2 * region_bytes::<f32>(TILE * width)
            + region_bytes::<f32>(TILE * values)
            + 2 * region_bytes::<f32>(queries * state_len(rank))
    }

    pub fn new(carver: &mut Carver, queries: usize, width: usize, rank: usize) -> Self {
        let (width, values) = (width.next_multiple_of(LANES), rank.next_multiple_of(LANES));
        Self {
            q: carver.take(queries * width),
            sums: carver.take(queries * LANES),
            scores: carver.take(queries * TILE),
            keys: carver.take(TILE * width),
            values: carver.take(TILE * values),
            staging: carver.take(TILE * width),
            partial: carver.take(queries * state_len(rank)),
            merged: carver.take(queries * state_len(rank)),
        }
    }
}

/// States of a block's rows over the positions of one chunk, to `out`.
pub struct ChunkKernel<'a> {
    pub args: &'a MlaArgs<'a>,
    pub block: Block,
    pub chunk: usize,
    pub work: &'a Work,
    pub out: *mut f32,
}

impl Kernel for ChunkKernel<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the caller's promise about args; scratch regions are sized for the block.
        unsafe {
            self.load_queries::<S>();
            let end = (self.block.last() + 1).min((self.chunk + 1) * CHUNK);
            for start in (self.chunk * CHUNK..end).step_by(TILE) {
                let seen = start..end.min(start + TILE);
                let (args, work) = (self.args, self.work);
                let head = |dim| Head { pages: &args.cache, track: self.block.track, first: 0, dim };
                let rows = head(args.cache.width);
                rows.fetch_transposed::<S>(start, seen.clone(), work.staging, work.keys);
                head(args.rank).fetch::<S>(start, seen.clone(), work.values);
                let next = start + TILE;
                let upcoming = if next < end { rows.upcoming(next) } else { Upcoming::NONE };
                self.each_rows::<S>(start, seen.end, upcoming);
            }
            for q in 0..self.block.rows {
                *self.state(q).add(1) = S::sum(S::load(self.work.sums.add(q * LANES)));
            }
        }
    }
}

impl ChunkKernel<'_> {
    fn width(&self) -> usize {
        self.args.cache.width.next_multiple_of(LANES)
    }

    fn rank(&self) -> usize {
        self.args.rank.next_multiple_of(LANES)
    }

    fn state(&self, q: usize) -> *mut f32 {
        self.out.wrapping_add(q * state_len(self.args.rank))
    }

    #[inline(always)]
    unsafe fn load_queries<S: Simd>(&self) {
        let (dim, padded) = (self.args.cache.width, self.width());
        for q in 0..self.block.rows {
            // SAFETY: row q exists in the operand and in scratch.
            unsafe {
                let from = self.args.q.add(self.block.index(q) * dim);
                for d in (0..dim).step_by(LANES) {
                    let v = S::mul(S::load_n(from.add(d), LANES.min(dim - d)), S::splat(self.args.scale));
                    S::store(self.work.q.add(q * padded + d), v);
                }
                S::store(self.work.sums.add(q * LANES), S::splat(0.0));
                for d in (0..state_len(self.args.rank)).step_by(LANES) {
                    S::store(self.state(q).add(d), S::splat(0.0));
                }
                *self.state(q) = f32::NEG_INFINITY;
            }
        }
    }

    #[inline(always)]
    unsafe fn each_rows<S: Simd>(&self, start: usize, end: usize, mut upcoming: Upcoming) {
        let mut q = 0;
        macro_rules! step {
            ($r:literal) => {
                while $r <= S::ATTENTION_ROWS && self.block.rows - q >= $r {
                    // Causal: rows whose last one is before the tile see nothing of it.
                    if self.block.position_of(q + $r - 1) >= start {
                        // SAFETY: rows q..q + $r exist.
                        unsafe { self.rows::<S, $r>(q, start, end, upcoming) };
                        upcoming = Upcoming::NONE;
                    }
                    q += $r;
                }
            };
        }
        step!(6);
        step!(3);
        step!(2);
        step!(1);
    }

    /// R query rows against the loaded tile.
    #[inline(always)]
    unsafe fn rows<S: Simd, const R: usize>(&self, q: usize, start: usize, end: usize, upcoming: Upcoming) {
        // SAFETY: rows q..q + R exist.
        unsafe {
            // Positions no row sees are left out: their weights would be zero.
            let end = (self.block.position_of(q + R - 1) + 1).min(end) - start;
            self.scores::<S, R>(q, end.div_ceil(LANES), upcoming);
            let mut decay = [1f32; R];
            for (r, decay) in decay.iter_mut().enumerate() {
                *decay = self.weigh::<S>(q + r, start);
            }
            match S::ATTENTION_VECTORS {
                4 => self.add_values::<S, R, 4>(q, &decay, 0..end),
                2 => self.add_values::<S, R, 2>(q, &decay, 0..end),
                _ => self.add_values::<S, R, 1>(q, &decay, 0..end),
            }
        }
    }

    #[inline(always)]
    unsafe fn scores<S: Simd, const R: usize>(&self, q: usize, vectors: usize, mut upcoming: Upcoming) {
        let mut v0 = 0;
        macro_rules! step {
            ($v:literal) => {
                while $v <= S::ATTENTION_VECTORS && vectors - v0 >= $v {
                    // SAFETY: rows q..q + R and vectors v0..v0 + $v exist.
                    unsafe { self.score_columns::<S, R, $v>(q, v0, upcoming) };
                    upcoming = Upcoming::NONE;
                    v0 += $v;
                }
            };
        }
        step!(4);
        step!(2);
        step!(1);
    }

    #[inline(always)]
    unsafe fn score_columns<S: Simd, const R: usize, const V: usize>(&self, q: usize, v0: usize, upcoming: Upcoming) {
        let (dim, padded) = (self.args.cache.width, self.width());
        // SAFETY: rows and positions are inside their regions.
        unsafe {
            let query = self.work.q.add(q * padded);
            let mut s = [[S::splat(0.0); V]; R];
            for d in 0..dim {
                if d < TILE {
                    upcoming.prefetch::<S>(d);
                }
                let keys = self.work.keys.add(d * TILE + v0 * LANES);
                let mut k = [S::splat(0.0); V];
                for (v, k) in k.iter_mut().enumerate() {
                    *k = S::load(keys.add(v * LANES));
                }
                for (r, s) in s.iter_mut().enumerate() {
                    let x = S::splat(*query.add(r * padded + d));
                    for (s, k) in s.iter_mut().zip(k) {
                        *s = S::fma(x, k, *s);
                    }
                }
            }
            for (r, s) in s.iter().enumerate() {
                for (v, s) in s.iter().enumerate() {
                    S::store(self.work.scores.add((q + r) * TILE + (v0 + v) * LANES), *s);
                }
            }
        }
    }

    /// Scores of row `q` to softmax weights, relative to the new maximum; returns the factor for what was before.
    #[inline(always)]
    unsafe fn weigh<S: Simd>(&self, q: usize, start: usize) -> f32 {
        let to = (self.block.position_of(q) + 1).saturating_sub(start).min(TILE);
        // SAFETY: row q of every region.
        unsafe {
            let scores = self.work.scores.add(q * TILE);
            if to == 0 {
                std::ptr::write_bytes(scores, 0, TILE);
                return 1.0;
            }
            let mut s = [S::splat(f32::NEG_INFINITY); TILE_VECTORS];
            for (v, s) in s.iter_mut().enumerate() {
                let first = v * LANES;
                if first + LANES <= to {
                    *s = S::load(scores.add(first));
                } else if first < to {
                    let mut lane = [f32::NEG_INFINITY; LANES];
                    for (i, lane) in lane.iter_mut().enumerate().take(to - first) {
                        *lane = *scores.add(first + i);
                    }
                    *s = S::load(lane.as_ptr());
                }
            }
            let [a, b, c, d] = s;
            let old = *self.state(q);
            let new = S::largest(S::max(S::max(a, b), S::max(c, d)));
            let (new, decay) = if old >= new { (old, 1.0) } else { (new, exp1::<S>(old - new)) };
            *self.state(q) = new;
            for s in &mut s {
                *s = exp::<S>(S::sub(*s, S::splat(new)));
            }
            let [a, b, c, d] = s;
            let sums = self.work.sums.add(q * LANES);
            let tile = S::add(S::add(a, b), S::add(c, d));
            S::store(sums, S::fma(S::load(sums), S::splat(decay), tile));
            for (v, s) in s.iter().enumerate() {
                S::store(scores.add(v * LANES), *s);
            }
            decay
        }
    }

    /// out = out · decay + Σ weight · value over `positions` of the tile.
    #[inline(always)]
    unsafe fn add_values<S: Simd, const R: usize, const V: usize>(
        &self,
        q: usize,
        decay: &[f32; R],
        positions: Range<usize>,
    ) {
        let vectors = self.rank() / LANES;
        let mut v0 = 0;
        while v0 < vectors {
            // SAFETY: the vectors addressed are inside a padded row.
            unsafe {
                if vectors - v0 >= V {
                    self.add_columns::<S, R, V>(q, decay, positions.clone(), v0);
                    v0 += V;
                } else {
                    self.add_columns::<S, R, 1>(q, decay, positions.clone(), v0);
                    v0 += 1;
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn add_columns<S: Simd, const R: usize, const V: usize>(
        &self,
        q: usize,
        decay: &[f32; R],
        positions: Range<usize>,
        v0: usize,
    ) {
        let padded = self.rank();
        // SAFETY: as in `add_values`.
        unsafe {
            let out = |r: usize, v: usize| self.state(q + r).add(LANES + (v0 + v) * LANES);
            let weights = self.work.scores.add(q * TILE);
            let mut o = [[S::splat(0.0); V]; R];
            for (r, o) in o.iter_mut().enumerate() {
                for (v, o) in o.iter_mut().enumerate() {
                    *o = S::mul(S::load(out(r, v)), S::splat(decay[r]));
                }
            }
            for j in positions {
                let row = self.work.values.add(j * padded + v0 * LANES);
                let mut value = [S::splat(0.0); V];
                for (v, value) in value.iter_mut().enumerate() {
                    *value = S::load(row.add(v * LANES));
                }
                for (r, o) in o.iter_mut().enumerate() {
                    let w = S::splat(*weights.add(r * TILE + j));
                    for (o, value) in o.iter_mut().zip(value) {
                        *o = S::fma(w, value, *o);
                    }
                }
            }
            for (r, o) in o.iter().enumerate() {
                for (v, o) in o.iter().enumerate() {
                    S::store(out(r, v), *o);
                }
            }
        }
    }
}

/// exp of one number by the vector code.
#[inline(always)]
unsafe fn exp1<S: Simd>(x: f32) -> f32 {
    let mut lane = [0f32; LANES];
    // SAFETY: `lane` has sixteen elements; the caller vouches for the tier.
    unsafe { S::store(lane.as_mut_ptr(), exp::<S>(S::splat(x))) };
    lane[0]
}

/// Add a chunk's states to those of the chunks before; the first one is taken as it is.
pub struct MergeKernel<'a> {
    pub args: &'a MlaArgs<'a>,
    pub block: Block,
    pub chunk: usize,
    pub from: *const f32,
    pub into: *mut f32,
}

impl Kernel for MergeKernel<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let len = state_len(self.args.rank);
        for q in 0..self.block.rows {
            // A row whose token stands before the chunk has no state for it.
            if self.block.position_of(q) < self.chunk * CHUNK {
                continue;
            }
            // SAFETY: row q of both.
            unsafe {
                let (from, into) = (self.from.add(q * len), self.into.add(q * len));
                if self.chunk == 0 {
                    std::ptr::copy_nonoverlapping(from, into, len);
                    continue;
                }
                let (old, new) = (*into, *from);
                let largest = if old >= new { old } else { new };
                let (a, b) = (exp1::<S>(old - largest), exp1::<S>(new - largest));
                let sum = *into.add(1) * a + *from.add(1) * b;
                for d in (LANES..len).step_by(LANES) {
                    let scaled = S::mul(S::load(from.add(d)), S::splat(b));
                    S::store(into.add(d), S::fma(S::load(into.add(d)), S::splat(a), scaled));
                }
                (*into, *into.add(1)) = (largest, sum);
            }
        }
    }
}

/// States to results.
pub struct FinishKernel<'a> {
    pub args: &'a MlaArgs<'a>,
    pub block: Block,
    pub from: *const f32,
}

impl Kernel for FinishKernel<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let rank = self.args.rank;
        for q in 0..self.block.rows {
            // SAFETY: row q of the states and of the operand.
            unsafe {
                let from = self.from.add(q * state_len(rank));
                let scale = S::splat(1.0 / *from.add(1));
                let to = self.args.y.add(self.block.index(q) * rank);
                for d in (0..rank).step_by(LANES) {
                    let v = S::mul(S::load(from.add(LANES + d)), scale);
                    S::store_n(to.add(d), v, LANES.min(rank - d));
                }
            }
        }
    }
}
