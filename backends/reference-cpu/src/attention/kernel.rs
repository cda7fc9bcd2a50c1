//! Attention of one unit: some tokens of a sequence, one key/value head.

use super::{
    AttentionArgs, TILE, Unit, Work,
    tile::{Head, Upcoming},
};
use crate::{
    exp::exp,
    kv_write::Pages,
    simd::{Kernel, LANES, Simd},
};
use std::ops::Range;

/// Vectors of 16 positions in a tile.
const TILE_VECTORS: usize = TILE / LANES;

pub(super) struct UnitKernel<'a> {
    pub args: &'a AttentionArgs<'a>,
    pub unit: Unit,
    /// What this worker does next: its first tile is prefetched at the end of this one.
    pub next: Option<Unit>,
    pub work: Work,
}

impl Kernel for UnitKernel<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the caller's promise about args; scratch regions are sized for QUERIES_MAX queries.
        unsafe {
            self.load_queries::<S>();
            let last = self.unit.position + self.unit.tokens - 1;
            let first = self.args.first_seen(self.unit.position);
            // Positions before `first` may have lost their pages; after `last` nothing is written yet.
            let seen = |start: usize| first.max(start)..(last + 1).min(start + TILE);
            for start in (first / TILE * TILE..=last).step_by(TILE) {
                self.load_tile::<S>(start, seen(start));
                self.each_block::<S>(start, seen(start), self.upcoming(start + TILE));
            }
            self.store_results::<S>();
        }
    }
}

