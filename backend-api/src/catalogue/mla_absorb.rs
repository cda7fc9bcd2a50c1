//! `mla_absorb`: fold the key projection of latent attention into the query, so that keys need not be expanded.

use super::{
    Call, Case, Entry, OpDesc, Part, REDUCTION, cases::Gen, input, output, product, recurrent, schema::WEIGHT_DTYPES,
};
use crate::{dtype::DType, graph::Vary, op::OpKind};

pub(super) const ENTRY: Entry = Entry {
    kind: OpKind::MlaAbsorb,
    version: 1,
    doc: "Per head, with q = [q_nope (N) | q_pe (P)] and the head's rows of w being [W_K (N) | W_V (V)]: \
          `y = [q_nope · W_K (R) | q_pe]`, sums over N in order. `attrs.i[0]` = P.",
    operands: &[input("q [T, H, N + P]"), input("w [H · (N + V), R]"), output("y [T, H, R + P]")],
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
    let [q, w, y] = &op.operands[..] else { unreachable!("counted") };
    let rope = op.attrs.i[0];
    let ok = q.rank == 3
        && y.rank == 3
        && w.rank == 2
        && q.dims[..2] == y.dims[..2]
        && u64::try_from(rope).is_ok_and(|p| p < q.dims[2] && y.dims[2] == w.dims[1] + p)
        && w.dims[0] % q.dims[1].max(1) == 0
        && w.dims[0] / q.dims[1].max(1) > q.dims[2] - rope as u64;
    op.require(ok, || format!("q is {:?}, w is {:?}, y is {:?}, P = {rope}", q.dims(), w.dims(), y.dims()))
}

fn reference(call: &Call<'_>, part: Part) {
    let [q, w, y] = call.operands[..] else { unreachable!("checked") };
    let (heads, dim, rank) = (q.tensor.dims[1] as usize, q.tensor.dims[2] as usize, w.row_len());
    let rope = call.attrs.i[0] as usize;
    let (nope, per_head) = (dim - rope, w.rows() / heads);
    for head in part.of(heads) {
        let mut query = vec![vec![0f32; dim]; q.rows()];
        query.iter_mut().enumerate().for_each(|(t, row)| recurrent::load_part(&q, t, head * dim, row));
        let xs: Vec<&[f32]> = query.iter().map(|row| &row[..nope]).collect();
        let mut out = vec![Vec::new(); q.rows()];
        product::columns(rank, nope, |k, row| w.load_row(head * per_head + k, row), &xs, &mut out);
        for (t, (mut row, query)) in out.into_iter().zip(&query).enumerate() {
            row.extend(&query[nope..]);
            y.store(t, head * (rank + rope), &row);
        }
    }
}

fn cases(seed: u64) -> Vec<Case> {
    let mut g = Gen::new(seed);
    let mut out = Vec::new();
    for (dtype, t, h, n, p, v, r) in [
        (DType::F32, 1, 1, 1, 0, 1, 1),
        (DType::BF16, 5, 4, 32, 16, 32, 64),
        (DType::F32, 3, 2, 7, 3, 5, 33),
        // Whole panels of 64 and not, few tokens and many.
        (DType::F32, 2, 2, 64, 16, 16, 64),
        (DType::F32, 18, 1, 64, 16, 16, 64),
        (DType::F32, 18, 2, 7, 3, 5, 33),
        (DType::BF16, 2, 2, 64, 16, 16, 64),
        (DType::BF16, 18, 1, 64, 16, 16, 64),
        (DType::BF16, 18, 2, 7, 3, 5, 33),
    ] {
        let mut c = g.case(OpKind::MlaAbsorb, format!("{dtype} T={t} H={h} N={n} P={p} V={v} R={r}"), t as usize);
        c.attrs.i[0] = p as i64;
        let q = g.uniform(&[t, h, n + p]);
        c.push(Vary::Tokens, &[t, h, n + p], q);
        let w = g.weight(dtype, &[h * (n + v), r]);
        c.push_raw(dtype, Vary::Fixed, &[h * (n + v), r], w);
        c.push_output(Vary::Tokens, &[t, h, r + p]);
        out.push(c);
    }
    out
}
