//! Vector operations of each tier against scalar ones.

use super::*;
use crate::level::testable;

struct Transpose<'a>(&'a [f32], &'a mut [f32]);
impl Kernel for Transpose<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        assert!(self.0.len() == 16 * 20 && self.1.len() == 16 * 24);
        // SAFETY: both slices cover sixteen rows at the given strides.
        unsafe { S::transpose16(self.0.as_ptr(), 20, self.1.as_mut_ptr(), 24) }
    }
}

#[test]
fn transpose_moves_every_element() {
    let src: Vec<f32> = (0..320).map(|x| x as f32).collect();
    for level in testable() {
        let mut dst = vec![-1f32; 16 * 24];
        // SAFETY: the tier is available.
        unsafe { dispatch(level, Transpose(&src, &mut dst)) };
        for r in 0..16 {
            for c in 0..16 {
                assert_eq!(dst[c * 24 + r], src[r * 20 + c], "{level} row {r} column {c}");
            }
        }
    }
}

struct Partial<'a>(usize, &'a [f32], &'a mut [f32; 16]);
impl Kernel for Partial<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: lanes past the slice are not touched.
        unsafe {
            let v = S::load_n(self.1.as_ptr(), self.0);
            let s = S::sum(v);
            S::store_n(self.2.as_mut_ptr(), S::swap_pairs(S::swap_pairs(v)), self.0);
            if self.0 < 16 {
                self.2[15] = s;
            }
        }
    }
}

#[test]
fn partial_loads_fill_with_zero_and_partial_stores_stay_inside() {
    for level in testable() {
        for n in 0..15 {
            let src: Vec<f32> = (0..n).map(|x| x as f32 + 1.0).collect();
            let mut dst = [-7f32; 16];
            // SAFETY: the tier is available.
            unsafe { dispatch(level, Partial(n, &src, &mut dst)) };
            assert_eq!(&dst[..n], &src[..]);
            assert!(dst[n..15].iter().all(|x| *x == -7.0), "{level} wrote past lane {n}");
            assert_eq!(dst[15], src.iter().sum::<f32>());
        }
    }
}
