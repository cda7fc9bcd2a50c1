//! `kda_mix`: a layer of Kimi Delta Attention between its input projections and its output projection.
//!
//! One op, so that a backend may keep a head's state in registers from the convolution to the gated norm. It is no more
//! than its parts: every value between them is rounded to f32 where theirs is. The projections stay outside: they are
//! products like any other, and run over all tokens at once. One may be inside: the decay's second, which is a head's own and small
//! beside its state. Whoever refuses it there is asked about the product and the op without it.

use super::{Call, Case, Entry, OpDesc, Part, RECURRENCE, cases::Gen, gated_rmsnorm, inout, input, kda_gate, kda_step};
use super::{l2norm, output, product, recurrent, rmsnorm, schema::CACHE_DTYPES, short_conv, sigmoid};
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
          are left as they were, as by `kda_verify`. `attrs.i[2]` = 1: wf is there, f is [T, F], and the gate takes f·wfᵀ. \
          Decomposes then into `gemm` and `kda_mix` without; else into `short_conv`, `l2norm`, `kda_gate`, `sigmoid`, `kda_chunk` or \
          `kda_verify`, `gated_rmsnorm`.",
    operands: &[
        input("q [T, C], before the convolution"),
        input("k [T, C]"),
        input("v [T, C]"),
        input("f [T, C], behind the second gate projection; with wf [T, F], in front of it"),
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
        input("wf [C, F], optional"),
        output("y [T, H, C / H]"),
    ],
    check,
    reference,
    decompose: Some(decompose),
    tolerance: RECURRENCE,
    cases,
};

/// Where the second gate projection is, if it is there.
const WF: usize = 14;

fn check(op: &OpDesc) -> Result<(), String> {
    op.require(matches!(op.attrs.i[2], 0 | 1), || format!("attrs.i[2] = {} is not 0 or 1", op.attrs.i[2]))?;
    let projects = op.attrs.i[2] == 1;
    op.count(WF + 1 + usize::from(projects))?;
    let last = op.operands.len() - 1;
    op.f32(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, last])?;
    op.dtype(12, &CACHE_DTYPES[..3])?;
    for i in [1, 2, 5, last] {
        op.same_shape(0, i)?;
    }
    if projects {
        product::check(op, 3, WF, last)?;
    } else {
        op.same_shape(0, 3)?;
    }
    let (q, window, state, y) = (&op.operands[0], &op.operands[12], &op.operands[13], &op.operands[last]);
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
    let (f, b, gate, window, state_view) = (operand(3), operand(4), operand(5), operand(12), operand(13));
    let y = *call.operands.last().expect("checked");
    let wf = (call.attrs.i[2] == 1).then(|| operand(WF));
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
            let projected = wf.map(|wf| {
                let rows = product::load(&f, tokens.clone());
                let rows: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
                let mut f = vec![Vec::new(); rows.len()];
                product::rows(dim, wf.row_len(), |n, out| wf.load_row(mine.start + n, out), &rows, &mut f);
                f
            });
            let decay = |t: usize| {
                let mut g = match &projected {
                    Some(f) => f[t - tokens.start].clone(),
                    None => part_of(&f, t, mine.start, dim),
                };
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

/// The second gate projection, and the op without it.
fn apart(op: &GraphOp, graph: &mut Graph) -> Vec<GraphOp> {
    let [Ref::Value(like), wf] = [op.operands[WF + 1], op.operands[WF]] else { panic!("{}: y is a value", op.label) };
    let spec = graph.values[like].clone();
    let f = graph.value(format!("{}.f", spec.name), spec.vary, &spec.inner, spec.dtype);
    let (mut mix, mut attrs) = (op.operands.clone(), op.attrs);
    mix.remove(WF);
    attrs.i[2] = 0;
    let low = std::mem::replace(&mut mix[3], f);
    vec![op.part(OpKind::Gemm, Attrs::default(), &[low, wf, f]), op.part(OpKind::KdaMix, attrs, &mix)]
}

fn decompose(op: &GraphOp, graph: &mut Graph) -> Vec<GraphOp> {
    if op.attrs.i[2] == 1 {
        return apart(op, graph);
    }
    let [q, k, v, f, b, gate, wq, wk, wv, a_log, dt_bias, norm, window, state, y] = op.operands[..] else {
        panic!("{}: kda_mix without wf has fifteen operands", op.label)
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
    let mixed: &[(u32, usize)] = &[(0, 2), (7, 1), (3, 4)];
    let ones: &[(u32, usize)] = &[(0, 1), (5, 1), (9, 1), (2, 1)];
    let long: &[(u32, usize)] = &[(60, 70), (4, 1)];
    for (spans, dtype, [h, d, w], bounded, frozen, wf) in [
        (mixed, DType::F32, [3, 5, 3], 0, 1, None),
        (ones, DType::BF16, [2, 128, 4], 1, 0, None),
        (long, DType::F32, [1, 32, 4], 1, 0, None),
        (mixed, DType::F32, [3, 5, 3], 1, 0, Some((DType::BF16, 7))),
        // Heads and a gate of 128; more than sixteen tokens of a request.
        (mixed, DType::F32, [2, 128, 4], 0, 0, Some((DType::F32, 128))),
        (&[(0, 18), (5, 1)], DType::BF16, [2, 128, 4], 1, 1, Some((DType::BF16, 128))),
    ] {
        let projects = wf.map_or(String::new(), |(dtype, f)| format!(" wf={dtype} F={f}"));
        let name = format!("{dtype} H={h} D={d} W={w} bounded={bounded} frozen={frozen}{projects} {spans:?}");
        let (mut case, slots) = recurrent::case(&mut g, OpKind::KdaMix, name, spans);
        let (t, c) = (case.step.tokens.len() as u64, h * d);
        case.attrs.i[..3].copy_from_slice(&[bounded, frozen, wf.is_some().into()]);
        case.attrs.f[..4].copy_from_slice(&[-5.0, 1e-6, 1.0 / (d as f64).sqrt(), 1e-5]);
        let f = wf.map_or(vec![t, h, d], |(_, f)| vec![t, f]);
        for dims in [&[t, c][..], &[t, c], &[t, c], &f, &[t, h], &[t, h, d]] {
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
        if let Some((dtype, f)) = wf {
            let x = g.weight(dtype, &[c, f]);
            case.push_raw(dtype, Vary::Fixed, &[c, f], x);
        }
        case.push_output(Vary::Tokens, &[t, h, d]);
        out.push(case);
    }
    out
}
