//! `moe_output`: the way out of a latent mixture of experts: norm of the experts' sum, both products back to the full
//! width, and their addition to the residual stream.
//!
//! The norm's scale is one number per token, so a backend may apply it after the product and do all of this in one launch.
//! It stays one op on the sum over experts: whoever divides experts over ranks exchanges that sum first, and then runs
//! the parts, because the scale needs whole rows and the product a rank's columns.

use super::{Call, Case, Entry, OpDesc, Part, REDUCTION, cases::Gen, input, output, product, rmsnorm};
use crate::{
    dtype::DType,
    graph::{Graph, GraphOp, Ref, Vary},
    op::{Attrs, OpKind},
};

pub(super) const ENTRY: Entry = Entry {
    kind: OpKind::MoeOutput,
    version: 1,
    doc: "`y = (residual +) (rmsnorm(r; norm) · upᵀ + h · downᵀ)` with eps `attrs.f[0]`; `attrs.i[0]` = 1 if a residual operand is present. r is \
          the sum over experts, h what `moe_input` made. Matrices are in any weight format. Decomposes into `rmsnorm`, `gemm`, \
          `add`.",
    operands: &[
        input("r [T, L]"),
        input("norm [L]"),
        input("up [N, L]"),
        input("h [T, S]"),
        input("down [N, S]"),
        input("residual [T, N], optional"),
        output("y [T, N]"),
    ],
    check,
    reference,
    decompose: Some(decompose),
    tolerance: REDUCTION,
    cases,
};

fn check(op: &OpDesc) -> Result<(), String> {
    let residual = op.attrs.i[0] == 1;
    op.require(matches!(op.attrs.i[0], 0 | 1), || format!("attrs.i[0] = {} is not 0 or 1", op.attrs.i[0]))?;
    op.count(6 + usize::from(residual))?;
    let y = op.operands.len() - 1;
    op.f32(&[0, 1, 3, y])?;
    product::check(op, 0, 2, y)?;
    product::check(op, 3, 4, y)?;
    let (r, norm) = (&op.operands[0], &op.operands[1]);
    op.require(norm.dims() == [r.row_len() as u64], || format!("r is {:?}, norm is {:?}", r.dims(), norm.dims()))?;
    if residual {
        op.f32(&[5])?;
        op.same_shape(5, y)?;
    }
    op.require(op.attrs.f[0] >= 0.0, || format!("eps is {}", op.attrs.f[0]))
}

fn reference(call: &Call<'_>, part: Part) {
    let [r, norm, up, h, down, ref rest @ ..] = call.operands[..] else { unreachable!("checked") };
    let y = rest.last().expect("checked");
    let weight = rmsnorm::vector(&norm);
    let tokens = part.of(r.rows());
    let (mut normed, inner) = (product::load(&r, tokens.clone()), product::load(&h, tokens.clone()));
    normed.iter_mut().for_each(|row| rmsnorm::normalise(row, &weight, call.attrs.f[0]));
    let (routed, shared) = (product::matrix(&up, &normed), product::matrix(&down, &inner));
    let plus = |a: f32, b: f32| (f64::from(a) + f64::from(b)) as f32;
    let mut before = vec![0f32; y.row_len()];
    for (t, (routed, shared)) in tokens.zip(routed.iter().zip(&shared)) {
        let mut row: Vec<f32> = routed.iter().zip(shared).map(|(a, b)| plus(*a, *b)).collect();
        if call.attrs.i[0] == 1 {
            rest[0].load_row(t, &mut before);
            row.iter_mut().zip(&before).for_each(|(v, b)| *v = plus(*b, *v));
        }
        y.store(t, 0, &row);
    }
}

fn decompose(op: &GraphOp, graph: &mut Graph) -> Vec<GraphOp> {
    let [r, norm, up, h, down, ref rest @ ..] = op.operands[..] else {
        panic!("{}: moe_output has six or seven operands", op.label)
    };
    let (Ref::Value(latent), [.., y @ Ref::Value(like)]) = (r, rest) else {
        panic!("{}: r and y are values", op.label)
    };
    let (latent, spec) = (graph.values[latent].inner.clone(), graph.values[*like].clone());
    let mut value =
        |part: &str, inner: &[u64]| graph.value(format!("{}.{part}", spec.name), spec.vary, inner, spec.dtype);
    let normed = value("norm", &latent);
    let [routed, shared] = ["routed", "shared"].map(|p| value(p, &spec.inner));
    let mut eps = Attrs::default();
    eps.f[0] = op.attrs.f[0];
    let none = Attrs::default();
    let mut ops = vec![
        op.part(OpKind::RmsNorm, eps, &[r, norm, normed]),
        op.part(OpKind::Gemm, none, &[normed, up, routed]),
        op.part(OpKind::Gemm, none, &[h, down, shared]),
    ];
    match rest {
        [residual, y] => {
            let both = graph.value(format!("{}.both", spec.name), spec.vary, &spec.inner, spec.dtype);
            ops.push(op.part(OpKind::Add, none, &[routed, shared, both]));
            ops.push(op.part(OpKind::Add, none, &[*residual, both, *y]));
        }
        _ => ops.push(op.part(OpKind::Add, none, &[routed, shared, *y])),
    }
    ops
}

fn cases(seed: u64) -> Vec<Case> {
    let mut g = Gen::new(seed);
    let mut out = Vec::new();
    let shapes = [
        (DType::F32, 1, [9, 3, 5], 0, 1e-5, 1.0),
        (DType::BF16, 3, [64, 16, 48], 0, 1e-5, 1.0),
        (DType::Q8_0, 5, [32, 64, 40], 1, 1e-5, 1.0),
        (DType::BF16, 18, [80, 48, 112], 1, 1e-5, 0.003),
        (DType::F32, 33, [128, 64, 80], 1, 0.1, 1.0),
        // Wide enough for factors that are quantised.
        (DType::Q8_0, 5, [288, 160, 144], 0, 1e-5, 1.0),
        (DType::BF16, 18, [160, 288, 176], 1, 1e-5, 0.003),
    ];
    for (dtype, t, [l, s, n], residual, eps, scale) in shapes {
        let name = format!("{dtype} T={t} L={l} S={s} N={n} residual={residual} eps={eps} scale={scale}");
        let mut c = g.case(OpKind::MoeOutput, name, t as usize);
        (c.attrs.i[0], c.attrs.f[0]) = (residual, eps);
        let r = g.uniform(&[t, l]).into_iter().map(|v| v * scale).collect();
        c.push(Vary::Tokens, &[t, l], r);
        let norm = g.uniform(&[l]);
        c.push(Vary::Fixed, &[l], norm);
        let up = g.weight(dtype, &[n, l]);
        c.push_raw(dtype, Vary::Fixed, &[n, l], up);
        let h = g.uniform(&[t, s]);
        c.push(Vary::Tokens, &[t, s], h);
        let down = g.weight(dtype, &[n, s]);
        c.push_raw(dtype, Vary::Fixed, &[n, s], down);
        if residual == 1 {
            let before = g.uniform(&[t, n]);
            c.push(Vary::Tokens, &[t, n], before);
        }
        c.push_output(Vary::Tokens, &[t, n]);
        out.push(c);
    }
    out
}
