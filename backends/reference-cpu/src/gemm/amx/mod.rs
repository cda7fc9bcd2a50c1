//! GEMM on AMX tiles of bf16 with the exactness of f32.
//!
//! Activations are split into three bf16 whose sum is the f32 ([`split`]); weight codes are small integers, exact in
//! bf16 ([`codes`]). Per block of 32 k three tile products (low, middle, high part) add up in f32, and the block's sum is
//! then scaled and added to the running total in f32. Every output goes through that sequence whatever the number of
//! rows, so the narrow kernel (a decode step) and the wide one (a prompt) agree bit for bit.
//!
//! Rejected: int8 tiles with quantised activations, which are twice as fast and not f32; two bf16 parts (error 1e-5).

mod codes;
mod narrow;
mod split;
mod tiles;
mod wide;

use super::GemmArgs;
use crate::scratch::Carver;
use codes::{Bf16, Codes, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q8_0};
use std::ops::Range;
use tokenspeed_backend_api::dtype::DType;

/// Formats this kernel takes; the others run on vector registers.
pub const fn takes(dtype: DType) -> bool {
    matches!(
        dtype,
        DType::BF16 | DType::Q8_0 | DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 | DType::Q4K | DType::Q5K
    )
}

/// Scratch for at most `m` rows of depth `k`.
pub fn scratch_bytes(m: usize, k: usize) -> usize {
    narrow::scratch_bytes(k).max(if m > narrow::ROWS_MAX { wide::scratch_bytes() } else { 0 })
}

/// The product of `rows` with the packed `tiles`, the first of which is at `packed`.
///
/// # Safety
/// AMX is available; as [`super::gemm`] otherwise.
pub unsafe fn gemm(args: &GemmArgs, packed: *const u8, rows: Range<usize>, tiles: Range<usize>, carver: &mut Carver) {
    // SAFETY: the caller's promise.
    unsafe {
        match args.weight.dtype {
            DType::BF16 => run::<Bf16>(args, packed, rows, tiles, carver),
            DType::Q8_0 => run::<Q8_0>(args, packed, rows, tiles, carver),
            DType::Q4_0 => run::<Q4_0>(args, packed, rows, tiles, carver),
            DType::Q4_1 => run::<Q4_1>(args, packed, rows, tiles, carver),
            DType::Q5_0 => run::<Q5_0>(args, packed, rows, tiles, carver),
            DType::Q5_1 => run::<Q5_1>(args, packed, rows, tiles, carver),
            DType::Q4K => run::<Q4K>(args, packed, rows, tiles, carver),
            DType::Q5K => run::<Q5K>(args, packed, rows, tiles, carver),
            other => panic!("no AMX kernel for {other}"),
        }
    }
}

unsafe fn run<C: Codes>(
    args: &GemmArgs,
    packed: *const u8,
    rows: Range<usize>,
    tiles: Range<usize>,
    carver: &mut Carver,
) {
    // SAFETY: the caller's promise.
    unsafe {
        match rows.len() {
            0 => {}
            1 => narrow::gemm::<C, 1>(args, packed, rows, tiles, carver),
            2 => narrow::gemm::<C, 2>(args, packed, rows, tiles, carver),
            3..=4 => narrow::gemm::<C, 4>(args, packed, rows, tiles, carver),
            5..=8 => narrow::gemm::<C, 8>(args, packed, rows, tiles, carver),
            9..=16 => narrow::gemm::<C, 16>(args, packed, rows, tiles, carver),
            _ => wide::gemm::<C>(args, packed, rows, tiles, carver),
        }
    }
}
