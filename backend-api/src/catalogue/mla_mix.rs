//! `mla_mix`: latent attention from the projected query to the gated values.
//!
//! One op, so that a backend may put the parts of split attention together, project them to values and gate them in one kernel,
//! and choose between the absorbed and the expanded form. It is no more than its parts: every value between them is rounded to
//! f32 where theirs is. The cache row is written before, by `mla_write`. Rejected: fusing the value projection and the gate alone;
//! an expanded form needs the query before it is absorbed.

use super::{ATTENTION, Call, Case, Entry, OpDesc, Part, cases::Gen, input, mla_attention, output, product, recurrent};
use super::{schema::CACHE_DTYPES, schema::WEIGHT_DTYPES, sigmoid::sigmoid};
use crate::{
    dtype::DType,
    graph::{Graph, GraphOp, Ref, Vary},
    op::{Attrs, OpKind},
};

pub(super) const ENTRY: Entry = Entry {
    kind: OpKind::MlaMix,
    version: 1,
    doc: "`mla_absorb` of q with w (`attrs.i[1]` = P), `mla_attention` over the cached rows (`attrs.i[0]` = component, `attrs.f[0]` = \
          scale), `mla_value` with w, `y = value · sigmoid(gate)`. Decomposes into these and `sigmoid_mul`.",
    operands: &[
        input("q [T, H, N + P]"),
        input("w [H · (N + V), R]"),
        input("cache [blocks, B, 1, R + P]"),
        input("table [rows, blocks per row] u32"),
        input("gate [T, H, V], before the sigmoid"),
        output("y [T, H, V]"),
    ],
    check,
    reference,
    decompose: Some(decompose),
    tolerance: ATTENTION,
    cases,
};

fn check(op: &OpDesc) -> Result<(), String> {
    op.count(6)?;
    op.f32(&[0, 4, 5])?;
    op.dtype(1, &WEIGHT_DTYPES)?;
    op.dtype(2, &CACHE_DTYPES)?;
    op.dtype(3, &[DType::U32])?;
    op.same_shape(4, 5)?;
    let [q, w, cache, _, _, y] = &op.operands[..] else { unreachable!("counted") };
    let rope = op.attrs.i[1];
    let ok = q.rank == 3
        && y.rank == 3
        && w.rank == 2
        && cache.rank == 4
        && cache.dims[2] == 1
        && q.dims[..2] == y.dims[..2]
        && u64::try_from(rope).is_ok_and(|p| {
            p < q.dims[2]
                && cache.dims[3] == w.dims[1] + p
                && w.dims[0] == q.dims[1].saturating_mul((q.dims[2] - p).saturating_add(y.dims[2]))
        });
    op.require(ok, || {
        format!(
            "q is {:?}, w is {:?}, cache is {:?}, y is {:?}, P = {rope}",
            q.dims(),
            w.dims(),
            cache.dims(),
            y.dims()
        )
    })
}

fn reference(call: &Call<'_>, part: Part) {
    let [q, w, cache, table, gate, y] = call.operands[..] else { unreachable!("checked") };
    let (heads, dim, rank, width) =
        (q.tensor.dims[1] as usize, q.tensor.dims[2] as usize, w.row_len(), y.tensor.dims[2] as usize);
    let rope = call.attrs.i[1] as usize;
    let nope = dim - rope;
    let (row, per_head) = (rank + rope, nope + width);
    let mine = part.of(q.rows());
    let mut absorbed = vec![vec![0f32; heads * row]; mine.len()];
    for head in 0..heads {
        let mut query = vec![vec![0f32; dim]; mine.len()];
        mine.clone().zip(&mut query).for_each(|(t, query)| recurrent::load_part(&q, t, head * dim, query));
        let xs: Vec<&[f32]> = query.iter().map(|row| &row[..nope]).collect();
        let mut out = vec![Vec::new(); mine.len()];
        product::columns(rank, nope, |k, row| w.load_row(head * per_head + k, row), &xs, &mut out);
        for ((to, out), query) in absorbed.iter_mut().zip(&out).zip(&query) {
            let to = &mut to[head * row..][..row];
            to[..rank].copy_from_slice(out);
            to[rank..].copy_from_slice(&query[nope..]);
        }
    }
    let attend = |(t, query): (usize, &Vec<f32>)| {
        mla_attention::token(&call.step, &cache, &table, t, query, (row, rank), call.attrs.f[0])
    };
    let mixed: Vec<Vec<f32>> = mine.clone().zip(&absorbed).map(attend).collect();
    for head in 0..heads {
        let xs: Vec<&[f32]> = mixed.iter().map(|mixed| &mixed[head * rank..][..rank]).collect();
        let mut out = vec![Vec::new(); mine.len()];
        product::rows(width, rank, |n, row| w.load_row(head * per_head + nope + n, row), &xs, &mut out);
        for (t, mut out) in mine.clone().zip(out) {
            let mut opening = vec![0f32; width];
            recurrent::load_part(&gate, t, head * width, &mut opening);
            let gated = |v: f32, gate: f32| (f64::from(sigmoid(f64::from(gate)) as f32) * f64::from(v)) as f32;
            out.iter_mut().zip(opening).for_each(|(v, gate)| *v = gated(*v, gate));
            y.store(t, head * width, &out);
        }
    }
}

