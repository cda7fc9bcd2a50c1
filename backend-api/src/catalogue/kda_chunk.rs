//! `kda_chunk`: the recurrence over chunks of 64 tokens, as matrix products.
//!
//! Chunks end at multiples of 64 of the absolute position, so cutting a prompt on that grid changes nothing. Decay
//! ratios inside a chunk are formed over sub-tiles of 16 tokens, from both sides of the later tile's start: every factor
//! is at most 1, whatever the gate. Rejected: `e^{-G}` over a whole chunk, which overflows f32 after 18 tokens of the
//! bounded gate.

use super::{Call, Entry, Part, RECURRENCE, inout, input, kda_step, output, recurrent};
use crate::{
    graph::{Graph, GraphOp},
    op::OpKind,
};

pub(super) const ENTRY: Entry = Entry {
    kind: OpKind::KdaChunk,
    version: 1,
    doc: "What `kda_step` computes, over chunks of 64 tokens: with G the running sum of g in a chunk and R_ij = e^(G_i − G_j), \
          `M_ij = beta_i · (k_i ⊙ R_ij)·k_j` (i > j), `(I + M)·[U | W] = diag(beta)·[V | K ⊙ e^G]`, `V' = U − W·Sᵀ`, \
          `O = (Q ⊙ e^G)·Sᵀ + A·V'` with `A_ij = (q_i ⊙ R_ij)·k_j` (i ≥ j), `S ← S·diag(e^G_C) + V'ᵀ·(K ⊙ e^(G_C − G))`. Chunks end at \
          multiples of 64 of the position. Decomposes into `kda_step`.",
    operands: &[
        input("q [T, H, K]"),
        input("k [T, H, K]"),
        input("v [T, H, V]"),
        input("g [T, H, K]"),
        input("beta [T, H]"),
        inout("S [slots, H, V, K]"),
        output("o [T, H, V]"),
    ],
    check: kda_step::check,
    reference,
    decompose: Some(decompose),
    tolerance: RECURRENCE,
    cases: |seed| kda_step::cases(OpKind::KdaChunk, seed),
};

const CHUNK: usize = 64;
const TILE: usize = 16;

fn decompose(op: &GraphOp, _graph: &mut Graph) -> Vec<GraphOp> {
    vec![GraphOp { kind: OpKind::KdaStep, ..op.clone() }]
}

fn reference(call: &Call<'_>, part: Part) {
    let (state_view, o) = (call.operands[5], call.operands[6]);
    let (heads, dim) = (o.tensor.dims[1] as usize, o.tensor.dims[2] as usize);
    for head in part.of(heads) {
        for row in call.step.rows {
            let mut state = kda_step::load_state(&state_view, row, head);
            let (mut from, end) = (row.computed as usize, (row.computed + row.query_len) as usize);
            while from < end {
                let to = end.min((from / CHUNK + 1) * CHUNK);
                let first = row.query_start as usize + from - row.computed as usize;
                let inputs = kda_step::HeadInputs::load(call.operands, head, first..first + to - from);
                for (i, out) in chunk(&inputs, &mut state).iter().enumerate() {
                    o.store(first + i, head * dim, out);
                }
                from = to;
            }
            if let Some(slot) = recurrent::write_slot(row) {
                state_view.store(slot, head * state.len(), &state);
            }
        }
    }
}

type Matrix = Vec<Vec<f64>>;

fn widen(rows: &[Vec<f32>]) -> Matrix {
    rows.iter().map(|r| r.iter().map(|v| f64::from(*v)).collect()).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).fold(0.0, |sum, (a, b)| sum + a * b)
}

