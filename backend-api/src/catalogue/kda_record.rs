//! `kda_record`: what `kda_replay` will need of the step's candidate tokens.
//!
//! The inputs of a token are some kilobytes per layer where its state is megabytes, so a verify step keeps inputs and
//! recomputes states, rather than keeping a state per candidate.

use super::{BIT_EXACT, Call, Case, Entry, OpDesc, Part, cases::Gen, inout, input, recurrent, schema::CACHE_DTYPES};
use crate::{dtype::DType, graph::Vary, op::OpKind};

pub(super) const ENTRY: Entry = Entry {
    kind: OpKind::KdaRecord,
    version: 1,
    doc: "Token i of a row in this step: `record[state_write][branch_offset + i] = [q | k | v | f | b]`, converted to the record's \
          element format. Nothing is kept for a row whose `state_write` is 0. The branches of a request have at most R tokens together.",
    operands: &[
        input("q [T, C], before the convolution"),
        input("k [T, C]"),
        input("v [T, C]"),
        input("f [T, F], before the second gate projection"),
        input("b [T, H], before the sigmoid"),
        inout("record [slots, R, 3C + F + H]"),
    ],
    check,
    reference,
    decompose: None,
    tolerance: BIT_EXACT,
    cases,
};

fn check(op: &OpDesc) -> Result<(), String> {
    op.count(6)?;
    op.f32(&[0, 1, 2, 3, 4])?;
    op.dtype(5, &CACHE_DTYPES[..3])?;
    let width: usize = op.operands[..5].iter().map(|x| x.row_len()).sum();
    let record = &op.operands[5];
    op.require(record.rank == 3 && record.dims[2] == width as u64, || {
        format!("record is {:?}, the inputs are {width} wide", record.dims())
    })
}

fn reference(call: &Call<'_>, part: Part) {
    let record = call.operands[5];
    let width = record.tensor.dims[2] as usize;
    let mut values = vec![0f32; width];
    for row in &call.step.rows[part.of(call.step.rows.len())] {
        let Some(slot) = recurrent::write_slot(row) else { continue };
        for (i, t) in (row.branch_offset as usize..).zip(recurrent::tokens(row)) {
            let mut rest = &mut values[..];
            for x in &call.operands[..5] {
                let (head, tail) = rest.split_at_mut(x.row_len());
                x.load_row(t, head);
                rest = tail;
            }
            record.store(slot, i * width, &values);
        }
    }
}

fn cases(seed: u64) -> Vec<Case> {
    let mut g = Gen::new(seed);
    let mut out = Vec::new();
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        for (c, f, h, spans) in [(1, 1, 1, &[(0, 1)][..]), (12, 5, 3, &[(0, 2), (7, 4), (3, 1), (9, 3)])] {
            let name = format!("{dtype} C={c} F={f} H={h} {spans:?}");
            let (mut case, slots) = recurrent::case(&mut g, OpKind::KdaRecord, name, spans);
            let t = case.step.tokens.len() as u64;
            for width in [c, c, c, f, h] {
                let x = g.uniform(&[t, width]);
                case.push(Vary::Tokens, &[t, width], x);
            }
            let shape = [slots, 4, 3 * c + f + h];
            let record = g.weight(dtype, &shape);
            case.push_inout(dtype, Vary::Fixed, &shape, record);
            out.push(case);
        }
    }
    out
}
