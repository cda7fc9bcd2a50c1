//! Two 256-bit registers per vector.
//!
//! SAFETY: every function here is called through `dispatch` for a detected tier, inside a function compiled for its features;
//! pointers are the caller's promise, as `Simd` states.

use super::{LANES, Simd};
use std::arch::x86_64::*;

/// AVX2, FMA, F16C.
#[derive(Clone, Copy, Debug)]
pub struct Avx2;

/// Sixteen f32.
#[derive(Clone, Copy, Debug)]
pub struct F(__m256, __m256);

/// Sixteen i32.
#[derive(Clone, Copy, Debug)]
pub struct I(__m256i, __m256i);

#[inline(always)]
unsafe fn both(a: F, b: F, f: impl Fn(__m256, __m256) -> __m256) -> F {
    F(f(a.0, b.0), f(a.1, b.1))
}

#[inline(always)]
unsafe fn i_both(a: I, b: I, f: impl Fn(__m256i, __m256i) -> __m256i) -> I {
    I(f(a.0, b.0), f(a.1, b.1))
}

// SAFETY of all unsafe blocks below: the tier's features are present and pointers are valid for the lanes touched,
// by the trait's contract.
impl Simd for Avx2 {
    type F = F;
    type I = I;
    const GEMM_ROWS: usize = 6;
    const GEMM_TILES: usize = 1;
    const STREAM_ROWS: usize = 8;
    const ATTENTION_ROWS: usize = 3;
    const ATTENTION_VECTORS: usize = 2;

