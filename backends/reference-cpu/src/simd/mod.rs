//! Sixteen f32 lanes, implemented per tier, and the dispatcher that runs a kernel on one.
//!
//! A kernel is written once, generic over [`Simd`]; [`dispatch`] instantiates it inside a function that enables the
//! tier's features. Sixteen lanes on every tier keep the shape of all reductions equal, so only fused multiply-add
//! against separate rounding tells tiers apart.
//!
//! Rejected: one hand-written copy per tier (three times the code to keep equal) and `std::simd` (nightly).

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub use avx512::{Avx512, sum512};
pub use portable::Portable;

use crate::level::Level;

/// Lanes of a vector on every tier.
pub const LANES: usize = 16;

/// Operations on sixteen lanes.
///
/// # Safety
/// Every method needs the tier's CPU features, and pointers valid for the lanes it touches (unaligned is fine). Call
/// them only from a [`Kernel`] run by [`dispatch`].
#[allow(clippy::missing_safety_doc)]
pub trait Simd: Copy + 'static {
    /// Sixteen f32.
    type F: Copy;
    /// Sixteen 32-bit integers.
    type I: Copy;
    /// Rows a GEMM micro-kernel keeps in registers, times `GEMM_TILES` vectors.
    const GEMM_ROWS: usize;
    /// Vectors of outputs a GEMM micro-kernel keeps per row (1 or 2).
    const GEMM_TILES: usize;
    /// Most rows that a GEMM takes straight from packed weights, one vector of outputs each: with more, a panel is better.
    const STREAM_ROWS: usize;
    /// Query rows an attention micro-kernel keeps in registers.
    const ATTENTION_ROWS: usize;
    /// Vectors per query row that go with `ATTENTION_ROWS` (1, 2 or 4).
    const ATTENTION_VECTORS: usize;

    unsafe fn splat(x: f32) -> Self::F;
    unsafe fn load(p: *const f32) -> Self::F;
    unsafe fn store(p: *mut f32, v: Self::F);
    /// The first `n` (≤ 16) lanes, zeros after.
    unsafe fn load_n(p: *const f32, n: usize) -> Self::F;
    /// The first `n` (≤ 16) lanes.
    unsafe fn store_n(p: *mut f32, v: Self::F, n: usize);
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, fused where the tier can.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `a > b ? a : b`: a NaN in `b` wins.
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    /// `a < b ? a : b`: a NaN in `b` wins.
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;
    /// `a < b ? 0 : v`.
    unsafe fn zero_if_less(a: Self::F, b: Self::F, v: Self::F) -> Self::F;
    /// Lanes 2i and 2i+1 exchanged.
    unsafe fn swap_pairs(v: Self::F) -> Self::F;
    unsafe fn bits(v: Self::F) -> Self::I;
    /// Sum of the lanes: lane i + lane i + 8 first, then 4, 2, 1, on every tier.
    #[inline(always)]
    unsafe fn sum(v: Self::F) -> f32 {
        // SAFETY: `fold` hands out an array of sixteen lanes.
        unsafe { fold::<Self>(v, |a, b| a + b) }
    }
    /// Largest lane; whether a NaN lane wins is unspecified.
    #[inline(always)]
    unsafe fn largest(v: Self::F) -> f32 {
        // SAFETY: as above.
        unsafe { fold::<Self>(v, |a, b| if a > b { a } else { b }) }
    }
    unsafe fn from_bits(v: Self::I) -> Self::F;

    unsafe fn i_load(p: *const u8) -> Self::I;
    unsafe fn i_splat(x: i32) -> Self::I;
    unsafe fn i_add(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn i_and(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn i_or(a: Self::I, b: Self::I) -> Self::I;
    /// Logical shift right by `n` < 32.
    unsafe fn i_shr(a: Self::I, n: u32) -> Self::I;
    /// Shift left by `n` < 32.
    unsafe fn i_shl(a: Self::I, n: u32) -> Self::I;
    /// Arithmetic shift right by `n` < 32.
    unsafe fn i_sar(a: Self::I, n: u32) -> Self::I;
    /// Signed integers to f32.
    unsafe fn i_to_f(a: Self::I) -> Self::F;
    /// The four bits from bit `SHIFT` on, minus 8, as f32.
    #[inline(always)]
    unsafe fn nibble<const SHIFT: u32>(v: Self::I) -> Self::F {
        // SAFETY: no memory.
        unsafe {
            let q = Self::i_and(Self::i_shr(v, SHIFT), Self::i_splat(15));
            Self::sub(Self::i_to_f(q), Self::splat(8.0))
        }
    }
    /// The E2M1 number in the low four bits of each lane, times `scale`, which is the same in every lane.
    unsafe fn e2m1(scale: Self::F, v: Self::I) -> Self::F;
    /// Sixteen u8.
    unsafe fn load_u8(p: *const u8) -> Self::I;
    /// Sixteen i8.
    unsafe fn load_i8(p: *const u8) -> Self::I;
    /// Sixteen IEEE half floats.
    unsafe fn load_f16(p: *const u8) -> Self::F;
    /// Sixteen bfloat16.
    unsafe fn load_bf16(p: *const u8) -> Self::F;
    /// Hint that the cache line at `p` is wanted in the level-2 cache soon; any address is fine.
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        let _ = p;
    }
    /// Transpose 16 rows of 16 values: `dst[c * ld_dst + r] = src[r * ld_src + c]`.
    unsafe fn transpose16(src: *const f32, ld_src: usize, dst: *mut f32, ld_dst: usize);
}

/// Halves folded onto each other until one lane is left.
#[inline(always)]
unsafe fn fold<S: Simd>(v: S::F, f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lane = [0f32; LANES];
    // SAFETY: `lane` has sixteen elements; the caller vouches for the tier.
    unsafe { S::store(lane.as_mut_ptr(), v) };
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lane[i] = f(lane[i], lane[i + half]);
        }
        half /= 2;
    }
    lane[0]
}

/// A kernel generic over the tier. `run` must be `#[inline(always)]`, or it is compiled without the tier's features.
pub trait Kernel {
    /// Do the work.
    ///
    /// # Safety
    /// The CPU has the tier's features and the kernel's pointers are valid.
    unsafe fn run<S: Simd>(self);
}

/// Run `kernel` on `level`.
///
/// # Safety
/// `level` is available and the kernel's pointers are valid.
#[inline]
pub unsafe fn dispatch<K: Kernel>(level: Level, kernel: K) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn avx2<K: Kernel>(kernel: K) {
            // SAFETY: this function has the features; the rest is the caller's promise.
            unsafe { kernel.run::<Avx2>() }
        }
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
        unsafe fn avx512<K: Kernel>(kernel: K) {
            // SAFETY: this function has the features; the rest is the caller's promise.
            unsafe { kernel.run::<Avx512>() }
        }
        // SAFETY: the caller promises that `level` is available and the pointers are valid.
        unsafe {
            match level {
                Level::Portable => kernel.run::<Portable>(),
                Level::Avx2 => avx2(kernel),
                Level::Avx512 | Level::Amx => avx512(kernel),
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = level;
        // SAFETY: the portable tier needs no feature; the pointers are the caller's promise.
        unsafe { kernel.run::<Portable>() }
    }
}

#[cfg(test)]
mod tests;
