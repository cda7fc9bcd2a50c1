//! `situ_mul`: the gate of a SiTU MLP: SwiGLU with both branches capped by a tanh.

use super::{ELEMENTWISE, Entry, OpDesc, elementwise, input, output, sigmoid::sigmoid};
use crate::op::{Attrs, OpKind};

pub(super) const ENTRY: Entry = Entry {
    kind: OpKind::SituMul,
    version: 1,
    doc: "`y = b·tanh(gate / b) · sigmoid(gate) · l·tanh(up / l)`; the sigmoid sees the uncapped gate. `attrs.f[0]` = b > 0, `attrs.f[1]` = l, \
          0 = up is not capped. y may alias gate or up.",
    operands: &[input("gate [T, D]"), input("up [T, D]"), output("y [T, D]")],
    check,
    reference: |call, part| elementwise::binary(call, part, |gate, up| situ(&call.attrs, gate, up)),
    decompose: None,
    tolerance: ELEMENTWISE,
    cases: |seed| {
        let mut cases = elementwise::cases(OpKind::SituMul, 2, seed);
        for (i, c) in cases.iter_mut().enumerate() {
            c.attrs.f[..2].copy_from_slice(&[4.0, if i % 2 == 0 { 25.0 } else { 0.0 }]);
        }
        cases
    },
};

fn check(op: &OpDesc) -> Result<(), String> {
    elementwise::check(op, 3)?;
    betas(op, &op.attrs)
}

pub(super) fn betas(op: &OpDesc, attrs: &Attrs) -> Result<(), String> {
    op.require(attrs.f[0] > 0.0 && attrs.f[1] >= 0.0, || format!("betas are {} and {}", attrs.f[0], attrs.f[1]))
}

/// `attrs.f[0..2]` are the betas.
pub(super) fn situ(attrs: &Attrs, gate: f64, up: f64) -> f64 {
    let (beta, linear) = (attrs.f[0], attrs.f[1]);
    let up = if linear == 0.0 { up } else { linear * libm::tanh(up / linear) };
    beta * libm::tanh(gate / beta) * sigmoid(gate) * up
}
