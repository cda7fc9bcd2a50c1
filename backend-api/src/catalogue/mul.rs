//! `mul`.

use super::{ELEMENTWISE, Entry, elementwise, input, output};
use crate::op::OpKind;

pub(super) const ENTRY: Entry = Entry {
    kind: OpKind::Mul,
    version: 1,
    doc: "`y = a · b`. y may alias a or b.",
    operands: &[input("a [T, D]"), input("b [T, D]"), output("y [T, D]")],
    check: |op| elementwise::check(op, 3),
    reference: |call, part| elementwise::binary(call, part, |a, b| a * b),
    decompose: None,
    tolerance: ELEMENTWISE,
    cases: |seed| elementwise::cases(OpKind::Mul, 2, seed),
};
