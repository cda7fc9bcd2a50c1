//! `add_rmsnorm`: residual addition and the norm that follows it.

use super::{Call, Case, ELEMENTWISE, Entry, OpDesc, Part, cases::Gen, input, output, rmsnorm};
use crate::{
    graph::{Graph, GraphOp, Vary},
    op::{Attrs, OpKind},
};

pub(super) const ENTRY: Entry = Entry {
    kind: OpKind::AddRmsNorm,
    version: 1,
    doc: "`sum = x + residual`, `y = rmsnorm(sum; w)`. `attrs.f[0]` = eps. sum may alias x or residual. Decomposes into `add`, `rmsnorm`.",
    operands: &[input("x [T, D]"), input("residual [T, D]"), input("w [D]"), output("sum [T, D]"), output("y [T, D]")],
    check,
    reference,
    decompose: Some(decompose),
    tolerance: ELEMENTWISE,
    cases,
};

fn check(op: &OpDesc) -> Result<(), String> {
    op.count(5)?;
    op.f32(&[0, 1, 2, 3, 4])?;
    for i in [1, 3, 4] {
        op.same_shape(0, i)?;
    }
    let (x, w) = (&op.operands[0], &op.operands[2]);
    op.require(w.dims() == [x.row_len() as u64], || format!("x is {:?}, w is {:?}", x.dims(), w.dims()))
}

fn reference(call: &Call<'_>, part: Part) {
    let [x, residual, w, sum, y] = call.operands[..] else { unreachable!("checked") };
    let weight = rmsnorm::vector(&w);
    let (mut a, mut b) = (vec![0f32; x.row_len()], vec![0f32; x.row_len()]);
    for t in part.of(x.rows()) {
        x.load_row(t, &mut a);
        residual.load_row(t, &mut b);
        a.iter_mut().zip(&b).for_each(|(a, b)| *a = (f64::from(*a) + f64::from(*b)) as f32);
        sum.store(t, 0, &a);
        rmsnorm::normalise(&mut a, &weight, call.attrs.f[0]);
        y.store(t, 0, &a);
    }
}

fn decompose(op: &GraphOp, _graph: &mut Graph) -> Vec<GraphOp> {
    let [x, residual, w, sum, y] = op.operands[..] else { panic!("{}: add_rmsnorm has five operands", op.label) };
    vec![op.part(OpKind::Add, Attrs::default(), &[x, residual, sum]), op.part(OpKind::RmsNorm, op.attrs, &[sum, w, y])]
}

fn cases(seed: u64) -> Vec<Case> {
    let mut g = Gen::new(seed);
    let mut out = Vec::new();
    for (t, d) in [(1, 1), (3, 17), (5, 576), (33, 64)] {
        let mut c = g.case(OpKind::AddRmsNorm, format!("T={t} D={d}"), t as usize);
        c.attrs.f[0] = 1e-5;
        for shape in [&[t, d][..], &[t, d], &[d]] {
            let values = g.uniform(shape);
            c.push(if shape.len() == 2 { Vary::Tokens } else { Vary::Fixed }, shape, values);
        }
        c.push_output(Vary::Tokens, &[t, d]);
        c.push_output(Vary::Tokens, &[t, d]);
        out.push(c);
    }
    out
}