/// One chunk of at most 64 tokens; returns o and leaves the next state, both rounded once.
fn chunk(inputs: &kda_step::HeadInputs, state: &mut [f32]) -> Vec<Vec<f32>> {
    let (q, k, v) = (widen(&inputs.q), widen(&inputs.k), widen(&inputs.v));
    let (n, keys, values) = (q.len(), k[0].len(), v[0].len());
    let mut total = widen(&inputs.g);
    for i in 1..n {
        let (done, rest) = total.split_at_mut(i);
        rest[0].iter_mut().zip(&done[i - 1]).for_each(|(g, sum)| *g += sum);
    }
    let [m, a] = [&k, &q].map(|left| ratios(left, &k, &total));
    let s: Matrix = state.chunks_exact(keys).map(|r| r.iter().map(|v| f64::from(*v)).collect()).collect();
    // Forward substitution for U and W together, then V' = U − W·Sᵀ.
    let mut solved: Matrix = Vec::with_capacity(n);
    for i in 0..n {
        let beta = f64::from(inputs.beta[i]);
        let decayed = (0..keys).map(|d| k[i][d] * libm::exp(total[i][d]));
        let mut row: Vec<f64> = v[i].iter().copied().chain(decayed).map(|x| beta * x).collect();
        for (j, earlier) in solved.iter().enumerate() {
            row.iter_mut().zip(earlier).for_each(|(x, y)| *x -= beta * m[i][j] * y);
        }
        solved.push(row);
    }
    let fresh: Matrix =
        solved.iter().map(|row| (0..values).map(|x| row[x] - dot(&row[values..], &s[x])).collect()).collect();
    let out = (0..n).map(|i| {
        let decayed: Vec<f64> = (0..keys).map(|d| q[i][d] * libm::exp(total[i][d])).collect();
        let own = |x: usize| (0..=i).fold(0.0, |sum, j| sum + a[i][j] * fresh[j][x]);
        (0..values).map(|x| (dot(&decayed, &s[x]) + own(x)) as f32).collect()
    });
    let out = out.collect();
    let last = &total[n - 1];
    for (x, row) in state.chunks_exact_mut(keys).enumerate() {
        for (d, value) in row.iter_mut().enumerate() {
            let mut sum = s[x][d] * libm::exp(last[d]);
            for j in 0..n {
                sum += fresh[j][x] * k[j][d] * libm::exp(last[d] - total[j][d]);
            }
            *value = sum as f32;
        }
    }
    out
}

/// `out[i][j] = Σ_d left_i[d] · k_j[d] · e^(G_i[d] − G_j[d])` for i ≥ j, tile by tile.
fn ratios(left: &Matrix, k: &Matrix, total: &Matrix) -> Matrix {
    let n = left.len();
    let mut out = vec![vec![0f64; n]; n];
    for start in (0..n).step_by(TILE) {
        // Decays re-based on the token before this tile.
        let base = |d: usize| if start == 0 { 0.0 } else { total[start - 1][d] };
        let scaled = |x: &[f64], exponent: &dyn Fn(usize) -> f64| -> Vec<f64> {
            x.iter().enumerate().map(|(d, x)| x * libm::exp(exponent(d))).collect()
        };
        let before: Matrix = (0..start).map(|j| scaled(&k[j], &|d| base(d) - total[j][d])).collect();
        for i in start..n.min(start + TILE) {
            let own = scaled(&left[i], &|d| total[i][d] - base(d));
            for (j, key) in before.iter().enumerate() {
                out[i][j] = dot(&own, key);
            }
            for j in start..=i {
                out[i][j] = dot(&scaled(&left[i], &|d| total[i][d] - total[j][d]), &k[j]);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::entry;
    use crate::op::OpKind;

    /// Chunked and token by token are one function: outputs and states within 1e-5 of each other.
    #[test]
    fn chunks_agree_with_the_recurrence() {
        let floats = |b: &[u8]| -> Vec<f32> { b.as_chunks().0.iter().map(|b| f32::from_ne_bytes(*b)).collect() };
        for mut case in (entry(OpKind::KdaChunk).cases)(3) {
            let chunked = case.run_reference(1);
            case.kind = OpKind::KdaStep;
            let stepped = case.run_reference(1);
            for operand in [5, 6] {
                let pairs = floats(&chunked[operand]).into_iter().zip(floats(&stepped[operand]));
                let worst = pairs.fold(0f32, |m, (a, b)| m.max((a - b).abs()));
                assert!(worst <= 1e-5, "{} operand {operand}: {worst}", case.name);
            }
        }
    }
}
