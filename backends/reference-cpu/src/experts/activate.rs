//! The gate of an expert's MLP, sixteen lanes at a time.

use crate::{
    exp::{exp, silu},
    simd::Simd,
};

/// What joins gate and up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Act {
    /// `silu(gate) · up`.
    Silu,
    /// `beta·tanh(gate / beta) · sigmoid(gate) · linear·tanh(up / linear)`; up is not capped if `linear` is 0.
    Situ { beta: f32, linear: f32 },
}

/// `act(gate, up)` of each lane.
///
/// # Safety
/// As [`Simd`].
#[inline(always)]
pub unsafe fn activate<S: Simd>(act: Act, gate: S::F, up: S::F) -> S::F {
    // SAFETY: arithmetic only; the caller vouches for the tier.
    unsafe {
        match act {
            Act::Silu => S::mul(silu::<S>(gate), up),
            Act::Situ { beta, linear } => {
                let one = S::splat(1.0);
                let sigmoid = S::div(one, S::add(one, exp::<S>(S::sub(S::splat(0.0), gate))));
                let gate = S::mul(capped::<S>(beta, gate), sigmoid);
                S::mul(gate, if linear == 0.0 { up } else { capped::<S>(linear, up) })
            }
        }
    }
}

#[inline(always)]
unsafe fn capped<S: Simd>(limit: f32, x: S::F) -> S::F {
    // SAFETY: arithmetic only.
    unsafe { S::mul(S::splat(limit), tanh::<S>(S::div(x, S::splat(limit)))) }
}

/// Below this magnitude tanh is a polynomial: the exponential form would cancel.
const SMALL: f32 = 0.625;

/// tanh of each lane, within a few units in the last place; NaN stays NaN.
///
/// The polynomial is the minimax fit of S. Moshier's Cephes `tanhf`.
#[inline(always)]
unsafe fn tanh<S: Simd>(x: S::F) -> S::F {
    // SAFETY: arithmetic only.
    unsafe {
        let one = S::splat(1.0);
        let magnitude = S::from_bits(S::i_and(S::bits(x), S::i_splat(0x7fff_ffff)));
        let square = S::mul(x, x);
        let mut p = S::splat(-5.704_988_7e-3);
        p = S::fma(p, square, S::splat(2.063_909e-2));
        p = S::fma(p, square, S::splat(-5.373_971_6e-2));
        p = S::fma(p, square, S::splat(1.333_144_2e-1));
        p = S::fma(p, square, S::splat(-3.333_328e-1));
        let near = S::fma(S::mul(p, square), magnitude, magnitude);
        let e = exp::<S>(S::add(magnitude, magnitude));
        let far = S::sub(one, S::div(S::splat(2.0), S::add(e, one)));
        let below = f32::from_bits(SMALL.to_bits() - 1);
        let near = S::zero_if_less(S::splat(below), magnitude, near);
        let far = S::zero_if_less(magnitude, S::splat(SMALL), far);
        let sign = S::i_and(S::bits(x), S::i_splat(i32::MIN));
        S::from_bits(S::i_or(S::bits(S::add(near, far)), sign))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        level::testable,
        simd::{Kernel, LANES, dispatch},
    };

    struct Run<'a>(Act, &'a [f32], &'a [f32], &'a mut [f32]);
    impl Kernel for Run<'_> {
        #[inline(always)]
        unsafe fn run<S: Simd>(self) {
            for i in (0..self.3.len()).step_by(LANES) {
                let n = LANES.min(self.3.len() - i);
                // SAFETY: n lanes are left in every slice.
                unsafe {
                    let (g, u) = (S::load_n(self.1.as_ptr().add(i), n), S::load_n(self.2.as_ptr().add(i), n));
                    S::store_n(self.3.as_mut_ptr().add(i), activate::<S>(self.0, g, u), n);
                }
            }
        }
    }

    #[test]
    fn close_to_f64_from_tiny_to_saturated() {
        let gate: Vec<f32> = (0..4000).map(|i| (i as f32 - 2000.0) * 0.01).collect();
        let up: Vec<f32> = (0..4000).map(|i| (i as f32 * 0.7).sin() * (i as f32 * 0.02).exp2().min(200.0)).collect();
        for act in [Act::Silu, Act::Situ { beta: 4.0, linear: 25.0 }, Act::Situ { beta: 4.0, linear: 0.0 }] {
            for level in testable() {
                let mut y = vec![0f32; gate.len()];
                // SAFETY: the tier is available.
                unsafe { dispatch(level, Run(act, &gate, &up, &mut y)) };
                for ((g, u), y) in gate.iter().zip(&up).zip(y) {
                    let (g, u) = (f64::from(*g), f64::from(*u));
                    let cap = |limit: f32, x: f64| match limit {
                        0.0 => x,
                        l => f64::from(l) * (x / f64::from(l)).tanh(),
                    };
                    let sigmoid = 1.0 / (1.0 + (-g).exp());
                    let exact = match act {
                        Act::Silu => g * sigmoid * u,
                        Act::Situ { beta, linear } => cap(beta, g) * sigmoid * cap(linear, u),
                    };
                    let error = (f64::from(y) - exact).abs();
                    assert!(error <= 2e-6 * exact.abs() + 1e-30, "{level} {act:?}: {g}, {u} gave {y}, not {exact}");
                }
            }
        }
    }

    #[test]
    fn a_nan_stays_one_and_zero_stays_zero() {
        for level in testable() {
            let mut y = [0f32; 3];
            let act = Act::Situ { beta: 4.0, linear: 25.0 };
            // SAFETY: the tier is available.
            unsafe { dispatch(level, Run(act, &[f32::NAN, 1.0, 0.0], &[1.0, f32::NAN, 3.0], &mut y)) };
            assert!(y[0].is_nan() && y[1].is_nan() && y[2] == 0.0, "{level}: {y:?}");
        }
    }
}
