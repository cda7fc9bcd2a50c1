//! `kda_replay`: commit the accepted prefix of recorded tokens.
//!
//! It runs the very routines of the ordinary ops, so replaying n tokens gives the bits of n decode steps. How many
//! tokens are accepted is the row's `query_len` in the replay's own step.

use super::{Call, Case, Entry, OpDesc, Part, RECURRENCE, cases::Gen, inout, input, kda_gate, kda_step, l2norm};
use super::{product, recurrent, rmsnorm::vector, schema::CACHE_DTYPES, schema::WEIGHT_DTYPES, short_conv, sigmoid};
use crate::{dtype::DType, graph::Vary, op::OpKind};

pub(super) const ENTRY: Entry = Entry {
    kind: OpKind::KdaReplay,
    version: 1,
    doc: "For each request, over `query_len` tokens of `record[state_write]` from `branch_offset` on (see `kda_record`): `short_conv` of q, k, v; `l2norm` of \
          q (times `attrs.f[2]`) and k with eps `attrs.f[1]`; `kda_gate` of f·wfᵀ (`attrs.i[0]`, `attrs.f[0]` as there); beta = sigmoid(b); \
          `kda_step`. Window and S are read from slot `state_read` and written to `state_write`. The step's token values are not used.",
    operands: &[
        input("record [slots, R, 3C + F + H]"),
        input("wq [C, W]"),
        input("wk [C, W]"),
        input("wv [C, W]"),
        input("wf [C, F]"),
        input("A_log [H]"),
        input("dt_bias [C]"),
        inout("window [slots, W − 1, 3C]"),
        inout("S [slots, H, C / H, C / H]"),
    ],
    check,
    reference,
    decompose: None,
    tolerance: RECURRENCE,
    cases,
};

fn check(op: &OpDesc) -> Result<(), String> {
    op.count(9)?;
    op.f32(&[1, 2, 3, 5, 6, 8])?;
    op.dtype(0, &CACHE_DTYPES[..3])?;
    op.dtype(4, &WEIGHT_DTYPES)?;
    op.dtype(7, &CACHE_DTYPES[..3])?;
    let [record, wq, _, _, wf, a_log, dt_bias, window, state] = &op.operands[..] else { unreachable!("counted") };
    let (channels, taps, heads) = (wq.dims[0], wq.dims[1], a_log.dims[0]);
    op.require(op.operands[1..4].iter().all(|w| w.dims() == [channels, taps]) && taps >= 2, || {
        format!("wq is {:?}, wk is {:?}, wv is {:?}", wq.dims(), op.operands[2].dims(), op.operands[3].dims())
    })?;
    let dim = channels / heads.max(1);
    let ok = record.rank == 3
        && record.dims[2] == 3 * channels + wf.row_len() as u64 + heads
        && wf.dims[0] == channels
        && dt_bias.dims() == [channels]
        && window.rank == 3
        && window.dims[1..3] == [taps - 1, 3 * channels]
        && dim * heads == channels
        && state.rank == 4
        && state.dims[1..] == [heads, dim, dim];
    op.require(ok, || {
        format!(
            "record is {:?}, wq is {:?}, wf is {:?}, A_log is {:?}, window is {:?}, S is {:?}",
            record.dims(),
            wq.dims(),
            wf.dims(),
            a_log.dims(),
            window.dims(),
            state.dims()
        )
    })?;
    let [bound, eps, scale] = [op.attrs.f[0], op.attrs.f[1], op.attrs.f[2]];
    let gate = op.attrs.i[0] == 0 || op.attrs.i[0] == 1 && bound < 0.0;
    op.require(gate && eps > 0.0 && scale > 0.0, || format!("bound is {bound}, eps is {eps}, scale is {scale}"))
}

