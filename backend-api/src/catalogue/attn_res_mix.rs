//! `attn_res_mix`: Attention Residuals: a token's hidden state as a softmax mixture over layer snapshots and the sum so
//! far.

use super::{ATTENTION, Call, Case, Entry, OpDesc, Part, cases::Gen, input, output, rmsnorm::vector};
use crate::{graph::Vary, op::OpKind};

pub(super) const ENTRY: Entry = Entry {
    kind: OpKind::AttnResMix,
    version: 1,
    doc: "Candidates `V_i`: the snapshots in order, then the running sum. `s_i = Σ_d norm[d] · proj[d] · V_i[d] / sqrt(mean(V_i²) + eps)`, \
          `y = Σ_i softmax(s)_i · V_i`: scores from normalised candidates, the mixture from the candidates themselves. \
          `attrs.i[0]` = number of snapshots (the operand is repeated), at least 1; `attrs.f[0]` = eps.",
    operands: &[
        input("norm [D]"),
        input("proj [D]"),
        input("snapshot [T, D]"),
        input("sum [T, D]"),
        output("y [T, D]"),
    ],
    check,
    reference,
    decompose: None,
    tolerance: ATTENTION,
    cases,
};

fn check(op: &OpDesc) -> Result<(), String> {
    let snapshots = op.attrs.i[0];
    op.require((1..=1024).contains(&snapshots), || format!("{snapshots} snapshots"))?;
    op.count(4 + snapshots as usize)?;
    let y = op.operands.len() - 1;
    for i in 0..=y {
        op.f32(&[i])?;
        if i >= 2 {
            op.same_shape(y, i)?;
        }
    }
    let (norm, proj, out) = (&op.operands[0], &op.operands[1], &op.operands[y]);
    op.require(norm.dims() == [out.row_len() as u64] && proj.dims() == norm.dims(), || {
        format!("norm is {:?}, proj is {:?}, y is {:?}", norm.dims(), proj.dims(), out.dims())
    })?;
    op.require(op.attrs.f[0] >= 0.0, || format!("eps is {}", op.attrs.f[0]))
}

/// The score of one candidate by `folded` = norm · proj; both sums run in order.
pub(super) fn score(folded: &[f64], row: &[f32], eps: f64) -> f64 {
    let (mut dot, mut squares) = (0f64, 0f64);
    for (v, u) in row.iter().zip(folded) {
        let v = f64::from(*v);
        dot += u * v;
        squares += v * v;
    }
    dot / (squares / row.len() as f64 + eps).sqrt()
}

fn reference(call: &Call<'_>, part: Part) {
    let [norm, proj, candidates @ .., y] = call.operands else { unreachable!("checked") };
    let folded: Vec<f64> = vector(norm).iter().zip(vector(proj)).map(|(n, p)| f64::from(*n) * f64::from(p)).collect();
    let mut rows = vec![vec![0f32; folded.len()]; candidates.len()];
    for t in part.of(y.rows()) {
        let mut scores = Vec::with_capacity(rows.len());
        for (view, row) in candidates.iter().zip(&mut rows) {
            view.load_row(t, row);
            scores.push(score(&folded, row, call.attrs.f[0]));
        }
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let mut total = 0f64;
        let mut mixed = vec![0f64; folded.len()];
        for (s, row) in scores.iter().zip(&rows) {
            let weight = libm::exp(s - largest);
            total += weight;
            mixed.iter_mut().zip(row).for_each(|(m, v)| *m += weight * f64::from(*v));
        }
        let out: Vec<f32> = mixed.iter().map(|m| (m / total) as f32).collect();
        y.store(t, 0, &out);
    }
}

fn cases(seed: u64) -> Vec<Case> {
    let mut g = Gen::new(seed);
    let mut out = Vec::new();
    for (t, d, snapshots) in [
        (1, 1, 1),
        (3, 17, 2),
        (5, 128, 4),
        (2, 7168, 8),
        // Rows of every length that kernels have tiles for, in whole vectors or not, with more snapshots than one pass takes.
        (2, 1024, 2),
        (1, 1030, 1),
        (1, 4100, 1),
        (2, 64, 9),
        (1, 18, 10),
        (1, 1024, 9),
        (1, 1030, 9),
        (1, 4096, 9),
        (1, 4100, 9),
    ] {
        let mut c = g.case(OpKind::AttnResMix, format!("T={t} D={d} snapshots={snapshots}"), t as usize);
        c.attrs.i[0] = snapshots;
        c.attrs.f[0] = 1e-5;
        for scale in [1.0, (9.0 / d as f32).sqrt()] {
            let x = g.uniform(&[d]).into_iter().map(|v| v * scale).collect();
            c.push(Vary::Fixed, &[d], x);
        }
        for i in 0..=snapshots {
            let x = g.uniform(&[t, d]).into_iter().map(|v| v * (i + 1) as f32).collect();
            c.push(Vary::Tokens, &[t, d], x);
        }
        c.push_output(Vary::Tokens, &[t, d]);
        out.push(c);
    }
    out
}
