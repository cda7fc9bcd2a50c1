//! `mla_absorb` and `mla_value`: per head, the two halves of the latent projection.
//!
//! Absorbing runs along the outputs, one term of K after the other; the value projection runs along K in sixteen lanes
//! that are folded at the end. Both orders are those of one output alone: tokens that share a weight's load do not meet.

use crate::{
    level::Level,
    part::Part,
    simd::{Kernel, LANES, Simd, dispatch},
};
use tokenspeed_backend_api::dtype::DType;

/// Operands of either op.
#[derive(Clone, Copy, Debug)]
pub struct ProjectArgs {
    /// `[tokens, heads, x_width]`.
    pub x: *const f32,
    /// Values per head of x.
    pub x_width: usize,
    /// `[heads · per_head, rank]`.
    pub w: *const u8,
    /// f32, f16 or bf16.
    pub dtype: DType,
    /// Rows of w per head.
    pub per_head: usize,
    /// Latent dimension.
    pub rank: usize,
    /// `[tokens, heads, y_width]`.
    pub y: *mut f32,
    /// Values per head of y.
    pub y_width: usize,
    /// Query tokens.
    pub tokens: usize,
    /// Heads.
    pub heads: usize,
}

/// Whether the kernels read this weight format.
pub const fn supported(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// This worker's heads of `y = [x[..N] · W_K | x[N..]]`, with N = x_width − (y_width − rank).
///
/// # Safety
/// `level` is available; the operands have the shapes above; no one else touches this worker's heads of y.
pub unsafe fn mla_absorb(level: Level, part: Part, args: &ProjectArgs) {
    // SAFETY: the caller's promise.
    unsafe { dispatch(level, Absorb(args, part)) }
}

/// This worker's heads of `y[v] = x · W_V[v]`, W_V being the last y_width rows of a head.
///
/// # Safety
/// As [`mla_absorb`].
pub unsafe fn mla_value(level: Level, part: Part, args: &ProjectArgs) {
    // SAFETY: the caller's promise.
    unsafe { dispatch(level, Value(args, part)) }
}

/// Sixteen values of a plain format, or the first `n` and zeros.
#[inline(always)]
unsafe fn load<S: Simd>(dtype: DType, p: *const u8, n: usize) -> S::F {
    // SAFETY: `n` values follow; fewer than sixteen go through a buffer.
    unsafe {
        let bytes = dtype.block_bytes();
        let mut buffer = [0u8; 4 * LANES];
        let p = if n < LANES {
            std::ptr::copy_nonoverlapping(p, buffer.as_mut_ptr(), n * bytes);
            buffer.as_ptr()
        } else {
            p
        };
        match dtype {
            DType::F32 => S::load(p.cast()),
            DType::F16 => S::load_f16(p),
            _ => S::load_bf16(p),
        }
    }
}

/// Rows ahead that absorbing asks for: rows are far apart, and each is read in part.
const PREFETCH_ROWS: usize = 8;

struct Absorb<'a>(&'a ProjectArgs, Part);

