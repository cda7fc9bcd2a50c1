//! Weight codes as exact bf16 tiles, and the f32 factors their products are scaled by afterwards.
//!
//! value = scale · code + offset, so Σ x·value = scale · Σ x·code + offset · Σ x over a block of 32. Codes are centred
//! first (offset takes the difference): the sums then cancel least.

use crate::gemm::layout::unit_bytes;
use std::arch::x86_64::*;
use tokenspeed_backend_api::dtype::DType;

/// A packed format with at most one scale and offset per row and 32 k.
///
/// # Safety
/// Methods need AVX-512 and a tile with that block. `#[inline(always)]`, to be compiled with the caller's features.
pub unsafe trait Codes {
    /// Whether products need scaling at all.
    const SCALED: bool = true;
    /// Whether there is an offset.
    const OFFSET: bool;
    /// Whether the packed bytes are the tile already.
    const DIRECT: bool = false;
    /// Where block `b`'s tile or codes stand.
    unsafe fn codes(tile: *const u8, b: usize) -> *const u8;
    /// Write rows `4q..4q + 4` of block `b` as bf16 pairs (k, k + 16) to the tile `out`; the whole tile is 1 KiB. Quarters
    /// let callers interleave this with tile instructions, which fill the out-of-order window alone.
    unsafe fn expand(tile: *const u8, b: usize, q: usize, out: *mut u8);
    /// Scale of the products and factor of the activations' sum, per output row.
    unsafe fn factors(tile: *const u8, b: usize) -> (__m512, __m512);
}

/// bf16 bits of the small integers `from..from + 32`.
const fn integers(from: i32, period: i32) -> [u16; 32] {
    let mut out = [0; 32];
    let mut i = 0;
    while i < 32 {
        let value = (from + i as i32 % period) as f32;
        out[i] = (value.to_bits() >> 16) as u16;
        i += 1;
    }
    out
}

/// Nibble − 8; the index of a word permute has five bits, so every nibble stands there twice.
static NIBBLE: [u16; 32] = integers(-8, 16);
/// Nibble − 16 and nibble, for codes whose fifth bit is clear or set.
static FIVE_LOW: [u16; 32] = integers(-16, 16);
static FIVE_HIGH: [u16; 32] = integers(0, 16);

#[inline(always)]
unsafe fn table(words: &'static [u16; 32]) -> __m512i {
    // SAFETY: 64 bytes.
    unsafe { _mm512_loadu_si512(words.as_ptr().cast()) }
}

#[inline(always)]
unsafe fn half16(p: *const u8) -> __m512 {
    // SAFETY: the caller's promise: 32 bytes.
    unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
}

#[inline(always)]
unsafe fn expand4(codes: *const u8, q: usize, out: *mut u8) {
    // SAFETY: 256 bytes in, 1 KiB out.
    unsafe {
        let table = table(&NIBBLE);
        let v = _mm512_loadu_si512(codes.add(64 * q).cast());
        let put = |j: usize, index: __m512i| {
            let w = _mm512_permutexvar_epi16(index, table);
            _mm512_store_si512(out.add(64 * (4 * q + j)).cast(), w);
        };
        put(0, v);
        put(1, _mm512_srli_epi16::<4>(v));
        put(2, _mm512_srli_epi16::<8>(v));
        put(3, _mm512_srli_epi16::<12>(v));
    }
}

#[inline(always)]
unsafe fn expand5(codes: *const u8, q: usize, out: *mut u8) {
    // SAFETY: 320 bytes in, 1 KiB out.
    unsafe {
        let (low, high) = (table(&FIVE_LOW), table(&FIVE_HIGH));
        let bits = _mm512_loadu_si512(codes.add(256).cast());
        let v = _mm512_loadu_si512(codes.add(64 * q).cast());
        let put = |j: usize, index: __m512i| {
            let r = 4 * q + j;
            let set = _mm512_test_epi16_mask(bits, _mm512_set1_epi16((1u32 << r) as i16));
            let w = _mm512_permutexvar_epi16(index, low);
            let w = _mm512_mask_permutexvar_epi16(w, set, index, high);
            _mm512_store_si512(out.add(64 * r).cast(), w);
        };
        put(0, v);
        put(1, _mm512_srli_epi16::<4>(v));
        put(2, _mm512_srli_epi16::<8>(v));
        put(3, _mm512_srli_epi16::<12>(v));
    }
}

/// Weights that are bf16 themselves.
pub struct Bf16;

// SAFETY: inline, and only touches the block asked for.
unsafe impl Codes for Bf16 {
    const SCALED: bool = false;
    const OFFSET: bool = false;
    const DIRECT: bool = true;
    #[inline(always)]
    unsafe fn codes(tile: *const u8, b: usize) -> *const u8 {
        tile.wrapping_add(b * unit_bytes(DType::BF16))
    }
    #[inline(always)]
    unsafe fn expand(tile: *const u8, b: usize, q: usize, out: *mut u8) {
        // SAFETY: 1 KiB in, 1 KiB out.
        unsafe { std::ptr::copy_nonoverlapping(Self::codes(tile, b).add(256 * q), out.add(256 * q), 256) }
    }
    #[inline(always)]
    unsafe fn factors(_: *const u8, _: usize) -> (__m512, __m512) {
        // SAFETY: no memory.
        unsafe { (_mm512_set1_ps(1.0), _mm512_setzero_ps()) }
    }
}

/// Signed bytes.
pub struct Q8_0;

