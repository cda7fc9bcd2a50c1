//! `short_conv`: the depthwise causal convolution and SiLU in front of a linear-attention head.
//!
//! Work is blocks of at most 512 channels over all requests: a block's taps are turned once so that lanes are channels, and
//! its window stays in the level-1 cache. The window in the slot is read before it is written, by the same worker, so a
//! request may read and write one slot.
//!
//! Rejected: shares of tokens. A share would need its neighbour's inputs, and one decoded token has only one share.

use tokenspeed_backend_api::{abi::ts_step_row, dtype::DType};

use crate::{
    exp::silu,
    float_rows::{load_row, store_row},
    level::Level,
    part::Part,
    scratch::{Scratch, region_bytes},
    simd::{Kernel, LANES, Simd, dispatch},
    state_slots,
};

/// Most channels of a block: long enough runs of a row for the processor to fetch ahead.
pub(crate) const BLOCK: usize = 512;
/// Shares are whole cache lines.
const LINE: usize = 16;

/// The window of the state slots.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// `[slots, taps − 1, width]` of `dtype`, oldest first.
    pub data: *mut u8,
    /// f32, f16 or bf16.
    pub dtype: DType,
    /// Channels of q, k and v together.
    pub width: usize,
}

/// Operands; the three streams are q, k and v.
#[derive(Clone, Copy, Debug)]
pub struct ShortConvArgs<'a> {
    /// `[tokens, channels]` each.
    pub x: [*const f32; 3],
    /// `[channels, taps]` each; the last tap is the token's own.
    pub weights: [*const f32; 3],
    /// Inputs before the step's.
    pub window: Window,
    /// `[tokens, channels]` each.
    pub y: [*mut f32; 3],
    /// Requests of the step, their slots checked.
    pub rows: &'a [ts_step_row],
    /// Channels of a stream.
    pub channels: usize,
    /// At least 2.
    pub taps: usize,
    /// Whether the window moves on.
    pub keep: bool,
}

/// Scratch a worker needs.
pub fn scratch_bytes(taps: usize) -> usize {
    region_bytes::<f32>((2 * taps - 1) * BLOCK)
}

/// Some channels of one stream: taps and window as f32.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConvBlock {
    /// Number of taps.
    pub taps: usize,
    /// Channels in use, at most [`BLOCK`].
    pub width: usize,
    /// `[taps][BLOCK]`.
    pub weights: *mut f32,
    /// `[taps − 1][BLOCK]`.
    pub window: *mut f32,
}

impl ConvBlock {
    /// Take the taps of `self.width` channels, `[channel][tap]` at `from`.
    ///
    /// # Safety
    /// `from` holds them, and `self.weights` its region.
    pub unsafe fn load_taps(&self, from: *const f32) {
        // SAFETY: the caller's promise.
        unsafe {
            for c in 0..self.width {
                for tap in 0..self.taps {
                    *self.weights.add(tap * BLOCK + c) = *from.add(c * self.taps + tap);
                }
            }
        }
    }

    /// Take the window of a request, columns `first` on.
    ///
    /// # Safety
    /// The request's slot exists.
    pub unsafe fn load_window(&self, window: &Window, row: &ts_step_row, first: usize) {
        for i in 0..self.taps - 1 {
            // SAFETY: the slot has taps − 1 rows of `window.width` values; the region is this worker's.
            unsafe {
                let to = std::slice::from_raw_parts_mut(self.window.add(i * BLOCK), self.width);
                match state_slots::read(row) {
                    None => to.fill(0.0),
                    Some(slot) => {
                        let at = (slot * (self.taps - 1) + i) * window.width + first;
                        load_row(window.dtype, window.data, at, to);
                    }
                }
            }
        }
    }

    /// Input `at` places after the oldest of the window; `x` are the request's inputs, `ld` apart.
    #[inline(always)]
    fn input(&self, at: usize, x: *const f32, ld: usize) -> *const f32 {
        let kept = self.taps - 1;
        if at < kept { self.window.wrapping_add(at * BLOCK) } else { x.wrapping_add((at - kept) * ld) }
    }

