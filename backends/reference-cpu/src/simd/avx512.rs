//! One 512-bit register per vector.
//!
//! SAFETY: every function here is called through `dispatch` for a detected tier, inside a function compiled for its features;
//! pointers are the caller's promise, as `Simd` states.

use super::Simd;
use std::arch::x86_64::*;

/// AVX-512 F, BW, DQ, VL.
#[derive(Clone, Copy, Debug)]
pub struct Avx512;

#[inline(always)]
fn mask(n: usize) -> __mmask16 {
    ((1u32 << n) - 1) as __mmask16
}

/// Sum of the lanes in the order of [`Simd::sum`]; the intrinsic of that purpose leaves the order to the compiler.
///
/// # Safety
/// AVX-512.
#[inline(always)]
pub unsafe fn sum512(v: __m512) -> f32 {
    // SAFETY: no memory.
    unsafe {
        let v = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
        let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
    }
}

// SAFETY of all unsafe blocks below: the tier's features are present and pointers are valid for the lanes touched,
// by the trait's contract.
impl Simd for Avx512 {
    type F = __m512;
    type I = __m512i;
    const GEMM_ROWS: usize = 12;
    const GEMM_TILES: usize = 2;
    const STREAM_ROWS: usize = 16;
    const ATTENTION_ROWS: usize = 6;
    const ATTENTION_VECTORS: usize = 4;

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m512) {
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn load_n(p: *const f32, n: usize) -> __m512 {
        unsafe { _mm512_maskz_loadu_ps(mask(n), p) }
    }
    #[inline(always)]
    unsafe fn store_n(p: *mut f32, v: __m512, n: usize) {
        unsafe { _mm512_mask_storeu_ps(p, mask(n), v) }
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn min(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn zero_if_less(a: __m512, b: __m512, v: __m512) -> __m512 {
        unsafe { _mm512_maskz_mov_ps(!_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), v) }
    }
    #[inline(always)]
    unsafe fn swap_pairs(v: __m512) -> __m512 {
        unsafe { _mm512_permute_ps::<0b10_11_00_01>(v) }
    }
    #[inline(always)]
    unsafe fn sum(v: __m512) -> f32 {
        unsafe { sum512(v) }
    }
    #[inline(always)]
    unsafe fn largest(v: __m512) -> f32 {
        unsafe {
            let (low, high) = (_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
            let v = _mm256_max_ps(low, high);
            let v = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_max_ss(v, _mm_movehdup_ps(v)))
        }
    }
    #[inline(always)]
    unsafe fn bits(v: __m512) -> __m512i {
        unsafe { _mm512_castps_si512(v) }
    }
    #[inline(always)]
    unsafe fn from_bits(v: __m512i) -> __m512 {
        unsafe { _mm512_castsi512_ps(v) }
    }

    #[inline(always)]
    unsafe fn i_load(p: *const u8) -> __m512i {
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    unsafe fn i_splat(x: i32) -> __m512i {
        unsafe { _mm512_set1_epi32(x) }
    }
    #[inline(always)]
    unsafe fn i_add(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_add_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn i_and(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_and_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn i_or(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_or_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn i_shr(a: __m512i, n: u32) -> __m512i {
        unsafe { _mm512_srl_epi32(a, _mm_cvtsi32_si128(n as i32)) }
    }
    #[inline(always)]
    unsafe fn i_shl(a: __m512i, n: u32) -> __m512i {
        unsafe { _mm512_sll_epi32(a, _mm_cvtsi32_si128(n as i32)) }
    }
    #[inline(always)]
    unsafe fn i_sar(a: __m512i, n: u32) -> __m512i {
        unsafe { _mm512_sra_epi32(a, _mm_cvtsi32_si128(n as i32)) }
    }
    #[inline(always)]
    unsafe fn i_to_f(a: __m512i) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(a) }
    }
    #[inline(always)]
    unsafe fn nibble<const SHIFT: u32>(v: __m512i) -> __m512 {
        unsafe {
            // The permute looks at four index bits only: no mask, no conversion.
            let table = _mm512_setr_ps(-8., -7., -6., -5., -4., -3., -2., -1., 0., 1., 2., 3., 4., 5., 6., 7.);
            let index = if SHIFT == 0 { v } else { _mm512_srli_epi32::<SHIFT>(v) };
            _mm512_permutexvar_ps(index, table)
        }
    }
    #[inline(always)]
    unsafe fn e2m1(scale: __m512, v: __m512i) -> __m512 {
        unsafe {
            let table = _mm512_setr_ps(0., 0.5, 1., 1.5, 2., 3., 4., 6., -0., -0.5, -1., -1.5, -2., -3., -4., -6.);
            // Scaled before the look-up: two of them share one product.
            _mm512_permutexvar_ps(v, _mm512_mul_ps(table, scale))
        }
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> __m512i {
        unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const u8) -> __m512i {
        unsafe { _mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> __m512 {
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }
    #[inline(always)]
    unsafe fn transpose16(src: *const f32, ld_src: usize, dst: *mut f32, ld_dst: usize) {
        unsafe {
            // Three rounds of exchanges: pairs inside 128-bit lanes, quads, then 128-bit lanes across rows.
            let mut a = [_mm512_setzero_ps(); 16];
            for (r, v) in a.iter_mut().enumerate() {
                *v = _mm512_loadu_ps(src.add(r * ld_src));
            }
            let mut b = a;
            for i in 0..8 {
                b[2 * i] = _mm512_unpacklo_ps(a[2 * i], a[2 * i + 1]);
                b[2 * i + 1] = _mm512_unpackhi_ps(a[2 * i], a[2 * i + 1]);
            }
            for i in 0..4 {
                let [p, q, r, s] = [b[4 * i], b[4 * i + 1], b[4 * i + 2], b[4 * i + 3]];
                a[4 * i] = _mm512_shuffle_ps::<0x44>(p, r);
                a[4 * i + 1] = _mm512_shuffle_ps::<0xEE>(p, r);
                a[4 * i + 2] = _mm512_shuffle_ps::<0x44>(q, s);
                a[4 * i + 3] = _mm512_shuffle_ps::<0xEE>(q, s);
            }
            // Now lane group g of a[4i + c] holds column 4g + c of rows 4i..4i+4.
            for c in 0..4 {
                let [p, q, r, s] = [a[c], a[4 + c], a[8 + c], a[12 + c]];
                let pq_even = _mm512_shuffle_f32x4::<0x88>(p, q);
                let pq_odd = _mm512_shuffle_f32x4::<0xDD>(p, q);
                let rs_even = _mm512_shuffle_f32x4::<0x88>(r, s);
                let rs_odd = _mm512_shuffle_f32x4::<0xDD>(r, s);
                _mm512_storeu_ps(dst.add(c * ld_dst), _mm512_shuffle_f32x4::<0x88>(pq_even, rs_even));
                _mm512_storeu_ps(dst.add((4 + c) * ld_dst), _mm512_shuffle_f32x4::<0x88>(pq_odd, rs_odd));
                _mm512_storeu_ps(dst.add((8 + c) * ld_dst), _mm512_shuffle_f32x4::<0xDD>(pq_even, rs_even));
                _mm512_storeu_ps(dst.add((12 + c) * ld_dst), _mm512_shuffle_f32x4::<0xDD>(pq_odd, rs_odd));
            }
        }
    }
}
