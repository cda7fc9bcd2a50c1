//! Plain arrays: right on any CPU, vectorised by the compiler as far as its target allows.
//!
//! Multiply-add rounds twice here: a fused one would be a library call per lane where the target has no FMA.
//!
//! SAFETY: pointers are the caller's promise, as `Simd` states; no CPU feature is assumed.

use super::{LANES, Simd};
use half::{bf16, f16};

/// The tier without any CPU feature.
#[derive(Clone, Copy, Debug)]
pub struct Portable;

#[inline(always)]
fn map<T: Copy, U: Copy + Default>(a: [T; LANES], f: impl Fn(T) -> U) -> [U; LANES] {
    let mut out = [U::default(); LANES];
    for i in 0..LANES {
        out[i] = f(a[i]);
    }
    out
}

#[inline(always)]
fn zip<T: Copy, U: Copy + Default>(a: [T; LANES], b: [T; LANES], f: impl Fn(T, T) -> U) -> [U; LANES] {
    let mut out = [U::default(); LANES];
    for i in 0..LANES {
        out[i] = f(a[i], b[i]);
    }
    out
}

// SAFETY of all unsafe blocks below: pointers are valid for the lanes touched, by the trait's contract; unaligned
// reads and writes are used throughout.
impl Simd for Portable {
    type F = [f32; LANES];
    type I = [i32; LANES];
    const GEMM_ROWS: usize = 2;
    const GEMM_TILES: usize = 1;
    const STREAM_ROWS: usize = 4;
    const ATTENTION_ROWS: usize = 1;
    const ATTENTION_VECTORS: usize = 2;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::F {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::F {
        unsafe { p.cast::<Self::F>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::F) {
        unsafe { p.cast::<Self::F>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn load_n(p: *const f32, n: usize) -> Self::F {
        let mut v = [0f32; LANES];
        for (i, lane) in v.iter_mut().enumerate().take(n) {
            *lane = unsafe { p.add(i).read_unaligned() };
        }
        v
    }
    #[inline(always)]
    unsafe fn store_n(p: *mut f32, v: Self::F, n: usize) {
        for (i, lane) in v.iter().enumerate().take(n) {
            unsafe { p.add(i).write_unaligned(*lane) };
        }
    }
    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a / b)
    }
    #[inline(always)]
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        zip(zip(a, b, |a, b| a * b), c, |p, c| p + c)
    }
    #[inline(always)]
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    unsafe fn zero_if_less(a: Self::F, b: Self::F, v: Self::F) -> Self::F {
        let mut out = v;
        for i in 0..LANES {
            out[i] = if a[i] < b[i] { 0.0 } else { v[i] };
        }
        out
    }
    #[inline(always)]
    unsafe fn swap_pairs(v: Self::F) -> Self::F {
        let mut out = v;
        for i in 0..LANES {
            out[i] = v[i ^ 1];
        }
        out
    }
    #[inline(always)]
    unsafe fn bits(v: Self::F) -> Self::I {
        map(v, |x| x.to_bits() as i32)
    }
    #[inline(always)]
    unsafe fn from_bits(v: Self::I) -> Self::F {
        map(v, |x| f32::from_bits(x as u32))
    }

    #[inline(always)]
    unsafe fn i_load(p: *const u8) -> Self::I {
        unsafe { p.cast::<Self::I>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn i_splat(x: i32) -> Self::I {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn i_add(a: Self::I, b: Self::I) -> Self::I {
        zip(a, b, i32::wrapping_add)
    }
    #[inline(always)]
    unsafe fn i_and(a: Self::I, b: Self::I) -> Self::I {
        zip(a, b, |a, b| a & b)
    }
    #[inline(always)]
    unsafe fn i_or(a: Self::I, b: Self::I) -> Self::I {
        zip(a, b, |a, b| a | b)
    }
    #[inline(always)]
    unsafe fn i_shr(a: Self::I, n: u32) -> Self::I {
        map(a, |x| ((x as u32) >> n) as i32)
    }
    #[inline(always)]
    unsafe fn i_shl(a: Self::I, n: u32) -> Self::I {
        map(a, |x| x << n)
    }
    #[inline(always)]
    unsafe fn i_sar(a: Self::I, n: u32) -> Self::I {
        map(a, |x| x >> n)
    }
    #[inline(always)]
    unsafe fn i_to_f(a: Self::I) -> Self::F {
        map(a, |x| x as f32)
    }
    #[inline(always)]
    unsafe fn e2m1(scale: Self::F, v: Self::I) -> Self::F {
        const TABLE: [f32; 16] = [0., 0.5, 1., 1.5, 2., 3., 4., 6., -0., -0.5, -1., -1.5, -2., -3., -4., -6.];
        zip(scale, map(v, |v| TABLE[(v & 15) as usize]), |scale, v| v * scale)
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> Self::I {
        map(unsafe { p.cast::<[u8; LANES]>().read_unaligned() }, |x| x as i32)
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const u8) -> Self::I {
        map(unsafe { p.cast::<[i8; LANES]>().read_unaligned() }, |x| x as i32)
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> Self::F {
        map(unsafe { p.cast::<[u16; LANES]>().read_unaligned() }, |x| f16::from_bits(x).to_f32())
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> Self::F {
        map(unsafe { p.cast::<[u16; LANES]>().read_unaligned() }, |x| bf16::from_bits(x).to_f32())
    }
    #[inline(always)]
    unsafe fn transpose16(src: *const f32, ld_src: usize, dst: *mut f32, ld_dst: usize) {
        for r in 0..LANES {
            for c in 0..LANES {
                unsafe { *dst.add(c * ld_dst + r) = *src.add(r * ld_src + c) };
            }
        }
    }
}
