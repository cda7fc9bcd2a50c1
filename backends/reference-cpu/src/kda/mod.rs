//! Kimi Delta Attention: `kda_step`, `kda_verify`, `kda_chunk`, and what goes around them.
//!
//! A unit of work is some value rows of one head of one request. Requests without a whole tile of 16 tokens are divided
//! by value rows, as one decoded token of one request must still keep all workers busy; the others by heads. Units are
//! dealt out by their number of tokens. Nobody's share changes what a unit computes.

pub mod gate;
pub mod record;
pub mod replay;
mod step;
mod tile;

use tokenspeed_backend_api::abi::ts_step_row;

use crate::{
    level::Level,
    part::Part,
    scratch::{Carver, Scratch, region_bytes},
    simd::{Kernel, LANES, Simd, dispatch},
    state_slots,
};
use std::ops::Range;
use step::{SEGMENT, States, Tokens};
use tile::{Regions, TILE};

/// Value rows per unit of a request that goes token by token.
const UNIT_ROWS: usize = 16;

/// Operands.
#[derive(Clone, Copy, Debug)]
pub struct KdaArgs<'a> {
    /// `[tokens, heads, keys]`.
    pub q: *const f32,
    /// `[tokens, heads, keys]`.
    pub k: *const f32,
    /// `[tokens, heads, values]`.
    pub v: *const f32,
    /// `[tokens, heads, keys]`.
    pub g: *const f32,
    /// `[tokens, heads]`.
    pub beta: *const f32,
    /// `[slots, heads, values, keys]`.
    pub state: *mut f32,
    /// `[tokens, heads, values]`.
    pub o: *mut f32,
    /// Requests, their slots checked.
    pub rows: &'a [ts_step_row],
    /// Heads.
    pub heads: usize,
    /// Keys of a head.
    pub keys: usize,
    /// Values of a head.
    pub values: usize,
    /// Whether the state moves on.
    pub keep: bool,
    /// Whether whole tiles are computed as matrix products.
    pub tiles: bool,
}

/// Scratch a worker needs.
pub fn scratch_bytes(keys: usize, values: usize) -> usize {
    let padded = keys.next_multiple_of(LANES);
    let tiles = if tile::takes(keys, values) { tile::scratch_bytes(keys, values) } else { 0 };
    region_bytes::<f32>(SEGMENT * padded) + region_bytes::<f32>(padded) + region_bytes::<f32>(keys * values) + tiles
}

/// Scratch regions of a worker.
struct Work {
    /// `[SEGMENT][padded keys]`.
    decay: *mut f32,
    /// `[padded keys]`.
    row: *mut f32,
    /// `[values][keys]`: a state that has no slot to wait in.
    state: *mut f32,
    tiles: Option<Regions>,
}

impl Work {
    fn new(carver: &mut Carver, keys: usize, values: usize) -> Self {
        let padded = keys.next_multiple_of(LANES);
        Self {
            decay: carver.take(SEGMENT * padded),
            row: carver.take(padded),
            state: carver.take(keys * values),
            tiles: tile::takes(keys, values).then(|| Regions::new(carver, keys, values)),
        }
    }
}

/// Some value rows through tokens one by one.
struct Recur<'a> {
    work: &'a Work,
    tokens: Tokens,
    keys: usize,
    states: States,
    rows: Range<usize>,
}

impl Kernel for Recur<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { work, tokens, keys, states, rows } = self;
        let (mut first, mut from) = (0, states.from);
        loop {
            let n = SEGMENT.min(tokens.n - first);
            let last = first + n == tokens.n;
            let segment = tokens.from(first, n);
            let to = if last { states.to } else { work.state };
            // SAFETY: the caller's promise; regions are this worker's.
            unsafe {
                segment.decays::<S>(keys, work.decay);
                step::rows::<S>(&segment, keys, States { from, to }, work.decay, work.row, rows.clone());
            }
            if last {
                return;
            }
            (first, from) = (first + n, work.state.cast_const());
        }
    }
}

/// All value rows through whole tiles.
struct Tiles<'a> {
    regions: &'a Regions,
    tokens: Tokens,
    keys: usize,
    values: usize,
    states: States,
}

impl Kernel for Tiles<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { regions, tokens, keys, values, states } = self;
        // SAFETY: the caller's promise; regions are this worker's.
        unsafe {
            regions.load_state::<S>(states.from, keys, values);
            for first in (0..tokens.n).step_by(TILE) {
                regions.tile::<S>(&tokens.from(first, TILE), keys, values);
            }
            if !states.to.is_null() {
                regions.store_state::<S>(states.to, keys, values);
            }
        }
    }
}

impl Work {
    /// Value rows `rows` through tokens one by one.
    ///
    /// # Safety
    /// As [`kda`], for these tokens and states.
    unsafe fn recur(&self, level: Level, tokens: Tokens, keys: usize, states: States, rows: Range<usize>) {
        // SAFETY: the caller's promise.
        unsafe { dispatch(level, Recur { work: self, tokens, keys, states, rows }) };
    }