fn reference(call: &Call<'_>, part: Part) {
    let [record, _, _, _, wf, a_log, dt_bias, window, state_view] = call.operands[..] else { unreachable!("checked") };
    let (a_log, dt_bias) = (vector(&a_log), vector(&dt_bias));
    let (heads, dim) = (a_log.len(), state_view.tensor.dims[3] as usize);
    let (channels, width) = (heads * dim, record.tensor.dims[2] as usize);
    let gate_width = wf.row_len();
    for head in part.of(heads) {
        let mine = head * dim..(head + 1) * dim;
        let taps: Vec<_> = (1..4).map(|i| short_conv::Taps::load(&call.operands[i], mine.clone())).collect();
        for row in call.step.rows {
            let Some(slot) = recurrent::write_slot(row) else { continue };
            let tokens = row.query_len as usize;
            let branch = row.branch_offset as usize;
            assert!((branch + tokens) as u64 <= record.tensor.dims[1], "more tokens accepted than recorded");
            let recorded = |token: usize, first: usize, n: usize| {
                let mut out = vec![0f32; n];
                recurrent::load_part(&record, slot, (branch + token) * width + first, &mut out);
                out
            };
            let convolved = [0, 1, 2].map(|stream| {
                let first = stream * channels + mine.start;
                let mut conv = short_conv::Conv::new(taps[stream].taps, dim);
                conv.start(&window, row, first);
                let push = |t| {
                    let mut out = vec![0f32; dim];
                    conv.push(recorded(t, first, dim), &taps[stream], &mut out);
                    out
                };
                let rows: Vec<Vec<f32>> = (0..tokens).map(push).collect();
                conv.keep(&window, row, first);
                rows
            });
            let [mut q, mut k, v] = convolved;
            q.iter_mut().for_each(|q| l2norm::normalise(q, call.attrs.f[1], call.attrs.f[2]));
            k.iter_mut().for_each(|k| l2norm::normalise(k, call.attrs.f[1], 1.0));
            let f: Vec<_> = (0..tokens).map(|t| recorded(t, 3 * channels, gate_width)).collect();
            let f: Vec<&[f32]> = f.iter().map(|f| &f[..]).collect();
            let mut g = vec![Vec::new(); tokens];
            product::rows(dim, gate_width, |n, out| wf.load_row(mine.start + n, out), &f, &mut g);
            for g in &mut g {
                kda_gate::log_decay(&call.attrs, &a_log[head..=head], &dt_bias[mine.clone()], g);
            }
            let beta = |t| {
                let b = recorded(t, 3 * channels + gate_width + head, 1)[0];
                sigmoid::sigmoid(f64::from(b)) as f32
            };
            let inputs = kda_step::HeadInputs { q, k, v, g, beta: (0..tokens).map(beta).collect() };
            let mut state = kda_step::load_state(&state_view, row, head);
            inputs.step(&mut state, |_, _| {});
            state_view.store(slot, head * state.len(), &state);
        }
    }
}

fn cases(seed: u64) -> Vec<Case> {
    let mut g = Gen::new(seed);
    let mut out = Vec::new();
    for (dtype, window, gate, h, d, f, bounded) in [
        (DType::F32, DType::F32, DType::BF16, 2, 8, 8, 1),
        (DType::BF16, DType::F32, DType::BF16, 3, 32, 16, 0),
        (DType::BF16, DType::BF16, DType::BF16, 2, 8, 8, 1),
        (DType::F32, DType::F32, DType::F32, 2, 8, 8, 0),
        (DType::BF16, DType::F32, DType::F32, 1, 16, 8, 1),
        (DType::BF16, DType::BF16, DType::F32, 1, 16, 8, 1),
        // Heads and a gate of 128.
        (DType::F32, DType::F32, DType::BF16, 1, 128, 128, 1),
        (DType::BF16, DType::F32, DType::BF16, 1, 128, 128, 0),
        (DType::BF16, DType::BF16, DType::BF16, 1, 128, 128, 1),
        (DType::F32, DType::F32, DType::F32, 1, 128, 128, 0),
        (DType::BF16, DType::F32, DType::F32, 1, 128, 128, 1),
        (DType::BF16, DType::BF16, DType::F32, 1, 128, 128, 0),
    ] {
        let spans = [(0, 3), (7, 1), (2, 4), (1, 2)];
        let (c, w, r) = (h * d, 4, 4);
        let name = format!("{dtype} window={window} gate={gate} H={h} D={d} F={f} bounded={bounded} {spans:?}");
        let (mut case, slots) = recurrent::case(&mut g, OpKind::KdaReplay, name, &spans);
        case.attrs.i[0] = bounded;
        case.attrs.f[..3].copy_from_slice(&[-5.0, 1e-6, 1.0 / (d as f64).sqrt()]);
        let shape = [slots, r, 3 * c + f + h];
        let record = g.weight(dtype, &shape);
        case.push_raw(dtype, Vary::Fixed, &shape, record);
        for _ in 0..3 {
            let taps = g.uniform(&[c, w]);
            case.push(Vary::Fixed, &[c, w], taps);
        }
        let wf = g.weight(gate, &[c, f]);
        case.push_raw(gate, Vary::Fixed, &[c, f], wf);
        for n in [h, c] {
            let x = g.uniform(&[n]);
            case.push(Vary::Fixed, &[n], x);
        }
        for (dtype, shape) in [(window, &[slots, w - 1, 3 * c][..]), (DType::F32, &[slots, h, d, d])] {
            let x = g.weight(dtype, shape);
            case.push_inout(dtype, Vary::Fixed, shape, x);
        }
        out.push(case);
    }
    out
}
