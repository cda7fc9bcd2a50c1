//! `kda_step`: Kimi Delta Attention, token by token: the meaning of every other form of it.
//!
//! The state is V-major, so both dot products of a token run along contiguous keys. It is rounded to f32 after every
//! token, not after every step: otherwise where a prompt is cut would change the result.

use super::{Call, Case, Entry, OpDesc, Part, RECURRENCE, cases::Gen, inout, input, output, recurrent};
use crate::{dtype::DType, graph::Vary, op::OpKind, tensor::View};

pub(super) const ENTRY: Entry = Entry {
    kind: OpKind::KdaStep,
    version: 1,
    doc: "Per request and head, tokens in order, with S[v][k] in f32: `S ← S · diag(e^g)`; `u = beta · (v − S·k)`; `S ← S + u ⊗ k`; \
          `o = S·q` with the updated S. S is read from slot `state_read` (zeros if the request has nothing computed) and written to \
          `state_write`.",
    operands: &[
        input("q [T, H, K]"),
        input("k [T, H, K]"),
        input("v [T, H, V]"),
        input("g [T, H, K]"),
        input("beta [T, H]"),
        inout("S [slots, H, V, K]"),
        output("o [T, H, V]"),
    ],
    check,
    reference: |call, part| reference(call, part, true),
    decompose: None,
    tolerance: RECURRENCE,
    cases: |seed| cases(OpKind::KdaStep, seed),
};

pub(super) fn check(op: &OpDesc) -> Result<(), String> {
    op.count(7)?;
    op.f32(&[0, 1, 2, 3, 4, 5, 6])?;
    op.same_shape(0, 1)?;
    op.same_shape(0, 3)?;
    op.same_shape(2, 6)?;
    let [q, _, v, _, beta, state, _] = &op.operands[..] else { unreachable!("counted") };
    let ok = q.rank == 3
        && v.rank == 3
        && state.rank == 4
        && state.dims[1..] == [q.dims[1], v.dims[2], q.dims[2]]
        && v.dims[1] == q.dims[1]
        && beta.row_len() as u64 == q.dims[1];
    op.require(ok, || {
        format!("q is {:?}, v is {:?}, beta is {:?}, S is {:?}", q.dims(), v.dims(), beta.dims(), state.dims())
    })
}

/// One head of one token in place; `o` gets `o.len()` = V values.
pub(super) fn step_head(state: &mut [f32], q: &[f32], k: &[f32], v: &[f32], g: &[f32], beta: f32, o: &mut [f32]) {
    let decay: Vec<f64> = g.iter().map(|g| libm::exp(f64::from(*g))).collect();
    for ((row, v), o) in state.chunks_exact_mut(k.len()).zip(v).zip(o) {
        let mut predicted = 0f64;
        for ((s, a), k) in row.iter().zip(&decay).zip(k) {
            predicted += f64::from(*s) * a * f64::from(*k);
        }
        let change = f64::from(beta) * (f64::from(*v) - predicted);
        let mut out = 0f64;
        for (((s, a), k), q) in row.iter_mut().zip(&decay).zip(k).zip(q) {
            *s = (f64::from(*s) * a + change * f64::from(*k)) as f32;
            out += f64::from(*s) * f64::from(*q);
        }
        *o = out as f32;
    }
}

/// The inputs of one head over a request's tokens.
pub(super) struct HeadInputs {
    /// Each `[tokens][K or V]`.
    pub(super) q: Vec<Vec<f32>>,
    pub(super) k: Vec<Vec<f32>>,
    pub(super) v: Vec<Vec<f32>>,
    pub(super) g: Vec<Vec<f32>>,
    pub(super) beta: Vec<f32>,
}

