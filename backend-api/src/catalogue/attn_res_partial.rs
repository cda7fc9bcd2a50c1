//! `attn_res_partial`: the snapshots' part of a mixture of Attention Residuals, from scores made before.
//!
//! It does not need the running sum, so it can be computed while the sublayer before the mixture still runs.

use super::{ATTENTION, Call, Case, Entry, OpDesc, Part, cases::Gen, input, output};
use crate::{graph::Vary, op::OpKind};

pub(super) const ENTRY: Entry = Entry {
    kind: OpKind::AttnResPartial,
    version: 1,
    doc: "With `s_i = scores_i[t, n_i − left]`, n_i being the width of scores_i: `m = max s_i`, `acc = Σ_i e^(s_i − m) · snapshot_i`, \
          `stats = [m, Σ_i e^(s_i − m)]`. `attrs.i[0]` = number of snapshots, at least 1: all snapshots, then all scores (see \
          `attn_res_scores`); `attrs.i[1]` = left: this mixture and those after it, in the order of the scores.",
    operands: &[input("snapshot [T, D]"), input("scores [T, n_i]"), output("acc [T, D]"), output("stats [T, 2]")],
    check,
    reference,
    decompose: None,
    tolerance: ATTENTION,
    cases,
};

fn check(op: &OpDesc) -> Result<(), String> {
    let [n, left, ..] = op.attrs.i;
    op.require((1..=1024).contains(&n), || format!("{n} snapshots"))?;
    let n = n as usize;
    op.count(2 * n + 2)?;
    (0..op.operands.len()).try_for_each(|i| op.f32(&[i]))?;
    (0..n).try_for_each(|i| op.same_shape(2 * n, i))?;
    let (acc, stats) = (&op.operands[2 * n], &op.operands[2 * n + 1]);
    op.require(stats.row_len() == 2 && stats.dims[0] == acc.dims[0], || {
        format!("acc is {:?}, stats is {:?}", acc.dims(), stats.dims())
    })?;
    for (i, s) in op.operands[n..2 * n].iter().enumerate() {
        let ok = s.dims[0] == acc.dims[0] && (1..=s.row_len() as i64).contains(&left);
        op.require(ok, || {
            format!("scores of snapshot {i} are {:?}, {left} are left, acc is {:?}", s.dims(), acc.dims())
        })?;
    }
    Ok(())
}

fn reference(call: &Call<'_>, part: Part) {
    let n = call.attrs.i[0] as usize;
    let left = call.attrs.i[1] as usize;
    let (snapshots, rest) = call.operands.split_at(n);
    let (scores, outputs) = rest.split_at(n);
    let [acc, stats] = outputs else { unreachable!("checked") };
    let mut row = vec![0f32; acc.row_len()];
    for t in part.of(acc.rows()) {
        let score = |view: &crate::tensor::View| {
            let mut all = vec![0f32; view.row_len()];
            view.load_row(t, &mut all);
            f64::from(all[all.len() - left])
        };
        let scores: Vec<f64> = scores.iter().map(score).collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let mut total = 0f64;
        let mut mixed = vec![0f64; row.len()];
        for (s, view) in scores.iter().zip(snapshots) {
            let weight = libm::exp(s - largest);
            total += weight;
            view.load_row(t, &mut row);
            mixed.iter_mut().zip(&row).for_each(|(m, v)| *m += weight * f64::from(*v));
        }
        let out: Vec<f32> = mixed.iter().map(|m| *m as f32).collect();
        acc.store(t, 0, &out);
        stats.store(t, 0, &[largest as f32, total as f32]);
    }
}

fn cases(seed: u64) -> Vec<Case> {
    let mut g = Gen::new(seed);
    let mut out = Vec::new();
    for (t, d, snapshots, left) in [(1, 1, 1, 1), (3, 17, 2, 1), (5, 128, 4, 3), (2, 7168, 8, 2)] {
        let name = format!("T={t} D={d} snapshots={snapshots} left={left}");
        let mut c = g.case(OpKind::AttnResPartial, name, t as usize);
        c.attrs.i[..2].copy_from_slice(&[snapshots, left]);
        for i in 0..snapshots {
            let x = g.uniform(&[t, d]).into_iter().map(|v| v * (i + 1) as f32).collect();
            c.push(Vary::Tokens, &[t, d], x);
        }
        for i in 0..snapshots {
            // An earlier snapshot has scores for more mixtures.
            let n = (left + snapshots - 1 - i) as u64;
            let x = g.uniform(&[t, n]).into_iter().map(|v| v * 3.0).collect();
            c.push(Vary::Tokens, &[t, n], x);
        }
        c.push_output(Vary::Tokens, &[t, d]);
        c.push_output(Vary::Tokens, &[t, 2]);
        out.push(c);
    }
    out
}
