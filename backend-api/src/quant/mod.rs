//! Stored weight formats to f32 and back, by each format's own formula.
//!
//! This is the meaning of a quantised weight: exact mode computes with these values, and every faster kernel is
//! compared with them. Block layouts are those of the GGUF types of the same name; FP8 is OCP E4M3 (no infinities).
//! Every intermediate is f32 with the formula's own order of operations, so results equal the reference implementation
//! bit for bit (checked against vectors from the `gguf` Python package, `tests/vectors/quant.py`).
//!
//! Rejected: one generic "block descriptor" interpreter. Nine short functions are easier to hold against the format.
#![forbid(unsafe_code)]

mod blocks;
mod fp8;
mod k_blocks;
pub mod mxfp4;

pub use fp8::{e4m3_from_f32, e4m3_to_f32};

use crate::dtype::DType;
use half::{bf16, f16};

/// Whether [`dequantize_row`] knows the format (all but integers and the MX formats, whose scales live elsewhere).
pub const fn can_dequantize(dtype: DType) -> bool {
    !matches!(dtype, DType::I32 | DType::U32 | DType::U8 | DType::Mxfp4 | DType::Mxfp8)
}

/// Whether [`quantize_row`] knows the format.
pub const fn can_quantize(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16 | DType::F8E4M3 | DType::Q8_0 | DType::Q4_0 | DType::Q4_1)
}

/// Dequantise `out.len()` consecutive values, stored little-endian in `bytes`.
///
/// # Panics
/// If [`can_dequantize`] is false, or `bytes` is not exactly the size of `out.len()` values: both are checked when a
/// checkpoint is opened.
pub fn dequantize_row(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    check(dtype, bytes.len(), out.len());
    match dtype {
        DType::F32 => plain(bytes, out, f32::from_le_bytes),
        DType::F16 => plain(bytes, out, |b| f16::from_le_bytes(b).to_f32()),
        DType::BF16 => plain(bytes, out, |b| bf16::from_le_bytes(b).to_f32()),
        DType::F8E4M3 => plain(bytes, out, |[b]| e4m3_to_f32(b)),
        DType::Q8_0 => each_block(bytes, out, blocks::q8_0),
        DType::Q4_0 => each_block(bytes, out, blocks::q4_0),
        DType::Q4_1 => each_block(bytes, out, blocks::q4_1),
        DType::Q5_0 => each_block(bytes, out, blocks::q5_0),
        DType::Q5_1 => each_block(bytes, out, blocks::q5_1),
        DType::Q4K => each_block(bytes, out, k_blocks::q4_k),
        DType::Q5K => each_block(bytes, out, k_blocks::q5_k),
        DType::Q6K => each_block(bytes, out, k_blocks::q6_k),
        DType::I32 | DType::U32 | DType::U8 | DType::Mxfp4 | DType::Mxfp8 => panic!("{dtype} cannot be dequantised"),
    }
}

/// Quantise `values` into `bytes`, rounding to nearest (halves to even for the plain formats; by the format's
/// customary formula for blocks). Values beyond the range of FP8 saturate.
///
/// # Panics
/// If [`can_quantize`] is false, or `bytes` is not exactly the size of `values`.
pub fn quantize_row(dtype: DType, values: &[f32], bytes: &mut [u8]) {
    check(dtype, bytes.len(), values.len());
    match dtype {
        DType::F32 => unplain(values, bytes, f32::to_le_bytes),
        DType::F16 => unplain(values, bytes, |v| f16::from_f32(v).to_le_bytes()),
        DType::BF16 => unplain(values, bytes, |v| bf16::from_f32(v).to_le_bytes()),
        DType::F8E4M3 => unplain(values, bytes, |v| [e4m3_from_f32(v)]),
        DType::Q8_0 => each_unblock(values, bytes, blocks::to_q8_0),
        DType::Q4_0 => each_unblock(values, bytes, blocks::to_q4_0),
        DType::Q4_1 => each_unblock(values, bytes, blocks::to_q4_1),
        _ => panic!("{dtype} cannot be quantised to"),
    }
}

fn check(dtype: DType, bytes: usize, values: usize) {
    assert_eq!(Some(bytes as u64), dtype.bytes(values as u64), "{bytes} bytes do not hold {values} values of {dtype}");
}

fn plain<const B: usize>(bytes: &[u8], out: &mut [f32], decode: impl Fn([u8; B]) -> f32) {
    let (chunks, _) = bytes.as_chunks::<B>();
    for (o, b) in out.iter_mut().zip(chunks) {
        *o = decode(*b);
    }
}

fn unplain<const B: usize>(values: &[f32], bytes: &mut [u8], encode: impl Fn(f32) -> [u8; B]) {
    let (chunks, _) = bytes.as_chunks_mut::<B>();
    for (b, v) in chunks.iter_mut().zip(values) {
        *b = encode(*v);
    }
}

fn each_block<const B: usize, const N: usize>(bytes: &[u8], out: &mut [f32], decode: fn(&[u8; B], &mut [f32; N])) {
    let (chunks, _) = bytes.as_chunks::<B>();
    let (outs, _) = out.as_chunks_mut::<N>();
    for (b, o) in chunks.iter().zip(outs) {
        decode(b, o);
    }
}

fn each_unblock<const B: usize, const N: usize>(values: &[f32], bytes: &mut [u8], encode: fn(&[f32; N], &mut [u8; B])) {
    let (chunks, _) = bytes.as_chunks_mut::<B>();
    let (values, _) = values.as_chunks::<N>();
    for (b, v) in chunks.iter_mut().zip(values) {
        encode(v, b);
    }
}

/// The f16 at byte `at` of a block, as f32.
fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

#[cfg(test)]
mod tests;
