//! `kda_mix`: a layer of Kimi Delta Attention between its input projections and its output projection.
//!
//! One op, so that a backend may keep a head's state in registers from the convolution to the gated norm. It is no more
//! than its parts: every value between them is rounded to f32 where theirs is. The projections stay outside: they are
//! products like any other, and run over all tokens at once.

use super::{Call, Case, Entry, OpDesc, Part, RECURRENCE, cases::Gen, gated_rmsnorm, inout, input, kda_gate, kda_step};
use super::{l2norm, output, recurrent, rmsnorm, schema::CACHE_DTYPES, short_conv, sigmoid};
use crate::{
    dtype::DType,
    graph::{Graph, GraphOp, Ref, Vary},
    op::{Attrs, OpKind},
};

pub(super) const ENTRY: Entry = Entry {
    kind: OpKind::KdaMix,
    version: 1,
    doc: "`short_conv` of q, k, v; `l2norm` of q (times `attrs.f[2]`) and k with eps `attrs.f[1]`; `kda_gate` of f (`attrs.i[0]`, `attrs.f[0]` as \
          there); `kda_step` with beta = sigmoid(b); `y = gated_rmsnorm(o, gate; norm)` with eps `attrs.f[3]`. `attrs.i[1]` = 1: window and S \
          are left as they were, as by `kda_verify`. Decomposes into `short_conv`, `l2norm`, `kda_gate`, `sigmoid`, `kda_chunk` or \
          `kda_verify`, `gated_rmsnorm`.",
    operands: &[
        input("q [T, C], before the convolution"),
        input("k [T, C]"),
        input("v [T, C]"),
        input("f [T, H, D], behind the second gate projection"),
        input("b [T, H], before the sigmoid"),
        input("gate [T, C], before the sigmoid"),
        input("wq [C, W]"),
        input("wk [C, W]"),
        input("wv [C, W]"),
        input("A_log [H]"),
        input("dt_bias [C]"),
        input("norm [C / H]"),
        inout("window [slots, W − 1, 3C]"),
        inout("S [slots, H, C / H, C / H]"),
        output("y [T, H, C / H]"),
    ],
    check,
    reference,
    decompose: Some(decompose),
    tolerance: RECURRENCE,
    cases,
};

fn check(op: &OpDesc) -> Result<(), String> {
    op.count(15)?;
    op.f32(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 14])?;
    op.dtype(12, &CACHE_DTYPES[..3])?;
    for i in [1, 2, 3, 5, 14] {
        op.same_shape(0, i)?;
    }
    let [q, .., window, state, y] = &op.operands[..] else { unreachable!("counted") };
    let (b, wq, a_log, dt_bias, norm) =
        (&op.operands[4], &op.operands[6], &op.operands[9], &op.operands[10], &op.operands[11]);
    let (channels, heads, taps) = (q.row_len() as u64, a_log.dims[0], wq.dims[1]);
    let dim = channels / heads.max(1);
    op.require(op.operands[6..9].iter().all(|w| w.dims() == [channels, taps]) && taps >= 2, || {
        format!("q is {:?}, wq is {:?}, wk is {:?}", q.dims(), wq.dims(), op.operands[7].dims())
    })?;
    let ok = dim * heads == channels
        && y.rank == 3
        && y.dims[1..3] == [heads, dim]
        && b.row_len() as u64 == heads
        && dt_bias.dims() == [channels]
        && norm.dims() == [dim]
        && window.rank == 3
        && window.dims[1..3] == [taps - 1, 3 * channels]
        && state.rank == 4
        && state.dims[1..] == [heads, dim, dim];
    op.require(ok, || {
        format!(
            "y is {:?}, b is {:?}, A_log is {:?}, dt_bias is {:?}, norm is {:?}, window is {:?}, S is {:?}",
            y.dims(),
            b.dims(),
            a_log.dims(),
            dt_bias.dims(),
            norm.dims(),
            window.dims(),
            state.dims()
        )
    })?;
    let [bound, eps, scale, norm_eps] = [op.attrs.f[0], op.attrs.f[1], op.attrs.f[2], op.attrs.f[3]];
    let gate = op.attrs.i[0] == 0 || op.attrs.i[0] == 1 && bound < 0.0;
    op.require(gate && matches!(op.attrs.i[1], 0 | 1) && eps > 0.0 && scale > 0.0 && norm_eps >= 0.0, || {
        format!("attrs.i is {:?}, bound is {bound}, eps are {eps} and {norm_eps}, scale is {scale}", &op.attrs.i[..2])
    })
}

