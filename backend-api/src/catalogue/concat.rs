//! `concat`: two rows side by side.

use super::{BIT_EXACT, Call, Case, Entry, OpDesc, Part, cases::Gen, input, output};
use crate::{graph::Vary, op::OpKind};

pub(super) const ENTRY: Entry = Entry {
    kind: OpKind::Concat,
    version: 1,
    doc: "`y[t] = [a[t] | b[t]]`, inner dimensions flattened.",
    operands: &[input("a [T, A]"), input("b [T, B]"), output("y [T, A + B]")],
    check,
    reference,
    decompose: None,
    tolerance: BIT_EXACT,
    cases,
};

fn check(op: &OpDesc) -> Result<(), String> {
    op.count(3)?;
    op.f32(&[0, 1, 2])?;
    let [a, b, y] = &op.operands[..] else { unreachable!("counted") };
    let ok = a.row_len() + b.row_len() == y.row_len() && a.dims[0] == y.dims[0] && b.dims[0] == y.dims[0];
    op.require(ok, || format!("a is {:?}, b is {:?}, y is {:?}", a.dims(), b.dims(), y.dims()))
}

fn reference(call: &Call<'_>, part: Part) {
    let [a, b, y] = call.operands[..] else { unreachable!("checked") };
    let mut row = vec![0f32; y.row_len()];
    for t in part.of(y.rows()) {
        let (left, right) = row.split_at_mut(a.row_len());
        a.load_row(t, left);
        b.load_row(t, right);
        y.store(t, 0, &row);
    }
}

fn cases(seed: u64) -> Vec<Case> {
    let mut g = Gen::new(seed);
    let mut out = Vec::new();
    for (t, a, b) in [(1, 1, 1), (3, 64, 16), (7, 5, 12)] {
        let mut c = g.case(OpKind::Concat, format!("T={t} A={a} B={b}"), t as usize);
        for width in [a, b] {
            let x = g.uniform(&[t, width]);
            c.push(Vary::Tokens, &[t, width], x);
        }
        c.push_output(Vary::Tokens, &[t, a + b]);
        out.push(c);
    }
    out
}
