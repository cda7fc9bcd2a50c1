//! `mla_value`: the value projection of latent attention, applied after the weighted sum.

use super::{
    Call, Case, Entry, OpDesc, Part, REDUCTION, cases::Gen, input, output, product, recurrent, schema::WEIGHT_DTYPES,
};
use crate::{dtype::DType, graph::Vary, op::OpKind};

pub(super) const ENTRY: Entry = Entry {
    kind: OpKind::MlaValue,
    version: 1,
    doc: "Per head, with the head's rows of w being [W_K (N) | W_V (V)]: `y[v] = Σ_r x[r] · W_V[v, r]`.",
    operands: &[input("x [T, H, R]"), input("w [H · (N + V), R]"), output("y [T, H, V]")],
    check,
    reference,
    decompose: None,
    tolerance: REDUCTION,
    cases,
};

fn check(op: &OpDesc) -> Result<(), String> {
    op.count(3)?;
    op.f32(&[0, 2])?;
    op.dtype(1, &WEIGHT_DTYPES)?;
    let [x, w, y] = &op.operands[..] else { unreachable!("counted") };
    let ok = x.rank == 3
        && y.rank == 3
        && w.rank == 2
        && x.dims[..2] == y.dims[..2]
        && x.dims[2] == w.dims[1]
        && w.dims[0] % x.dims[1].max(1) == 0
        && w.dims[0] / x.dims[1].max(1) > y.dims[2];
    op.require(ok, || format!("x is {:?}, w is {:?}, y is {:?}", x.dims(), w.dims(), y.dims()))
}

fn reference(call: &Call<'_>, part: Part) {
    let [x, w, y] = call.operands[..] else { unreachable!("checked") };
    let (heads, rank, dim) = (x.tensor.dims[1] as usize, w.row_len(), y.tensor.dims[2] as usize);
    let per_head = w.rows() / heads;
    for head in part.of(heads) {
        let mut latent = vec![vec![0f32; rank]; x.rows()];
        latent.iter_mut().enumerate().for_each(|(t, row)| recurrent::load_part(&x, t, head * rank, row));
        let xs: Vec<&[f32]> = latent.iter().map(|row| &row[..]).collect();
        let mut out = vec![Vec::new(); x.rows()];
        let first = (head + 1) * per_head - dim;
        product::rows(dim, rank, |n, row| w.load_row(first + n, row), &xs, &mut out);
        out.iter().enumerate().for_each(|(t, row)| y.store(t, head * dim, row));
    }
}

fn cases(seed: u64) -> Vec<Case> {
    let mut g = Gen::new(seed);
    let mut out = Vec::new();
    for (dtype, t, h, n, v, r) in [
        (DType::F32, 1, 1, 1, 1, 1),
        (DType::BF16, 5, 4, 32, 32, 64),
        (DType::F32, 3, 2, 7, 5, 33),
        // Whole panels of 64 and not, few tokens and many.
        (DType::F32, 2, 2, 16, 64, 64),
        (DType::F32, 18, 1, 16, 64, 64),
        (DType::F32, 18, 2, 7, 5, 33),
        (DType::BF16, 2, 2, 16, 64, 64),
        (DType::BF16, 18, 1, 16, 64, 64),
        (DType::BF16, 18, 2, 7, 5, 33),
    ] {
        let mut c = g.case(OpKind::MlaValue, format!("{dtype} T={t} H={h} N={n} V={v} R={r}"), t as usize);
        let x = g.uniform(&[t, h, r]);
        c.push(Vary::Tokens, &[t, h, r], x);
        let w = g.weight(dtype, &[h * (n + v), r]);
        c.push_raw(dtype, Vary::Fixed, &[h * (n + v), r], w);
        c.push_output(Vary::Tokens, &[t, h, v]);
        out.push(c);
    }
    out
}
