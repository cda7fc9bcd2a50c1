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
pub(crate) mod tiles;
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

/// One weight matrix of a group that shares its activations.
pub struct Job<'a> {
    /// Its operands.
    pub args: &'a GemmArgs,
    /// First byte of tile `tiles.start`.
    pub packed: *const u8,
    /// Which tiles.
    pub tiles: Range<usize>,
}

/// Run `$body` with `$c` standing for the codes of a format.
macro_rules! with_codes {
    ($dtype:expr, $c:ident => $body:expr) => {
        match $dtype {
            DType::BF16 => {
                type $c = Bf16;
                $body
            }
            DType::Q8_0 => {
                type $c = Q8_0;
                $body
            }
            DType::Q4_0 => {
                type $c = Q4_0;
                $body
            }
            DType::Q4_1 => {
                type $c = Q4_1;
                $body
            }
            DType::Q5_0 => {
                type $c = Q5_0;
                $body
            }
            DType::Q5_1 => {
                type $c = Q5_1;
                $body
            }
            DType::Q4K => {
                type $c = Q4K;
                $body
            }
            DType::Q5K => {
                type $c = Q5K;
                $body
            }
            other => panic!("no AMX kernel for {other}"),
        }
    };
}
use with_codes;

/// The products of `rows` with every job's tiles. All jobs have the same activations.
///
/// # Safety
/// AMX is available; as [`super::gemm`] otherwise.
pub unsafe fn gemm(jobs: &[Job<'_>], rows: Range<usize>, carver: &mut Carver) {
    // SAFETY: the caller's promise.
    unsafe {
        match rows.len() {
            0 => {}
            1 => narrow::gemm::<1>(jobs, rows, carver),
            2..=4 => narrow::gemm::<4>(jobs, rows, carver),
            5..=8 => narrow::gemm::<8>(jobs, rows, carver),
            9..=16 => narrow::gemm::<16>(jobs, rows, carver),
            _ => wide::gemm(jobs, rows, carver),
        }
    }
}
