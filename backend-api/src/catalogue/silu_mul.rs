//! `silu_mul`: the gate of a SwiGLU MLP.

use super::{ELEMENTWISE, Entry, elementwise, input, output};
use crate::{
    graph::{Graph, GraphOp, Ref},
    op::{Attrs, OpKind},
};

pub(super) const ENTRY: Entry = Entry {
    kind: OpKind::SiluMul,
    version: 1,
    doc: "`y = silu(gate) · up`. y may alias gate or up. Decomposes into `silu`, `mul`.",
    operands: &[input("gate [T, D]"), input("up [T, D]"), output("y [T, D]")],
    check: |op| elementwise::check(op, 3),
    reference: |call, part| {
        elementwise::binary(call, part, |gate, up| f64::from(elementwise::silu(gate) as f32) * up);
    },
    decompose: Some(decompose),
    tolerance: ELEMENTWISE,
    cases: |seed| elementwise::cases(OpKind::SiluMul, 2, seed),
};

fn decompose(op: &GraphOp, graph: &mut Graph) -> Vec<GraphOp> {
    let [gate, up, y] = op.operands[..] else { panic!("{}: silu_mul has three operands", op.label) };
    let Ref::Value(like) = y else { panic!("{}: y is a value", op.label) };
    let spec = graph.values[like].clone();
    let activated = graph.value(format!("{}.silu", spec.name), spec.vary, &spec.inner, spec.dtype);
    let basic = |kind, operands: &[Ref]| op.part(kind, Attrs::default(), operands);
    vec![basic(OpKind::Silu, &[gate, activated]), basic(OpKind::Mul, &[activated, up, y])]
}
