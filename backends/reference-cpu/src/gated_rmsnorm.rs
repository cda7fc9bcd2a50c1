//! `gated_rmsnorm`: root-mean-square norm of a head, then a sigmoid gate.
//!
//! The norm rounds as `rmsnorm` does and the gate as `sigmoid_mul`, so a program may use either form.

use crate::{
    gates::sigmoid,
    l2norm::squares,
    level::Level,
    part::Part,
    simd::{Kernel, LANES, Simd, dispatch},
};

/// y\[r, :\] = x\[r, :\] / sqrt(mean(x\[r, :\]²) + eps) · weight · σ(gate\[r, :\]), over dense rows of `width` f32.
#[derive(Clone, Copy, Debug)]
pub struct GatedRmsNormArgs {
    /// `[rows, width]`.
    pub x: *const f32,
    /// `[rows, width]`.
    pub gate: *const f32,
    /// `[width]`.
    pub weight: *const f32,
    /// `[rows, width]`; may equal `x` or `gate`.
    pub y: *mut f32,
    /// Heads of all tokens.
    pub rows: usize,
    /// Width of a head.
    pub width: usize,
    /// Added to the mean.
    pub eps: f32,
}

struct Run(GatedRmsNormArgs, Part);

impl Kernel for Run {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Run(args, part) = self;
        let width = args.width;
        for row in part.of(args.rows) {
            let at = row * width;
            // SAFETY: row `row` is inside every operand, and lanes past `width` are not touched.
            unsafe {
                let mean = squares::<S>(args.x.add(at), width) / width as f32;
                let scale = S::splat(1.0 / (mean + args.eps).sqrt());
                for i in (0..width).step_by(LANES) {
                    let n = LANES.min(width - i);
                    let normed =
                        S::mul(S::mul(S::load_n(args.x.add(at + i), n), scale), S::load_n(args.weight.add(i), n));
                    let open = sigmoid::<S>(S::load_n(args.gate.add(at + i), n));
                    S::store_n(args.y.add(at + i), S::mul(open, normed), n);
                }
            }
        }
    }
}

/// This worker's rows of the gated norm.
///
/// # Safety
/// `level` is available; the operands have the shapes above; no other worker writes this worker's rows meanwhile.
pub unsafe fn gated_rmsnorm(level: Level, part: Part, args: GatedRmsNormArgs) {
    // SAFETY: the caller's promise.
    unsafe { dispatch(level, Run(args, part)) }
}