    /// All value rows, whole tiles as products; `position` is that of the first token.
    ///
    /// # Safety
    /// As [`kda`], for these tokens and states.
    unsafe fn chunked(
        &self,
        level: Level,
        regions: &Regions,
        tokens: &Tokens,
        position: usize,
        (keys, values): (usize, usize),
        states: States,
    ) {
        let tiles = whole_tiles(position, tokens.n);
        let (mut from, after) = (states.from, tokens.n - tiles.end);
        // SAFETY: the caller's promise; regions are this worker's.
        unsafe {
            if tiles.start > 0 {
                let to = self.state;
                self.recur(level, tokens.from(0, tiles.start), keys, States { from, to }, 0..values);
                from = to;
            }
            let to = if after > 0 { self.state } else { states.to };
            let whole = tokens.from(tiles.start, tiles.len());
            dispatch(level, Tiles { regions, tokens: whole, keys, values, states: States { from, to } });
            if after > 0 {
                let states = States { from: to, to: states.to };
                self.recur(level, tokens.from(tiles.end, after), keys, states, 0..values);
            }
        }
    }
}

/// The tokens that stand in whole tiles of the absolute position, of `n` from `position` on; empty at 0 if none.
fn whole_tiles(position: usize, n: usize) -> Range<usize> {
    let first = position.next_multiple_of(TILE) - position;
    let end = ((position + n) / TILE * TILE).saturating_sub(position);
    if first < end { first..end } else { 0..0 }
}

impl KdaArgs<'_> {
    fn in_tiles(&self, row: &ts_step_row) -> bool {
        self.tiles
            && tile::takes(self.keys, self.values)
            && !whole_tiles(row.computed as usize, row.query_len as usize).is_empty()
    }

    /// Units of a head of this request, and the cost of one.
    fn units(&self, row: &ts_step_row) -> (usize, usize) {
        let (parts, tokens) = (self.values.div_ceil(UNIT_ROWS), (row.query_len as usize).max(1));
        if self.in_tiles(row) { (1, tokens * parts) } else { (parts, tokens) }
    }

    fn tokens(&self, row: &ts_step_row, head: usize) -> Tokens {
        let first = row.query_start as usize * self.heads + head;
        Tokens {
            n: row.query_len as usize,
            q: self.q.wrapping_add(first * self.keys),
            k: self.k.wrapping_add(first * self.keys),
            g: self.g.wrapping_add(first * self.keys),
            ld_keys: self.heads * self.keys,
            v: self.v.wrapping_add(first * self.values),
            o: self.o.wrapping_add(first * self.values),
            ld_values: self.heads * self.values,
            beta: self.beta.wrapping_add(first),
            ld_beta: self.heads,
        }
    }

    fn states(&self, row: &ts_step_row, head: usize) -> States {
        let at = |slot: usize| (slot * self.heads + head) * self.values * self.keys;
        let to = state_slots::write(row).filter(|_| self.keep);
        States {
            from: state_slots::read(row).map_or(std::ptr::null(), |slot| self.state.wrapping_add(at(slot))),
            to: to.map_or(std::ptr::null_mut(), |slot| self.state.wrapping_add(at(slot))),
        }
    }
}

/// This worker's share of the recurrence.
///
/// # Safety
/// `level` is available; the operands have the shapes above, slots included; `scratch` has [`scratch_bytes`]; a slot that
/// one request writes is touched by no other.
pub unsafe fn kda(level: Level, part: Part, scratch: &mut Scratch, args: &KdaArgs<'_>) {
    let (keys, values) = (args.keys, args.values);
    let work = Work::new(&mut scratch.carve(), keys, values);
    let cost = |row| {
        let (units, each) = args.units(row);
        units * each * args.heads
    };
    let mine = part.of(args.rows.iter().map(cost).sum());
    let mut before = 0;
    for row in args.rows {
        let (units, each) = args.units(row);
        for head in 0..args.heads {
            // A unit belongs to the share in which it begins.
            let index = |share: usize| share.saturating_sub(before).div_ceil(each).min(units);
            let (first, end) = (index(mine.start), index(mine.end));
            before += units * each;
            if first >= end {
                continue;
            }
            let (tokens, states) = (args.tokens(row, head), args.states(row, head));
            // SAFETY: the unit's tokens and states are inside the operands, slots were checked, and no other worker
            // has these value rows.
            unsafe {
                match &work.tiles {
                    Some(regions) if args.in_tiles(row) => {
                        work.chunked(level, regions, &tokens, row.computed as usize, (keys, values), states);
                    }
                    _ => {
                        let rows = first * UNIT_ROWS..values.min(end * UNIT_ROWS);
                        work.recur(level, tokens, keys, states, rows);
                    }
                }
            }
        }
    }
}
