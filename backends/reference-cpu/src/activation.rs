//! `silu` and the fused `silu_mul`, over n f32 elements.
//!
//! The fused form rounds exactly like `silu` followed by `mul`, so a program may use either.

use crate::{
    exp::silu as silu_lanes,
    level::Level,
    part::Part,
    simd::{Kernel, LANES, Simd, dispatch},
};

/// Operands, each `n` f32.
#[derive(Clone, Copy, Debug)]
pub struct SiluArgs {
    /// Argument of silu.
    pub x: *const f32,
    /// Factor, or null for plain silu.
    pub up: *const f32,
    /// Result; may equal `x` or `up`.
    pub y: *mut f32,
    /// Elements.
    pub n: usize,
}

struct Run(SiluArgs, Part);

impl Kernel for Run {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Run(args, part) = self;
        let range = part.aligned(args.n, LANES);
        for i in range.clone().step_by(LANES) {
            let n = LANES.min(range.end - i);
            // SAFETY: lanes i..i+n are inside every operand.
            unsafe {
                let mut y = silu_lanes::<S>(S::load_n(args.x.add(i), n));
                if !args.up.is_null() {
                    y = S::mul(y, S::load_n(args.up.add(i), n));
                }
                S::store_n(args.y.add(i), y, n);
            }
        }
    }
}

/// This worker's share of y = silu(x) (· up).
///
/// # Safety
/// `level` is available; the operands hold `n` elements; no other worker writes them meanwhile.
pub unsafe fn silu(level: Level, part: Part, args: SiluArgs) {
    // SAFETY: the caller's promise.
    unsafe { dispatch(level, Run(args, part)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        elementwise::{Binary, BinaryArgs, binary},
        level::testable,
    };

    #[test]
    fn close_to_f64_and_fused_equals_unfused() {
        for level in testable() {
            for n in [1, 16, 333] {
                let x: Vec<f32> = (0..n).map(|i| (i as f32 - 160.0) * 0.6).collect();
                let up: Vec<f32> = (0..n).map(|i| (i as f32 * 1.7).sin()).collect();
                let (mut plain, mut fused) = (vec![0f32; n], vec![0f32; n]);
                let args = SiluArgs { x: x.as_ptr(), up: std::ptr::null(), y: plain.as_mut_ptr(), n };
                // SAFETY: the vectors hold n elements and the tier is available.
                unsafe { silu(level, Part::WHOLE, args) };
                for (x, y) in x.iter().zip(&plain) {
                    let exact = *x as f64 / (1.0 + (-*x as f64).exp());
                    assert!((*y as f64 - exact).abs() <= 5e-7 * exact.abs() + 1e-36, "{level}: silu({x}) = {y}");
                }
                // SAFETY: as above.
                unsafe {
                    for index in 0..2 {
                        let args = SiluArgs { up: up.as_ptr(), y: fused.as_mut_ptr(), ..args };
                        silu(level, Part { index, count: 2 }, args);
                    }
                    let y = plain.as_mut_ptr();
                    binary(level, Part::WHOLE, Binary::Mul, BinaryArgs { a: y, b: up.as_ptr(), y, n });
                }
                assert_eq!(plain, fused, "{level}");
            }
        }
    }
}
