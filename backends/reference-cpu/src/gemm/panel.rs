//! A piece of a packed tile as f32 codes, `[k][16]`, and the scale and offset they stand for.
//!
//! value = scale · code + offset per output row and 32 k, so a block's products are summed first and scaled once. Codes
//! are centred (the offset takes the difference): the two parts of a sum then cancel least. Formats without blocks, and
//! `Q6_K` with its two scales per 32 k, give values directly.

use super::layout::{BLOCK_K, TILE_ROWS, codes_bytes, unit_bytes, unit_k};
use crate::{simd::Simd, small_float::f32_from_e4m3};
use tokenspeed_backend_api::dtype::DType;

/// Every e4m3 code as f32.
static E4M3: std::sync::LazyLock<[f32; 256]> =
    std::sync::LazyLock::new(|| std::array::from_fn(|code| f32_from_e4m3(code as u8)));

/// Whether block sums are to be scaled.
pub const fn scaled(dtype: DType) -> bool {
    dtype.block_len() > 1 && !matches!(dtype, DType::Q6K)
}

/// Whether there is an offset.
pub const fn has_offset(dtype: DType) -> bool {
    matches!(dtype, DType::Q4_1 | DType::Q5_1 | DType::Q4K | DType::Q5K)
}

/// Where block `b` of a tile stands: its codes, and what follows the codes of its unit.
#[inline(always)]
fn place(dtype: DType, tile: *const u8, b: usize) -> (*const u8, *const u8, usize) {
    let subs = unit_k(dtype) / BLOCK_K;
    let unit = tile.wrapping_add(b / subs * unit_bytes(dtype));
    (unit.wrapping_add(b % subs * codes_bytes(dtype)), unit.wrapping_add(subs * codes_bytes(dtype)), b % subs)
}

/// Scale and offset of block `b` for centred codes; only for [`scaled`] formats.
///
/// # Safety
/// As [`Simd`]; the tile has that block.
#[inline(always)]
pub unsafe fn factors<S: Simd>(dtype: DType, tile: *const u8, b: usize) -> (S::F, S::F) {
    let (_, tail, sub) = place(dtype, tile, b);
    // SAFETY: the tail is laid out as `layout` says.
    unsafe {
        match dtype {
            DType::Q4_1 | DType::Q5_1 => {
                let (scale, centre) = (S::load_f16(tail), if dtype == DType::Q4_1 { 8.0 } else { 16.0 });
                (scale, S::fma(scale, S::splat(centre), S::load_f16(tail.add(32))))
            }
            DType::Q4K | DType::Q5K => {
                let small = |at: usize| S::i_to_f(S::load_u8(tail.add(32 * sub + at)));
                let scale = S::mul(S::load_f16(tail.add(256)), small(0));
                let min = S::mul(S::load_f16(tail.add(288)), small(16));
                let centre = if dtype == DType::Q4K { 8.0 } else { 16.0 };
                (scale, S::sub(S::mul(scale, S::splat(centre)), min))
            }
            _ => (S::load_f16(tail), S::splat(0.0)),
        }
    }
}

/// What takes the codes of a block, in order of k.
///
/// A trait and not a closure: without optimisation across functions, a closure would not take over the features of the
/// function that it is inlined into, and each of its vectors would go through memory.
pub trait Codes<S: Simd> {
    /// The sixteen codes at `k`.
    ///
    /// # Safety
    /// As [`Simd`].
    unsafe fn take(&mut self, k: usize, code: S::F);
}

/// Expands to `[k][16]`.
struct Expand(*mut f32);

impl<S: Simd> Codes<S> for Expand {
    #[inline(always)]
    unsafe fn take(&mut self, k: usize, code: S::F) {
        // SAFETY: the caller of `expand` promises room.
        unsafe { S::store(self.0.add(k * TILE_ROWS), code) }
    }
}

/// Expand block `b` (32 k) of the tile at `tile` to `out`, `[32][16]`.
///
/// # Safety
/// As [`Simd`]; the tile has that block, `out` that room.
#[inline(always)]
pub unsafe fn expand<S: Simd>(dtype: DType, tile: *const u8, b: usize, out: *mut f32) {
    let (codes, tail, sub) = place(dtype, tile, b);
    let out = &mut Expand(out);
    // SAFETY: the unit is laid out as `layout` says; the caller's promise.
    unsafe {
        match dtype {
            DType::F8E4M3 => {
                let table = &*E4M3;
                for i in 0..BLOCK_K * TILE_ROWS {
                    *out.0.add(i) = table[*codes.add(i) as usize];
                }
            }
            DType::Q5_0 | DType::Q5_1 | DType::Q5K => {
                nibbles::<S>(codes, &mut FifthBit::<S, _> { bits: S::i_load(codes.add(256)), out });
            }
            DType::Q6K => {
                let base = S::load_f16(tail.add(256));
                let scale = |half: usize| S::mul(base, S::i_to_f(S::load_i8(tail.add(16 * (2 * sub + half)))));
                let (scales, pairs) = ([scale(0), scale(1)], [0, 1].map(|half| S::i_load(codes.add(256 + 64 * half))));
                nibbles::<S>(codes, &mut HighPair::<S, _> { scales, pairs, out });
            }
            _ if is_simple(dtype) => simple_codes::<S>(dtype, tile, b, out),
            _ => panic!("{dtype} is not a weight format"),
        }
    }
}