fn reference(call: &Call<'_>, part: Part) {
    let operand = |i: usize| call.operands[i];
    let (f, b, gate, window, state_view, y) =
        (operand(3), operand(4), operand(5), operand(12), operand(13), operand(14));
    let (a_log, dt_bias, norm) =
        (rmsnorm::vector(&operand(9)), rmsnorm::vector(&operand(10)), rmsnorm::vector(&operand(11)));
    let (heads, dim, frozen) = (a_log.len(), norm.len(), call.attrs.i[1] == 1);
    let channels = heads * dim;
    for head in part.of(heads) {
        let mine = head * dim..(head + 1) * dim;
        let taps: Vec<_> = (6..9).map(|i| short_conv::Taps::load(&operand(i), mine.clone())).collect();
        for row in call.step.rows {
            let tokens = recurrent::tokens(row);
            let part_of = |x: &crate::tensor::View, t: usize, first: usize, n: usize| {
                let mut out = vec![0f32; n];
                recurrent::load_part(x, t, first, &mut out);
                out
            };
            let [mut q, mut k, v] = [0, 1, 2].map(|stream| {
                let first = stream * channels + mine.start;
                let mut conv = short_conv::Conv::new(taps[stream].taps, dim);
                conv.start(&window, row, first);
                let push = |t| {
                    let mut out = vec![0f32; dim];
                    conv.push(part_of(&operand(stream), t, mine.start, dim), &taps[stream], &mut out);
                    out
                };
                let rows: Vec<Vec<f32>> = tokens.clone().map(push).collect();
                if !frozen {
                    conv.keep(&window, row, first);
                }
                rows
            });
            q.iter_mut().for_each(|q| l2norm::normalise(q, call.attrs.f[1], call.attrs.f[2]));
            k.iter_mut().for_each(|k| l2norm::normalise(k, call.attrs.f[1], 1.0));
            let decay = |t| {
                let mut g = part_of(&f, t, mine.start, dim);
                kda_gate::log_decay(&call.attrs, &a_log[head..=head], &dt_bias[mine.clone()], &mut g);
                g
            };
            let beta = |t| sigmoid::sigmoid(f64::from(part_of(&b, t, head, 1)[0])) as f32;
            let (g, beta) = (tokens.clone().map(decay).collect(), tokens.clone().map(beta).collect());
            let inputs = kda_step::HeadInputs { q, k, v, g, beta };
            let mut state = kda_step::load_state(&state_view, row, head);
            inputs.step(&mut state, |i, o| {
                let t = tokens.start + i;
                let mut out = o.to_vec();
                gated_rmsnorm::gate_heads(&mut out, &part_of(&gate, t, mine.start, dim), &norm, call.attrs.f[3]);
                y.store(t, mine.start, &out);
            });
            if !frozen && let Some(slot) = recurrent::write_slot(row) {
                state_view.store(slot, head * state.len(), &state);
            }
        }
    }
}

fn decompose(op: &GraphOp, graph: &mut Graph) -> Vec<GraphOp> {
    let [q, k, v, f, b, gate, wq, wk, wv, a_log, dt_bias, norm, window, state, y] = op.operands[..] else {
        panic!("{}: kda_mix has fifteen operands", op.label)
    };
    let Ref::Value(like) = y else { panic!("{}: y is a value", op.label) };
    let spec = graph.values[like].clone();
    let mut value =
        |part: &str, inner: &[u64]| graph.value(format!("{}.{part}", spec.name), spec.vary, inner, spec.dtype);
    let [yq, yk, yv, uq, uk, g, o] =
        ["q_conv", "k_conv", "v_conv", "q_norm", "k_norm", "decay", "o"].map(|p| value(p, &spec.inner));
    let beta = value("beta", &spec.inner[..1]);
    let (i, c) = (op.attrs.i, op.attrs.f);
    let part = |kind, i: i64, f: &[f64], operands: &[Ref]| {
        let mut attrs = Attrs::default();
        attrs.i[0] = i;
        attrs.f[..f.len()].copy_from_slice(f);
        op.part(kind, attrs, operands)
    };
    // Whoever has no form for chunks takes `kda_step` in its place, with the bits of this op's reference.
    let recurrence = if i[1] == 1 { OpKind::KdaVerify } else { OpKind::KdaChunk };
    vec![
        part(OpKind::ShortConv, i[1], &[], &[q, k, v, wq, wk, wv, window, yq, yk, yv]),
        part(OpKind::L2Norm, 0, &[c[1], c[2]], &[yq, uq]),
        part(OpKind::L2Norm, 0, &[c[1], 1.0], &[yk, uk]),
        part(OpKind::KdaGate, i[0], &[c[0]], &[f, a_log, dt_bias, g]),
        part(OpKind::Sigmoid, 0, &[], &[b, beta]),
        part(recurrence, 0, &[], &[uq, uk, yv, g, beta, state, o]),
        part(OpKind::GatedRmsNorm, 0, &[c[3]], &[o, gate, norm, y]),
    ]
}

fn cases(seed: u64) -> Vec<Case> {
    let mut g = Gen::new(seed);
    let mut out = Vec::new();
    let spans: [&[(u32, usize)]; 3] =
        [&[(0, 2), (7, 1), (3, 4)], &[(0, 1), (5, 1), (9, 1), (2, 1)], &[(60, 70), (4, 1)]];
    for (spans, (dtype, h, d, w, bounded, frozen)) in
        spans.iter().zip([(DType::F32, 3, 5, 3, 0, 1), (DType::BF16, 2, 128, 4, 1, 0), (DType::F32, 1, 32, 4, 1, 0)])
    {
        let name = format!("{dtype} H={h} D={d} W={w} bounded={bounded} frozen={frozen} {spans:?}");
        let (mut case, slots) = recurrent::case(&mut g, OpKind::KdaMix, name, spans);
        let (t, c) = (case.step.tokens.len() as u64, h * d);
        case.attrs.i[..2].copy_from_slice(&[bounded, frozen]);
        case.attrs.f[..4].copy_from_slice(&[-5.0, 1e-6, 1.0 / (d as f64).sqrt(), 1e-5]);
        for dims in [&[t, c][..], &[t, c], &[t, c], &[t, h, d], &[t, h], &[t, h, d]] {
            let x = g.uniform(dims).into_iter().map(|v| v * 2.0).collect();
            case.push(Vary::Tokens, dims, x);
        }
        for dims in [&[c, w][..], &[c, w], &[c, w], &[h], &[c], &[d]] {
            let x = g.uniform(dims);
            case.push(Vary::Fixed, dims, x);
        }
        for (dtype, dims) in [(dtype, &[slots, w - 1, 3 * c][..]), (DType::F32, &[slots, h, d, d])] {
            let x = g.weight(dtype, dims);
            case.push_inout(dtype, Vary::Fixed, dims, x);
        }
        case.push_output(Vary::Tokens, &[t, h, d]);
        out.push(case);
    }
    out
}