fn decompose(op: &GraphOp, graph: &mut Graph) -> Vec<GraphOp> {
    let [q, w, cache, table, gate, y] = op.operands[..] else { panic!("{}: mla_mix has six operands", op.label) };
    let Ref::Value(like) = y else { panic!("{}: y is a value", op.label) };
    let spec = graph.values[like].clone();
    let rope = op.attrs.i[1] as u64;
    let Ref::Weight(rows) = w else { panic!("{}: w is a weight", op.label) };
    let rank = graph.weights[rows].dims[1];
    let mut value =
        |part: &str, inner: &[u64]| graph.value(format!("{}.{part}", spec.name), spec.vary, inner, spec.dtype);
    let absorbed = value("absorbed", &[spec.inner[0], rank + rope]);
    let mixed = value("mixed", &[spec.inner[0], rank]);
    let plain = value("plain", &spec.inner);
    let part = |kind, i: i64, f: f64, operands: &[Ref]| {
        let mut attrs = Attrs::default();
        (attrs.i[0], attrs.f[0]) = (i, f);
        op.part(kind, attrs, operands)
    };
    vec![
        part(OpKind::MlaAbsorb, op.attrs.i[1], 0.0, &[q, w, absorbed]),
        part(OpKind::MlaAttention, op.attrs.i[0], op.attrs.f[0], &[absorbed, cache, table, mixed]),
        part(OpKind::MlaValue, 0, 0.0, &[mixed, w, plain]),
        part(OpKind::SigmoidMul, 0, 0.0, &[gate, plain, y]),
    ]
}

fn cases(seed: u64) -> Vec<Case> {
    let mut g = Gen::new(seed);
    let mut out = Vec::new();
    for (dtype, weights, block_tokens, h, [n, p, v, r], spans) in [
        (DType::F32, DType::F32, 4, 3, [7, 3, 5, 33], &[(1, 3, 6), (0, 9, 1)][..]),
        // The widths of Kimi K3, keys in one split and in several, windows of several tokens.
        (DType::BF16, DType::BF16, 64, 4, [128, 64, 128, 512], &[(0, 62, 3), (1, 0, 2)]),
        (DType::F8E4M3, DType::F32, 64, 12, [16, 64, 64, 512], &[(1, 5, 1), (0, 1023, 2)]),
        (DType::BF16, DType::BF16, 64, 12, [16, 64, 64, 512], &[(0, 511, 2), (1, 530, 1)]),
    ] {
        let name = format!("{dtype} {weights} B={block_tokens} H={h} N={n} P={p} V={v} R={r} {spans:?}");
        let mut c = g.paged_case(OpKind::MlaMix, name, spans);
        let (table, blocks) = g.table(&c.step, block_tokens);
        c.attrs.i[1] = p as i64;
        // Absorbed queries grow with N: scores of about 1.
        c.attrs.f[0] = 1.0 / ((n * (r + p)) as f64).sqrt();
        let t = c.step.tokens.len() as u64;
        let q = g.uniform(&[t, h, n + p]).into_iter().map(|v| v * 5.0).collect();
        c.push(Vary::Tokens, &[t, h, n + p], q);
        let w = g.weight(weights, &[h * (n + v), r]);
        c.push_raw(weights, Vary::Fixed, &[h * (n + v), r], w);
        let cache = g.weight(dtype, &[blocks, block_tokens, 1, r + p]);
        c.push_raw(dtype, Vary::Fixed, &[blocks, block_tokens, 1, r + p], cache);
        c.push_table(&table);
        let gate = g.uniform(&[t, h, v]).into_iter().map(|v| v * 3.0).collect();
        c.push(Vary::Tokens, &[t, h, v], gate);
        c.push_output(Vary::Tokens, &[t, h, v]);
        out.push(c);
    }
    out
}
