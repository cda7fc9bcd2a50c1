//! `sigmoid`.

use super::{ELEMENTWISE, Entry, elementwise, input, output};
use crate::op::OpKind;

pub(super) const ENTRY: Entry = Entry {
    kind: OpKind::Sigmoid,
    version: 1,
    doc: "`y = 1 / (1 + e^-x)`. y may alias x.",
    operands: &[input("x [T, D]"), output("y [T, D]")],
    check: |op| elementwise::check(op, 2),
    reference: |call, part| elementwise::unary(call, part, sigmoid),
    decompose: None,
    tolerance: ELEMENTWISE,
    cases: |seed| elementwise::cases(OpKind::Sigmoid, 1, seed),
};

/// In (0, 1), or exactly 0 or 1 where f64 has no other.
pub(super) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + libm::exp(-x))
}
