//! Dense products inside larger ops, with the arithmetic of `gemm`: k in order, f64, one rounding.

use super::gemm::{LANES, dot_lanes};

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
