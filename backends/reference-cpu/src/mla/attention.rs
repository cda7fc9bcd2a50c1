//! `mla_attention`: absorbed queries over latent rows, for decoding and prompts alike.
//!
//! A context is cut into chunks of 1024 positions at absolute places. Inside a chunk softmax runs online over tiles of
//! 64, as in [`crate::attention`]; chunks are merged in order. So a query's bits depend on its position and its
//! sequence's history alone, whether one worker walks through all chunks (long prompts, many requests) or workers share the
//! chunks of few tokens (decoding, the next turn of a conversation) and then merge: the places of cuts and the order of
//! merging are the same. Either way some tokens make a block, so that a tile is converted once for all of them.
//!
//! Rejected: splitting by the number of workers, or by the length of the context, either of which a token's result
//! would then depend on.

use super::kernel::{Block, ChunkKernel, FinishKernel, MergeKernel, Work, state_len};
use crate::{
    attention::TILE,
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
/// Blocks per worker from which on whole ones are shared out: by then the shares are even enough.
const WHOLE_BLOCKS: usize = 16;

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

/// Memory that workers share: partial results of `slots` chunks of a block each.
pub fn workspace_bytes(heads: usize, rank: usize, slots: usize) -> usize {
    slots * queries(heads) * state_len(rank) * size_of::<f32>()
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
    let n_blocks: usize = args.rows.iter().map(|row| (row.query_len as usize).div_ceil(step)).sum();
    // SAFETY: the caller's promise.
    unsafe {
        if n_blocks >= WHOLE_BLOCKS * part.count || part.count == 1 {
            whole(level, part, args, &work);
        } else {
            shared(level, worker, args, &work);
        }
    }
}

/// The step's tokens in blocks, in order.
fn blocks<'a>(args: &MlaArgs<'a>) -> impl Iterator<Item = Block> + use<'a> {
    let (heads, step) = (args.heads, tokens_per_block(args.heads));
    args.rows.iter().flat_map(move |row| {
        let len = row.query_len as usize;
        (0..len).step_by(step).map(move |first| Block {
            track: Track::from(row),
            token: row.query_start as usize + first,
            position: row.computed as usize + first,
            heads,
            first: 0,
            rows: step.min(len - first) * heads,
        })
    })
}

/// Blocks are shared out, each with its whole context.
unsafe fn whole(level: Level, part: Part, args: &MlaArgs<'_>, work: &Work) {
    let cost = |block: &Block| (block.last() + 1) * block.rows;
    let total: usize = blocks(args).map(|block| cost(&block)).sum();
    let mut before = 0;
    for block in blocks(args) {
        // The block belongs to the worker in whose share of the total cost its middle lies.
        let mine = (2 * before + cost(&block)) * part.count / (2 * total) == part.index;
        before += cost(&block);
        if !mine {
            continue;
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
    }
}

/// Chunks of blocks are shared out, and where a share ends inside of one, its rows are.
unsafe fn shared(level: Level, worker: &Worker<'_>, args: &MlaArgs<'_>, work: &Work) {
    let part = worker.part();
    let mut jobs =
        blocks(args).flat_map(|block| (0..=block.last() / CHUNK).map(move |chunk| (block, chunk))).peekable();
    // What a row of a job costs: the tiles it goes through.
    let tiles =
        |block: &Block, chunk: usize| ((block.last() + 1).min((chunk + 1) * CHUNK) - chunk * CHUNK).div_ceil(TILE);
    let stride = queries(args.heads) * state_len(args.rank);
    while jobs.peek().is_some() {
        let mut wave = [None; SLOTS_MAX];
        let count = wave.iter_mut().take(args.slots).zip(&mut jobs).map(|(slot, job)| *slot = Some(job)).count();
        let wave = wave[..count].iter().flatten().copied().enumerate();
        let total: usize = wave.clone().map(|(_, (block, chunk))| tiles(&block, chunk) * block.rows).sum();
        let share = total * part.index / part.count..total * (part.index + 1) / part.count;
        let mut before = 0;
        for (slot, (block, chunk)) in wave.clone() {
            let each = tiles(&block, chunk);
            // Rows are whole: a share's end is moved to the nearest one.
            let row = |at: usize| ((at.saturating_sub(before) + each / 2) / each).min(block.rows);
            let mine = row(share.start)..row(share.end);
            before += each * block.rows;
            if !mine.is_empty() {
                let out = args.partial.wrapping_add(slot * stride + mine.start * state_len(args.rank));
                // SAFETY: the caller's promise; these rows of the slot are written by this worker alone.
                unsafe { dispatch(level, ChunkKernel { args, block: block.part(mine), chunk, work, out }) };
            }
        }
        worker.barrier();
        for (slot, (block, chunk)) in wave {
            let mine = part.of(block.rows);
            if mine.is_empty() {
                continue;
            }
            let at = mine.start * state_len(args.rank);
            let (from, into) = (args.partial.wrapping_add(slot * stride + at), work.merged);
            let is_last = chunk == block.last() / CHUNK;
            let block = block.part(mine);
            // SAFETY: the slot has been written; merged rows are this worker's own, from wave to wave.
            unsafe {
                dispatch(level, MergeKernel { args, block, chunk, from, into });
                if is_last {
                    dispatch(level, FinishKernel { args, block, from: into });
                }
            }
        }
        if jobs.peek().is_some() {
            worker.barrier();
        }
    }
}
