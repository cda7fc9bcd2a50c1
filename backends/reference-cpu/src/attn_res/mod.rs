//! Attention Residuals: a token's hidden state as a softmax mixture of layer snapshots and the running sum.
//!
//! A score needs two sums over the whole hidden state. They are formed over blocks of 1024 columns, and block sums added
//! in order, so that workers may share one token: with few tokens they divide the columns, meet once, and each then mixes
//! its own columns. With many tokens each takes its own. The bits are the same.
//!
//! Rejected: only whole tokens per worker. A decode step of one request has one, and a hundred and eighty mixtures.

mod mix;
mod split;

pub use mix::{CombineArgs, MixArgs, Scorer, Shared, combine, mix, scratch_bytes, shared_len};
pub use split::{PartialArgs, ScoresArgs, partial, scores};

use crate::{
    exp::exp,
    simd::{LANES, Simd},
};

/// Columns whose sums are formed together.
const BLOCK: usize = 1024;
/// Running sums per block.
const CHAINS: usize = 4;

/// Σ norm · proj · v and Σ v² over columns `first..end`.
///
/// # Safety
/// As [`Simd`]; the pointers are at column 0 and hold `end` values.
#[inline(always)]
unsafe fn sums<S: Simd>(norm: *const f32, proj: *const f32, v: *const f32, first: usize, end: usize) -> [f32; 2] {
    // SAFETY: lanes past `end` are not touched.
    unsafe {
        let (mut dot, mut squares) = ([S::splat(0.0); CHAINS], [S::splat(0.0); CHAINS]);
        // Not a closure: that would be compiled without the tier's features.
        macro_rules! add {
            ($chain:ident, $d:expr, $lanes:expr) => {
                let u = S::mul(S::load_n(norm.add($d), $lanes), S::load_n(proj.add($d), $lanes));
                let v = S::load_n(v.add($d), $lanes);
                dot[$chain] = S::fma(u, v, dot[$chain]);
                squares[$chain] = S::fma(v, v, squares[$chain]);
            };
        }
        let mut d = first;
        // Chains by constant numbers stay in registers.
        while d + CHAINS * LANES <= end {
            for chain in 0..CHAINS {
                add!(chain, d + chain * LANES, LANES);
            }
            d += CHAINS * LANES;
        }
        for chain in 0..CHAINS {
            let at = d + chain * LANES;
            if at < end {
                add!(chain, at, LANES.min(end - at));
            }
        }
        let mut sums = [0f32; 2];
        for (sum, [a, b, c, d]) in sums.iter_mut().zip([dot, squares]) {
            *sum = S::sum(S::add(S::add(a, b), S::add(c, d)));
        }
        sums
    }
}

/// The score from the two sums over all `width` columns.
fn score([dot, squares]: [f32; 2], width: usize, eps: f32) -> f32 {
    dot / (squares / width as f32 + eps).sqrt()
}

/// `e^(x − largest)` of `n` values in place, padded to whole vectors; returns the largest and the sum.
///
/// # Safety
/// As [`Simd`]; `x` has room for `n` padded to lanes.
#[inline(always)]
unsafe fn weigh<S: Simd>(x: *mut f32, n: usize) -> (f32, f32) {
    // SAFETY: the caller's promise.
    unsafe {
        let values = std::slice::from_raw_parts_mut(x, n);
        // A NaN score must not get lost: it makes the largest NaN, and so every weight.
        let largest = values.iter().fold(f32::NEG_INFINITY, |m, s| if s.is_nan() || *s > m { *s } else { m });
        for i in (0..n).step_by(LANES) {
            S::store(x.add(i), exp::<S>(S::sub(S::load(x.add(i)), S::splat(largest))));
        }
        (largest, values.iter().sum())
    }
}
