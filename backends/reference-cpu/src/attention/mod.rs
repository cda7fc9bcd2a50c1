//! `paged_attention`: causal attention of the step's tokens over pages, grouped query heads, optional sliding window.
//!
//! Softmax runs online over tiles of 64 positions aligned at absolute positions, in order; scores are dot products in
//! order of the dimension, weighted values are added in order of the position, masked positions add exact zeros. So a
//! query's bits depend on its position and its sequence's history alone, not on the chunk or batch it came in.
//!
//! Rejected: splitting long contexts over workers (the merge of partial softmaxes would depend on the split), and scores
//! along the dimension for single queries (another summation order than the one that is fast for many).

mod kernel;
pub(crate) mod tile;

use crate::{
    kv_write::{Pages, Track},
    level::Level,
    part::Part,
    scratch::{Carver, Scratch, region_bytes},
    simd::{LANES, dispatch},
};
use tokenspeed_backend_api::abi::ts_step_row;

/// Positions per tile.
pub const TILE: usize = 64;
/// Query rows (tokens times heads of one group) that share a tile's conversion.
const QUERIES_MAX: usize = 128;

/// Operands.
#[derive(Clone, Copy)]
#[allow(missing_debug_implementations, reason = "the ABI's rows have none")]
pub struct AttentionArgs<'a> {
    /// `[tokens, heads, head_dim]`.
    pub q: *const f32,
    /// Keys; `width` is `kv_heads · head_dim`. The step's own tokens are already written.
    pub k: Pages,
    /// Values, of the same shape and table.
    pub v: Pages,
    /// `[tokens, heads, head_dim]`.
    pub y: *mut f32,
    /// The step's rows: `computed` tokens precede the row's `query_len` tokens, which start at `query_start`.
    pub rows: &'a [ts_step_row],
    /// Query heads, a multiple of `kv_heads`.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Dimension of a head.
    pub head_dim: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// Positions a query sees, itself included; 0 = all.
    pub window: usize,
}

impl AttentionArgs<'_> {
    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    fn tokens_per_unit(&self) -> usize {
        (QUERIES_MAX / self.group()).max(1)
    }

    /// First position a query at `position` sees.
    fn first_seen(&self, position: usize) -> usize {
        if self.window == 0 { 0 } else { (position + 1).saturating_sub(self.window) }
    }
}

/// Some consecutive tokens of one row, for one key/value head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Unit {
    track: Track,
    /// Index of the first token in the step.
    token: usize,
    tokens: usize,
    /// Position of the first token.
    position: usize,
    kv_head: usize,
}

/// Scratch a worker needs.
pub fn scratch_bytes(heads: usize, kv_heads: usize, head_dim: usize) -> usize {
    let queries = QUERIES_MAX.max(heads / kv_heads);
    let padded = head_dim.next_multiple_of(LANES);
    2 * region_bytes::<f32>(queries * padded)
        + region_bytes::<f32>(queries)
        + region_bytes::<f32>(queries * LANES)
        + region_bytes::<f32>(queries * TILE)
        + 3 * region_bytes::<f32>(TILE * padded)
}

/// Scratch regions of one worker.
#[derive(Clone, Copy)]
struct Work {
    /// `[queries][padded]`, scaled.
    q: *mut f32,
    /// `[queries][padded]`: weighted values so far.
    out: *mut f32,
    /// `[queries]`: largest score so far.
    max: *mut f32,
    /// `[queries][16]`: sums of weights so far, by lane.
    sum: *mut f32,
    /// `[queries][64]`: scores, then weights, of the current tile.
    scores: *mut f32,
    /// `[padded][64]`: keys of the tile, transposed.
    keys: *mut f32,
    /// `[64][padded]`.
    values: *mut f32,
    /// `[64][padded]`: keys before transposing.
    staging: *mut f32,
}

impl Work {
    fn new(carver: &mut Carver, queries: usize, padded: usize) -> Self {
        Self {
            q: carver.take(queries * padded),
            out: carver.take(queries * padded),
            max: carver.take(queries),
            sum: carver.take(queries * LANES),
            scores: carver.take(queries * TILE),
            keys: carver.take(TILE * padded),
            values: carver.take(TILE * padded),
            staging: carver.take(TILE * padded),
        }
    }
}

/// Call `f` for each unit in order with its cost: query rows times tiles.
fn for_each_unit(args: &AttentionArgs<'_>, mut f: impl FnMut(Unit, usize)) {
    let step = args.tokens_per_unit();
    for row in args.rows {
        let len = row.query_len as usize;
        for first in (0..len).step_by(step) {
            let tokens = step.min(len - first);
            let position = row.computed as usize + first;
            let tiles = (position + tokens).div_ceil(TILE) - args.first_seen(position) / TILE;
            for kv_head in 0..args.kv_heads {
                let unit = Unit {
                    track: Track::from(row),
                    token: row.query_start as usize + first,
                    tokens,
                    position,
                    kv_head,
                };
                // A tile costs its conversion too, about as much as eight query rows.
                f(unit, (tokens * args.group() + 8) * tiles);
            }
        }
    }
}

/// This worker's share of the attention.
///
/// # Safety
/// `level` is available; the operands have the shapes above, the table covers every position a query sees with blocks
/// of the pages, and those were written; `scratch` has [`scratch_bytes`].
pub unsafe fn paged_attention(level: Level, part: Part, scratch: &mut Scratch, args: &AttentionArgs<'_>) {
    debug_assert!(args.heads.is_multiple_of(args.kv_heads) && args.k.width == args.kv_heads * args.head_dim);
    let queries = QUERIES_MAX.max(args.group());
    let work = Work::new(&mut scratch.carve(), queries, args.head_dim.next_multiple_of(LANES));
    let mut total = 0;
    for_each_unit(args, |_, cost| total += cost);
    let share = total * part.index / part.count..total * (part.index + 1) / part.count;
    let mut before = 0;
    let mut waiting: Option<Unit> = None;
    let run = |unit: Option<Unit>, next: Option<Unit>| {
        if let Some(unit) = unit {
            // SAFETY: the caller's promise.
            unsafe { dispatch(level, kernel::UnitKernel { args, unit, next, work }) };
        }
    };
    for_each_unit(args, |unit, cost| {
        // Where a share ends inside a unit, the unit is cut at the nearest token: a few tokens behind a long context make
        // few units, which do not come out even.
        let token = |at: usize| ((at.saturating_sub(before) * unit.tokens + cost / 2) / cost).min(unit.tokens);
        let mine = token(share.start)..token(share.end);
        before += cost;
        if !mine.is_empty() {
            let (token, position) = (unit.token + mine.start, unit.position + mine.start);
            let unit = Unit { token, position, tokens: mine.len(), ..unit };
            run(waiting.replace(unit), Some(unit));
        }
    });
    run(waiting, None);
}

#[cfg(test)]
mod tests;
