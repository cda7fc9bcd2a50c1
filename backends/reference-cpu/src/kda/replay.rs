//! `kda_replay`: advance window and state over the accepted prefix of recorded tokens.
//!
//! Head by head it runs the very routines of `short_conv`, `l2norm`, `gemm`, `kda_gate`, `sigmoid` and the recurrence, so
//! that replaying n tokens leaves the bits of n decode steps.

use std::ops::Range;

use tokenspeed_backend_api::{abi::ts_step_row, dtype::DType};

use super::{
    Work,
    gate::{GateKind, log_decay},
    step::{States, Tokens},
};
use crate::{
    float_rows::load_row,
    gates::sigmoid,
    gemm::{self, GemmArgs, Weight, gemm},
    l2norm::normalise,
    level::Level,
    part::Part,
    scratch::{Scratch, region_bytes},
    short_conv::{BLOCK, ConvBlock, Window},
    simd::{Kernel, Simd, dispatch},
    state_slots,
};

/// Operands.
#[derive(Clone, Copy, Debug)]
pub struct ReplayArgs<'a> {
    /// `[slots, capacity, 3 · channels + gate_width + heads]` of `record_dtype`.
    pub record: *const u8,
    /// f32, f16 or bf16.
    pub record_dtype: DType,
    /// Tokens a slot has room for.
    pub capacity: usize,
    /// Of q, k and v: `[channels, taps]`.
    pub taps: [*const f32; 3],
    /// At least 2.
    pub n_taps: usize,
    /// The second gate projection, `[channels, gate_width]`, as stored.
    pub gate: *const u8,
    /// Its format.
    pub gate_dtype: DType,
    /// Depth of the gate projection.
    pub gate_width: usize,
    /// `[heads]`.
    pub a_log: *const f32,
    /// `[channels]`.
    pub dt_bias: *const f32,
    /// Convolution window, moved on.
    pub window: Window,
    /// `[slots, heads, dim, dim]`, moved on.
    pub state: *mut f32,
    /// Requests, their slots and lengths checked; `query_len` tokens each.
    pub rows: &'a [ts_step_row],
    /// Heads.
    pub heads: usize,
    /// Keys and values of a head.
    pub dim: usize,
    /// Gate function.
    pub kind: GateKind,
    /// Of the l2norm.
    pub eps: f32,
    /// Of the query.
    pub scale: f32,
}

/// Scratch a worker needs.
pub fn scratch_bytes(level: Level, gate: DType, gate_width: usize, dim: usize, taps: usize, capacity: usize) -> usize {
    gemm_bytes(level, gate, gate_width, capacity)
        + super::scratch_bytes(dim, dim)
        + crate::short_conv::scratch_bytes(taps)
        + 5 * region_bytes::<f32>(capacity * dim)
        + region_bytes::<f32>(capacity * gate_width)
        + region_bytes::<f32>(capacity)
}

fn gemm_bytes(level: Level, gate: DType, gate_width: usize, capacity: usize) -> usize {
    region_bytes::<u8>(gemm::scratch_bytes(level, gate, capacity, gate_width))
}

/// Scratch regions of one head's inputs.
#[derive(Clone, Copy)]
struct Inputs {
    /// Raw values of one stream, then q, k and v after the convolution, g, each `[tokens][dim]`.
    raw: *mut f32,
    streams: [*mut f32; 3],
    g: *mut f32,
    /// `[tokens][gate_width]`.
    f: *mut f32,
    /// `[tokens]`.
    beta: *mut f32,
    conv: *mut f32,
}

impl Inputs {
    fn tokens(&self, n: usize, dim: usize) -> Tokens {
        let [q, k, v] = self.streams;
        // Outputs are not wanted: they overwrite the raw values.
        let o = self.raw;
        Tokens { n, q, k, g: self.g, ld_keys: dim, v, o, ld_values: dim, beta: self.beta, ld_beta: 1 }
    }
}

impl ReplayArgs<'_> {
    fn channels(&self) -> usize {
        self.heads * self.dim
    }

    fn width(&self) -> usize {
        3 * self.channels() + self.gate_width + self.heads
    }

    /// Columns `columns` of a row's recorded tokens, as rows of f32 at `to`.
    ///
    /// # Safety
    /// The slot exists and has that many tokens; `to` has room.
    unsafe fn recorded(&self, slot: usize, row: &ts_step_row, columns: Range<usize>, to: *mut f32) {
        for token in 0..row.query_len as usize {
            let first = (slot * self.capacity + row.branch_offset as usize + token) * self.width() + columns.start;
            // SAFETY: the caller's promise.
            unsafe {
                let to = std::slice::from_raw_parts_mut(to.add(token * columns.len()), columns.len());
                load_row(self.record_dtype, self.record, first, to);
            }
        }
    }
}

/// Convolution and norms of one head of one request; moves its window on.
struct Streams<'a>(&'a ReplayArgs<'a>, Inputs, &'a ts_step_row, usize, usize);

