//! `rmsnorm`: root-mean-square normalisation of the last dimension.

use super::{Call, Case, ELEMENTWISE, Entry, OpDesc, Part, cases::Gen, input, output};
use crate::{graph::Vary, op::OpKind, tensor::View};

pub(super) const ENTRY: Entry = Entry {
    kind: OpKind::RmsNorm,
    version: 1,
    doc: "`y = x / sqrt(mean(x²) + eps) · w` over the last dimension D; leading inner dimensions (heads) are normalised one by one. \
          `attrs.f[0]` = eps.",
    operands: &[input("x [T, …, D]"), input("w [D]"), output("y [T, …, D]")],
    check,
    reference,
    decompose: None,
    tolerance: ELEMENTWISE,
    cases,
};

fn check(op: &OpDesc) -> Result<(), String> {
    op.count(3)?;
    op.f32(&[0, 1, 2])?;
    op.same_shape(0, 2)?;
    let (x, w) = (&op.operands[0], &op.operands[1]);
    op.require(x.rank >= 2 && w.dims() == [x.dims[x.rank as usize - 1]], || {
        format!("x is {:?}, w is {:?}", x.dims(), w.dims())
    })?;
    op.require(op.attrs.f[0] >= 0.0, || format!("eps is {}", op.attrs.f[0]))
}

fn reference(call: &Call<'_>, part: Part) {
    let (x, w, y) = (call.operands[0], call.operands[1], call.operands[2]);
    let weight = vector(&w);
    let mut row = vec![0f32; x.row_len()];
    for t in part.of(x.rows()) {
        x.load_row(t, &mut row);
        normalise(&mut row, &weight, call.attrs.f[0]);
        y.store(t, 0, &row);
    }
}

/// Values of a one-dimensional f32 operand.
pub(super) fn vector(view: &View) -> Vec<f32> {
    (0..view.rows()).map(|i| f32::from_ne_bytes(view.row_bytes(i).try_into().expect("f32"))).collect()
}

/// Normalise each group of `weight.len()` values in place: sums in order in f64, one rounding per element.
pub(super) fn normalise(row: &mut [f32], weight: &[f32], eps: f64) {
    for group in row.chunks_exact_mut(weight.len()) {
        let mut sum = 0f64;
        for v in group.iter() {
            sum += f64::from(*v) * f64::from(*v);
        }
        let scale = 1.0 / (sum / weight.len() as f64 + eps).sqrt();
        for (v, w) in group.iter_mut().zip(weight) {
            *v = (f64::from(*v) * scale * f64::from(*w)) as f32;
        }
    }
}

fn cases(seed: u64) -> Vec<Case> {
    let mut g = Gen::new(seed);
    let mut out = Vec::new();
    for (t, h, d, eps) in [
        (1, 1, 1, 1e-5),
        (3, 1, 17, 1e-6),
        (5, 4, 64, 1e-5),
        (2, 1, 576, 1e-5),
        (7, 3, 33, 0.1),
        (1, 1, 4096, 1e-6),
        (2, 1, 577, 1e-5),
    ] {
        let mut c = g.case(OpKind::RmsNorm, format!("T={t} H={h} D={d} eps={eps}"), t as usize);
        c.attrs.f[0] = eps;
        let x = g.uniform(&[t, h, d]);
        c.push(Vary::Tokens, &[t, h, d], x);
        let w = g.uniform(&[d]);
        c.push(Vary::Fixed, &[d], w);
        c.push_output(Vary::Tokens, &[t, h, d]);
        out.push(c);
    }
    out
}
