//! `mla_write`: normalise the latent part of a token's row and put the row into its page.

use crate::{
    kv_write::{Pages, Track},
    level::Level,
    part::Part,
    rmsnorm::{RmsNormArgs, rmsnorm},
    scratch::{Scratch, region_bytes},
    small_float::store,
};
use tokenspeed_backend_api::{
    abi::{ts_step_row, ts_step_token},
    dtype::DType,
};

/// Operands.
#[derive(Clone, Copy)]
#[allow(missing_debug_implementations, reason = "the ABI's rows have none")]
pub struct MlaWriteArgs<'a> {
    /// `[tokens, pages.width]`.
    pub x: *const f32,
    /// `[rank]`.
    pub weight: *const f32,
    /// Values of a row that are normalised.
    pub rank: usize,
    /// Added to the mean of squares.
    pub eps: f32,
    /// Where rows go.
    pub pages: Pages,
    /// The step's tokens.
    pub tokens: &'a [ts_step_token],
    /// The step's rows.
    pub rows: &'a [ts_step_row],
}

/// Scratch a worker needs for rows of `width`.
pub const fn scratch_bytes(width: usize) -> usize {
    region_bytes::<f32>(width)
}

/// Write this worker's tokens. The norm is that of [`rmsnorm`], bit for bit.
///
/// # Safety
/// `level` is available; as [`crate::kv_write::kv_write`]; `scratch` has [`scratch_bytes`].
pub unsafe fn mla_write(level: Level, part: Part, scratch: &mut Scratch, args: &MlaWriteArgs<'_>) {
    let (width, pages) = (args.pages.width, args.pages);
    let buffer: *mut f32 = scratch.carve().take(width);
    for t in part.of(args.tokens.len()) {
        let token = args.tokens[t];
        let track = Track::from(&args.rows[token.row as usize]);
        // SAFETY: row t of x, the scratch row and the page row exist by the caller's promise.
        unsafe {
            let x = args.x.add(t * width);
            let norm = RmsNormArgs {
                x,
                residual: std::ptr::null(),
                sum: std::ptr::null_mut(),
                weight: args.weight,
                y: buffer,
                rows: 1,
                width: args.rank,
                eps: args.eps,
            };
            rmsnorm(level, Part::WHOLE, norm);
            std::ptr::copy_nonoverlapping(x.add(args.rank), buffer.add(args.rank), width - args.rank);
            let to = pages.row(track, token.position as usize);
            if pages.dtype == DType::F32 {
                std::ptr::copy_nonoverlapping(buffer.cast::<u8>(), to, 4 * width);
            } else {
                for i in 0..width {
                    store(pages.dtype, to, i, *buffer.add(i));
                }
            }
        }
    }
}
