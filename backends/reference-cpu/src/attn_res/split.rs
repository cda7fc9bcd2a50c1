//! `attn_res_scores` and `attn_res_partial`: what a mixture needs of its snapshots alone, which is known as soon as they
//! are taken.

use super::{BLOCK, score, sums, weigh};
use crate::{
    level::Level,
    part::Part,
    scratch::Scratch,
    simd::{Kernel, LANES, Simd, dispatch},
};

/// Operands of the scores.
#[derive(Clone, Copy, Debug)]
pub struct ScoresArgs<'a> {
    /// `[tokens, width]`.
    pub snapshot: *const f32,
    /// One `[width]` per score.
    pub norms: &'a [*const f32],
    /// One `[width]` per score.
    pub projs: &'a [*const f32],
    /// `[tokens, scores]`.
    pub y: *mut f32,
    /// Tokens.
    pub tokens: usize,
    /// Columns.
    pub width: usize,
    /// Added to the mean of squares.
    pub eps: f32,
}

struct Scores<'a>(Part, &'a ScoresArgs<'a>);

impl Kernel for Scores<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Scores(part, args) = self;
        let n = args.norms.len();
        // Scores outside, tokens inside: a pair of weight vectors stays in cache over all tokens.
        for unit in part.of(n * args.tokens) {
            let (i, token) = (unit / args.tokens, unit % args.tokens);
            let mut total = [0f32; 2];
            for first in (0..args.width).step_by(BLOCK) {
                // SAFETY: the token's row of the snapshot and the score's weights.
                let found = unsafe {
                    let v = args.snapshot.add(token * args.width);
                    sums::<S>(args.norms[i], args.projs[i], v, first, args.width.min(first + BLOCK))
                };
                total = [total[0] + found[0], total[1] + found[1]];
            }
            // SAFETY: this unit's score.
            unsafe { *args.y.add(token * n + i) = score(total, args.width, args.eps) };
        }
    }
}

/// This worker's scores.
///
/// # Safety
/// `level` is available; the operands have the shapes above.
pub unsafe fn scores(level: Level, part: Part, args: &ScoresArgs<'_>) {
    // SAFETY: the caller's promise.
    unsafe { dispatch(level, Scores(part, args)) }
}

/// Operands of the snapshots' part of a mixture.
#[derive(Clone, Copy, Debug)]
pub struct PartialArgs<'a> {
    /// `[tokens, width]` each.
    pub snapshots: &'a [*const f32],
    /// Per snapshot, its scores and how many a token has: `[tokens, n]`.
    pub scores: &'a [(*const f32, usize)],
    /// This mixture and those after it: the score is this many before the end.
    pub left: usize,
    /// `[tokens, width]`.
    pub acc: *mut f32,
    /// `[tokens, 2]`.
    pub stats: *mut f32,
    /// Tokens.
    pub tokens: usize,
    /// Columns.
    pub width: usize,
}

struct Partial<'a>(Part, *mut f32, &'a PartialArgs<'a>);

impl Kernel for Partial<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Partial(part, weights, args) = self;
        let per_token = args.width.div_ceil(LANES);
        let mine = part.of(args.tokens * per_token);
        for token in mine.start / per_token..mine.end.div_ceil(per_token) {
            let vectors = mine.start.max(token * per_token)..mine.end.min((token + 1) * per_token);
            let columns = (vectors.start - token * per_token) * LANES
                ..((vectors.end - token * per_token) * LANES).min(args.width);
            // SAFETY: rows of the token; lanes past the columns are not touched; the first columns' worker writes stats.
            unsafe {
                for (i, (scores, n)) in args.scores.iter().enumerate() {
                    *weights.add(i) = *scores.add((token + 1) * n - args.left);
                }
                let (largest, total) = weigh::<S>(weights, args.scores.len());
                if columns.start == 0 {
                    args.stats.add(2 * token).cast::<[f32; 2]>().write([largest, total]);
                }
                for d in columns.clone().step_by(LANES) {
                    let lanes = LANES.min(columns.end - d);
                    let at = token * args.width + d;
                    let mut sum = S::splat(0.0);
                    for (i, v) in args.snapshots.iter().enumerate() {
                        sum = S::fma(S::splat(*weights.add(i)), S::load_n(v.add(at), lanes), sum);
                    }
                    S::store_n(args.acc.add(at), sum, lanes);
                }
            }
        }
    }
}

/// This worker's share of the snapshots' part.
///
/// # Safety
/// `level` is available; the operands have the shapes above; scratch as for the whole mixture.
pub unsafe fn partial(level: Level, part: Part, scratch: &mut Scratch, args: &PartialArgs<'_>) {
    let weights = scratch.carve().take(args.scores.len().next_multiple_of(LANES));
    // SAFETY: the caller's promise.
    unsafe { dispatch(level, Partial(part, weights, args)) }
}
