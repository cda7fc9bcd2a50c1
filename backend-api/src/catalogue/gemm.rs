//! `gemm`: the one dense product, over every weight format.

use super::{Call, Case, Entry, OpDesc, Part, REDUCTION, cases::Gen, input, output, schema::WEIGHT_DTYPES};
use crate::{dtype::DType, graph::Vary, op::OpKind, tensor::View};

pub(super) const ENTRY: Entry = Entry {
    kind: OpKind::Gemm,
    version: 1,
    doc: "`y[t, n] = Σ_k x[t, k] · w[n, k] (+ bias[n])`. Inner dimensions of x and y are flattened to K and N. `attrs.i[0]` = 1 if a bias \
          operand is present. `attrs.i[1]` = 1 says that a choice depends on the result: a backend that may round factors keeps these. \
          w is [N, K] in any weight format.",
    operands: &[input("x [T, K]"), input("w [N, K]"), input("bias [N], optional"), output("y [T, N]")],
    check,
    reference,
    decompose: None,
    tolerance: REDUCTION,
    cases,
};

fn check(op: &OpDesc) -> Result<(), String> {
    let bias = op.attrs.i[0] == 1;
    op.require(matches!(op.attrs.i[0], 0 | 1), || format!("attrs.i[0] = {} is not 0 or 1", op.attrs.i[0]))?;
    op.require(matches!(op.attrs.i[1], 0 | 1), || format!("attrs.i[1] = {} is not 0 or 1", op.attrs.i[1]))?;
    op.count(3 + usize::from(bias))?;
    let y = op.operands.len() - 1;
    op.f32(&[0, y])?;
    op.dtype(1, &WEIGHT_DTYPES)?;
    let (x, w, out) = (&op.operands[0], &op.operands[1], &op.operands[y]);
    op.require(w.rank == 2 && x.row_len() == w.row_len(), || format!("x is {:?}, w is {:?}", x.dims(), w.dims()))?;
    op.require(out.row_len() as u64 == w.dims[0] && out.dims[0] == x.dims[0], || {
        format!("x is {:?}, w is {:?}, y is {:?}", x.dims(), w.dims(), out.dims())
    })?;
    if bias {
        op.f32(&[2])?;
        let b = &op.operands[2];
        op.require(b.dims() == [w.dims[0]], || format!("bias is {:?}, w is {:?}", b.dims(), w.dims()))?;
    }
    Ok(())
}

/// Outputs computed side by side: the vector dimension, so that no dot product is split along K.
pub(super) const LANES: usize = 16;

fn reference(call: &Call<'_>, part: Part) {
    let (x, w, y) = (call.operands[0], call.operands[1], *call.operands.last().expect("checked"));
    let bias = (call.attrs.i[0] == 1).then(|| {
        let b = call.operands[2];
        let mut values = vec![0.0; b.tensor.dims[0] as usize];
        crate::quant::dequantize_row(b.tensor.dtype, whole(&b), &mut values);
        values
    });
    let (k, n) = (w.row_len(), w.rows());
    let mut row = vec![0f32; k];
    let mut tile = vec![0f32; k * LANES];
    let mut activations = vec![0f32; k];
    for tile_index in part.of(n.div_ceil(LANES)) {
        let columns = tile_index * LANES..n.min((tile_index + 1) * LANES);
        tile.fill(0.0);
        for (lane, column) in columns.clone().enumerate() {
            w.load_row(column, &mut row);
            for (i, v) in row.iter().enumerate() {
                tile[i * LANES + lane] = *v;
            }
        }
        for t in 0..x.rows() {
            x.load_row(t, &mut activations);
            let mut sums = [0f64; LANES];
            dot_lanes(&activations, &tile, &mut sums);
            let mut out = [0f32; LANES];
            for (lane, column) in columns.clone().enumerate() {
                let bias = bias.as_ref().map_or(0.0, |b| f64::from(b[column]));
                out[lane] = (sums[lane] + bias) as f32;
            }
            y.store(t, columns.start, &out[..columns.len()]);
        }
    }
}

fn whole(view: &View) -> &[u8] {
    // SAFETY: the view covers the whole tensor by `View::new`'s contract.
    unsafe { std::slice::from_raw_parts(view.data(), view.tensor.bytes() as usize) }
}

