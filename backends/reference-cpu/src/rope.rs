//! `rope`: rotary embedding of the first R of D dimensions, in two steps.
//!
//! Angles depend on the position alone, so a program computes one table per step (f64 angles, rounded once) and all
//! layers share it. The table repeats each cosine and stores sines with the sign the element needs, which makes both
//! pairings the same formula: y\[d\] = x\[d\]·c\[d\] + x\[partner(d)\]·s\[d\].

use crate::{
    level::Level,
    part::Part,
    simd::{Kernel, LANES, Simd, dispatch},
};

/// Which elements rotate together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// d with d + R/2.
    Halves,
    /// 2d with 2d + 1.
    Pairs,
}

/// Fill this worker's tokens of the table: `[tokens, 2, R]` f32, cosines then signed sines.
///
/// `inv_freq` has R/2 entries; `position(t)` is token t's; `factor` scales both functions.
///
/// # Safety
/// `table` holds `tokens · 2 · R` elements that no other worker writes for the same tokens.
pub unsafe fn fill_table(
    part: Part,
    style: Style,
    inv_freq: &[f32],
    factor: f32,
    tokens: usize,
    position: impl Fn(usize) -> u32,
    table: *mut f32,
) {
    let half = inv_freq.len();
    for t in part.of(tokens) {
        for (d, freq) in inv_freq.iter().enumerate() {
            let (sin, cos) = (position(t) as f64 * *freq as f64).sin_cos();
            let (sin, cos) = (sin as f32 * factor, cos as f32 * factor);
            let (first, second) = match style {
                Style::Halves => (d, d + half),
                Style::Pairs => (2 * d, 2 * d + 1),
            };
            // SAFETY: both indices are under R, inside token t's entry.
            unsafe {
                let row = table.add(t * 4 * half);
                *row.add(first) = cos;
                *row.add(second) = cos;
                *row.add(2 * half + first) = -sin;
                *row.add(2 * half + second) = sin;
            }
        }
    }
}

/// Operands of the rotation.
#[derive(Clone, Copy, Debug)]
pub struct RopeArgs {
    /// `[tokens, heads, width]`.
    pub x: *const f32,
    /// `[tokens, heads, width]`; may equal `x`.
    pub y: *mut f32,
    /// From [`fill_table`], `[tokens, 2, rotated]`.
    pub table: *const f32,
    /// Number of tokens.
    pub tokens: usize,
    /// Heads per token.
    pub heads: usize,
    /// Elements per head.
    pub width: usize,
    /// R: even, at most `width`; the rest is copied.
    pub rotated: usize,
    /// Pairing, the same as in the table.
    pub style: Style,
}

struct Run(RopeArgs, Part);

impl Kernel for Run {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Run(args, part) = self;
        let (r, half) = (args.rotated, args.rotated / 2);
        for unit in part.of(args.tokens * args.heads) {
            // SAFETY: head `unit` is inside x and y, its token inside the table; every load of a pair comes before
            // the store to it, so x may equal y.
            unsafe {
                let (x, y) = (args.x.add(unit * args.width), args.y.add(unit * args.width));
                let cos = args.table.add(unit / args.heads * 2 * r);
                let sin = cos.add(r);
                match args.style {
                    Style::Halves => {
                        for i in (0..half).step_by(LANES) {
                            let n = LANES.min(half - i);
                            let (a, b) = (S::load_n(x.add(i), n), S::load_n(x.add(half + i), n));
                            let at = |p: *const f32, i: usize| S::load_n(p.add(i), n);
                            let new_a = S::fma(a, at(cos, i), S::mul(b, at(sin, i)));
                            let new_b = S::fma(b, at(cos, half + i), S::mul(a, at(sin, half + i)));
                            S::store_n(y.add(i), new_a, n);
                            S::store_n(y.add(half + i), new_b, n);
                        }
                    }
                    Style::Pairs => {
                        for i in (0..r).step_by(LANES) {
                            let n = LANES.min(r - i);
                            let a = S::load_n(x.add(i), n);
                            let (c, s) = (S::load_n(cos.add(i), n), S::load_n(sin.add(i), n));
                            S::store_n(y.add(i), S::fma(a, c, S::mul(S::swap_pairs(a), s)), n);
                        }
                    }
                }
                for i in (r..args.width).step_by(LANES) {
                    let n = LANES.min(args.width - i);
                    S::store_n(y.add(i), S::load_n(x.add(i), n), n);
                }
            }
        }
    }
}

/// Rotate this worker's share of the (token, head) pairs.
///
/// # Safety
/// `level` is available; the operands have the shapes above; no other worker writes this share meanwhile.
pub unsafe fn rope(level: Level, part: Part, args: RopeArgs) {
    debug_assert!(args.rotated.is_multiple_of(2) && args.rotated <= args.width);
    // SAFETY: the caller's promise.
    unsafe { dispatch(level, Run(args, part)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::level::testable;

    #[test]
    fn close_to_f64_for_both_pairings_ragged_widths_and_in_place() {
        for level in testable() {
            for style in [Style::Halves, Style::Pairs] {
                for (width, rotated) in [(64, 64), (40, 24), (6, 2)] {
                    let (tokens, heads, half) = (3, 2, rotated / 2);
                    let inv_freq: Vec<f32> = (0..half).map(|d| 10000f32.powf(-(d as f32) / half as f32)).collect();
                    let positions = [0u32, 7, 100_000];
                    let x: Vec<f32> = (0..tokens * heads * width).map(|i| (i as f32 * 0.3).sin()).collect();
                    let mut table = vec![0f32; tokens * 2 * rotated];
                    let mut y = x.clone();
                    for index in 0..2 {
                        let part = Part { index, count: 2 };
                        // SAFETY: the table holds all tokens.
                        unsafe {
                            let p = table.as_mut_ptr();
                            fill_table(part, style, &inv_freq, 1.5, tokens, |t| positions[t], p);
                        }
                    }
                    for index in 0..2 {
                        let args = RopeArgs {
                            x: y.as_ptr(),
                            y: y.as_mut_ptr(),
                            table: table.as_ptr(),
                            tokens,
                            heads,
                            width,
                            rotated,
                            style,
                        };
                        // SAFETY: shapes as documented; the tier is available.
                        unsafe { rope(level, Part { index, count: 2 }, args) };
                    }
                    for (i, got) in y.iter().enumerate() {
                        let (d, head) = (i % width, i / width * width);
                        let t = i / width / heads;
                        let (pair, first, second) = match style {
                            Style::Halves => (d % half.max(1), d % half.max(1), d % half.max(1) + half),
                            Style::Pairs => (d / 2, d / 2 * 2, d / 2 * 2 + 1),
                        };
                        let exact = if d >= rotated {
                            x[i] as f64
                        } else {
                            let angle = positions[t] as f64 * inv_freq[pair] as f64;
                            let (a, b) = (x[head + first] as f64, x[head + second] as f64);
                            let turned = if d == first {
                                a * angle.cos() - b * angle.sin()
                            } else {
                                b * angle.cos() + a * angle.sin()
                            };
                            1.5 * turned
                        };
                        assert!((*got as f64 - exact).abs() < 5e-7, "{level} {style:?} {width}: {got} for {exact}");
                    }
                }
            }
        }
    }
}
