//! `copy`: bytes from one tensor to another, converting the element format.

use super::{BIT_EXACT, Call, Case, Entry, OpDesc, Part, cases::Gen, input, output, schema::CACHE_DTYPES};
use crate::{dtype::DType, graph::Vary, op::OpKind};

pub(super) const ENTRY: Entry = Entry {
    kind: OpKind::Copy,
    version: 1,
    doc: "`y = x` converted to y's element format (f32, f16, bf16, fp8_e4m3), rounding to nearest even; e4m3 saturates at ±448.",
    operands: &[input("x [T, …]"), output("y [T, …]")],
    check,
    reference,
    decompose: None,
    tolerance: BIT_EXACT,
    cases,
};

fn check(op: &OpDesc) -> Result<(), String> {
    op.count(2)?;
    op.dtype(0, &CACHE_DTYPES)?;
    op.dtype(1, &CACHE_DTYPES)?;
    op.same_shape(0, 1)
}

fn reference(call: &Call<'_>, part: Part) {
    let (x, y) = (call.operands[0], call.operands[1]);
    let mut row = vec![0f32; x.row_len()];
    for t in part.of(x.rows()) {
        x.load_row(t, &mut row);
        y.store(t, 0, &row);
    }
}

fn cases(seed: u64) -> Vec<Case> {
    let mut g = Gen::new(seed);
    let mut out = Vec::new();
    for dtype in CACHE_DTYPES {
        // The last one overflows e4m3, which saturates.
        for (t, d, scale) in [(1, 1, 300.0), (5, 33, 300.0), (2, 40, 1000.0)] {
            let mut c = g.case(OpKind::Copy, format!("f32 to {dtype} T={t} D={d} scale={scale}"), t as usize);
            let x = g.uniform(&[t, d]).into_iter().map(|v| v * scale).collect();
            c.push(Vary::Tokens, &[t, d], x);
            c.push_output_as(dtype, Vary::Tokens, &[t, d]);
            out.push(c);
            let mut c = g.case(OpKind::Copy, format!("{dtype} to f32 T={t} D={d}"), t as usize);
            let x = g.weight(dtype, &[t, d]);
            c.push_raw(dtype, Vary::Tokens, &[t, d], x);
            c.push_output_as(DType::F32, Vary::Tokens, &[t, d]);
            out.push(c);
        }
    }
    out
}
