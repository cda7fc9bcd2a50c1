//! `mla_attention`: causal attention of absorbed queries over latent rows, for prefill and decode alike.
//!
//! One row of R + P values serves every head as key, its first R as value. Rejected: `paged_attention` with one kv head;
//! it would need the values as a second cache.

use super::{ATTENTION, Call, Case, Entry, OpDesc, Part, cases::Gen, input, output, schema::CACHE_DTYPES};
use crate::{dtype::DType, graph::Vary, op::OpKind, step::StepView, tensor::View};

pub(super) const ENTRY: Entry = Entry {
    kind: OpKind::MlaAttention,
    version: 1,
    doc: "For the token at position p: `y[h] = softmax(scale · q[h]·row)·row[..R]` over cached rows of positions 0…p of its request; the \
          step's own rows are already in the cache. `attrs.i[0]` = component, `attrs.f[0]` = scale.",
    operands: &[
        input("q [T, H, R + P]"),
        input("cache [blocks, B, 1, R + P]"),
        input("table [rows, blocks per row] u32"),
        output("y [T, H, R]"),
    ],
    check,
    reference,
    decompose: None,
    tolerance: ATTENTION,
    cases,
};

fn check(op: &OpDesc) -> Result<(), String> {
    op.count(4)?;
    op.f32(&[0, 3])?;
    op.dtype(1, &CACHE_DTYPES)?;
    op.dtype(2, &[DType::U32])?;
    let [q, cache, _, y] = &op.operands[..] else { unreachable!("counted") };
    let ok = q.rank == 3
        && y.rank == 3
        && cache.rank == 4
        && cache.dims[2] == 1
        && cache.dims[3] == q.dims[2]
        && q.dims[..2] == y.dims[..2]
        && y.dims[2] <= q.dims[2];
    op.require(ok, || format!("q is {:?}, cache is {:?}, y is {:?}", q.dims(), cache.dims(), y.dims()))
}

/// Two passes in token order, as in `paged_attention`.
fn reference(call: &Call<'_>, part: Part) {
    let [q, cache, table, y] = call.operands[..] else { unreachable!("checked") };
    let (heads, width, rank) = (q.tensor.dims[1] as usize, q.tensor.dims[2] as usize, y.tensor.dims[2] as usize);
    let mut query = vec![0f32; heads * width];
    for t in part.of(q.rows()) {
        q.load_row(t, &mut query);
        y.store(t, 0, &token(&call.step, &cache, &table, t, &query, (width, rank), call.attrs.f[0]));
    }
}

/// All heads of one token: `query` has a row of `width` values per head, the result `rank`.
pub(super) fn token(
    step: &StepView<'_>,
    cache: &View,
    table: &View,
    t: usize,
    query: &[f32],
    (width, rank): (usize, usize),
    scale: f64,
) -> Vec<f32> {
    let heads = query.len() / width;
    let block_tokens = cache.tensor.dims[1] as usize;
    let mut block = vec![0f32; cache.row_len()];
    let token = &step.tokens[t];
    let request = &step.rows[token.row as usize];
    let last = token.position as usize;
    let mut each = |visit: &mut dyn FnMut(usize, &[f32])| {
        let mut loaded = usize::MAX;
        for p in 0..=last {
            let at = request.cache_row(p as u32) as usize;
            if loaded != at / block_tokens {
                loaded = at / block_tokens;
                cache.load_row(table.load_u32(request.table_row as usize, loaded) as usize, &mut block);
            }
            visit(p, &block[at % block_tokens * width..][..width]);
        }
    };
    let mut scores = vec![0f64; (last + 1) * heads];
    let mut maxima = vec![f64::NEG_INFINITY; heads];
    each(&mut |p, row| {
        for (h, query) in query.chunks_exact(width).enumerate() {
            let mut dot = 0f64;
            for (a, b) in query.iter().zip(row) {
                dot += f64::from(*a) * f64::from(*b);
            }
            let score = dot * scale;
            scores[p * heads + h] = score;
            maxima[h] = maxima[h].max(score);
        }
    });
    let (mut sums, mut totals) = (vec![0f64; heads * rank], vec![0f64; heads]);
    each(&mut |p, row| {
        for (h, sums) in sums.chunks_exact_mut(rank).enumerate() {
            let weight = libm::exp(scores[p * heads + h] - maxima[h]);
            totals[h] += weight;
            sums.iter_mut().zip(row).for_each(|(sum, v)| *sum += weight * f64::from(*v));
        }
    });
    let means = sums.chunks_exact(rank).zip(&totals);
    means.flat_map(|(sums, total)| sums.iter().map(move |sum| (sum / total) as f32)).collect()
}

fn cases(seed: u64) -> Vec<Case> {
    let mut g = Gen::new(seed);
    let mut out = Vec::new();
    for dtype in CACHE_DTYPES {
        for (block_tokens, h, r, p, spans) in [
            (16, 1, 8, 0, &[(0, 0, 1)][..]),
            (4, 4, 64, 16, &[(1, 3, 6), (0, 9, 1)]),
            (64, 3, 33, 7, &[(0, 0, 70), (2, 200, 1), (1, 61, 5)]),
            (16, 2, 512, 64, &[(0, 30, 4)]),
            (64, 12, 512, 64, &[(0, 62, 3), (0, 62, 2)]),
            (4, 3, 20, 4, &[(0, 6, 3), (0, 6, 4), (1, 3, 2), (0, 6, 1)]),
            (64, 2, 64, 16, &[(0, 1020, 3), (0, 1020, 12), (0, 1020, 1)]),
            (16, 1, 100, 10, &[(0, 18, 2)]),
        ] {
            let name = format!("{dtype} B={block_tokens} H={h} R={r} P={p} {spans:?}");
            let mut c = g.paged_case(OpKind::MlaAttention, name, spans);
            let (table, blocks) = g.table(&c.step, block_tokens);
            c.attrs.f[0] = 1.0 / ((r + p) as f64).sqrt();
            let t = c.step.tokens.len() as u64;
            let q = g.uniform(&[t, h, r + p]).into_iter().map(|v| v * 3.0).collect();
            c.push(Vary::Tokens, &[t, h, r + p], q);
            let cache = g.weight(dtype, &[blocks, block_tokens, 1, r + p]);
            c.push_raw(dtype, Vary::Fixed, &[blocks, block_tokens, 1, r + p], cache);
            c.push_table(&table);
            c.push_output(Vary::Tokens, &[t, h, r]);
            out.push(c);
        }
    }
    out
}
