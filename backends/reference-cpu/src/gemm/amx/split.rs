//! f32 activations as three bf16: x = high + middle + low, exactly.
//!
//! Truncating x to its upper 16 bits keeps 8 significant bits; the remainder is exact in f32 and is split the same way
//! twice, which uses up all 24. So nothing of the activations is rounded (values whose parts fall below the smallest
//! normal bf16, 1.2e-38, lose those parts).

use crate::simd::sum512;
use std::arch::x86_64::*;

/// Bytes of one tile row: 32 bf16.
pub const ROW_BYTES: usize = 64;

/// Split one block of 32 activations (`valid` of them, zeros after) of one row.
///
/// Writes the low, middle and high parts to `out`, `out + part_bytes` and `out + 2 · part_bytes`, k paired with k + 16,
/// and returns the block's sum.
///
/// # Safety
/// AVX-512; `x` has `valid` values, `out` room for three rows.
#[inline(always)]
pub unsafe fn split_row(x: *const f32, valid: usize, out: *mut u8, part_bytes: usize) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        let first = ((1u32 << valid.min(16)) - 1) as __mmask16;
        let second = ((1u32 << valid.saturating_sub(16)) - 1) as __mmask16;
        let a = _mm512_maskz_loadu_ps(first, x);
        let b = _mm512_maskz_loadu_ps(second, x.wrapping_add(16));
        let keep = _mm512_set1_epi32(0xFFFF_0000u32 as i32);
        let truncate = |v: __m512| _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(v), keep));
        // (b & keep) | (a >> 16)
        let pair = |a: __m512, b: __m512| {
            let a = _mm512_srli_epi32::<16>(_mm512_castps_si512(a));
            _mm512_ternarylogic_epi32::<0xF8>(a, _mm512_castps_si512(b), keep)
        };
        let store = |part: usize, v: __m512i| _mm512_storeu_si512(out.add(part * part_bytes).cast(), v);
        store(2, pair(a, b));
        let (a1, b1) = (_mm512_sub_ps(a, truncate(a)), _mm512_sub_ps(b, truncate(b)));
        store(1, pair(a1, b1));
        let (a2, b2) = (_mm512_sub_ps(a1, truncate(a1)), _mm512_sub_ps(b1, truncate(b1)));
        store(0, pair(a2, b2));
        sum512(_mm512_add_ps(a, b))
    }
}
