//! `row_gather`: the token rows whose logits are wanted.

use super::{BIT_EXACT, Call, Case, Entry, OpDesc, Part, cases::Gen, input, output};
use crate::{graph::Vary, op::OpKind};

pub(super) const ENTRY: Entry = Entry {
    kind: OpKind::RowGather,
    version: 1,
    doc: "`y[l] = x[logit_rows[l]]`, with row indices from the parameter block.",
    operands: &[input("x [T, D]"), output("y [L, D]")],
    check,
    reference,
    decompose: None,
    tolerance: BIT_EXACT,
    cases,
};

fn check(op: &OpDesc) -> Result<(), String> {
    op.count(2)?;
    op.f32(&[0, 1])?;
    let (x, y) = (&op.operands[0], &op.operands[1]);
    op.require(x.row_len() == y.row_len(), || format!("x is {:?}, y is {:?}", x.dims(), y.dims()))?;
    op.require(y.vary == Vary::LogitRows, || "y must vary with the logit rows".into())
}

fn reference(call: &Call<'_>, part: Part) {
    let (x, y) = (call.operands[0], call.operands[1]);
    let mut row = vec![0f32; x.row_len()];
    for l in part.of(y.rows()) {
        x.load_row(call.step.logit_rows[l] as usize, &mut row);
        y.store(l, 0, &row);
    }
}

fn cases(seed: u64) -> Vec<Case> {
    let mut g = Gen::new(seed);
    let mut out = Vec::new();
    for (t, d, rows) in [(1, 1, &[0][..]), (9, 33, &[8, 0, 3]), (5, 576, &[4])] {
        let mut c = g.case(OpKind::RowGather, format!("T={t} D={d} rows={rows:?}"), t as usize);
        c.step.logit_rows = rows.to_vec();
        let x = g.uniform(&[t, d]);
        c.push(Vary::Tokens, &[t, d], x);
        c.push_output(Vary::LogitRows, &[rows.len() as u64, d]);
        out.push(c);
    }
    out
}
