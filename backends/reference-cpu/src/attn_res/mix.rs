//! `attn_res_mix` and `attn_res_combine`: the forms that read the running sum.

use super::{BLOCK, score, sums, weigh};
use crate::{
    level::Level,
    part::Part,
    pool::Worker,
    scratch::region_bytes,
    simd::{Kernel, LANES, Simd, dispatch},
};

/// Most tokens that workers divide by columns.
const SHARED_TOKENS: usize = 16;

/// Where workers leave block sums for each other.
#[derive(Clone, Copy, Debug)]
pub struct Shared {
    /// [`shared_len`] values, this op's alone.
    pub data: *mut f32,
}

/// Values that [`Shared`] holds for `candidates` of `width` columns.
pub fn shared_len(candidates: usize, width: usize) -> usize {
    SHARED_TOKENS * candidates * width.div_ceil(BLOCK) * 2
}

/// Scratch a worker needs for `candidates`.
pub fn scratch_bytes(candidates: usize) -> usize {
    region_bytes::<f32>(candidates.next_multiple_of(LANES))
}

/// What scores a candidate.
#[derive(Clone, Copy, Debug)]
pub struct Scorer {
    /// `[width]`.
    pub norm: *const f32,
    /// `[width]`.
    pub proj: *const f32,
    /// Added to the mean of squares.
    pub eps: f32,
}

/// Operands of the whole mixture.
#[derive(Clone, Copy, Debug)]
pub struct MixArgs<'a> {
    /// Weights of the scores.
    pub scorer: Scorer,
    /// Snapshots in order, then the running sum: `[tokens, width]` each.
    pub candidates: &'a [*const f32],
    /// `[tokens, width]`.
    pub y: *mut f32,
    /// Tokens.
    pub tokens: usize,
    /// Columns.
    pub width: usize,
}

/// Operands of the second half of a split mixture.
#[derive(Clone, Copy, Debug)]
pub struct CombineArgs {
    /// Weights of the score.
    pub scorer: Scorer,
    /// `[tokens, width]`: Σ e^(s − m) over the snapshots.
    pub acc: *const f32,
    /// `[tokens, 2]`: m and Σ e^(s − m).
    pub stats: *const f32,
    /// `[tokens, width]`: the running sum.
    pub sum: *const f32,
    /// `[tokens, width]`.
    pub y: *mut f32,
    /// Tokens.
    pub tokens: usize,
    /// Columns.
    pub width: usize,
}

/// Block sums of some candidates.
struct BlockSums<'a>(Part, Scorer, &'a [*const f32], usize, usize, Shared);

impl Kernel for BlockSums<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let BlockSums(part, scorer, candidates, tokens, width, shared) = self;
        let blocks = width.div_ceil(BLOCK);
        for unit in part.of(tokens * candidates.len() * blocks) {
            let (row, block) = (unit / blocks, unit % blocks);
            let (token, candidate) = (row / candidates.len(), row % candidates.len());
            // SAFETY: the candidate's row; the unit's two values of `shared` are this worker's.
            unsafe {
                let v = candidates[candidate].add(token * width);
                let end = width.min((block + 1) * BLOCK);
                let found = sums::<S>(scorer.norm, scorer.proj, v, block * BLOCK, end);
                shared.data.add(2 * unit).cast::<[f32; 2]>().write(found);
            }
        }
    }
}

/// Scores of a token's candidates into `out`, from block sums made before or now.
///
/// # Safety
/// As [`Simd`]; `out` has room; the block sums of the token are complete if there are any.
#[inline(always)]
unsafe fn token_scores<S: Simd>(
    scorer: Scorer,
    candidates: &[*const f32],
    (token, width): (usize, usize),
    shared: Option<Shared>,
    out: *mut f32,
) {
    let blocks = width.div_ceil(BLOCK);
    for (c, v) in candidates.iter().enumerate() {
        let mut total = [0f32; 2];
        for block in 0..blocks {
            // SAFETY: the caller's promise.
            let found = unsafe {
                match shared {
                    Some(shared) => {
                        let unit = (token * candidates.len() + c) * blocks + block;
                        shared.data.add(2 * unit).cast::<[f32; 2]>().read()
                    }
                    None => {
                        let end = width.min((block + 1) * BLOCK);
                        sums::<S>(scorer.norm, scorer.proj, v.add(token * width), block * BLOCK, end)
                    }
                }
            };
            total = [total[0] + found[0], total[1] + found[1]];
        }
        // SAFETY: as above.
        unsafe { *out.add(c) = score(total, width, scorer.eps) };
    }
}

