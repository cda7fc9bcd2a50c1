//! `kv_write`: the step's rows into the pages of a cache component.

use super::{BIT_EXACT, Call, Case, Entry, OpDesc, Part, cases::Gen, inout, input, schema::CACHE_DTYPES};
use crate::{dtype::DType, graph::Vary, op::OpKind};

pub(super) const ENTRY: Entry = Entry {
    kind: OpKind::KvWrite,
    version: 1,
    doc: "The token at position p of a request goes to block `table[table_row][r / B]`, slot `r mod B`, converted to the cache's element \
          format (e4m3 saturates). r is p, and p + `branch_offset` from `computed` on, here and wherever a cache is read. `attrs.i[0]` = \
          component.",
    operands: &[input("x [T, H, D]"), inout("cache [blocks, B, H, D]"), input("table [rows, blocks per row] u32")],
    check,
    reference,
    decompose: None,
    tolerance: BIT_EXACT,
    cases,
};

fn check(op: &OpDesc) -> Result<(), String> {
    op.count(3)?;
    op.f32(&[0])?;
    op.dtype(1, &CACHE_DTYPES)?;
    op.dtype(2, &[DType::U32])?;
    let (x, cache) = (&op.operands[0], &op.operands[1]);
    op.require(cache.rank == 4 && x.row_len() as u64 == cache.dims[2] * cache.dims[3], || {
        format!("x is {:?}, cache is {:?}", x.dims(), cache.dims())
    })
}

fn reference(call: &Call<'_>, part: Part) {
    let [x, cache, table] = call.operands[..] else { unreachable!("checked") };
    let block_tokens = cache.tensor.dims[1] as usize;
    let mut row = vec![0f32; x.row_len()];
    for t in part.of(x.rows()) {
        let token = &call.step.tokens[t];
        let request = &call.step.rows[token.row as usize];
        let at = request.cache_row(token.position) as usize;
        let block = table.load_u32(request.table_row as usize, at / block_tokens) as usize;
        x.load_row(t, &mut row);
        cache.store(block, at % block_tokens * row.len(), &row);
    }
}

fn cases(seed: u64) -> Vec<Case> {
    let mut g = Gen::new(seed);
    let mut out = Vec::new();
    for dtype in CACHE_DTYPES {
        for (block_tokens, heads, dim, spans) in [
            (16, 1, 8, &[(0, 0, 5)][..]),
            (4, 3, 64, &[(1, 3, 6), (0, 9, 1)]),
            (64, 2, 20, &[(2, 60, 9), (0, 0, 1), (1, 128, 1)]),
            (4, 1, 8, &[(0, 6, 3), (0, 6, 4), (1, 3, 2), (0, 6, 1)]),
        ] {
            let mut c =
                g.paged_case(OpKind::KvWrite, format!("{dtype} B={block_tokens} H={heads} D={dim} {spans:?}"), spans);
            let (table, blocks) = g.table(&c.step, block_tokens);
            let tokens = c.step.tokens.len() as u64;
            let x = g.uniform(&[tokens, heads, dim]).into_iter().map(|v| v * 100.0).collect();
            c.push(Vary::Tokens, &[tokens, heads, dim], x);
            let cache = g.weight(dtype, &[blocks, block_tokens, heads, dim]);
            c.push_inout(dtype, Vary::Fixed, &[blocks, block_tokens, heads, dim], cache);
            c.push_table(&table);
            out.push(c);
        }
    }
    out
}
