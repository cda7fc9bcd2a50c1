//! `l2norm`: unit length per head, times a scale.
//!
//! Squares are summed as in `rmsnorm`: sixteen lanes, four chains, a tree fixed by the head's width.

use crate::{
    level::Level,
    part::Part,
    simd::{Kernel, LANES, Simd, dispatch},
};

/// y\[r, :\] = x\[r, :\] / sqrt(Σ x\[r, :\]² + eps) · scale, over dense rows of `width` f32.
#[derive(Clone, Copy, Debug)]
pub struct L2NormArgs {
    /// `[rows, width]`.
    pub x: *const f32,
    /// `[rows, width]`; may equal `x`.
    pub y: *mut f32,
    /// Heads of all tokens.
    pub rows: usize,
    /// Width of a head.
    pub width: usize,
    /// Added to the sum.
    pub eps: f32,
    /// Length of the result.
    pub scale: f32,
}

/// Sum of squares of `width` values at `x`.
///
/// # Safety
/// As [`Simd`].
#[inline(always)]
pub(crate) unsafe fn squares<S: Simd>(x: *const f32, width: usize) -> f32 {
    // SAFETY: lanes past `width` are not touched.
    unsafe {
        let mut chains = [S::splat(0.0); 4];
        for (v, i) in (0..width).step_by(LANES).enumerate() {
            let a = S::load_n(x.add(i), LANES.min(width - i));
            chains[v % 4] = S::fma(a, a, chains[v % 4]);
        }
        let [a, b, c, d] = chains;
        S::sum(S::add(S::add(a, b), S::add(c, d)))
    }
}

/// One head.
///
/// # Safety
/// As [`Simd`]; `x` and `y` hold `width` values.
#[inline(always)]
pub(crate) unsafe fn normalise<S: Simd>(x: *const f32, y: *mut f32, width: usize, eps: f32, scale: f32) {
    // SAFETY: lanes past `width` are not touched.
    unsafe {
        let factor = S::splat(scale / (squares::<S>(x, width) + eps).sqrt());
        for i in (0..width).step_by(LANES) {
            let n = LANES.min(width - i);
            S::store_n(y.add(i), S::mul(S::load_n(x.add(i), n), factor), n);
        }
    }
}

struct Run(L2NormArgs, Part);

impl Kernel for Run {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Run(args, part) = self;
        for row in part.of(args.rows) {
            let at = row * args.width;
            // SAFETY: row `row` is inside both operands.
            unsafe { normalise::<S>(args.x.add(at), args.y.add(at), args.width, args.eps, args.scale) };
        }
    }
}

/// This worker's rows of the norm.
///
/// # Safety
/// `level` is available; the operands have the shapes above; no other worker writes this worker's rows meanwhile.
pub unsafe fn l2norm(level: Level, part: Part, args: L2NormArgs) {
    // SAFETY: the caller's promise.
    unsafe { dispatch(level, Run(args, part)) }
}
