//! The one exponential of the fast kernels.
//!
//! exp(x) = 2^n · p(r) with n = round(x / ln 2), r = x − n ln 2 (ln 2 in two parts), p a degree-6 polynomial, the
//! minimax fit of S. Moshier's Cephes `expf`. Tails of a row are computed by the same vector code on padded lanes, so
//! an element's bits do not depend on its place.
//!
//! Rejected: libm per element (slow, and another version is another result).

use crate::simd::Simd;

/// Results below this argument are 0 (exp is then under 2.8e-38, near the end of the normal range).
const LOWEST: f32 = -86.5;
/// Results saturate at 2^127 above this argument.
const HIGHEST: f32 = 88.029_69;

/// exp of each lane, within 2 units in the last place for −86.5 ≤ x ≤ 88; NaN stays NaN.
///
/// # Safety
/// As [`Simd`].
#[inline(always)]
pub unsafe fn exp<S: Simd>(x: S::F) -> S::F {
    // SAFETY: arithmetic only; the caller vouches for the tier.
    unsafe {
        let lowest = S::splat(LOWEST);
        let clamped = S::min(S::splat(HIGHEST), S::max(lowest, x));
        // Adding 1.5 · 2^23 rounds to an integer and leaves it in the low bits.
        let magic = S::splat(12_582_912.0);
        let shifted = S::fma(clamped, S::splat(std::f32::consts::LOG2_E), magic);
        let n = S::sub(shifted, magic);
        let r = S::fma(n, S::splat(-0.693_359_4), clamped);
        let r = S::fma(n, S::splat(2.121_944_4e-4), r);
        let mut p = S::splat(1.987_569_1e-4);
        p = S::fma(p, r, S::splat(1.398_2e-3));
        p = S::fma(p, r, S::splat(8.333_452e-3));
        p = S::fma(p, r, S::splat(4.166_579_6e-2));
        p = S::fma(p, r, S::splat(1.666_666_5e-1));
        p = S::fma(p, r, S::splat(0.5));
        let p = S::add(S::fma(S::mul(r, r), p, r), S::splat(1.0));
        let scaled = S::from_bits(S::i_add(S::bits(p), S::i_shl(S::bits(shifted), 23)));
        // A NaN went through min, max and the polynomial as NaN, but its exponent bits may have wrapped.
        let scaled = S::add(scaled, S::sub(clamped, clamped));
        S::zero_if_less(x, lowest, scaled)
    }
}

/// x · sigmoid(x) of each lane.
///
/// # Safety
/// As [`Simd`].
#[inline(always)]
pub unsafe fn silu<S: Simd>(x: S::F) -> S::F {
    // SAFETY: arithmetic only; the caller vouches for the tier.
    unsafe {
        let e = exp::<S>(S::sub(S::splat(0.0), x));
        S::div(x, S::add(S::splat(1.0), e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        level::testable,
        simd::{Kernel, dispatch},
    };

    struct Exp<'a>(&'a mut [f32]);
    impl Kernel for Exp<'_> {
        #[inline(always)]
        unsafe fn run<S: Simd>(self) {
            for chunk in self.0.chunks_mut(16) {
                // SAFETY: the chunk has `len` lanes.
                unsafe {
                    let v = exp::<S>(S::load_n(chunk.as_ptr(), chunk.len()));
                    S::store_n(chunk.as_mut_ptr(), v, chunk.len());
                }
            }
        }
    }

    #[test]
    fn within_two_ulp_of_f64_everywhere() {
        let xs: Vec<f32> = (0..200_003).map(|i| -86.4 + 174.4 * i as f32 / 200_003.0).collect();
        for level in testable() {
            let mut ys = xs.clone();
            // SAFETY: the tier is available.
            unsafe { dispatch(level, Exp(&mut ys)) };
            for (x, y) in xs.iter().zip(&ys) {
                let exact = (*x as f64).exp();
                let nearest = exact as f32;
                let ulp = (f32::from_bits(nearest.to_bits() + 1) - nearest) as f64;
                assert!((*y as f64 - exact).abs() <= 2.0 * ulp, "{level}: exp({x}) = {y}, exactly {exact}");
            }
        }
    }

    #[test]
    fn extremes() {
        for level in testable() {
            let mut ys = [f32::NEG_INFINITY, -1e30, -100.0, 0.0, 100.0, f32::INFINITY, f32::NAN, -f32::NAN];
            // SAFETY: the tier is available.
            unsafe { dispatch(level, Exp(&mut ys)) };
            assert_eq!(&ys[..4], &[0.0, 0.0, 0.0, 1.0], "{level}");
            assert!(ys[4] > 1e38 && ys[4].is_finite() && ys[5] == ys[4], "{level} {ys:?}");
            assert!(ys[6].is_nan() && ys[7].is_nan(), "{level} {ys:?}");
        }
    }
}
