//! A piece of a packed tile expanded to f32: `[k][16]`, values exactly those of the format's formula up to one rounding.

use super::layout::{BLOCK_K, TILE_ROWS, codes_bytes, unit_bytes, unit_k};
use crate::{simd::Simd, small_float::f32_from_e4m3};
use tokenspeed_backend_api::dtype::DType;

/// Every e4m3 code as f32.
static E4M3: std::sync::LazyLock<[f32; 256]> =
    std::sync::LazyLock::new(|| std::array::from_fn(|code| f32_from_e4m3(code as u8)));

/// Expand the blocks `first..first + count` (of 32 k each) of the tile at `tile` to `out`, `[count · 32][16]`.
///
/// # Safety
/// As [`Simd`]; the tile has those blocks, `out` that room.
#[inline(always)]
pub unsafe fn expand<S: Simd>(dtype: DType, tile: *const u8, first: usize, count: usize, out: *mut f32) {
    for b in 0..count {
        // SAFETY: block `first + b` is inside the tile, its 512 values inside `out`.
        unsafe {
            let out = out.add(b * BLOCK_K * TILE_ROWS);
            let subs = unit_k(dtype) / BLOCK_K;
            let (unit, sub) = ((first + b) / subs, (first + b) % subs);
            expand_block::<S>(dtype, tile.add(unit * unit_bytes(dtype)), sub, out);
        }
    }
}

#[inline(always)]
unsafe fn expand_block<S: Simd>(dtype: DType, unit: *const u8, sub: usize, out: *mut f32) {
    // SAFETY: `unit` covers `unit_bytes(dtype)` bytes, laid out as `layout` says; `out` holds 512 values.
    unsafe {
        let put = |k: usize, v: S::F| S::store(out.add(k * TILE_ROWS), v);
        let codes = unit.add(sub * codes_bytes(dtype));
        let tail = unit.add(unit_k(dtype) / BLOCK_K * codes_bytes(dtype));
        match dtype {
            DType::F32 => {
                for k in 0..BLOCK_K {
                    put(k, S::load(unit.cast::<f32>().add(k * TILE_ROWS)));
                }
            }
            DType::F16 => {
                for k in 0..BLOCK_K {
                    put(k, S::load_f16(unit.add(k * 2 * TILE_ROWS)));
                }
            }
            DType::BF16 => {
                let high = S::i_splat(0xFFFF_0000u32 as i32);
                for r in 0..16 {
                    let v = S::i_load(unit.add(64 * r));
                    put(r, S::from_bits(S::i_shl(v, 16)));
                    put(r + 16, S::from_bits(S::i_and(v, high)));
                }
            }
            DType::F8E4M3 => {
                let table = &*E4M3;
                for i in 0..BLOCK_K * TILE_ROWS {
                    *out.add(i) = table[*unit.add(i) as usize];
                }
            }
            DType::Q8_0 => {
                let scale = S::load_f16(tail);
                for i in 0..8 {
                    let v = S::i_load(codes.add(64 * i));
                    for byte in 0..4 {
                        let q = S::i_sar(S::i_shl(v, 24 - 8 * byte), 24);
                        put(2 * i + byte as usize / 2 + 16 * (byte as usize % 2), S::mul(scale, S::i_to_f(q)));
                    }
                }
            }
            DType::Q4_0 => {
                let scale = S::load_f16(tail);
                nibbles::<S>(codes, scale, S::mul(scale, S::splat(-8.0)), |_| None, put);
            }
            DType::Q4_1 => nibbles::<S>(codes, S::load_f16(tail), S::load_f16(tail.add(32)), |_| None, put),
            DType::Q5_0 => {
                let scale = S::load_f16(tail);
                nibbles::<S>(codes, scale, S::mul(scale, S::splat(-16.0)), |k| Some(fifth::<S>(codes, k)), put);
            }
            DType::Q5_1 => {
                let (scale, min) = (S::load_f16(tail), S::load_f16(tail.add(32)));
                nibbles::<S>(codes, scale, min, |k| Some(fifth::<S>(codes, k)), put);
            }
            DType::Q4K | DType::Q5K => {
                let scale = S::mul(S::load_f16(tail.add(256)), S::i_to_f(S::load_u8(tail.add(32 * sub))));
                let min = S::mul(S::load_f16(tail.add(288)), S::i_to_f(S::load_u8(tail.add(32 * sub + 16))));
                let min = S::sub(S::splat(0.0), min);
                if dtype == DType::Q4K {
                    nibbles::<S>(codes, scale, min, |_| None, put);
                } else {
                    nibbles::<S>(codes, scale, min, |k| Some(fifth::<S>(codes, k)), put);
                }
            }
            DType::Q6K => {
                let base = S::load_f16(tail.add(256));
                for half in 0..2 {
                    let scale = S::mul(base, S::i_to_f(S::load_i8(tail.add(16 * (2 * sub + half)))));
                    let offset = S::mul(scale, S::splat(-32.0));
                    let pairs = S::i_load(codes.add(256 + 64 * half));
                    for r in 0..16 {
                        let low = S::i_shr(S::i_load(codes.add(64 * (r / 4))), (16 * half + 4 * (r % 4)) as u32);
                        let low = S::i_and(low, S::i_splat(15));
                        let high = S::i_and(S::i_shr(pairs, 2 * r as u32), S::i_splat(3));
                        let q = S::i_to_f(S::i_or(low, S::i_shl(high, 4)));
                        put(r + 16 * half, S::fma(q, scale, offset));
                    }
                }
            }
            _ => panic!("{dtype} is not a weight format"),
        }
    }
}

/// Bit k of each lane, as 0 or 16.
#[inline(always)]
unsafe fn fifth<S: Simd>(codes: *const u8, k: usize) -> S::I {
    // SAFETY: the fifth bits stand behind 256 bytes of nibbles.
    unsafe {
        let bits = S::i_load(codes.add(256));
        S::i_shl(S::i_and(S::i_shr(bits, k as u32), S::i_splat(1)), 4)
    }
}

#[inline(always)]
unsafe fn nibbles<S: Simd>(
    codes: *const u8,
    scale: S::F,
    offset: S::F,
    more: impl Fn(usize) -> Option<S::I>,
    put: impl Fn(usize, S::F),
) {
    for i in 0..4 {
        // SAFETY: four vectors of nibbles.
        unsafe {
            let v = S::i_load(codes.add(64 * i));
            for s in 0..8 {
                let k = 4 * i + s % 4 + 16 * (s / 4);
                let mut q = S::i_and(S::i_shr(v, 4 * s as u32), S::i_splat(15));
                if let Some(bits) = more(k) {
                    q = S::i_or(q, bits);
                }
                put(k, S::fma(S::i_to_f(q), scale, offset));
            }
        }
    }
}
