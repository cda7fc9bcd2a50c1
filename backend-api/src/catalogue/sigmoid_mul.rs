//! `sigmoid_mul`: a sigmoid output gate.

use super::{ELEMENTWISE, Entry, elementwise, input, output, sigmoid::sigmoid};
use crate::{
    graph::{Graph, GraphOp, Ref},
    op::{Attrs, OpKind},
};

pub(super) const ENTRY: Entry = Entry {
    kind: OpKind::SigmoidMul,
    version: 1,
    doc: "`y = x · sigmoid(gate)`. y may alias x or gate. Decomposes into `sigmoid`, `mul`.",
    operands: &[input("gate [T, D]"), input("x [T, D]"), output("y [T, D]")],
    check: |op| elementwise::check(op, 3),
    reference: |call, part| elementwise::binary(call, part, |gate, x| f64::from(sigmoid(gate) as f32) * x),
    decompose: Some(decompose),
    tolerance: ELEMENTWISE,
    cases: |seed| elementwise::cases(OpKind::SigmoidMul, 2, seed),
};

fn decompose(op: &GraphOp, graph: &mut Graph) -> Vec<GraphOp> {
    let [gate, x, y] = op.operands[..] else { panic!("{}: sigmoid_mul has three operands", op.label) };
    let Ref::Value(like) = y else { panic!("{}: y is a value", op.label) };
    let spec = graph.values[like].clone();
    let opened = graph.value(format!("{}.sigmoid", spec.name), spec.vary, &spec.inner, spec.dtype);
    let basic = |kind, operands: &[Ref]| op.part(kind, Attrs::default(), operands);
    vec![basic(OpKind::Sigmoid, &[gate, opened]), basic(OpKind::Mul, &[opened, x, y])]
}
