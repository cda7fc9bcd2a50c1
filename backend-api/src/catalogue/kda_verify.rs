//! `kda_verify`: candidate tokens against a committed state that stays as it is.

use super::{Entry, RECURRENCE, input, kda_step, output};
use crate::op::OpKind;

pub(super) const ENTRY: Entry = Entry {
    kind: OpKind::KdaVerify,
    version: 1,
    doc: "`kda_step` without the final write: the same bits in o, and S untouched. Rejected candidates so leave no trace; the accepted ones \
          are committed by `kda_replay`.",
    operands: &[
        input("q [T, H, K]"),
        input("k [T, H, K]"),
        input("v [T, H, V]"),
        input("g [T, H, K]"),
        input("beta [T, H]"),
        input("S [slots, H, V, K]"),
        output("o [T, H, V]"),
    ],
    check: kda_step::check,
    reference: |call, part| kda_step::reference(call, part, false),
    decompose: None,
    tolerance: RECURRENCE,
    cases: |seed| kda_step::cases(OpKind::KdaVerify, seed),
};