/// `sums[lane] = Σ_k x[k] · tile[k][lane]`, k in order. A product of two f32 is exact in f64, so a fused multiply-add
/// gives the same bits as multiply then add, and every instruction set the same result.
pub(super) fn dot_lanes(x: &[f32], tile: &[f32], sums: &mut [f64; LANES]) {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the feature was detected.
            return unsafe { dot_lanes_avx512(x, tile, sums) };
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the features were detected.
            return unsafe { dot_lanes_avx2(x, tile, sums) };
        }
    }
    dot_lanes_any(x, tile, sums);
}

#[inline(always)]
fn dot_lanes_any(x: &[f32], tile: &[f32], sums: &mut [f64; LANES]) {
    for (x, w) in x.iter().zip(tile.as_chunks::<LANES>().0) {
        let x = f64::from(*x);
        for lane in 0..LANES {
            sums[lane] += x * f64::from(w[lane]);
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn dot_lanes_avx512(x: &[f32], tile: &[f32], sums: &mut [f64; LANES]) {
    dot_lanes_any(x, tile, sums);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn dot_lanes_avx2(x: &[f32], tile: &[f32], sums: &mut [f64; LANES]) {
    dot_lanes_any(x, tile, sums);
}

fn cases(seed: u64) -> Vec<Case> {
    let mut g = Gen::new(seed);
    let mut out = Vec::new();
    for dtype in WEIGHT_DTYPES {
        let unit = dtype.block_len().max(1) as u64;
        for (t, k, n) in [(1, 1, 1), (1, 9, 33), (3, 2, 16), (5, 6, 17), (2, 3, 100), (17, 4, 48), (33, 5, 7)] {
            // K in whole blocks; small odd K for plain formats.
            let k = if unit == 1 { k * 7 + 1 } else { k * unit };
            let bias = (t + n) % 2;
            let mut c = g.case(OpKind::Gemm, format!("{dtype} T={t} K={k} N={n} bias={bias}"), t as usize);
            c.attrs.i[0] = bias as i64;
            operands(&mut g, &mut c, dtype, [t, k, n]);
            out.push(c);
        }
    }
    // Matrices wide enough to be quantised, with and without whole tiles, rows of one of them of very different sizes.
    for (dtype, t, k, n, bias, decides) in [
        (DType::BF16, 2, 288, 144, 0, 0),
        (DType::Q8_0, 21, 160, 200, 1, 0),
        (DType::BF16, 1, 160, 130, 0, 1),
        (DType::BF16, 6, 160, 130, 1, 0),
        // More tokens than any tile has rows; and rows in whole vectors.
        (DType::BF16, 260, 160, 130, 1, 0),
        (DType::F32, 2, 64, 32, 0, 0),
        (DType::BF16, 2, 64, 31, 1, 0),
        (DType::BF16, 18, 64, 31, 1, 0),
    ] {
        let mut c =
            g.case(OpKind::Gemm, format!("{dtype} T={t} K={k} N={n} bias={bias} decides={decides}"), t as usize);
        (c.attrs.i[0], c.attrs.i[1]) = (bias, decides);
        operands(&mut g, &mut c, dtype, [t, k, n]);
        out.push(c);
    }
    out
}

fn operands(g: &mut Gen, c: &mut Case, dtype: DType, [t, k, n]: [u64; 3]) {
    let x = g.uniform(&[t, k]);
    c.push(Vary::Tokens, &[t, k], x);
    let w = match dtype {
        DType::BF16 if n > 128 => {
            let sized = |(i, v): (usize, &f32)| half::bf16::from_f32(v * 0.5f32.powi((i as u64 / k % 7) as i32));
            g.uniform(&[n, k]).iter().enumerate().map(sized).flat_map(half::bf16::to_le_bytes).collect()
        }
        _ => g.weight(dtype, &[n, k]),
    };
    c.push_raw(dtype, Vary::Fixed, &[n, k], w);
    if c.attrs.i[0] == 1 {
        let b = g.uniform(&[n]);
        c.push(Vary::Fixed, &[n], b);
    }
    c.push_output(Vary::Tokens, &[t, n]);
}