impl HeadInputs {
    pub(super) fn load(operands: &[View], head: usize, tokens: std::ops::Range<usize>) -> Self {
        let rows = |view: &View| -> Vec<Vec<f32>> {
            let dim = view.tensor.dims[2] as usize;
            let load = |t| {
                let mut out = vec![0f32; dim];
                recurrent::load_part(view, t, head * dim, &mut out);
                out
            };
            tokens.clone().map(load).collect()
        };
        let beta = tokens.clone().map(|t| {
            let mut out = [0f32];
            recurrent::load_part(&operands[4], t, head, &mut out);
            out[0]
        });
        let beta = beta.collect();
        Self { q: rows(&operands[0]), k: rows(&operands[1]), v: rows(&operands[2]), g: rows(&operands[3]), beta }
    }

    /// `kda_step` over all tokens; `o[token]` gets V values.
    pub(super) fn step(&self, state: &mut [f32], mut o: impl FnMut(usize, &[f32])) {
        for (t, v) in self.v.iter().enumerate() {
            let mut out = vec![0f32; v.len()];
            step_head(state, &self.q[t], &self.k[t], v, &self.g[t], self.beta[t], &mut out);
            o(t, &out);
        }
    }
}

/// The state of one head at the start of a request's step.
pub(super) fn load_state(view: &View, row: &crate::abi::ts_step_row, head: usize) -> Vec<f32> {
    let mut state = vec![0f32; (view.tensor.dims[2] * view.tensor.dims[3]) as usize];
    if let Some(slot) = recurrent::read_slot(row) {
        recurrent::load_part(view, slot, head * state.len(), &mut state);
    }
    state
}

/// Shared by the forms that go token by token; heads are the shares.
pub(super) fn reference(call: &Call<'_>, part: Part, keep: bool) {
    let (state_view, o) = (call.operands[5], call.operands[6]);
    let (heads, dim) = (o.tensor.dims[1] as usize, o.tensor.dims[2] as usize);
    for head in part.of(heads) {
        for row in call.step.rows {
            let inputs = HeadInputs::load(call.operands, head, recurrent::tokens(row));
            let mut state = load_state(&state_view, row, head);
            inputs.step(&mut state, |t, out| o.store(row.query_start as usize + t, head * dim, out));
            if keep && let Some(slot) = recurrent::write_slot(row) {
                state_view.store(slot, head * state.len(), &state);
            }
        }
    }
}

pub(super) fn cases(kind: OpKind, seed: u64) -> Vec<Case> {
    let mut rng = Gen::new(seed);
    let mut out = Vec::new();
    let shapes = [(1, 1, 1), (3, 17, 5), (2, 32, 32), (1, 128, 128)];
    // The last one: longer than 32, and no whole vectors.
    for (spans, (h, k, v)) in recurrent::SPANS.into_iter().zip(shapes).chain([(recurrent::SPANS[2], (1, 42, 35))]) {
        let (mut c, slots) = recurrent::case(&mut rng, kind, format!("H={h} K={k} V={v} {spans:?}"), spans);
        let t = c.step.tokens.len() as u64;
        // Unit-length q (scaled) and k, as `l2norm` gives them.
        let unit = (3.0 / k as f32).sqrt();
        for scale in [unit / (k as f32).sqrt(), unit] {
            let x = rng.uniform(&[t, h, k]).into_iter().map(|x| x * scale).collect();
            c.push(Vary::Tokens, &[t, h, k], x);
        }
        let x = rng.uniform(&[t, h, v]);
        c.push(Vary::Tokens, &[t, h, v], x);
        // The whole range of the bounded gate, mostly near zero.
        let g = rng.uniform(&[t, h, k]).into_iter().map(|x| -5.0 * x.abs().powi(4)).collect();
        c.push(Vary::Tokens, &[t, h, k], g);
        let beta = rng.uniform(&[t, h]).into_iter().map(|x| 0.5 + 0.5 * x).collect();
        c.push(Vary::Tokens, &[t, h], beta);
        let state = rng.weight(DType::F32, &[slots, h, v, k]);
        if kind == OpKind::KdaVerify {
            c.push_raw(DType::F32, Vary::Fixed, &[slots, h, v, k], state);
        } else {
            c.push_inout(DType::F32, Vary::Fixed, &[slots, h, v, k], state);
        }
        c.push_output(Vary::Tokens, &[t, h, v]);
        out.push(c);
    }
    out
}
