//! `gemm`: y\[t, n\] = Σ_k x\[t, k\] · w\[n, k\] (+ bias\[n\]), weights in any stored format, activations f32.
//!
//! The order of the sum over K is fixed by K, the format and the tier. How rows and columns are split over workers, and
//! how many rows there are, changes nothing: one row alone (a decode step) gives the bits it gives in a prompt.
//!
//! Weights are used in a packed form made at load ([`layout`]); a stored matrix is also accepted and packed tile by tile
//! on the way, with the same result.

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
pub mod layout;
mod pack;
mod panel;
mod stream;
mod vector;

pub use layout::{TILE_ROWS, packed_bytes, tile_bytes};
pub use pack::pack_tiles;

use crate::{
    blocks::is_weight_format,
    level::Level,
    part::Part,
    scratch::{Carver, Scratch, region_bytes},
    simd::dispatch,
};
use std::ops::Range;
use tokenspeed_backend_api::dtype::DType;
use vector::VectorGemm;

/// Below this many rows per worker, workers share columns instead of rows.
const ROWS_PER_WORKER_MIN: usize = 32;

/// A weight matrix `[n, k]`.
#[derive(Clone, Copy, Debug)]
pub struct Weight {
    /// Packed tiles if `packed`, else rows in the stored layout.
    pub data: *const u8,
    /// Format.
    pub dtype: DType,
    /// Whether `data` is in the packed form.
    pub packed: bool,
}

/// Operands of one GEMM.
#[derive(Clone, Copy, Debug)]
pub struct GemmArgs {
    /// `[m, k]`, rows `ldx` apart.
    pub x: *const f32,
    /// Elements between rows of `x`.
    pub ldx: usize,
    /// `[n, k]`.
    pub weight: Weight,
    /// `[n]`, or null.
    pub bias: *const f32,
    /// `[m, n]`, rows `ldy` apart; does not overlap `x`.
    pub y: *mut f32,
    /// Elements between rows of `y`.
    pub ldy: usize,
    /// Rows of activations.
    pub m: usize,
    /// Outputs.
    pub n: usize,
    /// Depth, in whole blocks of the format.
    pub k: usize,
}

/// Whether [`gemm`] takes this weight format and depth.
pub fn supported(dtype: DType, k: usize) -> bool {
    is_weight_format(dtype) && k.is_multiple_of(dtype.block_len())
}

/// Scratch a worker needs for GEMMs of at most `m` rows and depth `k` in `dtype`.
pub fn scratch_bytes(level: Level, dtype: DType, m: usize, k: usize) -> usize {
    let kernel = match level {
        #[cfg(target_arch = "x86_64")]
        Level::Amx if amx::takes(dtype) => amx::scratch_bytes(m, k),
        _ => vector::scratch_bytes(m, k),
    };
    // One tile packed on the way, for weights that come in the stored layout.
    kernel + region_bytes::<u8>(tile_bytes(dtype, k))
}

/// Name of the kernel a format runs on, for the support table.
pub fn kernel_name(level: Level, dtype: DType) -> &'static str {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Amx if amx::takes(dtype) => "gemm-amx-bf16x3",
        Level::Amx | Level::Avx512 => "gemm-avx512",
        Level::Avx2 => "gemm-avx2",
        Level::Portable => "gemm-portable",
    }
}

/// The rows and tiles of this worker.
fn share(part: Part, m: usize, tiles: usize) -> (Range<usize>, Range<usize>) {
    if m >= ROWS_PER_WORKER_MIN * part.count { (part.aligned(m, 16), 0..tiles) } else { (0..m, part.of(tiles)) }
}

