//! `moe_input`: everything that a latent mixture of experts makes of its input: router logits, the latent row, and the
//! shared experts' gated product.
//!
//! Four products of one input, so that a backend may walk it once in one launch. It is no more than its parts: both
//! sides of the gate are rounded to f32 before it. The choice of experts stays outside: it needs all logits of a token.

use super::{Call, Case, Entry, OpDesc, Part, REDUCTION, cases::Gen, input, output, product, situ_mul};
use crate::{
    dtype::DType,
    graph::{Graph, GraphOp, Ref, Vary},
    op::{Attrs, OpKind},
};

pub(super) const ENTRY: Entry = Entry {
    kind: OpKind::MoeInput,
    version: 1,
    doc: "`logits = x · routerᵀ`, `z = x · downᵀ`, `h = situ_mul(x · gateᵀ, x · upᵀ)` with betas `attrs.f[0]`, `attrs.f[1]`. Matrices are in \
          any weight format. Decomposes into `gemm`, `situ_mul`.",
    operands: &[
        input("x [T, K]"),
        input("router [E, K]"),
        input("down [L, K]"),
        input("gate [S, K]"),
        input("up [S, K]"),
        output("logits [T, E]"),
        output("z [T, L]"),
        output("h [T, S]"),
    ],
    check,
    reference,
    decompose: Some(decompose),
    tolerance: REDUCTION,
    cases,
};

fn check(op: &OpDesc) -> Result<(), String> {
    op.count(8)?;
    op.f32(&[0, 5, 6, 7])?;
    let x = &op.operands[0];
    for (w, y) in [(1, 5), (2, 6), (3, 7), (4, 7)] {
        product::check(op, 0, w, y)?;
    }
    op.require(x.rank >= 2, || format!("x is {:?}", x.dims()))?;
    situ_mul::betas(op, &op.attrs)
}

fn reference(call: &Call<'_>, part: Part) {
    let [x, router, down, gate, up, logits, z, h] = call.operands[..] else { unreachable!("checked") };
    let tokens = part.of(x.rows());
    let rows = product::load(&x, tokens.clone());
    for (w, y) in [(&router, &logits), (&down, &z)] {
        product::matrix(w, &rows).iter().zip(tokens.clone()).for_each(|(row, t)| y.store(t, 0, row));
    }
    let (gates, ups) = (product::matrix(&gate, &rows), product::matrix(&up, &rows));
    for (t, (gates, ups)) in tokens.zip(gates.iter().zip(&ups)) {
        let act = |(g, u): (&f32, &f32)| situ_mul::situ(&call.attrs, f64::from(*g), f64::from(*u)) as f32;
        let row: Vec<f32> = gates.iter().zip(ups).map(act).collect();
        h.store(t, 0, &row);
    }
}

fn decompose(op: &GraphOp, graph: &mut Graph) -> Vec<GraphOp> {
    let [x, router, down, gate, up, logits, z, h] = op.operands[..] else {
        panic!("{}: moe_input has eight operands", op.label)
    };
    let Ref::Value(like) = h else { panic!("{}: h is a value", op.label) };
    let spec = graph.values[like].clone();
    let [gates, ups] =
        ["gate", "up"].map(|p| graph.value(format!("{}.{p}", spec.name), spec.vary, &spec.inner, spec.dtype));
    let product = |w, y| op.part(OpKind::Gemm, Attrs::default(), &[x, w, y]);
    let mut decides = Attrs::default();
    decides.i[1] = 1;
    vec![
        op.part(OpKind::Gemm, decides, &[x, router, logits]),
        product(down, z),
        product(gate, gates),
        product(up, ups),
        op.part(OpKind::SituMul, op.attrs, &[gates, ups, h]),
    ]
}

fn cases(seed: u64) -> Vec<Case> {
    let mut g = Gen::new(seed);
    let mut out = Vec::new();
    let shapes = [
        (DType::F32, 1, 9, [3, 5, 2], 25.0),
        (DType::BF16, 3, 64, [20, 48, 16], 0.0),
        (DType::Q8_0, 5, 32, [8, 32, 40], 25.0),
        (DType::BF16, 18, 80, [70, 16, 112], 25.0),
        (DType::F32, 33, 128, [64, 128, 64], 4.0),
        // Wide enough for factors that are quantised.
        (DType::Q8_0, 5, 288, [10, 144, 160], 25.0),
        (DType::BF16, 18, 160, [70, 176, 144], 25.0),
    ];
    for (dtype, t, k, [e, l, s], linear) in shapes {
        let name = format!("{dtype} T={t} K={k} E={e} L={l} S={s} linear={linear}");
        let mut c = g.case(OpKind::MoeInput, name, t as usize);
        c.attrs.f[..2].copy_from_slice(&[4.0, linear]);
        let x = g.uniform(&[t, k]);
        c.push(Vary::Tokens, &[t, k], x);
        for n in [e, l, s, s] {
            let w = g.weight(dtype, &[n, k]);
            c.push_raw(dtype, Vary::Fixed, &[n, k], w);
        }
        for n in [e, l, s] {
            c.push_output(Vary::Tokens, &[t, n]);
        }
        out.push(c);
    }
    out
}
