//! Expanded latent attention with e4m3 factors, said a second time in f64: what is rounded is rounded as documented, nothing else.
//!
//! Against the catalogue, which rounds nothing, a wrong scale of a quiet group hides behind eight percent of rounding. What this gives differs from
//! the kernels only by the order of f32 sums, which flips a rounding now and then.

use tokenspeed_backend_api::{catalogue::Case, quant};

use crate::{
    experts::grouped,
    mla_prefill::{N, P, R, V},
    support::f32s,
};

/// Positions of a step, by which greatest scores go, and the power of two of the weights.
const KEYS: usize = 128;
const RAISED: f64 = 8.0;

/// Columns of a matrix in groups of 32 rows, rounded.
fn grouped_down(m: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let mut out = m.to_vec();
    for c in 0..m[0].len() {
        let column: Vec<f64> = m.iter().map(|row| row[c]).collect();
        for (row, x) in out.iter_mut().zip(grouped(&column)) {
            row[c] = x;
        }
    }
    out
}

fn product(rows: &[Vec<f64>], w: &[f32]) -> Vec<Vec<f64>> {
    let times = |x: &Vec<f64>| {
        let sums = w.chunks(R as usize).map(|w| w.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum::<f64>() as f32);
        sums.map(f64::from).collect()
    };
    rows.iter().map(times).collect()
}

/// y of a request's tokens, `[tokens, heads, V]`.
pub fn want(case: &Case, row: usize) -> Vec<f32> {
    let [q, w, cache, table, gate, _] = &case.operands[..] else { unreachable!("six operands") };
    let request = case.step.rows[row];
    let [n, p, r, v] = [N, P, R, V].map(|n| n as usize);
    let (heads, page) = (q.tensor.dims[1] as usize, cache.tensor.dims[1] as usize);
    let (first, tokens) = (request.query_start as usize, request.query_len as usize);
    let width = table.tensor.dims[1] as usize;
    let mut weights = vec![0.0; heads * (n + v) * r];
    quant::dequantize_row(w.tensor.dtype, &w.bytes, &mut weights);
    // The last row of a context is repeated to the end of its step.
    let end = request.computed as usize + tokens;
    let row_bytes = (r + p) * cache.tensor.dtype.block_bytes();
    let latent: Vec<Vec<f32>> = (0..end.next_multiple_of(KEYS))
        .map(|position| {
            let at = request.cache_row(position.min(end - 1) as u32) as usize;
            let entry = &table.bytes[4 * (request.table_row as usize * width + at / page)..][..4];
            let slot = u32::from_le_bytes(entry.try_into().unwrap()) as usize * page + at % page;
            let mut values = vec![0.0; r + p];
            quant::dequantize_row(cache.tensor.dtype, &cache.bytes[slot * row_bytes..][..row_bytes], &mut values);
            values
        })
        .collect();
    let rows: Vec<Vec<f64>> = latent.iter().map(|x| x[..r].iter().map(|x| f64::from(*x)).collect()).collect();
    let rope = |x: &Vec<f32>| grouped(&x[r..].iter().map(|x| f64::from(*x)).collect::<Vec<_>>());
    let ropes: Vec<Vec<f64>> = latent.iter().map(rope).collect();
    let (q, gate) = (f32s(&q.bytes), f32s(&gate.bytes));
    let scale = (case.attrs.f[0] * std::f64::consts::LOG2_E) as f32;
    let mut out = vec![0.0; tokens * heads * v];
    for h in 0..heads {
        let own = &weights[h * (n + v) * r..][..(n + v) * r];
        let keys: Vec<Vec<f64>> = product(&rows, &own[..n * r]).iter().map(|k| grouped(k)).collect();
        let values = grouped_down(&product(&rows, &own[n * r..]));
        for t in 0..tokens {
            let at = (first + t) * heads + h;
            let query: Vec<f64> = q[at * (n + p)..][..n + p].iter().map(|x| f64::from(x * scale)).collect();
            let query = grouped(&query);
            let (mut top, mut total, mut sums) = (f64::NEG_INFINITY, 0.0, vec![0.0; v]);
            let seen: Vec<usize> = (0..=request.computed as usize + t).collect();
            for step in seen.chunks(KEYS) {
                let score = |i: &usize| {
                    let key = keys[*i].iter().chain(&ropes[*i]);
                    query.iter().zip(key).map(|(q, k)| q * k).sum::<f64>()
                };
                let scores: Vec<f64> = step.iter().map(score).collect();
                let peak = scores.iter().fold(top, |peak, s| peak.max(*s));
                let keep = (top - peak).exp2();
                top = peak;
                total *= keep;
                sums.iter_mut().for_each(|x| *x *= keep);
                for (i, s) in step.iter().zip(scores) {
                    let weight = ((s - peak + RAISED).exp2()) as f32;
                    total += f64::from(weight);
                    let factor = f64::from(quant::e4m3_to_f32(quant::e4m3_from_f32(weight)));
                    sums.iter_mut().zip(&values[*i]).for_each(|(x, v)| *x += factor * v);
                }
            }
            for (c, x) in sums.iter().enumerate() {
                let opening = 1.0 / (1.0 + (-f64::from(gate[at * v + c])).exp());
                out[(t * heads + h) * v + c] = (x / total * opening) as f32;
            }
        }
    }
    out
}