impl UnitKernel<'_> {
    fn queries(&self) -> usize {
        self.unit.tokens * self.args.group()
    }

    fn padded(&self) -> usize {
        self.args.head_dim.next_multiple_of(LANES)
    }

    /// Query row `q` in the operands: its token's heads of this group.
    fn offset(&self, q: usize) -> usize {
        let group = self.args.group();
        let (token, head) = (self.unit.token + q / group, self.unit.kv_head * group + q % group);
        (token * self.args.heads + head) * self.args.head_dim
    }

    fn position(&self, q: usize) -> usize {
        self.unit.position + q / self.args.group()
    }

    #[inline(always)]
    unsafe fn load_queries<S: Simd>(&self) {
        let (dim, padded) = (self.args.head_dim, self.padded());
        for q in 0..self.queries() {
            // SAFETY: row q exists in the operand and in scratch.
            unsafe {
                let from = self.args.q.add(self.offset(q));
                for d in (0..dim).step_by(LANES) {
                    let v = S::mul(S::load_n(from.add(d), LANES.min(dim - d)), S::splat(self.args.scale));
                    S::store(self.work.q.add(q * padded + d), v);
                    S::store(self.work.out.add(q * padded + d), S::splat(0.0));
                }
                *self.work.max.add(q) = f32::NEG_INFINITY;
                S::store(self.work.sum.add(q * LANES), S::splat(0.0));
            }
        }
    }

    fn head<'a>(&self, pages: &'a Pages, unit: Unit) -> Head<'a> {
        let dim = self.args.head_dim;
        Head { pages, track: unit.track, first: unit.kv_head * dim, dim }
    }

    /// Keys and values of the tile at `start`, or of the next unit's first one where this unit ends before.
    #[inline(always)]
    unsafe fn upcoming(&self, start: usize) -> [Upcoming; 2] {
        let (unit, start) = if start < self.unit.position + self.unit.tokens {
            (self.unit, start)
        } else if let Some(next) = self.next {
            (next, self.args.first_seen(next.position) / TILE * TILE)
        } else {
            return [Upcoming::NONE; 2];
        };
        // SAFETY: the table covers every position a unit sees; a tile's start before them is in the same page or
        // unused.
        unsafe { [&self.args.k, &self.args.v].map(|pages| self.head(pages, unit).upcoming(start)) }
    }

    /// Positions outside `seen` keep what an earlier tile left: their scores are masked, their values not read.
    #[inline(always)]
    unsafe fn load_tile<S: Simd>(&self, start: usize, seen: Range<usize>) {
        let (args, work) = (self.args, self.work);
        // SAFETY: the table covers `seen`; regions hold 64 padded rows.
        unsafe {
            self.head(&args.k, self.unit).fetch_transposed::<S>(start, seen.clone(), work.staging, work.keys);
            self.head(&args.v, self.unit).fetch::<S>(start, seen, work.values);
        }
    }

    #[inline(always)]
    unsafe fn each_block<S: Simd>(&self, start: usize, seen: Range<usize>, mut upcoming: [Upcoming; 2]) {
        let mut q = 0;
        macro_rules! step {
            ($r:literal) => {
                while $r <= S::ATTENTION_ROWS && self.queries() - q >= $r {
                    // Causal: a block whose last query is before the tile sees nothing of it.
                    if self.position(q + $r - 1) >= start {
                        // SAFETY: rows q..q + $r exist.
                        unsafe { self.block::<S, $r>(q, start, seen.clone(), upcoming) };
                        upcoming = [Upcoming::NONE; 2];
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
    unsafe fn block<S: Simd, const R: usize>(
        &self,
        q: usize,
        start: usize,
        seen: Range<usize>,
        [keys, values]: [Upcoming; 2],
    ) {
        // SAFETY: rows q..q + R exist.
        unsafe {
            // Positions no query of this block sees are left out: their weights would be zero.
            let end = (self.position(q + R - 1) + 1).min(seen.end);
            self.scores::<S, R>(q, (end - start).div_ceil(LANES), keys);
            let mut decay = [1f32; R];
            for (r, decay) in decay.iter_mut().enumerate() {
                *decay = self.weigh::<S>(q + r, start);
            }
            let (begin, end) = (self.args.first_seen(self.position(q)).max(seen.start) - start, end - start);
            if begin < end {
                match S::ATTENTION_VECTORS {
                    4 => self.add_values::<S, R, 4>(q, &decay, begin..end, values),
                    2 => self.add_values::<S, R, 2>(q, &decay, begin..end, values),
                    _ => self.add_values::<S, R, 1>(q, &decay, begin..end, values),
                }
            }
        }
    }

    /// Scores of R query rows with the first `vectors` vectors of positions.
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
        let (dim, padded) = (self.args.head_dim, self.padded());
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
        let position = self.position(q);
        let from = self.args.first_seen(position).saturating_sub(start).min(TILE);
        let to = (position + 1).saturating_sub(start).min(TILE);
        // SAFETY: row q of every region.
        unsafe {
            let scores = self.work.scores.add(q * TILE);
            if from >= to {
                std::ptr::write_bytes(scores, 0, TILE);
                return 1.0;
            }
            let mut s = [S::splat(f32::NEG_INFINITY); TILE_VECTORS];
            for (v, s) in s.iter_mut().enumerate() {
                let (first, end) = (v * LANES, (v + 1) * LANES);
                if from <= first && end <= to {
                    *s = S::load(scores.add(first));
                } else if first < to && from < end {
                    let mut lane = [f32::NEG_INFINITY; LANES];
                    for i in from.max(first)..to.min(end) {
                        lane[i - first] = *scores.add(i);
                    }
                    *s = S::load(lane.as_ptr());
                }
            }
            let [a, b, c, d] = s;
            let old = *self.work.max.add(q);
            let new = S::largest(S::max(S::max(a, b), S::max(c, d)));
            let (new, decay) = if old >= new {
                (old, 1.0)
            } else {
                let mut lane = [0f32; LANES];
                S::store(lane.as_mut_ptr(), exp::<S>(S::splat(old - new)));
                (new, lane[0])
            };
            *self.work.max.add(q) = new;
            for s in &mut s {
                *s = exp::<S>(S::sub(*s, S::splat(new)));
            }
            let [a, b, c, d] = s;
            let sums = self.work.sum.add(q * LANES);
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
        mut upcoming: Upcoming,
    ) {
        let padded = self.padded();
        let vectors = padded / LANES;
        let mut v0 = 0;
        while v0 < vectors {
            // SAFETY: the vectors addressed are inside a padded row.
            unsafe {
                if vectors - v0 >= V {
                    self.add_columns::<S, R, V>(q, decay, positions.clone(), v0, upcoming);
                    v0 += V;
                } else {
                    self.add_columns::<S, R, 1>(q, decay, positions.clone(), v0, upcoming);
                    v0 += 1;
                }
            }
            upcoming = Upcoming::NONE;
        }
    }

    #[inline(always)]
    unsafe fn add_columns<S: Simd, const R: usize, const V: usize>(
        &self,
        q: usize,
        decay: &[f32; R],
        positions: Range<usize>,
        v0: usize,
        upcoming: Upcoming,
    ) {
        let padded = self.padded();
        // SAFETY: as in `add_values`.
        unsafe {
            let out = self.work.out.add(q * padded + v0 * LANES);
            let weights = self.work.scores.add(q * TILE);
            let mut o = [[S::splat(0.0); V]; R];
            for (r, o) in o.iter_mut().enumerate() {
                for (v, o) in o.iter_mut().enumerate() {
                    *o = S::mul(S::load(out.add(r * padded + v * LANES)), S::splat(decay[r]));
                }
            }
            for j in positions {
                upcoming.prefetch::<S>(j);
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
                    S::store(out.add(r * padded + v * LANES), *o);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn store_results<S: Simd>(&self) {
        let (dim, padded) = (self.args.head_dim, self.padded());
        for q in 0..self.queries() {
            // SAFETY: row q exists in the operand and in scratch.
            unsafe {
                let scale = S::splat(1.0 / S::sum(S::load(self.work.sum.add(q * LANES))));
                let to = self.args.y.add(self.offset(q));
                for d in (0..dim).step_by(LANES) {
                    let v = S::mul(S::load(self.work.out.add(q * padded + d)), scale);
                    S::store_n(to.add(d), v, LANES.min(dim - d));
                }
            }
        }
    }
}
