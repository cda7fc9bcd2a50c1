//! `copy`: copy with conversion of element format.
//!
//! Between equal formats bytes move unchanged; between float formats each value is rounded once, to nearest even;
//! block formats can only be read. Integers convert to nothing but themselves.

use crate::{
    blocks::{dequantise, is_weight_format},
    part::Part,
    small_float::{is_float, store},
};
use tokenspeed_backend_api::dtype::DType;

/// Operands.
#[derive(Clone, Copy, Debug)]
pub struct CopyArgs {
    /// `n` values of `from`, in whole blocks.
    pub x: *const u8,
    /// Source format.
    pub from: DType,
    /// `n` values of `to`.
    pub y: *mut u8,
    /// Destination format.
    pub to: DType,
    /// Number of values.
    pub n: usize,
}

/// Whether [`copy`] can do this conversion.
pub fn supported(from: DType, to: DType) -> bool {
    from == to || (is_weight_format(from) && is_float(to))
}

/// Copy this worker's share, in whole blocks of the source format.
///
/// # Safety
/// `supported(from, to)`; the operands hold `n` values and do not overlap.
pub unsafe fn copy(part: Part, args: CopyArgs) {
    let CopyArgs { x, from, y, to, n } = args;
    let (len, bytes) = (from.block_len(), from.block_bytes());
    let mine = part.aligned(n, len.max(64));
    if mine.is_empty() {
        return;
    }
    if from == to {
        let (first, count) = (mine.start / len * bytes, mine.len() / len * bytes);
        // SAFETY: whole blocks inside both operands.
        unsafe { std::ptr::copy_nonoverlapping(x.add(first), y.add(first), count) };
        return;
    }
    // SAFETY: the operand holds n values by the caller's promise.
    let source = unsafe { std::slice::from_raw_parts(x, n / len * bytes) };
    let mut values = [0f32; 64];
    for first in mine.clone().step_by(64) {
        let chunk = &mut values[..64.min(mine.end - first)];
        dequantise(from, source, first, chunk);
        for (i, value) in chunk.iter().enumerate() {
            // SAFETY: first + i < n.
            unsafe { store(to, y, first + i, *value) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::tests::{FORMATS, random_weights};

    #[test]
    fn every_format_to_every_float_format_rounds_once() {
        for from in FORMATS {
            let n = 768;
            let x = random_weights(from, 1, n, 11);
            let mut exact = vec![0f32; n];
            dequantise(from, &x, 0, &mut exact);
            for to in [DType::F32, DType::F16, DType::BF16, DType::F8E4M3] {
                assert!(supported(from, to));
                let mut y = vec![0u8; n * to.block_bytes()];
                for index in 0..3 {
                    let args = CopyArgs { x: x.as_ptr(), from, y: y.as_mut_ptr(), to, n };
                    // SAFETY: both vectors hold n values.
                    unsafe { copy(Part { index, count: 3 }, args) };
                }
                let mut got = vec![0f32; n];
                dequantise(to, &y, 0, &mut got);
                for (got, exact) in got.iter().zip(&exact) {
                    let tolerance = match to {
                        DType::F32 => 0.0,
                        DType::F16 => exact.abs() / 2048.0 + 3e-8,
                        DType::BF16 => exact.abs() / 256.0,
                        _ => exact.abs() / 16.0 + 1.0 / 1024.0,
                    };
                    assert!((got - exact).abs() <= tolerance, "{from} to {to}: {got} for {exact}");
                }
            }
        }
        assert!(!supported(DType::F32, DType::Q8_0) && !supported(DType::I32, DType::F32));
    }
}
