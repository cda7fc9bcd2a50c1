//! `mla_write`: a token's latent row, normalised, into its page.

use super::{Call, Case, ELEMENTWISE, Entry, OpDesc, Part, cases::Gen, inout, input, rmsnorm, schema::CACHE_DTYPES};
use crate::{
    dtype::DType,
    graph::{Graph, GraphOp, Ref, Vary},
    op::{Attrs, OpKind},
};

pub(super) const ENTRY: Entry = Entry {
    kind: OpKind::MlaWrite,
    version: 1,
    doc: "`[rmsnorm(x[..R]; w) | x[R..]]` goes where `kv_write` puts a row. `attrs.i[0]` = component, `attrs.f[0]` = eps. Decomposes into \
          `slice`, `rmsnorm`, `slice`, `concat`, `kv_write`.",
    operands: &[
        input("x [T, R + P]"),
        input("w [R]"),
        inout("cache [blocks, B, 1, R + P]"),
        input("table [rows, blocks per row] u32"),
    ],
    check,
    reference,
    decompose: Some(decompose),
    tolerance: ELEMENTWISE,
    cases,
};

fn check(op: &OpDesc) -> Result<(), String> {
    op.count(4)?;
    op.f32(&[0, 1])?;
    op.dtype(2, &CACHE_DTYPES)?;
    op.dtype(3, &[DType::U32])?;
    let [x, w, cache, _] = &op.operands[..] else { unreachable!("counted") };
    let width = x.row_len() as u64;
    let ok = cache.rank == 4 && cache.dims[2] * cache.dims[3] == width && w.rank == 1 && w.dims[0] < width;
    op.require(ok, || format!("x is {:?}, w is {:?}, cache is {:?}", x.dims(), w.dims(), cache.dims()))?;
    op.require(op.attrs.f[0] >= 0.0, || format!("eps is {}", op.attrs.f[0]))
}

fn reference(call: &Call<'_>, part: Part) {
    let [x, w, cache, table] = call.operands[..] else { unreachable!("checked") };
    let weight = rmsnorm::vector(&w);
    let block_tokens = cache.tensor.dims[1] as usize;
    let mut row = vec![0f32; x.row_len()];
    for t in part.of(x.rows()) {
        let token = &call.step.tokens[t];
        let request = &call.step.rows[token.row as usize];
        let at = request.cache_row(token.position) as usize;
        x.load_row(t, &mut row);
        rmsnorm::normalise(&mut row[..weight.len()], &weight, call.attrs.f[0]);
        let block = table.load_u32(request.table_row as usize, at / block_tokens) as usize;
        cache.store(block, at % block_tokens * row.len(), &row);
    }
}

fn decompose(op: &GraphOp, graph: &mut Graph) -> Vec<GraphOp> {
    let [x, w, cache, table] = op.operands[..] else { panic!("{}: mla_write has four operands", op.label) };
    let (Ref::Value(source), Ref::Weight(weight)) = (x, w) else { panic!("{}: x is a value, w a weight", op.label) };
    let spec = graph.values[source].clone();
    let (width, rank) = (spec.inner.iter().product::<u64>(), graph.weights[weight].dims[0]);
    let mut value = |part: &str, n| graph.value(format!("{}.{part}", spec.name), spec.vary, &[n], spec.dtype);
    let (latent, normed) = (value("latent", rank), value("latent_norm", rank));
    let (rope, row) = (value("rope", width - rank), value("row", width));
    let basic = |kind, i: i64, f: f64, operands: &[Ref]| {
        let mut attrs = Attrs::default();
        (attrs.i[0], attrs.f[0]) = (i, f);
        op.part(kind, attrs, operands)
    };
    vec![
        basic(OpKind::Slice, 0, 0.0, &[x, latent]),
        basic(OpKind::RmsNorm, 0, op.attrs.f[0], &[latent, w, normed]),
        basic(OpKind::Slice, rank as i64, 0.0, &[x, rope]),
        basic(OpKind::Concat, 0, 0.0, &[normed, rope, row]),
        basic(OpKind::KvWrite, op.attrs.i[0], 0.0, &[row, cache, table]),
    ]
}

fn cases(seed: u64) -> Vec<Case> {
    let mut g = Gen::new(seed);
    let mut out = Vec::new();
    for (dtype, block_tokens, r, p, spans) in [
        (DType::F32, 16, 8, 3, &[(0, 0, 5)][..]),
        (DType::F32, 4, 64, 16, &[(1, 3, 6), (0, 9, 1)]),
        (DType::F32, 64, 512, 64, &[(2, 60, 9), (0, 0, 1)]),
        (DType::BF16, 4, 64, 16, &[(1, 3, 6), (0, 9, 1)]),
        (DType::BF16, 16, 8, 3, &[(0, 0, 5)]),
        (DType::F16, 4, 64, 16, &[(1, 3, 6), (0, 9, 1)]),
        (DType::F16, 16, 8, 3, &[(0, 0, 5)]),
        (DType::F8E4M3, 4, 64, 16, &[(1, 3, 6), (0, 9, 1)]),
        (DType::F8E4M3, 16, 8, 3, &[(0, 0, 5)]),
    ] {
        let mut c = g.paged_case(OpKind::MlaWrite, format!("{dtype} B={block_tokens} R={r} P={p} {spans:?}"), spans);
        let (table, blocks) = g.table(&c.step, block_tokens);
        c.attrs.f[0] = 1e-6;
        let t = c.step.tokens.len() as u64;
        let x = g.uniform(&[t, r + p]).into_iter().map(|v| v * 0.02).collect();
        c.push(Vary::Tokens, &[t, r + p], x);
        let w = g.uniform(&[r]);
        c.push(Vary::Fixed, &[r], w);
        let cache = g.weight(dtype, &[blocks, block_tokens, 1, r + p]);
        c.push_inout(dtype, Vary::Fixed, &[blocks, block_tokens, 1, r + p], cache);
        c.push_table(&table);
        out.push(c);
    }
    out
}
