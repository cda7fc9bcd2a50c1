//! `silu`.

use super::{ELEMENTWISE, Entry, elementwise, input, output};
use crate::op::OpKind;

pub(super) const ENTRY: Entry = Entry {
    kind: OpKind::Silu,
    version: 1,
    doc: "`y = x · sigmoid(x)`. y may alias x.",
    operands: &[input("x [T, D]"), output("y [T, D]")],
    check: |op| elementwise::check(op, 2),
    reference: |call, part| elementwise::unary(call, part, elementwise::silu),
    decompose: None,
    tolerance: ELEMENTWISE,
    cases: |seed| elementwise::cases(OpKind::Silu, 1, seed),
};
