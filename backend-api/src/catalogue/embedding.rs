//! `embedding`: rows of a table by the step's token ids.

use super::{BIT_EXACT, Call, Case, Entry, OpDesc, Part, cases::Gen, input, output, schema::WEIGHT_DTYPES};
use crate::{graph::Vary, op::OpKind};

pub(super) const ENTRY: Entry = Entry {
    kind: OpKind::Embedding,
    version: 1,
    doc: "`y[t] = table[id(t)]` as f32, with ids from the parameter block. An id outside the table gives a row of NaN, which ends that \
          request and no other.",
    operands: &[input("table [V, D]"), output("y [T, D]")],
    check,
    reference,
    decompose: None,
    tolerance: BIT_EXACT,
    cases,
};

fn check(op: &OpDesc) -> Result<(), String> {
    op.count(2)?;
    op.dtype(0, &WEIGHT_DTYPES)?;
    op.f32(&[1])?;
    let (table, y) = (&op.operands[0], &op.operands[1]);
    op.require(table.row_len() == y.row_len(), || format!("table is {:?}, y is {:?}", table.dims(), y.dims()))
}

fn reference(call: &Call<'_>, part: Part) {
    let (table, y) = (call.operands[0], call.operands[1]);
    let mut row = vec![0f32; table.row_len()];
    for t in part.of(y.rows()) {
        match usize::try_from(call.step.tokens[t].id) {
            Ok(id) if id < table.rows() => table.load_row(id, &mut row),
            _ => row.fill(f32::NAN),
        }
        y.store(t, 0, &row);
    }
}

fn cases(seed: u64) -> Vec<Case> {
    let mut g = Gen::new(seed);
    let mut out = Vec::new();
    for dtype in WEIGHT_DTYPES {
        for (t, v, blocks) in [(1, 1, 1), (7, 31, 2), (16, 300, 1)] {
            let d = if dtype.block_len() == 1 { 17 * blocks } else { dtype.block_len() as u64 * blocks };
            let mut c = g.case(OpKind::Embedding, format!("{dtype} T={t} V={v} D={d}"), t as usize);
            for token in &mut c.step.tokens {
                token.id = g.below(v) as i32;
            }
            let table = g.weight(dtype, &[v, d]);
            c.push_raw(dtype, Vary::Fixed, &[v, d], table);
            c.push_output(Vary::Tokens, &[t, d]);
            out.push(c);
        }
    }
    out
}
