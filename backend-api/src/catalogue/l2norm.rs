//! `l2norm`: unit length per head, times a scale.

use super::{Call, Case, ELEMENTWISE, Entry, OpDesc, Part, cases::Gen, input, output};
use crate::{graph::Vary, op::OpKind};

pub(super) const ENTRY: Entry = Entry {
    kind: OpKind::L2Norm,
    version: 1,
    doc: "`y = x / sqrt(Σx² + eps) · scale` over the last dimension D, head by head: eps is added to the sum, not to the mean. \
          `attrs.f[0]` = eps, `attrs.f[1]` = scale. y may alias x.",
    operands: &[input("x [T, …, D]"), output("y [T, …, D]")],
    check,
    reference,
    decompose: None,
    tolerance: ELEMENTWISE,
    cases,
};

fn check(op: &OpDesc) -> Result<(), String> {
    op.count(2)?;
    op.f32(&[0, 1])?;
    op.same_shape(0, 1)?;
    op.require(op.operands[0].rank >= 2, || format!("x is {:?}", op.operands[0].dims()))?;
    op.require(op.attrs.f[0] > 0.0 && op.attrs.f[1] > 0.0, || {
        format!("eps is {}, scale is {}", op.attrs.f[0], op.attrs.f[1])
    })
}

fn reference(call: &Call<'_>, part: Part) {
    let (x, y) = (call.operands[0], call.operands[1]);
    let dim = x.tensor.dims[x.tensor.rank as usize - 1] as usize;
    let mut row = vec![0f32; x.row_len()];
    for t in part.of(x.rows()) {
        x.load_row(t, &mut row);
        row.chunks_exact_mut(dim).for_each(|head| normalise(head, call.attrs.f[0], call.attrs.f[1]));
        y.store(t, 0, &row);
    }
}

/// One head in place; the sum runs in order in f64.
pub(super) fn normalise(head: &mut [f32], eps: f64, scale: f64) {
    let mut sum = 0f64;
    for v in head.iter() {
        sum += f64::from(*v) * f64::from(*v);
    }
    let factor = scale / (sum + eps).sqrt();
    head.iter_mut().for_each(|v| *v = (f64::from(*v) * factor) as f32);
}

fn cases(seed: u64) -> Vec<Case> {
    let mut g = Gen::new(seed);
    let mut out = Vec::new();
    for (t, h, d, size) in
        [(1, 1, 1, 1.0), (3, 4, 32, 1e-3), (5, 2, 128, 1.0), (2, 3, 17, 40.0), (2, 2, 192, 1.0), (2, 2, 130, 1.0)]
    {
        let mut c = g.case(OpKind::L2Norm, format!("T={t} H={h} D={d} size={size}"), t as usize);
        c.attrs.f[0] = 1e-6;
        c.attrs.f[1] = 1.0 / (d as f64).sqrt();
        let x = g.uniform(&[t, h, d]).into_iter().map(|v| v * size).collect();
        c.push(Vary::Tokens, &[t, h, d], x);
        c.push_output(Vary::Tokens, &[t, h, d]);
        out.push(c);
    }
    out
}
