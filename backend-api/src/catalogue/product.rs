//! Dense products inside larger ops, with the arithmetic of `gemm`: k in order, f64, one rounding.

use super::{
    OpDesc,
    gemm::{LANES, dot_lanes},
    schema::WEIGHT_DTYPES,
};
use crate::tensor::View;

/// Operands `x [T, K]`, `w [N, K]` in a weight format and `y [T, N]`, by index.
pub(super) fn check(op: &OpDesc, x: usize, w: usize, y: usize) -> Result<(), String> {
    op.dtype(w, &WEIGHT_DTYPES)?;
    let (from, matrix, to) = (&op.operands[x], &op.operands[w], &op.operands[y]);
    let ok = matrix.rank == 2
        && from.row_len() == matrix.row_len()
        && to.row_len() as u64 == matrix.dims[0]
        && from.dims[0] == to.dims[0];
    op.require(ok, || {
        format!("operand {x} is {:?}, operand {w} is {:?}, operand {y} is {:?}", from.dims(), matrix.dims(), to.dims())
    })
}

/// These rows of an operand.
pub(super) fn load(x: &View, tokens: std::ops::Range<usize>) -> Vec<Vec<f32>> {
    let mut rows = vec![vec![0f32; x.row_len()]; tokens.len()];
    tokens.zip(&mut rows).for_each(|(t, row)| x.load_row(t, row));
    rows
}

/// `x · wᵀ` of each row.
pub(super) fn matrix(w: &View, xs: &[Vec<f32>]) -> Vec<Vec<f32>> {
    let xs: Vec<&[f32]> = xs.iter().map(Vec::as_slice).collect();
    let mut ys = vec![Vec::new(); xs.len()];
    rows(w.rows(), w.row_len(), |n, row| w.load_row(n, row), &xs, &mut ys);
    ys
}

/// `ys[i][n] = Σ_k xs[i][k] · w[n][k]` for every n; `load(n, row)` gives a row of w.
pub(super) fn rows(n: usize, k: usize, load: impl Fn(usize, &mut [f32]), xs: &[&[f32]], ys: &mut [Vec<f32>]) {
    let mut row = vec![0f32; k];
    let mut tile = vec![0f32; k * LANES];
    ys.iter_mut().for_each(|y| y.resize(n, 0.0));
    for first in (0..n).step_by(LANES) {
        let lanes = LANES.min(n - first);
        tile.fill(0.0);
        for lane in 0..lanes {
            load(first + lane, &mut row);
            for (i, v) in row.iter().enumerate() {
                tile[i * LANES + lane] = *v;
            }
        }
        each(&tile, lanes, first, xs, ys);
    }
}

/// `ys[i][n] = Σ_k xs[i][k] · w[k][n]`; `load(k, row)` gives a row of w, of n values.
pub(super) fn columns(n: usize, k: usize, load: impl Fn(usize, &mut [f32]), xs: &[&[f32]], ys: &mut [Vec<f32>]) {
    let mut whole = vec![0f32; k * n];
    whole.chunks_exact_mut(n.max(1)).enumerate().for_each(|(i, row)| load(i, row));
    let mut tile = vec![0f32; k * LANES];
    ys.iter_mut().for_each(|y| y.resize(n, 0.0));
    for first in (0..n).step_by(LANES) {
        let lanes = LANES.min(n - first);
        for (tile, row) in tile.chunks_exact_mut(LANES).zip(whole.chunks_exact(n)) {
            tile.fill(0.0);
            tile[..lanes].copy_from_slice(&row[first..first + lanes]);
        }
        each(&tile, lanes, first, xs, ys);
    }
}

fn each(tile: &[f32], lanes: usize, first: usize, xs: &[&[f32]], ys: &mut [Vec<f32>]) {
    for (x, y) in xs.iter().zip(ys) {
        let mut sums = [0f64; LANES];
        dot_lanes(x, tile, &mut sums);
        for (out, sum) in y[first..first + lanes].iter_mut().zip(sums) {
            *out = sum as f32;
        }
    }
}
