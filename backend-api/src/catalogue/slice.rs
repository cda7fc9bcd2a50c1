//! `slice`: some columns of every row.

use super::{BIT_EXACT, Call, Case, Entry, OpDesc, Part, cases::Gen, input, output, recurrent};
use crate::{graph::Vary, op::OpKind};

pub(super) const ENTRY: Entry = Entry {
    kind: OpKind::Slice,
    version: 1,
    doc: "`y[t, j] = x[t, first + j]`, inner dimensions of x and y flattened. `attrs.i[0]` = first.",
    operands: &[input("x [T, K]"), output("y [T, N]")],
    check,
    reference,
    decompose: None,
    tolerance: BIT_EXACT,
    cases,
};

fn check(op: &OpDesc) -> Result<(), String> {
    op.count(2)?;
    op.f32(&[0, 1])?;
    let (x, y, first) = (&op.operands[0], &op.operands[1], op.attrs.i[0]);
    let fits = usize::try_from(first).is_ok_and(|f| f + y.row_len() <= x.row_len());
    op.require(fits && x.dims[0] == y.dims[0], || {
        format!("x is {:?}, y is {:?} from column {first}", x.dims(), y.dims())
    })
}

fn reference(call: &Call<'_>, part: Part) {
    let (x, y) = (call.operands[0], call.operands[1]);
    let mut row = vec![0f32; y.row_len()];
    for t in part.of(x.rows()) {
        recurrent::load_part(&x, t, call.attrs.i[0] as usize, &mut row);
        y.store(t, 0, &row);
    }
}

fn cases(seed: u64) -> Vec<Case> {
    let mut g = Gen::new(seed);
    let mut out = Vec::new();
    for (t, k, first, n) in [(1, 1, 0, 1), (3, 80, 64, 16), (5, 576, 0, 512), (2, 33, 7, 9)] {
        let mut c = g.case(OpKind::Slice, format!("T={t} K={k} first={first} N={n}"), t as usize);
        c.attrs.i[0] = first;
        let x = g.uniform(&[t, k]);
        c.push(Vary::Tokens, &[t, k], x);
        c.push_output(Vary::Tokens, &[t, n]);
        out.push(c);
    }
    out
}
