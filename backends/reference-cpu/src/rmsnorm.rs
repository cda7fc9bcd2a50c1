//! `rmsnorm` over the last dimension, and the fused `add_rmsnorm`.
//!
//! A row's squares are summed in 16 lanes by four interleaved chains (vector v goes to chain v mod 4), chains then
//! lanes folded in a fixed tree: the tree depends on the row length alone.

use crate::{
    level::Level,
    part::Part,
    simd::{Kernel, LANES, Simd, dispatch},
};

/// y[t, :] = x[t, :] / sqrt(mean(x[t, :]²) + eps) · weight, over rows of `width` f32. Rows are dense.
#[derive(Clone, Copy, Debug)]
pub struct RmsNormArgs {
    /// `[rows, width]`.
    pub x: *const f32,
    /// Added to `x` first if not null; `[rows, width]`.
    pub residual: *const f32,
    /// Where x + residual goes if `residual` is not null; may equal `x` or `residual`.
    pub sum: *mut f32,
    /// `[width]`.
    pub weight: *const f32,
    /// `[rows, width]`; may equal `x`.
    pub y: *mut f32,
    /// Number of rows.
    pub rows: usize,
    /// Row length.
    pub width: usize,
    /// Added to the mean.
    pub eps: f32,
}

struct Run(RmsNormArgs, Part);

impl Kernel for Run {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Run(args, part) = self;
        let width = args.width;
        for row in part.of(args.rows) {
            let at = row * width;
            // SAFETY: row `row` is inside every operand, and lanes past `width` are not touched.
            unsafe {
                let mut x = args.x.add(at);
                if !args.residual.is_null() {
                    for i in (0..width).step_by(LANES) {
                        let n = LANES.min(width - i);
                        let v = S::add(S::load_n(x.add(i), n), S::load_n(args.residual.add(at + i), n));
                        S::store_n(args.sum.add(at + i), v, n);
                    }
                    x = args.sum.add(at);
                }
                let mut chains = [S::splat(0.0); 4];
                for (v, i) in (0..width).step_by(LANES).enumerate() {
                    let a = S::load_n(x.add(i), LANES.min(width - i));
                    chains[v % 4] = S::fma(a, a, chains[v % 4]);
                }
                let [a, b, c, d] = chains;
                let squares = S::sum(S::add(S::add(a, b), S::add(c, d)));
                let scale = S::splat(1.0 / (squares / width as f32 + args.eps).sqrt());
                for i in (0..width).step_by(LANES) {
                    let n = LANES.min(width - i);
                    let v = S::mul(S::mul(S::load_n(x.add(i), n), scale), S::load_n(args.weight.add(i), n));
                    S::store_n(args.y.add(at + i), v, n);
                }
            }
        }
    }
}

/// This worker's rows of the norm.
///
/// # Safety
/// `level` is available; the operands have the shapes above; no other worker writes this worker's rows meanwhile.
pub unsafe fn rmsnorm(level: Level, part: Part, args: RmsNormArgs) {
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
            for (rows, width) in [(1, 576), (3, 40), (5, 17), (2, 1)] {
                let n = rows * width;
                let x: Vec<f32> = (0..n).map(|i| (i as f32 * 0.37).sin() * 3.0).collect();
                let r: Vec<f32> = (0..n).map(|i| (i as f32 * 0.11).cos()).collect();
                let w: Vec<f32> = (0..width).map(|i| 1.0 + (i as f32).sin()).collect();
                let (mut s, mut y, mut fused) = (vec![0f32; n], vec![0f32; n], vec![0f32; n]);
                let add = BinaryArgs { a: x.as_ptr(), b: r.as_ptr(), y: s.as_mut_ptr(), n };
                let norm = RmsNormArgs {
                    x: s.as_ptr(),
                    residual: std::ptr::null(),
                    sum: std::ptr::null_mut(),
                    weight: w.as_ptr(),
                    y: y.as_mut_ptr(),
                    rows,
                    width,
                    eps: 1e-5,
                };
                // SAFETY: shapes as documented; the tier is available.
                unsafe {
                    binary(level, Part::WHOLE, Binary::Add, add);
                    rmsnorm(level, Part::WHOLE, norm);
                }
                for t in 0..rows {
                    let row = &s[t * width..][..width];
                    let mean = row.iter().map(|x| (*x as f64).powi(2)).sum::<f64>() / width as f64;
                    for i in 0..width {
                        let exact = row[i] as f64 / (mean + 1e-5f32 as f64).sqrt() * w[i] as f64;
                        let got = y[t * width + i] as f64;
                        assert!((got - exact).abs() < 4e-7 * exact.abs() + 1e-9, "{level}: {got} for {exact}");
                    }
                }
                let mut sum = x.clone();
                let args = RmsNormArgs {
                    x: sum.as_ptr(),
                    residual: r.as_ptr(),
                    sum: sum.as_mut_ptr(),
                    y: fused.as_mut_ptr(),
                    ..norm
                };
                for index in 0..2 {
                    // SAFETY: as above.
                    unsafe { rmsnorm(level, Part { index, count: 2 }, args) };
                }
                assert_eq!((sum, fused), (s, y), "{level}");
            }
        }
    }
}
