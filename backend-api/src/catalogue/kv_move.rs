//! `kv_move`: the cache rows of an accepted branch to where the request's own rows belong.
//!
//! It runs after a verify pass, once per cache tensor, over the accepted tokens alone: some rows per step. Rejected: cache
//! rows found through a list per request; every later read would pay for it.

use super::{BIT_EXACT, Call, Case, Entry, OpDesc, Part, cases::Gen, inout, input, recurrent, schema::CACHE_DTYPES};
use crate::{dtype::DType, graph::Vary, op::OpKind};

pub(super) const ENTRY: Entry = Entry {
    kind: OpKind::KvMove,
    version: 1,
    doc: "For each row of the step and each of its tokens in order, the one at position p: the cache row p + `branch_offset` is copied to \
          cache row p. A row without an offset stays as it is. The step's token values are not used. `attrs.i[0]` = component.",
    operands: &[inout("cache [blocks, B, H, D]"), input("table [rows, blocks per row] u32")],
    check,
    reference,
    decompose: None,
    tolerance: BIT_EXACT,
    cases,
};

fn check(op: &OpDesc) -> Result<(), String> {
    op.count(2)?;
    op.dtype(0, &CACHE_DTYPES)?;
    op.dtype(1, &[DType::U32])?;
    let cache = &op.operands[0];
    op.require(cache.rank == 4, || format!("cache is {:?}", cache.dims()))
}

fn reference(call: &Call<'_>, part: Part) {
    let [cache, table] = call.operands[..] else { unreachable!("checked") };
    let block_tokens = cache.tensor.dims[1] as usize;
    let mut values = vec![0f32; cache.row_len() / block_tokens];
    for row in &call.step.rows[part.of(call.step.rows.len())] {
        if row.branch_offset == 0 {
            continue;
        }
        for position in row.computed..row.computed + row.query_len {
            let place = |at: u32| {
                let at = at as usize;
                let block = table.load_u32(row.table_row as usize, at / block_tokens) as usize;
                (block, at % block_tokens * values.len())
            };
            let ((from, from_at), (to, to_at)) = (place(row.cache_row(position)), place(position));
            recurrent::load_part(&cache, from, from_at, &mut values);
            cache.store(to, to_at, &values);
        }
    }
}

fn cases(seed: u64) -> Vec<Case> {
    let mut g = Gen::new(seed);
    let mut out = Vec::new();
    for dtype in CACHE_DTYPES {
        for (block_tokens, heads, dim, offset, spans) in [
            (16, 1, 8, 2, &[(0, 5, 3)][..]),
            (4, 3, 20, 7, &[(1, 3, 6), (0, 9, 1), (2, 0, 2)]),
            (64, 2, 5, 1, &[(0, 60, 9), (1, 7, 4)]),
        ] {
            let name = format!("{dtype} B={block_tokens} H={heads} D={dim} offset={offset} {spans:?}");
            let mut c = g.paged_case(OpKind::KvMove, name, spans);
            // The last row is not a branch.
            let n = c.step.rows.len();
            c.step.rows[..n.max(2) - 1].iter_mut().for_each(|row| row.branch_offset = offset);
            let (table, blocks) = g.table(&c.step, block_tokens);
            let cache = g.weight(dtype, &[blocks, block_tokens, heads, dim]);
            c.push_inout(dtype, Vary::Fixed, &[blocks, block_tokens, heads, dim], cache);
            c.push_table(&table);
            out.push(c);
        }
    }
    out
}
