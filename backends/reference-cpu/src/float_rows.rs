//! Runs of values between f32 and the small float formats, in loops that the compiler turns into vectors.
//!
//! The values are those of [`crate::small_float`], element by element.

use half::f16;
use tokenspeed_backend_api::dtype::DType;

use crate::small_float;

/// bfloat16 bits of `x`, to nearest even; NaN stays NaN. Without branches, unlike the crate's conversion.
#[inline(always)]
fn bf16_bits(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = (bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16;
    let quiet = (bits >> 16) as u16 | 0x40;
    if x.is_nan() { quiet } else { rounded }
}

/// Elements `first..first + out.len()` of an array of f32, f16, bf16 or e4m3.
///
/// # Safety
/// `p` points to that many elements.
#[inline(always)]
pub unsafe fn load_row(dtype: DType, p: *const u8, first: usize, out: &mut [f32]) {
    // SAFETY: the caller's promise; reads are unaligned.
    unsafe {
        match dtype {
            DType::F32 => {
                let from = p.cast::<f32>().add(first);
                std::ptr::copy_nonoverlapping(from.cast::<u8>(), out.as_mut_ptr().cast(), 4 * out.len());
            }
            DType::BF16 => {
                let from = p.cast::<u16>().add(first);
                for (i, out) in out.iter_mut().enumerate() {
                    *out = f32::from_bits(u32::from(from.add(i).read_unaligned()) << 16);
                }
            }
            _ => out.iter_mut().enumerate().for_each(|(i, out)| *out = small_float::load(dtype, p, first + i)),
        }
    }
}

/// Set elements `first..first + n` of an array of f32, f16, bf16 or e4m3 from `n` values at `x`.
///
/// # Safety
/// Both hold that many elements and do not overlap.
#[inline(always)]
pub unsafe fn store_row(dtype: DType, p: *mut u8, first: usize, x: *const f32, n: usize) {
    // SAFETY: the caller's promise; writes are unaligned.
    unsafe {
        match dtype {
            DType::F32 => std::ptr::copy_nonoverlapping(x.cast::<u8>(), p.cast::<f32>().add(first).cast(), 4 * n),
            DType::BF16 => {
                let to = p.cast::<u16>().add(first);
                (0..n).for_each(|i| to.add(i).write_unaligned(bf16_bits(*x.add(i))));
            }
            DType::F16 => {
                let to = p.cast::<u16>().add(first);
                (0..n).for_each(|i| to.add(i).write_unaligned(f16::from_f32(*x.add(i)).to_bits()));
            }
            _ => (0..n).for_each(|i| small_float::store(dtype, p, first + i, *x.add(i))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bits_are_those_of_the_element_by_element_conversions() {
        let mut values: Vec<f32> = (0..40_000u32).map(|i| f32::from_bits(i.wrapping_mul(2_654_435_761))).collect();
        values.extend([f32::INFINITY, f32::MAX, 1e-45, -0.0, f32::from_bits(0x3f80_8000), f32::from_bits(0x3f81_8000)]);
        let n = values.len();
        for dtype in [DType::F32, DType::F16, DType::BF16, DType::F8E4M3] {
            let size = dtype.block_bytes();
            let (mut row, mut single) = (vec![0u8; (n + 1) * size], vec![0u8; (n + 1) * size]);
            // SAFETY: both arrays hold n + 1 elements.
            unsafe {
                store_row(dtype, row.as_mut_ptr(), 1, values.as_ptr(), n);
                (0..n).for_each(|i| small_float::store(dtype, single.as_mut_ptr(), 1 + i, values[i]));
                assert_eq!(row, single, "{dtype}");
                let mut back = vec![0f32; n];
                load_row(dtype, row.as_ptr(), 1, &mut back);
                for (i, got) in back.iter().enumerate() {
                    assert_eq!(got.to_bits(), small_float::load(dtype, row.as_ptr(), 1 + i).to_bits(), "{dtype}");
                }
            }
        }
    }
}
