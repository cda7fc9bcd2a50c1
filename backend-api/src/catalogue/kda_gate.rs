//! `kda_gate`: the log decay of Kimi Delta Attention, per head and key channel.
//!
//! Kimi K3 bounds it by a sigmoid, Kimi Linear lets a softplus run: two functions, not one with a clamp.

use super::{
    Call, Case, ELEMENTWISE, Entry, OpDesc, Part, cases::Gen, input, output, rmsnorm::vector, sigmoid::sigmoid,
};
use crate::{
    graph::Vary,
    op::{Attrs, OpKind},
};

pub(super) const ENTRY: Entry = Entry {
    kind: OpKind::KdaGate,
    version: 1,
    doc: "With `z = f + dt_bias` and `a = exp(A_log[h])`, per head: `g = bound · sigmoid(a · z)` if `attrs.i[0]` = 1 (`attrs.f[0]` = bound < 0), \
          else `g = −a · softplus(z)` with softplus(z) = z above 20.",
    operands: &[input("f [T, H, K]"), input("A_log [H]"), input("dt_bias [H · K]"), output("g [T, H, K]")],
    check,
    reference,
    decompose: None,
    tolerance: ELEMENTWISE,
    cases,
};

fn check(op: &OpDesc) -> Result<(), String> {
    op.count(4)?;
    op.f32(&[0, 1, 2, 3])?;
    let [f, a_log, dt_bias, g] = &op.operands[..] else { unreachable!("counted") };
    op.require(f.dims == g.dims && g.rank == 3, || format!("f is {:?}, g is {:?}", f.dims(), g.dims()))?;
    op.require(a_log.dims() == [g.dims[1]] && dt_bias.dims() == [g.dims[1] * g.dims[2]], || {
        format!("g is {:?}, A_log is {:?}, dt_bias is {:?}", g.dims(), a_log.dims(), dt_bias.dims())
    })?;
    let (bounded, bound) = (op.attrs.i[0], op.attrs.f[0]);
    op.require(matches!(bounded, 0 | 1) && (bounded == 0 || bound < 0.0), || {
        format!("attrs.i[0] = {bounded}, bound = {bound}")
    })
}

fn reference(call: &Call<'_>, part: Part) {
    let [f, a_log, dt_bias, g] = call.operands[..] else { unreachable!("checked") };
    let (a_log, dt_bias) = (vector(&a_log), vector(&dt_bias));
    let mut row = vec![0f32; f.row_len()];
    for t in part.of(f.rows()) {
        f.load_row(t, &mut row);
        log_decay(&call.attrs, &a_log, &dt_bias, &mut row);
        g.store(t, 0, &row);
    }
}

/// One token in place.
pub(super) fn log_decay(attrs: &Attrs, a_log: &[f32], dt_bias: &[f32], row: &mut [f32]) {
    let dim = row.len() / a_log.len();
    for ((head, bias), a_log) in row.chunks_exact_mut(dim).zip(dt_bias.chunks_exact(dim)).zip(a_log) {
        let a = libm::exp(f64::from(*a_log));
        for (v, bias) in head.iter_mut().zip(bias) {
            let z = f64::from(*v) + f64::from(*bias);
            let g = if attrs.i[0] == 1 { attrs.f[0] * sigmoid(a * z) } else { -a * softplus(z) };
            *v = g as f32;
        }
    }
}

fn softplus(z: f64) -> f64 {
    if z > 20.0 { z } else { libm::log1p(libm::exp(z)) }
}

fn cases(seed: u64) -> Vec<Case> {
    let mut rng = Gen::new(seed);
    let mut out = Vec::new();
    for (t, h, k, bounded) in [(1, 1, 1, 1), (3, 4, 32, 1), (5, 2, 128, 0), (2, 3, 17, 0)] {
        let mut c = rng.case(OpKind::KdaGate, format!("T={t} H={h} K={k} bounded={bounded}"), t as usize);
        c.attrs.i[0] = bounded;
        c.attrs.f[0] = -5.0;
        // Both tails, and softplus beyond its switch at 20.
        let f = rng.uniform(&[t, h, k]).into_iter().map(|v| v * 30.0).collect();
        c.push(Vary::Tokens, &[t, h, k], f);
        for n in [h, h * k] {
            let x = rng.uniform(&[n]);
            c.push(Vary::Fixed, &[n], x);
        }
        c.push_output(Vary::Tokens, &[t, h, k]);
        out.push(c);
    }
    out
}