// SAFETY: inline, and only touches the block asked for.
unsafe impl Codes for Q8_0 {
    const OFFSET: bool = false;
    #[inline(always)]
    unsafe fn codes(tile: *const u8, b: usize) -> *const u8 {
        tile.wrapping_add(b * unit_bytes(DType::Q8_0))
    }
    #[inline(always)]
    unsafe fn expand(tile: *const u8, b: usize, q: usize, out: *mut u8) {
        // SAFETY: 512 bytes in, 1 KiB out.
        unsafe {
            let codes = Self::codes(tile, b);
            let top = _mm512_set1_epi32(0xFF00_0000u32 as i32);
            let keep = _mm512_set1_epi32(0xFFFF_0000u32 as i32);
            // A byte moved to the top of its lane converts to code · 2^24: 8 significant bits, so the upper half of
            // the f32 is the exact bf16.
            let pair = |low: __m512i, high: __m512i| {
                let low = _mm512_srli_epi32::<16>(_mm512_castps_si512(_mm512_cvtepi32_ps(low)));
                let high = _mm512_castps_si512(_mm512_cvtepi32_ps(high));
                _mm512_ternarylogic_epi32::<0xF8>(low, high, keep)
            };
            for i in [2 * q, 2 * q + 1] {
                let v = _mm512_loadu_si512(codes.add(64 * i).cast());
                let first = pair(_mm512_slli_epi32::<24>(v), _mm512_and_si512(_mm512_slli_epi32::<16>(v), top));
                let second = pair(_mm512_and_si512(_mm512_slli_epi32::<8>(v), top), _mm512_and_si512(v, top));
                _mm512_store_si512(out.add(128 * i).cast(), first);
                _mm512_store_si512(out.add(128 * i + 64).cast(), second);
            }
        }
    }
    #[inline(always)]
    unsafe fn factors(tile: *const u8, b: usize) -> (__m512, __m512) {
        // SAFETY: the scale stands behind 512 bytes.
        unsafe {
            let scale = half16(Self::codes(tile, b).add(512));
            (_mm512_mul_ps(scale, _mm512_set1_ps(1.0 / 16_777_216.0)), _mm512_setzero_ps())
        }
    }
}

macro_rules! simple_format {
    ($name:ident, $dtype:expr, $offset:literal, $expand:ident, $codes_bytes:literal, $centre:literal) => {
        #[doc = concat!("`", stringify!($name), "` blocks.")]
        #[allow(non_camel_case_types)]
        pub struct $name;

        // SAFETY: inline, and only touches the block asked for.
        unsafe impl Codes for $name {
            const OFFSET: bool = $offset;
            #[inline(always)]
            unsafe fn codes(tile: *const u8, b: usize) -> *const u8 {
                tile.wrapping_add(b * unit_bytes($dtype))
            }
            #[inline(always)]
            unsafe fn expand(tile: *const u8, b: usize, q: usize, out: *mut u8) {
                // SAFETY: the block's codes in, 1 KiB out.
                unsafe { $expand(Self::codes(tile, b), q, out) }
            }
            #[inline(always)]
            unsafe fn factors(tile: *const u8, b: usize) -> (__m512, __m512) {
                // SAFETY: scale and, if any, minimum stand behind the codes.
                unsafe {
                    let p = Self::codes(tile, b).add($codes_bytes);
                    let scale = half16(p);
                    if $offset {
                        (scale, _mm512_fmadd_ps(scale, _mm512_set1_ps($centre), half16(p.add(32))))
                    } else {
                        (scale, _mm512_setzero_ps())
                    }
                }
            }
        }
    };
}

simple_format!(Q4_0, DType::Q4_0, false, expand4, 256, 8.0);
simple_format!(Q4_1, DType::Q4_1, true, expand4, 256, 8.0);
simple_format!(Q5_0, DType::Q5_0, false, expand5, 320, 16.0);
simple_format!(Q5_1, DType::Q5_1, true, expand5, 320, 16.0);

macro_rules! k_format {
    ($name:ident, $dtype:expr, $expand:ident, $codes_bytes:literal, $centre:literal) => {
        #[doc = concat!("`", stringify!($name), "` super-blocks, whose eight sub-blocks have a scale and a minimum each.")]
        pub struct $name;

        // SAFETY: inline, and only touches the block asked for.
        unsafe impl Codes for $name {
            const OFFSET: bool = true;
            #[inline(always)]
            unsafe fn codes(tile: *const u8, b: usize) -> *const u8 {
                tile.wrapping_add(b / 8 * unit_bytes($dtype) + b % 8 * $codes_bytes)
            }
            #[inline(always)]
            unsafe fn expand(tile: *const u8, b: usize, q: usize, out: *mut u8) {
                // SAFETY: the sub-block's codes in, 1 KiB out.
                unsafe { $expand(Self::codes(tile, b), q, out) }
            }
            #[inline(always)]
            unsafe fn factors(tile: *const u8, b: usize) -> (__m512, __m512) {
                // SAFETY: sub-scales and super-scales stand behind the codes of all eight sub-blocks.
                unsafe {
                    let tail = tile.add(b / 8 * unit_bytes($dtype) + 8 * $codes_bytes);
                    let small = |p: *const u8| _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast())));
                    let scale = _mm512_mul_ps(half16(tail.add(256)), small(tail.add(b % 8 * 32)));
                    let min = _mm512_mul_ps(half16(tail.add(288)), small(tail.add(b % 8 * 32 + 16)));
                    (scale, _mm512_fmsub_ps(scale, _mm512_set1_ps($centre), min))
                }
            }
        }
    };
}

k_format!(Q4K, DType::Q4K, expand4, 256, 8.0);
k_format!(Q5K, DType::Q5K, expand5, 320, 16.0);
