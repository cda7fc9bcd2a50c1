//! `kv_read`: rows out of the pages of a cache component, one per token of the step.
//!
//! It is how one graph hands per-token values to the next one of the same step loop: the first writes them with
//! `kv_write`, the other reads them at the same positions, or a few positions back. Rejected: values shared between
//! programs. They would tie the placement of two programs together, and rows of a step are not rows of the next.

use super::{BIT_EXACT, Call, Case, Entry, OpDesc, Part, cases::Gen, input, output, recurrent, schema::CACHE_DTYPES};
use crate::{dtype::DType, graph::Vary, op::OpKind};

pub(super) const ENTRY: Entry = Entry {
    kind: OpKind::KvRead,
    version: 1,
    doc: "For the token at position p, `y[t]` is the row that `kv_write` put at position p − back of its request, as f32; zeros if p < \
          back. `attrs.i[0]` = component, `attrs.i[1]` = back.",
    operands: &[input("cache [blocks, B, H, D]"), input("table [rows, blocks per row] u32"), output("y [T, H, D]")],
    check,
    reference,
    decompose: None,
    tolerance: BIT_EXACT,
    cases,
};

fn check(op: &OpDesc) -> Result<(), String> {
    op.count(3)?;
    op.dtype(0, &CACHE_DTYPES)?;
    op.dtype(1, &[DType::U32])?;
    op.f32(&[2])?;
    let (cache, y) = (&op.operands[0], &op.operands[2]);
    op.require(cache.rank == 4 && y.row_len() as u64 == cache.dims[2] * cache.dims[3], || {
        format!("cache is {:?}, y is {:?}", cache.dims(), y.dims())
    })?;
    op.require(op.attrs.i[1] >= 0, || format!("back is {}", op.attrs.i[1]))
}

fn reference(call: &Call<'_>, part: Part) {
    let [cache, table, y] = call.operands[..] else { unreachable!("checked") };
    let block_tokens = cache.tensor.dims[1] as usize;
    let back = call.attrs.i[1] as u32;
    let mut row = vec![0f32; y.row_len()];
    for t in part.of(y.rows()) {
        let token = &call.step.tokens[t];
        let request = &call.step.rows[token.row as usize];
        match token.position.checked_sub(back) {
            Some(position) => {
                let at = request.cache_row(position) as usize;
                let block = table.load_u32(request.table_row as usize, at / block_tokens) as usize;
                recurrent::load_part(&cache, block, at % block_tokens * row.len(), &mut row);
            }
            None => row.fill(0.0),
        }
        y.store(t, 0, &row);
    }
}

fn cases(seed: u64) -> Vec<Case> {
    let mut g = Gen::new(seed);
    let mut out = Vec::new();
    for dtype in CACHE_DTYPES {
        for (block_tokens, heads, dim, back, spans) in [
            (16, 1, 8, 0, &[(0, 0, 5)][..]),
            (4, 3, 64, 1, &[(1, 3, 6), (0, 9, 1), (2, 0, 2)]),
            (64, 2, 20, 3, &[(2, 60, 9), (0, 0, 1), (1, 128, 1)]),
            (4, 1, 8, 1, &[(0, 6, 3), (0, 6, 4), (1, 3, 2), (0, 6, 1)]),
        ] {
            let name = format!("{dtype} B={block_tokens} H={heads} D={dim} back={back} {spans:?}");
            let mut c = g.paged_case(OpKind::KvRead, name, spans);
            let (table, blocks) = g.table(&c.step, block_tokens);
            c.attrs.i[1] = back;
            let cache = g.weight(dtype, &[blocks, block_tokens, heads, dim]);
            c.push_raw(dtype, Vary::Fixed, &[blocks, block_tokens, heads, dim], cache);
            c.push_table(&table);
            c.push_output(Vary::Tokens, &[c.step.tokens.len() as u64, heads, dim]);
            out.push(c);
        }
    }
    out
}
