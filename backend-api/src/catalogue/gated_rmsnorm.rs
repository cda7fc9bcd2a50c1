//! `gated_rmsnorm`: the output norm of a linear-attention head, gated by a sigmoid.

use super::{Call, Case, ELEMENTWISE, Entry, OpDesc, Part, cases::Gen, input, output, rmsnorm, sigmoid};
use crate::{
    graph::{Graph, GraphOp, Ref, Vary},
    op::{Attrs, OpKind},
};

pub(super) const ENTRY: Entry = Entry {
    kind: OpKind::GatedRmsNorm,
    version: 1,
    doc: "`y = rmsnorm(x; w) · sigmoid(gate)`, normalised over the last dimension D, head by head, before the gate. `attrs.f[0]` = eps. \
          Decomposes into `rmsnorm`, `sigmoid_mul`.",
    operands: &[input("x [T, …, D]"), input("gate [T, …, D]"), input("w [D]"), output("y [T, …, D]")],
    check,
    reference,
    decompose: Some(decompose),
    tolerance: ELEMENTWISE,
    cases,
};

fn check(op: &OpDesc) -> Result<(), String> {
    op.count(4)?;
    op.f32(&[0, 1, 2, 3])?;
    op.same_shape(0, 1)?;
    op.same_shape(0, 3)?;
    let (x, w) = (&op.operands[0], &op.operands[2]);
    op.require(x.rank >= 2 && w.dims() == [x.dims[x.rank as usize - 1]], || {
        format!("x is {:?}, w is {:?}", x.dims(), w.dims())
    })?;
    op.require(op.attrs.f[0] >= 0.0, || format!("eps is {}", op.attrs.f[0]))
}

fn reference(call: &Call<'_>, part: Part) {
    let [x, gate, w, y] = call.operands[..] else { unreachable!("checked") };
    let weight = rmsnorm::vector(&w);
    let (mut row, mut gates) = (vec![0f32; x.row_len()], vec![0f32; x.row_len()]);
    for t in part.of(x.rows()) {
        x.load_row(t, &mut row);
        gate.load_row(t, &mut gates);
        gate_heads(&mut row, &gates, &weight, call.attrs.f[0]);
        y.store(t, 0, &row);
    }
}

/// Heads side by side, in place.
pub(super) fn gate_heads(row: &mut [f32], gates: &[f32], weight: &[f32], eps: f64) {
    rmsnorm::normalise(row, weight, eps);
    for (v, g) in row.iter_mut().zip(gates) {
        *v = (f64::from(*v) * f64::from(sigmoid::sigmoid(f64::from(*g)) as f32)) as f32;
    }
}

fn decompose(op: &GraphOp, graph: &mut Graph) -> Vec<GraphOp> {
    let [x, gate, w, y] = op.operands[..] else { panic!("{}: gated_rmsnorm has four operands", op.label) };
    let Ref::Value(like) = y else { panic!("{}: y is a value", op.label) };
    let spec = graph.values[like].clone();
    let normed = graph.value(format!("{}.norm", spec.name), spec.vary, &spec.inner, spec.dtype);
    vec![
        op.part(OpKind::RmsNorm, op.attrs, &[x, w, normed]),
        op.part(OpKind::SigmoidMul, Attrs::default(), &[gate, normed, y]),
    ]
}

fn cases(seed: u64) -> Vec<Case> {
    let mut g = Gen::new(seed);
    let mut out = Vec::new();
    for (t, h, d, eps, scale) in [
        (1, 1, 1, 1e-5, 1.0),
        (3, 4, 32, 1e-5, 0.01),
        (5, 2, 128, 1e-5, 1.0),
        (2, 2, 192, 1e-5, 1.0),
        (2, 2, 130, 1e-5, 1.0),
    ] {
        let mut c = g.case(OpKind::GatedRmsNorm, format!("T={t} H={h} D={d} scale={scale}"), t as usize);
        c.attrs.f[0] = eps;
        let x = g.uniform(&[t, h, d]).into_iter().map(|v| v * scale).collect();
        c.push(Vary::Tokens, &[t, h, d], x);
        let gate = g.uniform(&[t, h, d]).into_iter().map(|v| v * 6.0).collect();
        c.push(Vary::Tokens, &[t, h, d], gate);
        let w = g.uniform(&[d]);
        c.push(Vary::Fixed, &[d], w);
        c.push_output(Vary::Tokens, &[t, h, d]);
        out.push(c);
    }
    out
}