/// The mixture itself.
struct Mix<'a>(Share, &'a MixArgs<'a>, *mut f32);

/// Which tokens and columns, and where block sums wait.
#[derive(Clone)]
struct Share {
    tokens: std::ops::Range<usize>,
    columns: std::ops::Range<usize>,
    shared: Option<Shared>,
}

impl Kernel for Mix<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Mix(share, args, weights) = self;
        for token in share.tokens {
            // SAFETY: rows of the token; lanes past the columns are not touched.
            unsafe {
                let n = args.candidates.len();
                token_scores::<S>(args.scorer, args.candidates, (token, args.width), share.shared, weights);
                let (_, total) = weigh::<S>(weights, n);
                for d in share.columns.clone().step_by(LANES) {
                    let lanes = LANES.min(share.columns.end - d);
                    let at = token * args.width + d;
                    let mut sum = S::splat(0.0);
                    for (c, v) in args.candidates.iter().enumerate() {
                        sum = S::fma(S::splat(*weights.add(c)), S::load_n(v.add(at), lanes), sum);
                    }
                    S::store_n(args.y.add(at), S::div(sum, S::splat(total)), lanes);
                }
            }
        }
    }
}

struct Combine<'a>(Share, &'a CombineArgs, *mut f32);

impl Kernel for Combine<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Combine(share, args, weights) = self;
        for token in share.tokens {
            // SAFETY: as for `Mix`; `weights` has room for a vector.
            unsafe {
                token_scores::<S>(args.scorer, &[args.sum], (token, args.width), share.shared, weights.add(1));
                let [m, z] = args.stats.add(2 * token).cast::<[f32; 2]>().read();
                *weights = m;
                weigh::<S>(weights, 2);
                let (bank, own) = (*weights, *weights.add(1));
                let total = S::splat(z * bank + own);
                for d in share.columns.clone().step_by(LANES) {
                    let lanes = LANES.min(share.columns.end - d);
                    let at = token * args.width + d;
                    let acc = S::mul(S::load_n(args.acc.add(at), lanes), S::splat(bank));
                    let sum = S::fma(S::load_n(args.sum.add(at), lanes), S::splat(own), acc);
                    S::store_n(args.y.add(at), S::div(sum, total), lanes);
                }
            }
        }
    }
}

/// This worker's share of the second phase; the first is done on the way if workers share tokens.
///
/// # Safety
/// As [`mix`].
unsafe fn share(
    level: Level,
    worker: &Worker<'_>,
    shared: Shared,
    scorer: Scorer,
    candidates: &[*const f32],
    (tokens, width): (usize, usize),
) -> Share {
    let part = worker.part();
    if part.count == 1 || tokens > SHARED_TOKENS || tokens >= 4 * part.count {
        return Share { tokens: part.of(tokens), columns: 0..width, shared: None };
    }
    // SAFETY: the caller's promise.
    unsafe { dispatch(level, BlockSums(part, scorer, candidates, tokens, width, shared)) };
    worker.barrier();
    Share { tokens: 0..tokens, columns: part.aligned(width, LANES), shared: Some(shared) }
}

/// This worker's share of the mixture.
///
/// # Safety
/// `level` is available; the operands have the shapes above; `shared` is this op's; scratch has [`scratch_bytes`]; every
/// worker of the region calls this with the same arguments.
pub unsafe fn mix(level: Level, worker: &mut Worker<'_>, shared: Shared, args: &MixArgs<'_>) {
    // SAFETY: the caller's promise.
    unsafe {
        let share = share(level, worker, shared, args.scorer, args.candidates, (args.tokens, args.width));
        let weights = worker.scratch().carve().take(args.candidates.len().next_multiple_of(LANES));
        dispatch(level, Mix(share, args, weights));
    }
}

/// This worker's share of the second half of a split mixture.
///
/// # Safety
/// As [`mix`].
pub unsafe fn combine(level: Level, worker: &mut Worker<'_>, shared: Shared, args: &CombineArgs) {
    // SAFETY: the caller's promise.
    unsafe {
        let share = share(level, worker, shared, args.scorer, &[args.sum], (args.tokens, args.width));
        let weights = worker.scratch().carve().take(LANES);
        dispatch(level, Combine(share, args, weights));
    }
}
