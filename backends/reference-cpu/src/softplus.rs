//! softplus(z) = ln(1 + e^z), for the unbounded gate of Kimi Linear.
//!
//! max(z, 0) + ln(1 + u) with u = e^−|z| ≤ 1; the logarithm as 2 artanh(u / (2 + u)), whose series in s² ≤ 1/9 converges
//! fast and keeps the relative accuracy of small results.
//!
//! Rejected: a general logarithm. Nothing else here needs one.

use crate::{exp::exp, simd::Simd};

/// ln(1 + e^z) of each lane; NaN stays NaN.
///
/// # Safety
/// As [`Simd`].
#[inline(always)]
pub unsafe fn softplus<S: Simd>(z: S::F) -> S::F {
    // SAFETY: arithmetic only; the caller vouches for the tier.
    unsafe {
        let minus_size = S::from_bits(S::i_or(S::bits(z), S::i_splat(i32::MIN)));
        let u = exp::<S>(minus_size);
        let s = S::div(u, S::add(u, S::splat(2.0)));
        let square = S::mul(s, s);
        let mut p = S::splat(1.0 / 15.0);
        for n in [13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0] {
            p = S::fma(p, square, S::splat(1.0 / n));
        }
        S::fma(S::add(s, s), p, S::max(S::splat(0.0), z))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        level::testable,
        simd::{Kernel, LANES, dispatch},
    };

    struct Softplus<'a>(&'a mut [f32]);
    impl Kernel for Softplus<'_> {
        #[inline(always)]
        unsafe fn run<S: Simd>(self) {
            for chunk in self.0.as_chunks_mut::<LANES>().0 {
                // SAFETY: sixteen lanes.
                unsafe { S::store(chunk.as_mut_ptr(), softplus::<S>(S::load(chunk.as_ptr()))) };
            }
        }
    }

    #[test]
    fn close_to_f64_on_both_tails() {
        let xs: Vec<f32> = (0..40_000).map(|i| (i as f32 - 20_000.0) * 0.004).collect();
        for level in testable() {
            let mut ys = xs.clone();
            // SAFETY: the tier is available.
            unsafe { dispatch(level, Softplus(&mut ys)) };
            for (x, y) in xs.iter().zip(&ys) {
                let exact = f64::from(*x).exp().ln_1p();
                let error = (f64::from(*y) - exact).abs();
                assert!(error <= 5e-7 * exact.abs(), "{level}: softplus({x}) = {y}, exactly {exact}");
            }
            let mut ys = [0f32; LANES];
            ys[..3].copy_from_slice(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY]);
            // SAFETY: the tier is available.
            unsafe { dispatch(level, Softplus(&mut ys)) };
            assert!(ys[0].is_nan() && ys[1] == f32::INFINITY && ys[2] == 0.0, "{level} {ys:?}");
        }
    }
}