/// Whether a code is what a few bits of one place say: [`simple_codes`] hands them out.
pub const fn is_simple(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16 | DType::Q8_0 | DType::Q4_0 | DType::Q4_1 | DType::Q4K)
}

/// Hand block `b` (32 k) of the tile at `tile` to `out`, of a format that [`is_simple`].
///
/// # Safety
/// As [`Simd`]; the tile has that block.
#[inline(always)]
pub unsafe fn simple_codes<S: Simd>(dtype: DType, tile: *const u8, b: usize, out: &mut impl Codes<S>) {
    let (codes, ..) = place(dtype, tile, b);
    // SAFETY: the unit is laid out as `layout` says.
    unsafe {
        match dtype {
            DType::F32 => {
                for k in 0..BLOCK_K {
                    out.take(k, S::load(codes.cast::<f32>().add(k * TILE_ROWS)));
                }
            }
            DType::F16 => {
                for k in 0..BLOCK_K {
                    out.take(k, S::load_f16(codes.add(k * 2 * TILE_ROWS)));
                }
            }
            DType::BF16 => {
                for r in 0..BLOCK_K / 2 {
                    out.take(r, S::from_bits(S::i_shl(S::i_load(codes.add(64 * r)), 16)));
                }
                let high = S::i_splat(0xFFFF_0000u32 as i32);
                for r in 0..BLOCK_K / 2 {
                    out.take(BLOCK_K / 2 + r, S::from_bits(S::i_and(S::i_load(codes.add(64 * r)), high)));
                }
            }
            DType::Q8_0 => bytes::<S>(codes, out),
            _ => nibbles::<S>(codes, out),
        }
    }
}

/// Nibble − 8 becomes nibble − 8 + 16 · bit − 8 = code − 16.
struct FifthBit<'a, S: Simd, C> {
    bits: S::I,
    out: &'a mut C,
}

impl<S: Simd, C: Codes<S>> Codes<S> for FifthBit<'_, S, C> {
    #[inline(always)]
    unsafe fn take(&mut self, k: usize, v: S::F) {
        // SAFETY: no memory.
        unsafe {
            let bit = S::i_and(S::i_shr(self.bits, k as u32), S::i_splat(1));
            self.out.take(k, S::add(v, S::sub(S::mul(S::i_to_f(bit), S::splat(16.0)), S::splat(8.0))));
        }
    }
}

/// Nibble − 8 becomes nibble − 8 + 16 · pair − 24 = code − 32, and is scaled.
struct HighPair<'a, S: Simd, C> {
    scales: [S::F; 2],
    pairs: [S::I; 2],
    out: &'a mut C,
}

impl<S: Simd, C: Codes<S>> Codes<S> for HighPair<'_, S, C> {
    #[inline(always)]
    unsafe fn take(&mut self, k: usize, v: S::F) {
        // SAFETY: no memory.
        unsafe {
            let high = S::i_and(S::i_shr(self.pairs[k / 16], 2 * (k as u32 % 16)), S::i_splat(3));
            let code = S::add(v, S::sub(S::mul(S::i_to_f(high), S::splat(16.0)), S::splat(24.0)));
            self.out.take(k, S::mul(code, self.scales[k / 16]));
        }
    }
}

/// Hand out nibble − 8.
///
/// # Safety
/// As [`Simd`]; 256 bytes of codes.
#[inline(always)]
unsafe fn nibbles<S: Simd>(codes: *const u8, out: &mut impl Codes<S>) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut v = [S::i_splat(0); 4];
        for (i, v) in v.iter_mut().enumerate() {
            *v = S::i_load(codes.add(64 * i));
        }
        for (i, v) in v.iter().enumerate() {
            out.take(4 * i, S::nibble::<0>(*v));
            out.take(4 * i + 1, S::nibble::<4>(*v));
            out.take(4 * i + 2, S::nibble::<8>(*v));
            out.take(4 * i + 3, S::nibble::<12>(*v));
        }
        for (i, v) in v.iter().enumerate() {
            out.take(16 + 4 * i, S::nibble::<16>(*v));
            out.take(16 + 4 * i + 1, S::nibble::<20>(*v));
            out.take(16 + 4 * i + 2, S::nibble::<24>(*v));
            out.take(16 + 4 * i + 3, S::nibble::<28>(*v));
        }
    }
}

/// Hand out signed bytes.
///
/// # Safety
/// As [`Simd`]; 512 bytes of codes.
#[inline(always)]
unsafe fn bytes<S: Simd>(codes: *const u8, out: &mut impl Codes<S>) {
    // SAFETY: the caller's promise.
    unsafe {
        for half in 0..2 {
            for i in 0..8 {
                let v = S::i_load(codes.add(64 * i));
                for pair in 0..2 {
                    let byte = S::i_sar(S::i_shl(v, 24 - 8 * (2 * pair + half)), 24);
                    out.take(16 * half as usize + 2 * i + pair as usize, S::i_to_f(byte));
                }
            }
        }
    }
}