/// This worker's share of the product.
///
/// # Safety
/// `level` is available; the operands have the shapes above; `scratch` has [`scratch_bytes`]; no one else touches `y`
/// but other workers in their shares of the same op.
pub unsafe fn gemm(level: Level, part: Part, scratch: &mut Scratch, args: &GemmArgs) {
    debug_assert!(supported(args.weight.dtype, args.k));
    let (rows, tiles) = share(part, args.m, args.n.div_ceil(TILE_ROWS));
    if rows.is_empty() || tiles.is_empty() {
        return;
    }
    let bytes = tile_bytes(args.weight.dtype, args.k);
    let mut carver = scratch.carve();
    if args.weight.packed {
        // SAFETY: the packed matrix has all tiles.
        unsafe { rectangle(level, args, args.weight.data.add(tiles.start * bytes), rows, tiles, carver) };
        return;
    }
    let row_bytes = args.k / args.weight.dtype.block_len() * args.weight.dtype.block_bytes();
    let buffer: *mut u8 = carver.take(bytes);
    for tile in tiles {
        // SAFETY: the stored matrix has n rows; the buffer one tile. The carver is restarted for every tile.
        unsafe {
            let stored = std::slice::from_raw_parts(args.weight.data, args.n * row_bytes);
            let packed = std::slice::from_raw_parts_mut(buffer, bytes);
            pack_tiles(args.weight.dtype, stored, args.n, args.k, tile..tile + 1, packed);
            rectangle(level, args, buffer, rows.clone(), tile..tile + 1, carver.again());
        }
    }
}

/// Most weights that [`gemm_group`] takes.
pub const GROUP_MAX: usize = 4;

/// This worker's share of several products of the same activations (`x`, `ldx`, `m` and `k` are equal): query, key and
/// value, or gate and up. The bits are those of [`gemm`] one by one; the activations are prepared once.
///
/// # Safety
/// As [`gemm`], for each; results do not overlap.
pub unsafe fn gemm_group(level: Level, part: Part, scratch: &mut Scratch, group: &[GemmArgs]) {
    assert!(group.len() <= GROUP_MAX, "a group of {} products; at most {GROUP_MAX}", group.len());
    #[cfg(target_arch = "x86_64")]
    if level == Level::Amx && group.iter().all(|args| args.weight.packed && amx::takes(args.weight.dtype)) {
        let Some(first) = group.first() else { return };
        debug_assert!(group.iter().all(|a| (a.x, a.ldx, a.m, a.k) == (first.x, first.ldx, first.m, first.k)));
        let mut rows = 0..0;
        let jobs: [_; GROUP_MAX] = std::array::from_fn(|i| {
            let args = group.get(i).unwrap_or(first);
            let (my_rows, tiles) = share(part, args.m, args.n.div_ceil(TILE_ROWS));
            rows = my_rows;
            let bytes = tile_bytes(args.weight.dtype, args.k);
            amx::Job { args, packed: args.weight.data.wrapping_add(tiles.start * bytes), tiles }
        });
        // SAFETY: the caller's promise.
        unsafe { amx::gemm(&jobs[..group.len()], rows, &mut scratch.carve()) };
        return;
    }
    for args in group {
        // SAFETY: the caller's promise.
        unsafe { gemm(level, part, scratch, args) };
    }
}

/// The product of some rows with some tiles.
///
/// # Safety
/// As [`gemm`]; `packed` is the first of `tiles`.
unsafe fn rectangle(
    level: Level,
    args: &GemmArgs,
    packed: *const u8,
    rows: Range<usize>,
    tiles: Range<usize>,
    mut carver: Carver,
) {
    let dtype = args.weight.dtype;
    #[cfg(target_arch = "x86_64")]
    if level == Level::Amx && amx::takes(dtype) {
        // SAFETY: the tier is available by the caller's promise.
        unsafe { amx::gemm(&[amx::Job { args, packed, tiles }], rows, &mut carver) };
        return;
    }
    // SAFETY: the caller's promise.
    unsafe { dispatch(level, VectorGemm { args, dtype, packed, rows, tiles, scratch: carver }) };
}

#[cfg(test)]
mod tests;
