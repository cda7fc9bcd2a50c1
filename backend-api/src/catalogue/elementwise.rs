//! What the elementwise ops share: rows in, a function in f64, one rounding, rows out.

use super::{Call, Case, OpDesc, Part, cases::Gen};
use crate::{graph::Vary, op::OpKind};

/// All operands f32 and of one shape.
pub(super) fn check(op: &OpDesc, n: usize) -> Result<(), String> {
    op.count(n)?;
    for i in 0..n {
        op.f32(&[i])?;
        op.same_shape(0, i)?;
    }
    Ok(())
}

/// `y = f(x)`.
pub(super) fn unary(call: &Call<'_>, part: Part, f: impl Fn(f64) -> f64) {
    let (x, y) = (call.operands[0], call.operands[1]);
    let mut row = vec![0f32; x.row_len()];
    for t in part.of(x.rows()) {
        x.load_row(t, &mut row);
        row.iter_mut().for_each(|v| *v = f(f64::from(*v)) as f32);
        y.store(t, 0, &row);
    }
}

/// `y = f(a, b)`.
pub(super) fn binary(call: &Call<'_>, part: Part, f: impl Fn(f64, f64) -> f64) {
    let (a, b, y) = (call.operands[0], call.operands[1], call.operands[2]);
    let (mut left, mut right) = (vec![0f32; a.row_len()], vec![0f32; a.row_len()]);
    for t in part.of(a.rows()) {
        a.load_row(t, &mut left);
        b.load_row(t, &mut right);
        left.iter_mut().zip(&right).for_each(|(x, y)| *x = f(f64::from(*x), f64::from(*y)) as f32);
        y.store(t, 0, &left);
    }
}

/// `x / (1 + e^-x)`, finite for every finite x.
pub(super) fn silu(x: f64) -> f64 {
    x / (1.0 + libm::exp(-x))
}

/// `inputs` operands of ragged shapes, large values included.
pub(super) fn cases(kind: OpKind, inputs: usize, seed: u64) -> Vec<Case> {
    let mut g = Gen::new(seed);
    let mut out = Vec::new();
    for (t, d, scale) in [(1, 1, 1.0), (3, 17, 4.0), (2, 1536, 1.0), (9, 64, 90.0), (33, 5, 1e-3)] {
        let mut c = g.case(kind, format!("T={t} D={d} scale={scale}"), t as usize);
        for _ in 0..inputs {
            let x = g.uniform(&[t, d]).into_iter().map(|v| v * scale).collect();
            c.push(Vary::Tokens, &[t, d], x);
        }
        c.push_output(Vary::Tokens, &[t, d]);
        out.push(c);
    }
    out
}
