//! `mla_attention`: absorbed queries over latent rows, for decoding and prompts alike.
//!
//! A context is cut into chunks of 1024 positions at absolute places. Inside a chunk softmax runs online over tiles of
//! 64, as in [`crate::attention`]; chunks are merged in order. So a query's bits depend on its position and its
//! sequence's history alone, whether one worker walks through all chunks (prompts, many requests) or workers share the
//! chunks of a few long ones and then merge: the places of cuts and the order of merging are the same.
//!
//! Rejected: splitting by the number of workers, or by the length of the context, either of which a token's result
//! would then depend on.

use super::kernel::{Block, ChunkKernel, FinishKernel, MergeKernel, Work, state_len};
use crate::{
    kv_write::{Pages, Track},
    level::Level,
    part::Part,
    pool::Worker,
    simd::dispatch,
};
use tokenspeed_backend_api::abi::ts_step_row;

/// Positions of a chunk: whole tiles.
pub const CHUNK: usize = 1024;
/// Most chunks of the step that are shared out before they are merged.
const SLOTS_MAX: usize = 64;
/// Query rows that share a tile's conversion, if tokens have fewer heads.
const QUERIES: usize = 64;

/// Operands.
#[derive(Clone, Copy)]
#[allow(missing_debug_implementations, reason = "the ABI's rows have none")]
pub struct MlaArgs<'a> {
    /// `[tokens, heads, cache.width]`.
    pub q: *const f32,
    /// Rows of all tokens; the step's own are already written.
    pub cache: Pages,
    /// `[tokens, heads, rank]`.
    pub y: *mut f32,
    /// The step's rows: `computed` tokens precede the row's `query_len` tokens, which start at `query_start`.
    pub rows: &'a [ts_step_row],
    /// Query heads.
    pub heads: usize,
    /// Leading values of a row that are the value.
    pub rank: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// [`workspace_bytes`] that all workers share.
    pub partial: *mut f32,
    /// Chunks `partial` has room for: [`slots`].
    pub slots: usize,
}

/// Chunks that are shared out at a time, for steps of at most `tokens` tokens and contexts of `context` positions.
pub fn slots(tokens: usize, context: usize) -> usize {
    tokens.saturating_mul(context.div_ceil(CHUNK)).clamp(1, SLOTS_MAX)
}

/// Memory that workers share: partial results of `slots` chunks, and of one token across waves of them.
pub fn workspace_bytes(heads: usize, rank: usize, slots: usize) -> usize {
    (slots + 1) * heads * state_len(rank) * size_of::<f32>()
}

/// Scratch a worker needs.
pub fn scratch_bytes(heads: usize, width: usize, rank: usize) -> usize {
    Work::bytes(queries(heads), width, rank)
}

/// Most query rows of a block.
fn queries(heads: usize) -> usize {
    tokens_per_block(heads) * heads
}

fn tokens_per_block(heads: usize) -> usize {
    (QUERIES / heads).max(1)
}

/// This worker's share; all workers call it.
///
/// # Safety
/// `level` is available; the operands have the shapes above, the table covers every position a query sees with blocks
/// of the pages, and those were written; the worker's scratch has [`scratch_bytes`].
pub unsafe fn mla_attention(level: Level, worker: &mut Worker<'_>, args: &MlaArgs<'_>) {
    let part = worker.part();
    let work = Work::new(&mut worker.scratch().carve(), queries(args.heads), args.cache.width, args.rank);
    let step = tokens_per_block(args.heads);
    let blocks: usize = args.rows.iter().map(|row| (row.query_len as usize).div_ceil(step)).sum();
    // SAFETY: the caller's promise.
    unsafe {
        if blocks >= 4 * part.count || part.count == 1 {
            whole(level, part, args, &work);
        } else {
            shared(level, worker, args, &work);
        }
    }
}

/// Blocks of tokens are shared out, each with its whole context.
unsafe fn whole(level: Level, part: Part, args: &MlaArgs<'_>, work: &Work) {
    let step = tokens_per_block(args.heads);
    let each = |f: &mut dyn FnMut(Block, usize)| {
        for row in args.rows {
            for first in (0..row.query_len as usize).step_by(step) {
                let tokens = step.min(row.query_len as usize - first);
                let block = Block {
                    track: Track::from(row),
                    token: row.query_start as usize + first,
                    tokens,
                    position: row.computed as usize + first,
                    head: 0,
                    heads: args.heads,
                };
                f(block, block.last() + 1);
            }
        }
    };
    let mut total = 0;
    each(&mut |_, cost| total += cost);
    let mut before = 0;
    each(&mut |block, cost| {
        // The block belongs to the worker in whose share of the total cost its middle lies.
        let mine = (2 * before + cost) * part.count / (2 * total) == part.index;
        before += cost;
        if !mine {
            return;
        }
        for chunk in 0..=block.last() / CHUNK {
            // SAFETY: the caller's promise; partial and merged rows are this worker's own.
            unsafe {
                dispatch(level, ChunkKernel { args, block, chunk, work, out: work.partial });
                dispatch(level, MergeKernel { args, block, chunk, from: work.partial, into: work.merged });
            }
        }
        // SAFETY: as above.
        unsafe { dispatch(level, FinishKernel { args, block, from: work.merged }) };
    });
}

/// Chunks of each token are shared out, and where those are few, heads too.
unsafe fn shared(level: Level, worker: &Worker<'_>, args: &MlaArgs<'_>, work: &Work) {
    let part = worker.part();
    let tokens = args.rows.iter().flat_map(|row| {
        (0..row.query_len as usize).map(move |i| Block {
            track: Track::from(row),
            token: row.query_start as usize + i,
            tokens: 1,
            position: row.computed as usize + i,
            head: 0,
            heads: args.heads,
        })
    });
    let mut jobs = tokens.flat_map(|block| (0..=block.position / CHUNK).map(move |chunk| (block, chunk))).peekable();
    let stride = args.heads * state_len(args.rank);
    let across = args.partial.wrapping_add(args.slots * stride);
    while jobs.peek().is_some() {
        let mut wave = [None; SLOTS_MAX];
        let count = wave.iter_mut().take(args.slots).zip(&mut jobs).map(|(slot, job)| *slot = Some(job)).count();
        let wave = wave[..count].iter().flatten().copied().enumerate();
        let pieces = (2 * part.count).div_ceil(count).min(args.heads);
        let mine = part.of(count * pieces);
        for (slot, (block, chunk)) in wave.clone() {
            for piece in (0..pieces).filter(|piece| mine.contains(&(slot * pieces + piece))) {
                let heads = Part { index: piece, count: pieces }.of(args.heads);
                let block = Block { head: heads.start, heads: heads.len(), ..block };
                let out = args.partial.wrapping_add(slot * stride + heads.start * state_len(args.rank));
                // SAFETY: the caller's promise; these rows of the slot are written by this worker alone.
                unsafe { dispatch(level, ChunkKernel { args, block, chunk, work, out }) };
            }
        }
        worker.barrier();
        let heads = part.of(args.heads);
        let at = heads.start * state_len(args.rank);
        for (slot, (block, chunk)) in wave {
            let block = Block { head: heads.start, heads: heads.len(), ..block };
            let (from, into) = (args.partial.wrapping_add(slot * stride + at), across.wrapping_add(at));
            // SAFETY: as above, for this worker's heads.
            unsafe {
                dispatch(level, MergeKernel { args, block, chunk, from, into });
                if chunk == block.position / CHUNK {
                    dispatch(level, FinishKernel { args, block, from: into });
                }
            }
        }
        if jobs.peek().is_some() {
            worker.barrier();
        }
    }
}
