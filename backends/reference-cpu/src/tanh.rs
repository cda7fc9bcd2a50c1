//! The hyperbolic tangent of the fast kernels.
//!
//! Below 0.625 an odd polynomial (the minimax fit of S. Moshier's Cephes `tanhf`), so that small arguments keep their
//! relative accuracy; above it 1 − 2 / (e^2|x| + 1).
//!
//! Rejected: the exponential form everywhere, which cancels to nothing near zero.

use crate::{exp::exp, simd::Simd};

/// From here on the exponential form.
const SWITCH: f32 = 0.625;

/// tanh of each lane, within 3e-7 of itself; NaN stays NaN.
///
/// # Safety
/// As [`Simd`].
#[inline(always)]
pub unsafe fn tanh<S: Simd>(x: S::F) -> S::F {
    // SAFETY: arithmetic only; the caller vouches for the tier.
    unsafe {
        let sign = S::i_and(S::bits(x), S::i_splat(i32::MIN));
        let size = S::from_bits(S::i_and(S::bits(x), S::i_splat(i32::MAX)));
        let e = exp::<S>(S::add(size, size));
        let large = S::sub(S::splat(1.0), S::div(S::splat(2.0), S::add(e, S::splat(1.0))));
        let z = S::mul(size, size);
        let mut p = S::splat(-5.704_988_7e-3);
        p = S::fma(p, z, S::splat(2.063_909e-2));
        p = S::fma(p, z, S::splat(-5.373_971_6e-2));
        p = S::fma(p, z, S::splat(1.333_144_2e-1));
        p = S::fma(p, z, S::splat(-3.333_328e-1));
        let small = S::fma(S::mul(p, z), size, size);
        // One of the two is masked to zero; a NaN passes both comparisons.
        let large = S::zero_if_less(size, S::splat(SWITCH), large);
        let small = S::zero_if_less(S::splat(f32::from_bits(SWITCH.to_bits() - 1)), size, small);
        S::from_bits(S::i_or(S::bits(S::add(large, small)), sign))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        level::testable,
        simd::{Kernel, LANES, dispatch},
    };

    struct Tanh<'a>(&'a mut [f32]);
    impl Kernel for Tanh<'_> {
        #[inline(always)]
        unsafe fn run<S: Simd>(self) {
            for chunk in self.0.as_chunks_mut::<LANES>().0 {
                // SAFETY: sixteen lanes.
                unsafe { S::store(chunk.as_mut_ptr(), tanh::<S>(S::load(chunk.as_ptr()))) };
            }
        }
    }

    #[test]
    fn close_to_f64_at_every_size() {
        let xs: Vec<f32> =
            (0..160_000).map(|i| (i as f32 * 0.37).sin() * 10f32.powf(i as f32 / 20_000.0 - 6.0)).collect();
        for level in testable() {
            let mut ys = xs.clone();
            // SAFETY: the tier is available.
            unsafe { dispatch(level, Tanh(&mut ys)) };
            for (x, y) in xs.iter().zip(&ys) {
                let exact = f64::from(*x).tanh();
                assert!(
                    (f64::from(*y) - exact).abs() <= 3e-7 * exact.abs(),
                    "{level}: tanh({x}) = {y}, exactly {exact}"
                );
            }
        }
    }

    #[test]
    fn extremes() {
        for level in testable() {
            let mut ys = [0f32; LANES];
            ys[..5].copy_from_slice(&[f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 100.0, -0.625]);
            // SAFETY: the tier is available.
            unsafe { dispatch(level, Tanh(&mut ys)) };
            assert_eq!((ys[0], ys[1], ys[3], ys[5]), (1.0, -1.0, 1.0, 0.0), "{level}");
            assert!(ys[2].is_nan() && (ys[4] + 0.625f32.tanh()).abs() < 1e-6, "{level} {ys:?}");
        }
    }
}
