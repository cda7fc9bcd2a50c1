//! `embedding`: rows of a table by the step's token ids.

use super::{BIT_EXACT, Call, Case, Entry, OpDesc, Part, cases::Gen, input, output, schema::WEIGHT_DTYPES};
use crate::{dtype::DType, graph::Vary, op::OpKind};

pub(super) const ENTRY: Entry = Entry {
    kind: OpKind::Embedding,
    version: 1,
    doc: "`y[t] = table[id(t)]` as f32, with ids from the parameter block; a negative id means `relay[-id - 1]`, where an earlier \
          `sample` left it. An id outside the table, or outside `relay`, gives a row of NaN, which ends that request and no other. \
          `relay` is optional; without it ids are never negative.",
    operands: &[input("table [V, D]"), input("relay [slots] i32"), output("y [T, D]")],
    check,
    reference,
    decompose: None,
    tolerance: BIT_EXACT,
    cases,
};

fn check(op: &OpDesc) -> Result<(), String> {
    let relays = op.operands.len() == 3;
    if !relays {
        op.count(2)?;
    }
    op.dtype(0, &WEIGHT_DTYPES)?;
    let last = op.operands.len() - 1;
    op.f32(&[last])?;
    if relays {
        op.dtype(1, &[DType::I32])?;
        let relay = &op.operands[1];
        op.require(relay.rank == 1 && relay.vary == Vary::Fixed, || format!("relay is {:?}", relay.dims()))?;
    }
    let (table, y) = (&op.operands[0], &op.operands[last]);
    op.require(table.row_len() == y.row_len(), || format!("table is {:?}, y is {:?}", table.dims(), y.dims()))
}

fn reference(call: &Call<'_>, part: Part) {
    let (table, y) = (call.operands[0], call.operands[call.operands.len() - 1]);
    let relay = (call.operands.len() == 3).then(|| call.operands[1]);
    let resolve = |id: i32| match relay {
        Some(relay) if id < 0 => {
            let slot = id.unsigned_abs() as usize - 1;
            if slot < relay.rows() { relay.load_u32(slot, 0).cast_signed() } else { -1 }
        }
        _ => id,
    };
    let mut row = vec![0f32; table.row_len()];
    for t in part.of(y.rows()) {
        match usize::try_from(resolve(call.step.tokens[t].id)) {
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
        for (t, v, blocks) in [(1, 1, 1), (7, 31, 2), (16, 300, 1), (2, 5, 16)] {
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
    let (t, v, d) = (9, 31, 17);
    let mut c = g.case(OpKind::Embedding, format!("relay T={t} V={v} D={d}"), t as usize);
    let relay: Vec<i32> = (0..7).map(|slot| if slot == 5 { -1 } else { g.below(v) as i32 }).collect();
    for (i, token) in c.step.tokens.iter_mut().enumerate() {
        // Every third id is known; slot 5 holds none, and the last slot named does not exist.
        token.id = if i % 3 == 0 { g.below(v) as i32 } else { -(i as i32) };
    }
    let table = g.weight(DType::F32, &[v, d]);
    c.push_raw(DType::F32, Vary::Fixed, &[v, d], table);
    c.push_raw(DType::I32, Vary::Fixed, &[7], relay.iter().flat_map(|id| id.to_ne_bytes()).collect());
    c.push_output(Vary::Tokens, &[t, d]);
    out.push(c);
    out
}
