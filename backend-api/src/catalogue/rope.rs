//! `rope`: rotary position embedding with a table of inverse frequencies.
//!
//! All scaling schemes (linear, llama3, YaRN) are a table and a factor made at load, so the op has no modes for them.

use super::{Call, Case, ELEMENTWISE, Entry, OpDesc, Part, cases::Gen, input, output, rmsnorm::vector};
use crate::{
    graph::Vary,
    op::{OpKind, ROPE_HALVES, ROPE_PAIRS},
};

pub(super) const ENTRY: Entry = Entry {
    kind: OpKind::Rope,
    version: 1,
    doc: "Rotates the first R dimensions of each head by `angle[i] = position · inv_freq[i]`, R = 2·len(inv_freq); the rest passes \
          through. `attrs.i[0]`: 0 rotates (i, i + R/2), 1 rotates (2i, 2i + 1). `attrs.f[0]`: factor on cos and sin, 0 means 1. \
          y may alias x.",
    operands: &[input("x [T, H, D]"), input("inv_freq [R/2]"), output("y [T, H, D]")],
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
    let (x, f) = (&op.operands[0], &op.operands[1]);
    op.require(x.rank == 3 && f.rank == 1 && 2 * f.dims[0] <= x.dims[2], || {
        format!("x is {:?}, inv_freq is {:?}", x.dims(), f.dims())
    })?;
    op.require(matches!(op.attrs.i[0], ROPE_HALVES | ROPE_PAIRS), || format!("unknown style {}", op.attrs.i[0]))
}

fn reference(call: &Call<'_>, part: Part) {
    let (x, y) = (call.operands[0], call.operands[2]);
    let inv_freq = vector(&call.operands[1]);
    let factor = if call.attrs.f[0] == 0.0 { 1.0 } else { call.attrs.f[0] };
    let (half, head_dim) = (inv_freq.len(), x.tensor.dims[2] as usize);
    let mut row = vec![0f32; x.row_len()];
    for t in part.of(x.rows()) {
        let position = f64::from(call.step.tokens[t].position);
        x.load_row(t, &mut row);
        for head in row.chunks_exact_mut(head_dim) {
            for (i, f) in inv_freq.iter().enumerate() {
                let angle = position * f64::from(*f);
                let (sin, cos) = (libm::sin(angle) * factor, libm::cos(angle) * factor);
                let (a, b) = if call.attrs.i[0] == ROPE_PAIRS { (2 * i, 2 * i + 1) } else { (i, i + half) };
                let (p, q) = (f64::from(head[a]), f64::from(head[b]));
                head[a] = (p * cos - q * sin) as f32;
                head[b] = (q * cos + p * sin) as f32;
            }
        }
        y.store(t, 0, &row);
    }
}

fn cases(seed: u64) -> Vec<Case> {
    let mut g = Gen::new(seed);
    let mut out = Vec::new();
    for (t, h, d, r, start) in
        [(1, 1, 2, 2, 0), (5, 3, 64, 64, 0), (3, 9, 64, 64, 8000), (4, 2, 80, 32, 130), (2, 1, 128, 128, 100_000)]
    {
        for style in [ROPE_HALVES, ROPE_PAIRS] {
            let mut c = g.case_at(
                OpKind::Rope,
                format!("T={t} H={h} D={d} R={r} from {start} style {style}"),
                t as usize,
                start,
            );
            c.attrs.i[0] = style;
            c.attrs.f[0] = if d == 80 { 1.25 } else { 0.0 };
            let x = g.uniform(&[t, h, d]);
            c.push(Vary::Tokens, &[t, h, d], x);
            let f = (0..r / 2).map(|i| 10000f32.powf(-2.0 * i as f32 / r as f32)).collect();
            c.push(Vary::Fixed, &[r / 2], f);
            c.push_output(Vary::Tokens, &[t, h, d]);
            out.push(c);
        }
    }
    out
}