    #[inline(always)]
    unsafe fn splat(x: f32) -> F {
        unsafe { F(_mm256_set1_ps(x), _mm256_set1_ps(x)) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> F {
        unsafe { F(_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: F) {
        unsafe {
            _mm256_storeu_ps(p, v.0);
            _mm256_storeu_ps(p.add(8), v.1);
        }
    }
    #[inline(always)]
    unsafe fn load_n(p: *const f32, n: usize) -> F {
        let mut lane = [0f32; LANES];
        unsafe {
            std::ptr::copy_nonoverlapping(p, lane.as_mut_ptr(), n);
            Self::load(lane.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn store_n(p: *mut f32, v: F, n: usize) {
        let mut lane = [0f32; LANES];
        unsafe {
            Self::store(lane.as_mut_ptr(), v);
            std::ptr::copy_nonoverlapping(lane.as_ptr(), p, n);
        }
    }
    #[inline(always)]
    unsafe fn add(a: F, b: F) -> F {
        unsafe { both(a, b, |a, b| _mm256_add_ps(a, b)) }
    }
    #[inline(always)]
    unsafe fn sub(a: F, b: F) -> F {
        unsafe { both(a, b, |a, b| _mm256_sub_ps(a, b)) }
    }
    #[inline(always)]
    unsafe fn mul(a: F, b: F) -> F {
        unsafe { both(a, b, |a, b| _mm256_mul_ps(a, b)) }
    }
    #[inline(always)]
    unsafe fn div(a: F, b: F) -> F {
        unsafe { both(a, b, |a, b| _mm256_div_ps(a, b)) }
    }
    #[inline(always)]
    unsafe fn fma(a: F, b: F, c: F) -> F {
        unsafe { F(_mm256_fmadd_ps(a.0, b.0, c.0), _mm256_fmadd_ps(a.1, b.1, c.1)) }
    }
    #[inline(always)]
    unsafe fn max(a: F, b: F) -> F {
        unsafe { both(a, b, |a, b| _mm256_max_ps(a, b)) }
    }
    #[inline(always)]
    unsafe fn min(a: F, b: F) -> F {
        unsafe { both(a, b, |a, b| _mm256_min_ps(a, b)) }
    }
    #[inline(always)]
    unsafe fn zero_if_less(a: F, b: F, v: F) -> F {
        unsafe {
            F(
                _mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(a.0, b.0), v.0),
                _mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(a.1, b.1), v.1),
            )
        }
    }
    #[inline(always)]
    unsafe fn swap_pairs(v: F) -> F {
        unsafe { F(_mm256_permute_ps::<0b10_11_00_01>(v.0), _mm256_permute_ps::<0b10_11_00_01>(v.1)) }
    }
    #[inline(always)]
    unsafe fn bits(v: F) -> I {
        unsafe { I(_mm256_castps_si256(v.0), _mm256_castps_si256(v.1)) }
    }
    #[inline(always)]
    unsafe fn from_bits(v: I) -> F {
        unsafe { F(_mm256_castsi256_ps(v.0), _mm256_castsi256_ps(v.1)) }
    }

    #[inline(always)]
    unsafe fn i_load(p: *const u8) -> I {
        unsafe { I(_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(32).cast())) }
    }
    #[inline(always)]
    unsafe fn i_splat(x: i32) -> I {
        unsafe { I(_mm256_set1_epi32(x), _mm256_set1_epi32(x)) }
    }
    #[inline(always)]
    unsafe fn i_add(a: I, b: I) -> I {
        unsafe { i_both(a, b, |a, b| _mm256_add_epi32(a, b)) }
    }
    #[inline(always)]
    unsafe fn i_and(a: I, b: I) -> I {
        unsafe { i_both(a, b, |a, b| _mm256_and_si256(a, b)) }
    }
    #[inline(always)]
    unsafe fn i_or(a: I, b: I) -> I {
        unsafe { i_both(a, b, |a, b| _mm256_or_si256(a, b)) }
    }
    #[inline(always)]
    unsafe fn i_shr(a: I, n: u32) -> I {
        unsafe {
            let n = _mm_cvtsi32_si128(n as i32);
            I(_mm256_srl_epi32(a.0, n), _mm256_srl_epi32(a.1, n))
        }
    }
    #[inline(always)]
    unsafe fn i_shl(a: I, n: u32) -> I {
        unsafe {
            let n = _mm_cvtsi32_si128(n as i32);
            I(_mm256_sll_epi32(a.0, n), _mm256_sll_epi32(a.1, n))
        }
    }
    #[inline(always)]
    unsafe fn i_sar(a: I, n: u32) -> I {
        unsafe {
            let n = _mm_cvtsi32_si128(n as i32);
            I(_mm256_sra_epi32(a.0, n), _mm256_sra_epi32(a.1, n))
        }
    }
    #[inline(always)]
    unsafe fn i_to_f(a: I) -> F {
        unsafe { F(_mm256_cvtepi32_ps(a.0), _mm256_cvtepi32_ps(a.1)) }
    }
    #[inline(always)]
    unsafe fn e2m1(scale: F, v: I) -> F {
        unsafe {
            // The permute looks at three index bits; the fourth is the sign.
            let table = _mm256_mul_ps(_mm256_setr_ps(0., 0.5, 1., 1.5, 2., 3., 4., 6.), scale.0);
            let half = |v: __m256i| {
                let sign = _mm256_slli_epi32::<28>(_mm256_and_si256(v, _mm256_set1_epi32(8)));
                _mm256_xor_ps(_mm256_permutevar8x32_ps(table, v), _mm256_castsi256_ps(sign))
            };
            F(half(v.0), half(v.1))
        }
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> I {
        unsafe {
            I(_mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast())), _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.add(8).cast())))
        }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const u8) -> I {
        unsafe {
            I(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast())), _mm256_cvtepi8_epi32(_mm_loadl_epi64(p.add(8).cast())))
        }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> F {
        unsafe { F(_mm256_cvtph_ps(_mm_loadu_si128(p.cast())), _mm256_cvtph_ps(_mm_loadu_si128(p.add(16).cast()))) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> F {
        unsafe {
            let wide = |p: *const u8| {
                let x = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(x))
            };
            F(wide(p), wide(p.add(16)))
        }
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }
    #[inline(always)]
    unsafe fn transpose16(src: *const f32, ld_src: usize, dst: *mut f32, ld_dst: usize) {
        unsafe {
            for r in (0..LANES).step_by(8) {
                for c in (0..LANES).step_by(8) {
                    transpose8(src.add(r * ld_src + c), ld_src, dst.add(c * ld_dst + r), ld_dst);
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn transpose8(src: *const f32, ld_src: usize, dst: *mut f32, ld_dst: usize) {
    // SAFETY: as the caller's.
    unsafe {
        let mut a = [_mm256_setzero_ps(); 8];
        for (r, v) in a.iter_mut().enumerate() {
            *v = _mm256_loadu_ps(src.add(r * ld_src));
        }
        let mut b = a;
        for i in 0..4 {
            b[2 * i] = _mm256_unpacklo_ps(a[2 * i], a[2 * i + 1]);
            b[2 * i + 1] = _mm256_unpackhi_ps(a[2 * i], a[2 * i + 1]);
        }
        for i in 0..2 {
            let [p, q, r, s] = [b[4 * i], b[4 * i + 1], b[4 * i + 2], b[4 * i + 3]];
            a[4 * i] = _mm256_shuffle_ps::<0x44>(p, r);
            a[4 * i + 1] = _mm256_shuffle_ps::<0xEE>(p, r);
            a[4 * i + 2] = _mm256_shuffle_ps::<0x44>(q, s);
            a[4 * i + 3] = _mm256_shuffle_ps::<0xEE>(q, s);
        }
        for c in 0..4 {
            _mm256_storeu_ps(dst.add(c * ld_dst), _mm256_permute2f128_ps::<0x20>(a[c], a[4 + c]));
            _mm256_storeu_ps(dst.add((4 + c) * ld_dst), _mm256_permute2f128_ps::<0x31>(a[c], a[4 + c]));
        }
    }
}