impl Kernel for Absorb<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Absorb(args, part) = self;
        for head in part.of(args.heads) {
            // SAFETY: the head exists. A constant format lets the loops below be compiled for it.
            unsafe {
                match args.dtype {
                    DType::F32 => absorb_head::<S>(args, DType::F32, head),
                    DType::F16 => absorb_head::<S>(args, DType::F16, head),
                    _ => absorb_head::<S>(args, DType::BF16, head),
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn absorb_head<S: Simd>(args: &ProjectArgs, dtype: DType, head: usize) {
    let rope = args.y_width - args.rank;
    let nope = args.x_width - rope;
    let wide = S::GEMM_TILES == 2;
    for t in 0..args.tokens {
        // SAFETY: row t of x and y; y's tail is this head's.
        unsafe {
            let at = t * args.heads + head;
            let from = args.x.add(at * args.x_width + nope);
            std::ptr::copy_nonoverlapping(from, args.y.add(at * args.y_width + args.rank), rope);
        }
    }
    let mut token = 0;
    macro_rules! step {
        ($tokens:literal, $vectors:literal, $if:expr) => {
            while $if && args.tokens - token >= $tokens {
                let mut column = 0;
                while args.rank - column >= $vectors * LANES {
                    // SAFETY: tokens and columns exist.
                    unsafe { absorb::<S, $tokens, $vectors>(args, dtype, head, token, column, nope) };
                    column += $vectors * LANES;
                }
                while column < args.rank {
                    // SAFETY: as above; the last vector may be partial.
                    unsafe { absorb::<S, $tokens, 1>(args, dtype, head, token, column, nope) };
                    column += LANES;
                }
                token += $tokens;
            }
        };
    }
    step!(6, 4, wide);
    step!(2, 2, !wide);
    step!(1, 16, wide);
    step!(1, 4, true);
}

#[inline(always)]
unsafe fn absorb<S: Simd, const T: usize, const V: usize>(
    args: &ProjectArgs,
    dtype: DType,
    head: usize,
    token: usize,
    column: usize,
    nope: usize,
) {
    let (bytes, lanes) = (dtype.block_bytes(), LANES.min(args.rank - column));
    // SAFETY: the caller's promise.
    unsafe {
        let row_bytes = args.rank * bytes;
        let w = args.w.add(head * args.per_head * row_bytes + column * bytes);
        let at = |t: usize| (token + t) * args.heads + head;
        let mut sums = [[S::splat(0.0); V]; T];
        for k in 0..nope {
            let row = w.add(k * row_bytes);
            for line in (0..V * LANES * bytes).step_by(64) {
                S::prefetch(row.wrapping_add(PREFETCH_ROWS * row_bytes + line));
            }
            let mut weights = [S::splat(0.0); V];
            for (v, weights) in weights.iter_mut().enumerate() {
                *weights = load::<S>(dtype, row.add(v * LANES * bytes), if V == 1 { lanes } else { LANES });
            }
            for (t, sums) in sums.iter_mut().enumerate() {
                let x = S::splat(*args.x.add(at(t) * args.x_width + k));
                for (sum, w) in sums.iter_mut().zip(weights) {
                    *sum = S::fma(x, w, *sum);
                }
            }
        }
        for (t, sums) in sums.iter().enumerate() {
            for (v, sum) in sums.iter().enumerate() {
                let y = args.y.add(at(t) * args.y_width + column + v * LANES);
                S::store_n(y, *sum, if V == 1 { lanes } else { LANES });
            }
        }
    }
}

struct Value<'a>(&'a ProjectArgs, Part);

impl Kernel for Value<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Value(args, part) = self;
        for head in part.of(args.heads) {
            // SAFETY: as in `Absorb`.
            unsafe {
                match args.dtype {
                    DType::F32 => value_head::<S>(args, DType::F32, head),
                    DType::F16 => value_head::<S>(args, DType::F16, head),
                    _ => value_head::<S>(args, DType::BF16, head),
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn value_head<S: Simd>(args: &ProjectArgs, dtype: DType, head: usize) {
    let mut row = 0;
    macro_rules! step {
        ($rows:literal, $tokens:literal) => {
            while args.y_width - row >= $rows {
                let mut token = 0;
                while args.tokens - token >= $tokens {
                    // SAFETY: rows and tokens exist.
                    unsafe { value::<S, $rows, $tokens>(args, dtype, head, row, token) };
                    token += $tokens;
                }
                while token < args.tokens {
                    // SAFETY: as above.
                    unsafe { value::<S, $rows, 1>(args, dtype, head, row, token) };
                    token += 1;
                }
                row += $rows;
            }
        };
    }
    if S::GEMM_TILES == 2 {
        step!(4, 5);
    } else {
        step!(4, 1);
    }
    step!(1, 1);
}

#[inline(always)]
unsafe fn value<S: Simd, const R: usize, const T: usize>(
    args: &ProjectArgs,
    dtype: DType,
    head: usize,
    row: usize,
    token: usize,
) {
    let bytes = dtype.block_bytes();
    // SAFETY: the caller's promise.
    unsafe {
        let first = (head + 1) * args.per_head - args.y_width + row;
        let at = |t: usize| (token + t) * args.heads + head;
        let mut sums = [[S::splat(0.0); T]; R];
        for k in (0..args.rank).step_by(LANES) {
            let n = LANES.min(args.rank - k);
            let mut x = [S::splat(0.0); T];
            for (t, x) in x.iter_mut().enumerate() {
                *x = S::load_n(args.x.add(at(t) * args.x_width + k), n);
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let w = load::<S>(dtype, args.w.add(((first + r) * args.rank + k) * bytes), n);
                for (sum, x) in sums.iter_mut().zip(x) {
                    *sum = S::fma(w, x, *sum);
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            for (t, sum) in sums.iter().enumerate() {
                *args.y.add(at(t) * args.y_width + row + r) = S::sum(*sum);
            }
        }
    }
}
