//! `attn_res_scores`: every score a snapshot will ever get in Attention Residuals, at the time it is taken.
//!
//! Snapshots do not change, so all later mixtures' scores of one are a single product; what is left of a mixture is then
//! `attn_res_partial` over the snapshots and `attn_res_combine` with the running sum. The three are basic ops, an
//! alternative a graph may be written in where a backend has them, and not part of any profile. Rejected: fused ops with
//! a decomposition. Taken alone, none of the three is an expression of `attn_res_mix`.

use super::{
    ATTENTION, Call, Case, Entry, OpDesc, Part, attn_res_mix::score, cases::Gen, input, output, rmsnorm::vector,
};
use crate::{graph::Vary, op::OpKind};

pub(super) const ENTRY: Entry = Entry {
    kind: OpKind::AttnResScores,
    version: 1,
    doc: "`y[t, i] = Σ_d norm_i[d] · proj_i[d] · V[d] / sqrt(mean(V²) + eps)` with V = snapshot\\[t\\]: the scores `attn_res_mix` would give \
          it with n pairs of weights. `attrs.i[0]` = n, at least 1: all norms, then all projs; `attrs.f[0]` = eps.",
    operands: &[input("snapshot [T, D]"), input("norm [D]"), input("proj [D]"), output("y [T, n]")],
    check,
    reference,
    decompose: None,
    tolerance: ATTENTION,
    cases,
};

fn check(op: &OpDesc) -> Result<(), String> {
    let n = op.attrs.i[0];
    op.require((1..=4096).contains(&n), || format!("{n} scores"))?;
    let n = n as usize;
    op.count(2 + 2 * n)?;
    (0..op.operands.len()).try_for_each(|i| op.f32(&[i]))?;
    let (snapshot, y) = (&op.operands[0], &op.operands[1 + 2 * n]);
    let width = snapshot.row_len() as u64;
    for (i, w) in op.operands[1..=2 * n].iter().enumerate() {
        op.require(w.dims() == [width], || {
            format!("operand {} is {:?}, snapshot is {:?}", i + 1, w.dims(), snapshot.dims())
        })?;
    }
    op.require(y.row_len() == n && y.dims[0] == snapshot.dims[0], || {
        format!("snapshot is {:?}, y is {:?} for {n} scores", snapshot.dims(), y.dims())
    })?;
    op.require(op.attrs.f[0] >= 0.0, || format!("eps is {}", op.attrs.f[0]))
}

fn reference(call: &Call<'_>, part: Part) {
    let [snapshot, weights @ .., y] = call.operands else { unreachable!("checked") };
    let (norms, projs) = weights.split_at(weights.len() / 2);
    let folded = |(norm, proj)| -> Vec<f64> {
        vector(norm).iter().zip(vector(proj)).map(|(n, p)| f64::from(*n) * f64::from(p)).collect()
    };
    let folded: Vec<Vec<f64>> = norms.iter().zip(projs).map(folded).collect();
    let mut row = vec![0f32; snapshot.row_len()];
    for t in part.of(snapshot.rows()) {
        snapshot.load_row(t, &mut row);
        let scores: Vec<f32> = folded.iter().map(|u| score(u, &row, call.attrs.f[0]) as f32).collect();
        y.store(t, 0, &scores);
    }
}

fn cases(seed: u64) -> Vec<Case> {
    let mut g = Gen::new(seed);
    let mut out = Vec::new();
    for (t, d, n) in [(1, 1, 1), (3, 17, 2), (5, 128, 7), (2, 7168, 3), (2, 1024, 2), (1, 1030, 1), (1, 4100, 1)] {
        let mut c = g.case(OpKind::AttnResScores, format!("T={t} D={d} n={n}"), t as usize);
        c.attrs.i[0] = n;
        c.attrs.f[0] = 1e-5;
        let x = g.uniform(&[t, d]).into_iter().map(|v| v * 3.0).collect();
        c.push(Vary::Tokens, &[t, d], x);
        for scale in [1.0, (9.0 / d as f32).sqrt()] {
            for _ in 0..n {
                let x = g.uniform(&[d]).into_iter().map(|v| v * scale).collect();
                c.push(Vary::Fixed, &[d], x);
            }
        }
        c.push_output(Vary::Tokens, &[t, n as u64]);
        out.push(c);
    }
    out
}