    /// All tokens of a request: `x` and `y` are its rows, `ld_x` and `ld_y` apart.
    ///
    /// # Safety
    /// As [`Simd`]; `x` and `y` hold `self.width` values per token.
    #[inline(always)]
    pub unsafe fn run<S: Simd>(&self, tokens: usize, x: (*const f32, usize), y: (*mut f32, usize)) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.taps {
                // The usual width: the loop over taps unrolls.
                4 => self.tokens::<S>(4, tokens, x, y),
                taps => self.tokens::<S>(taps, tokens, x, y),
            }
        }
    }

    /// # Safety
    /// As [`Self::run`].
    #[inline(always)]
    unsafe fn tokens<S: Simd>(
        &self,
        taps: usize,
        tokens: usize,
        (x, ld_x): (*const f32, usize),
        (y, ld_y): (*mut f32, usize),
    ) {
        for token in 0..tokens {
            for c in (0..self.width).step_by(LANES) {
                let n = LANES.min(self.width - c);
                // SAFETY: n lanes from c on are inside the window, the inputs, the taps and the outputs.
                unsafe {
                    let mut sum = S::splat(0.0);
                    for tap in 0..taps {
                        let input = self.input(token + tap, x, ld_x).add(c);
                        sum = S::fma(S::load_n(input, n), S::load_n(self.weights.add(tap * BLOCK + c), n), sum);
                    }
                    S::store_n(y.add(token * ld_y + c), silu::<S>(sum), n);
                }
            }
        }
    }

    /// Leave the window as it is after `tokens` inputs in the request's slot.
    ///
    /// # Safety
    /// As [`Self::load_window`] and [`Self::run`]; no one else touches these columns of the slot.
    pub unsafe fn keep(&self, window: &Window, row: &ts_step_row, first: usize, tokens: usize, x: (*const f32, usize)) {
        let Some(slot) = state_slots::write(row) else { return };
        for i in 0..self.taps - 1 {
            let from = self.input(tokens + i, x.0, x.1);
            let at = (slot * (self.taps - 1) + i) * window.width + first;
            // SAFETY: as above; values of the old window were copied to scratch before.
            unsafe { store_row(window.dtype, window.data, at, from, self.width) };
        }
    }
}

struct Run<'a>(Part, &'a mut Scratch, &'a ShortConvArgs<'a>);

impl Kernel for Run<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Run(part, scratch, args) = self;
        let mut carver = scratch.carve();
        let weights: *mut f32 = carver.take((2 * args.taps - 1) * BLOCK);
        let mine = part.aligned(3 * args.channels, LINE);
        let mut next = mine.start;
        while next < mine.end {
            let (stream, first) = (next / args.channels, next % args.channels);
            let width = BLOCK.min(args.channels - first).min(mine.end - next);
            next += width;
            let window = weights.wrapping_add(args.taps * BLOCK);
            let block = ConvBlock { taps: args.taps, width, weights, window };
            // SAFETY: the block's channels are inside every operand; slots were checked.
            unsafe {
                requests::<S>(args, block, stream, first);
            }
        }
    }
}

/// One block over all requests.
///
/// # Safety
/// As [`short_conv`].
#[inline(always)]
unsafe fn requests<S: Simd>(args: &ShortConvArgs<'_>, block: ConvBlock, stream: usize, first: usize) {
    let column = stream * args.channels + first;
    // SAFETY: the caller's promise.
    unsafe {
        block.load_taps(args.weights[stream].add(first * block.taps));
        for row in args.rows {
            let (tokens, at) = (row.query_len as usize, row.query_start as usize * args.channels + first);
            let (x, y) = (args.x[stream].add(at), args.y[stream].add(at));
            block.load_window(&args.window, row, column);
            block.run::<S>(tokens, (x, args.channels), (y, args.channels));
            if args.keep {
                block.keep(&args.window, row, column, tokens, (x, args.channels));
            }
        }
    }
}

/// This worker's channels of the convolution.
///
/// # Safety
/// `level` is available; operands have the shapes above, slots included; `scratch` has [`scratch_bytes`].
pub unsafe fn short_conv(level: Level, part: Part, scratch: &mut Scratch, args: &ShortConvArgs<'_>) {
    // SAFETY: the caller's promise.
    unsafe { dispatch(level, Run(part, scratch, args)) }
}
