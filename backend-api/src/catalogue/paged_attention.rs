//! `paged_attention`: causal attention of the step's tokens over pages, for prefill chunks and decode alike.

use super::{ATTENTION, Call, Case, Entry, OpDesc, Part, cases::Gen, input, output, schema::CACHE_DTYPES};
use crate::{dtype::DType, graph::Vary, op::OpKind};

pub(super) const ENTRY: Entry = Entry {
    kind: OpKind::PagedAttention,
    version: 1,
    doc: "For the token at position p: `y[h] = softmax(scale · q[h] · k[g])·v[g]` over cached positions 0…p of its request (p−window+1…p if \
          `attrs.i[1]` = window > 0), with g = h / (Hq / Hkv). The step's own k and v are already in the cache. `attrs.i[0]` = component, \
          `attrs.f[0]` = scale.",
    operands: &[
        input("q [T, Hq, D]"),
        input("k cache [blocks, B, Hkv, D]"),
        input("v cache [blocks, B, Hkv, Dv]"),
        input("table [rows, blocks per row] u32"),
        output("y [T, Hq, Dv]"),
    ],
    check,
    reference,
    decompose: None,
    tolerance: ATTENTION,
    cases,
};

fn check(op: &OpDesc) -> Result<(), String> {
    op.count(5)?;
    op.f32(&[0, 4])?;
    op.dtype(1, &CACHE_DTYPES)?;
    op.dtype(2, &CACHE_DTYPES)?;
    op.dtype(3, &[DType::U32])?;
    let [q, k, v, _, y] = &op.operands[..] else { unreachable!("counted") };
    let ok = q.rank == 3
        && k.rank == 4
        && v.rank == 4
        && k.dims[..3] == v.dims[..3]
        && k.dims[3] == q.dims[2]
        && q.dims[1].is_multiple_of(k.dims[2].max(1))
        && y.dims[..3] == [q.dims[0], q.dims[1], v.dims[3]];
    op.require(ok, || format!("q is {:?}, k is {:?}, v is {:?}, y is {:?}", q.dims(), k.dims(), v.dims(), y.dims()))?;
    op.require(op.attrs.i[1] >= 0, || format!("window is {}", op.attrs.i[1]))
}

/// Two passes in token order: scores and their maximum, then the weighted sum; all in f64.
fn reference(call: &Call<'_>, part: Part) {
    let [q, k_cache, v_cache, table, y] = call.operands[..] else { unreachable!("checked") };
    let (heads, dim) = (q.tensor.dims[1] as usize, q.tensor.dims[2] as usize);
    let value_dim = v_cache.tensor.dims[3] as usize;
    let (block_tokens, kv_heads) = (k_cache.tensor.dims[1] as usize, k_cache.tensor.dims[2] as usize);
    let window = call.attrs.i[1] as usize;
    let mut query = vec![0f32; heads * dim];
    let mut block = vec![0f32; k_cache.row_len().max(v_cache.row_len())];
    let mut output = vec![0f32; heads * value_dim];
    let mut scores = Vec::new();
    let mut sums = vec![0f64; heads * value_dim];
    let mut totals = vec![0f64; heads];
    for t in part.of(q.rows()) {
        let token = &call.step.tokens[t];
        let request = &call.step.rows[token.row as usize];
        let position = token.position as usize;
        let first = if window == 0 { 0 } else { (position + 1).saturating_sub(window) };
        q.load_row(t, &mut query);
        scores.clear();
        scores.resize((position + 1 - first) * heads, 0f64);
        let mut each = |view: &crate::tensor::View, visit: &mut dyn FnMut(usize, &[f32])| {
            let width = view.row_len() / block_tokens;
            let mut loaded = usize::MAX;
            for p in first..=position {
                let at = request.cache_row(p as u32) as usize;
                if loaded != at / block_tokens {
                    loaded = at / block_tokens;
                    let page = table.load_u32(request.table_row as usize, loaded) as usize;
                    view.load_row(page, &mut block[..width * block_tokens]);
                }
                visit(p, &block[at % block_tokens * width..][..width]);
            }
        };
        let mut maxima = vec![f64::NEG_INFINITY; heads];
        each(&k_cache, &mut |p, keys| {
            for h in 0..heads {
                let key = &keys[h * kv_heads / heads * dim..][..dim];
                let mut dot = 0f64;
                for (a, b) in query[h * dim..][..dim].iter().zip(key) {
                    dot += f64::from(*a) * f64::from(*b);
                }
                let score = dot * call.attrs.f[0];
                scores[(p - first) * heads + h] = score;
                maxima[h] = maxima[h].max(score);
            }
        });
        sums.fill(0.0);
        totals.fill(0.0);
        each(&v_cache, &mut |p, values| {
            for h in 0..heads {
                let weight = libm::exp(scores[(p - first) * heads + h] - maxima[h]);
                totals[h] += weight;
                let value = &values[h * kv_heads / heads * value_dim..][..value_dim];
                for (sum, v) in sums[h * value_dim..][..value_dim].iter_mut().zip(value) {
                    *sum += weight * f64::from(*v);
                }
            }
        });
        for h in 0..heads {
            for d in 0..value_dim {
                output[h * value_dim + d] = (sums[h * value_dim + d] / totals[h]) as f32;
            }
        }
        y.store(t, 0, &output);
    }
}

fn cases(seed: u64) -> Vec<Case> {
    let mut g = Gen::new(seed);
    let mut out = Vec::new();
    for dtype in CACHE_DTYPES {
        for (block_tokens, heads, kv_heads, dim, window, spans) in [
            (16, 1, 1, 8, 0, &[(0, 0, 1)][..]),
            (4, 6, 2, 64, 0, &[(1, 3, 6), (0, 9, 1)]),
            (64, 9, 3, 64, 0, &[(0, 0, 70), (2, 200, 1), (1, 61, 5)]),
            (16, 4, 4, 20, 7, &[(0, 0, 20), (1, 40, 3)]),
            (32, 8, 1, 128, 0, &[(0, 30, 4)]),
            (4, 6, 2, 20, 0, &[(0, 6, 3), (0, 6, 4), (1, 3, 2), (0, 6, 1)]),
            (64, 4, 2, 64, 9, &[(0, 126, 3), (0, 126, 12), (1, 0, 5), (0, 126, 1)]),
            (16, 2, 1, 68, 0, &[(0, 18, 1), (1, 3, 2)]),
            (16, 2, 1, 68, 0, &[(0, 18, 12)]),
        ] {
            let name = format!("{dtype} B={block_tokens} Hq={heads} Hkv={kv_heads} D={dim} window={window} {spans:?}");
            let mut c = g.paged_case(OpKind::PagedAttention, name, spans);
            let (table, blocks) = g.table(&c.step, block_tokens);
            c.attrs.i[1] = window;
            c.attrs.f[0] = 1.0 / (dim as f64).sqrt();
            let tokens = c.step.tokens.len() as u64;
            let q = g.uniform(&[tokens, heads, dim]).into_iter().map(|v| v * 3.0).collect();
            c.push(Vary::Tokens, &[tokens, heads, dim], q);
            for _ in 0..2 {
                let cache = g.weight(dtype, &[blocks, block_tokens, kv_heads, dim]);
                c.push_raw(dtype, Vary::Fixed, &[blocks, block_tokens, kv_heads, dim], cache);
            }
            c.push_table(&table);
            c.push_output(Vary::Tokens, &[tokens, heads, dim]);
            out.push(c);
        }
    }
    out
}