impl Kernel for Streams<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Streams(args, inputs, row, slot, head) = self;
        let (tokens, dim) = (row.query_len as usize, args.dim);
        for stream in 0..3 {
            for first in (0..dim).step_by(BLOCK) {
                let width = BLOCK.min(dim - first);
                let channel = head * dim + first;
                let column = stream * args.channels() + channel;
                let weights = inputs.conv;
                let block =
                    ConvBlock { taps: args.n_taps, width, weights, window: weights.wrapping_add(args.n_taps * BLOCK) };
                // SAFETY: the head's channels are inside every operand; regions are this worker's.
                unsafe {
                    block.load_taps(args.taps[stream].add(channel * args.n_taps));
                    block.load_window(&args.window, row, column);
                    args.recorded(slot, row, column..column + width, inputs.raw);
                    let x = (inputs.raw.cast_const(), width);
                    block.run::<S>(tokens, x, (inputs.streams[stream].add(first), dim));
                    block.keep(&args.window, row, column, tokens, x);
                }
            }
        }
        for token in 0..tokens {
            for (stream, scale) in [(0, args.scale), (1, 1.0)] {
                // SAFETY: the token's row of the stream.
                unsafe {
                    let x = inputs.streams[stream].add(token * dim);
                    normalise::<S>(x, x, dim, args.eps, scale);
                }
            }
        }
    }
}

/// Decays and betas of one head, in place.
struct Gates<'a>(&'a ReplayArgs<'a>, Inputs, usize, usize);

impl Kernel for Gates<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Gates(args, inputs, tokens, head) = self;
        let dim = args.dim;
        for token in 0..tokens {
            // SAFETY: rows of the head in the operands and in scratch.
            unsafe {
                let g = inputs.g.add(token * dim);
                log_decay::<S>(args.kind, *args.a_log.add(head), g, args.dt_bias.add(head * dim), g, dim);
                // The lane of a sigmoid does not matter; here it is the first.
                let beta = inputs.beta.add(token);
                S::store_n(beta, sigmoid::<S>(S::load_n(beta, 1)), 1);
            }
        }
    }
}

/// This worker's heads of the replay.
///
/// # Safety
/// `level` is available; the operands have the shapes above, slots included; `scratch` has [`scratch_bytes`]; a slot that
/// one request writes is touched by no other.
pub unsafe fn kda_replay(level: Level, part: Part, scratch: &mut Scratch, args: &ReplayArgs<'_>) {
    let (dim, capacity) = (args.dim, args.capacity);
    let mut carver = scratch.carve();
    // The product carves its own regions from the front.
    carver.take::<u8>(gemm_bytes(level, args.gate_dtype, args.gate_width, capacity));
    let work = Work::new(&mut carver, dim, dim);
    let mut take = |n: usize| carver.take::<f32>(n);
    let inputs = Inputs {
        raw: take(capacity * dim),
        streams: [take(capacity * dim), take(capacity * dim), take(capacity * dim)],
        g: take(capacity * dim),
        f: take(capacity * args.gate_width),
        beta: take(capacity),
        conv: take((2 * args.n_taps - 1) * BLOCK),
    };
    let row_bytes = args.gate_width / args.gate_dtype.block_len() * args.gate_dtype.block_bytes();
    for unit in part.of(args.rows.len() * args.heads) {
        let (row, head) = (&args.rows[unit / args.heads], unit % args.heads);
        let Some(slot) = state_slots::write(row) else { continue };
        let tokens = row.query_len as usize;
        let after = 3 * args.channels();
        let b = after + args.gate_width + head;
        let product = GemmArgs {
            x: inputs.f,
            ldx: args.gate_width,
            // SAFETY: the head's rows of the matrix.
            weight: Weight {
                data: unsafe { args.gate.add(head * dim * row_bytes) },
                dtype: args.gate_dtype,
                packed: false,
            },
            bias: std::ptr::null(),
            y: inputs.g,
            ldy: dim,
            m: tokens,
            n: dim,
            k: args.gate_width,
        };
        // SAFETY: slots, lengths and shapes were checked; regions are this worker's and hold `capacity` tokens.
        unsafe {
            dispatch(level, Streams(args, inputs, row, slot, head));
            args.recorded(slot, row, after..after + args.gate_width, inputs.f);
            args.recorded(slot, row, b..b + 1, inputs.beta);
            gemm(level, Part::WHOLE, scratch, &product);
            dispatch(level, Gates(args, inputs, tokens, head));
            let at = |slot: usize| args.state.add((slot * args.heads + head) * dim * dim);
            let from = state_slots::read(row).map_or(std::ptr::null(), |slot| at(slot).cast_const());
            work.recur(level, inputs.tokens(tokens, dim), dim, States { from, to: at(slot) }, 0..dim);
        }
    }
}
