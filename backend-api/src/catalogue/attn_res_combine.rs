//! `attn_res_combine`: fold the running sum into the snapshots' part of a mixture of Attention Residuals.

use super::{
    ATTENTION, Call, Case, Entry, OpDesc, Part, attn_res_mix::score, cases::Gen, input, output, rmsnorm::vector,
};
use crate::{graph::Vary, op::OpKind};

pub(super) const ENTRY: Entry = Entry {
    kind: OpKind::AttnResCombine,
    version: 1,
    doc: "With s the score of sum as in `attn_res_mix`, `[m, z] = stats[t]` (see `attn_res_partial`) and M = max(m, s): \
          `y = (e^(m − M) · acc + e^(s − M) · sum) / (e^(m − M) · z + e^(s − M))`. After `attn_res_scores` and `attn_res_partial` over \
          the snapshots this is `attn_res_mix`. `attrs.f[0]` = eps.",
    operands: &[
        input("norm [D]"),
        input("proj [D]"),
        input("acc [T, D]"),
        input("stats [T, 2]"),
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
    op.count(6)?;
    op.f32(&[0, 1, 2, 3, 4, 5])?;
    op.same_shape(5, 2)?;
    op.same_shape(5, 4)?;
    let [norm, proj, acc, stats, ..] = &op.operands[..] else { unreachable!("counted") };
    op.require(norm.dims() == [acc.row_len() as u64] && proj.dims() == norm.dims(), || {
        format!("norm is {:?}, proj is {:?}, acc is {:?}", norm.dims(), proj.dims(), acc.dims())
    })?;
    op.require(stats.row_len() == 2 && stats.dims[0] == acc.dims[0], || {
        format!("acc is {:?}, stats is {:?}", acc.dims(), stats.dims())
    })?;
    op.require(op.attrs.f[0] >= 0.0, || format!("eps is {}", op.attrs.f[0]))
}

fn reference(call: &Call<'_>, part: Part) {
    let [norm, proj, acc, stats, sum, y] = call.operands else { unreachable!("checked") };
    let folded: Vec<f64> = vector(norm).iter().zip(vector(proj)).map(|(n, p)| f64::from(*n) * f64::from(p)).collect();
    let (mut bank, mut own, mut pair) = (vec![0f32; folded.len()], vec![0f32; folded.len()], [0f32; 2]);
    for t in part.of(y.rows()) {
        acc.load_row(t, &mut bank);
        sum.load_row(t, &mut own);
        stats.load_row(t, &mut pair);
        let (s, [m, z]) = (score(&folded, &own, call.attrs.f[0]), pair.map(f64::from));
        let largest = m.max(s);
        let (a, b) = (libm::exp(m - largest), libm::exp(s - largest));
        let total = a * z + b;
        let out: Vec<f32> =
            bank.iter().zip(&own).map(|(x, p)| ((a * f64::from(*x) + b * f64::from(*p)) / total) as f32).collect();
        y.store(t, 0, &out);
    }
}

fn cases(seed: u64) -> Vec<Case> {
    let mut g = Gen::new(seed);
    let mut out = Vec::new();
    for (t, d) in [(1, 1), (3, 17), (5, 128), (2, 7168), (2, 1024), (1, 1030), (1, 4100)] {
        let mut c = g.case(OpKind::AttnResCombine, format!("T={t} D={d}"), t as usize);
        c.attrs.f[0] = 1e-5;
        for scale in [1.0, (9.0 / d as f32).sqrt()] {
            let x = g.uniform(&[d]).into_iter().map(|v| v * scale).collect();
            c.push(Vary::Fixed, &[d], x);
        }
        let x = g.uniform(&[t, d]).into_iter().map(|v| v * 4.0).collect();
        c.push(Vary::Tokens, &[t, d], x);
        // A largest score of either sign, and a sum of weights from 1 on.
        let stats = g.uniform(&[t, 2]).chunks(2).flat_map(|s| [3.0 * s[0], 2.0 + s[1]]).collect();
        c.push(Vary::Tokens, &[t, 2], stats);
        let x = g.uniform(&[t, d]);
        c.push(Vary::Tokens, &[t, d], x);
        c.push_output(Vary::Tokens, &[t, d]);
        out.push(c);
    }
    out
}
