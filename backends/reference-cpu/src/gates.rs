//! Elementwise gates: `sigmoid`, `sigmoid_mul` and `situ_mul`, over n f32 elements.
//!
//! `sigmoid_mul` rounds exactly like `sigmoid` followed by `mul`, so a program may use either.

use crate::{
    exp::exp,
    level::Level,
    part::Part,
    simd::{Kernel, LANES, Simd, dispatch},
    tanh::tanh,
};

/// Which gate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Gate {
    /// σ(gate).
    Sigmoid,
    /// x · σ(gate).
    SigmoidMul,
    /// beta · tanh(gate / beta) · σ(gate) · x, with x capped likewise by `linear` if that is not 0.
    Situ {
        /// Cap of the gate branch, over 0.
        beta: f32,
        /// Cap of the other branch; 0 = none.
        linear: f32,
    },
}

/// Operands, each `n` f32.
#[derive(Clone, Copy, Debug)]
pub struct GateArgs {
    /// Argument of σ.
    pub gate: *const f32,
    /// What is gated; not read by [`Gate::Sigmoid`].
    pub x: *const f32,
    /// Result; may equal `gate` or `x`.
    pub y: *mut f32,
    /// Elements.
    pub n: usize,
}

/// σ of each lane.
///
/// # Safety
/// As [`Simd`].
#[inline(always)]
pub unsafe fn sigmoid<S: Simd>(x: S::F) -> S::F {
    // SAFETY: arithmetic only; the caller vouches for the tier.
    unsafe {
        let e = exp::<S>(S::sub(S::splat(0.0), x));
        S::div(S::splat(1.0), S::add(S::splat(1.0), e))
    }
}

/// b · tanh(x / b) of each lane.
///
/// # Safety
/// As [`Simd`].
#[inline(always)]
unsafe fn capped<S: Simd>(x: S::F, b: f32) -> S::F {
    // SAFETY: arithmetic only; the caller vouches for the tier.
    unsafe { S::mul(S::splat(b), tanh::<S>(S::div(x, S::splat(b)))) }
}

/// The SiTU gate of each lane; see [`Gate::Situ`].
///
/// # Safety
/// As [`Simd`].
#[inline(always)]
pub unsafe fn situ<S: Simd>(beta: f32, linear: f32, gate: S::F, x: S::F) -> S::F {
    // SAFETY: arithmetic only; the caller vouches for the tier.
    unsafe {
        let x = if linear == 0.0 { x } else { capped::<S>(x, linear) };
        S::mul(S::mul(capped::<S>(gate, beta), sigmoid::<S>(gate)), x)
    }
}

struct Run(Gate, GateArgs, Part);

impl Kernel for Run {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Run(kind, args, part) = self;
        let range = part.aligned(args.n, LANES);
        for i in range.clone().step_by(LANES) {
            let n = LANES.min(range.end - i);
            // SAFETY: lanes i..i+n are inside every operand that this gate reads.
            unsafe {
                let gate = S::load_n(args.gate.add(i), n);
                let y = match kind {
                    Gate::Sigmoid => sigmoid::<S>(gate),
                    Gate::SigmoidMul => S::mul(sigmoid::<S>(gate), S::load_n(args.x.add(i), n)),
                    Gate::Situ { beta, linear } => situ::<S>(beta, linear, gate, S::load_n(args.x.add(i), n)),
                };
                S::store_n(args.y.add(i), y, n);
            }
        }
    }
}

/// This worker's share of the gate.
///
/// # Safety
/// `level` is available; the operands hold `n` elements; no other worker writes them meanwhile.
pub unsafe fn gate(level: Level, part: Part, kind: Gate, args: GateArgs) {
    // SAFETY: the caller's promise.
    unsafe { dispatch(level, Run(kind, args, part)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::level::testable;

    #[test]
    fn close_to_f64_in_any_split() {
        let n = 3333;
        let gates: Vec<f32> = (0..n).map(|i| (i as f32 - 1600.0) * 0.01 + 1e-4).collect();
        let x: Vec<f32> = (0..n).map(|i| (i as f32 * 1.7).sin() * 40.0).collect();
        let sigma = |g: f32| 1.0 / (1.0 + (-f64::from(g)).exp());
        let cap = |v: f32, b: f64| b * (f64::from(v) / b).tanh();
        for level in testable() {
            for kind in [Gate::Sigmoid, Gate::SigmoidMul, Gate::Situ { beta: 4.0, linear: 25.0 }] {
                let mut y = vec![0f32; n];
                for index in 0..3 {
                    let args = GateArgs { gate: gates.as_ptr(), x: x.as_ptr(), y: y.as_mut_ptr(), n };
                    // SAFETY: the vectors hold n elements and the tier is available.
                    unsafe { gate(level, Part { index, count: 3 }, kind, args) };
                }
                for i in 0..n {
                    let exact = match kind {
                        Gate::Sigmoid => sigma(gates[i]),
                        Gate::SigmoidMul => sigma(gates[i]) * f64::from(x[i]),
                        Gate::Situ { .. } => cap(gates[i], 4.0) * sigma(gates[i]) * cap(x[i], 25.0),
                    };
                    let error = (f64::from(y[i]) - exact).abs();
                    assert!(error <= 1e-6 * exact.abs() + 1e-30, "{level} {kind:?}: {} for {exact}", y[i]);
                }
            }
        }
    }
}
