//! `add` and `mul`: y = a ∘ b over n f32 elements; y may be a or b.

use crate::{
    level::Level,
    part::Part,
    simd::{Kernel, LANES, Simd, dispatch},
};

/// Which operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binary {
    /// a + b.
    Add,
    /// a · b.
    Mul,
}

/// Operands, each `n` f32.
#[derive(Clone, Copy, Debug)]
pub struct BinaryArgs {
    /// Left.
    pub a: *const f32,
    /// Right.
    pub b: *const f32,
    /// Result; may equal `a` or `b`.
    pub y: *mut f32,
    /// Elements.
    pub n: usize,
}

struct Run(Binary, BinaryArgs, Part);

impl Kernel for Run {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Run(op, args, part) = self;
        let range = part.aligned(args.n, LANES);
        for i in range.clone().step_by(LANES) {
            let n = LANES.min(range.end - i);
            // SAFETY: lanes i..i+n are inside all three operands.
            unsafe {
                let (a, b) = (S::load_n(args.a.add(i), n), S::load_n(args.b.add(i), n));
                let y = match op {
                    Binary::Add => S::add(a, b),
                    Binary::Mul => S::mul(a, b),
                };
                S::store_n(args.y.add(i), y, n);
            }
        }
    }
}

/// This worker's share of y = a ∘ b.
///
/// # Safety
/// `level` is available; the operands hold `n` elements; no other worker writes them meanwhile.
pub unsafe fn binary(level: Level, part: Part, op: Binary, args: BinaryArgs) {
    // SAFETY: the caller's promise.
    unsafe { dispatch(level, Run(op, args, part)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::level::testable;

    #[test]
    fn matches_scalar_arithmetic_exactly_for_ragged_lengths_and_any_split() {
        for level in testable() {
            for n in [1, 15, 16, 17, 100] {
                let a: Vec<f32> = (0..n).map(|i| (i as f32 * 0.7).sin()).collect();
                let b: Vec<f32> = (0..n).map(|i| (i as f32 * 1.3).cos()).collect();
                for (op, f) in [(Binary::Add, (|a, b| a + b) as fn(f32, f32) -> f32), (Binary::Mul, |a, b| a * b)] {
                    let mut y = a.clone();
                    for index in 0..3 {
                        let args = BinaryArgs { a: y.as_ptr(), b: b.as_ptr(), y: y.as_mut_ptr(), n };
                        // SAFETY: the vectors hold n elements and the tier is available.
                        unsafe { binary(level, Part { index, count: 3 }, op, args) };
                    }
                    for i in 0..n {
                        assert_eq!(y[i], f(a[i], b[i]), "{level} {op:?} n {n} element {i}");
                    }
                }
            }
        }
    }
}
