//! Kernels of Kimi Delta Attention, Attention Residuals, and the small ops around them, bound to operands.

use std::cell::UnsafeCell;

use tokenspeed_backend_api::{
    op::OpKind,
    sdk::{Fault, Operand, StepView},
    tensor::Tensor,
};

use super::FastOp;
use crate::{
    attn_res::{self, CombineArgs, MixArgs, PartialArgs, Scorer, ScoresArgs, Shared},
    columns::copy_columns,
    gated_rmsnorm::{GatedRmsNormArgs, gated_rmsnorm},
    gates::{Gate, GateArgs, gate},
    gemm,
    kda::{
        self, KdaArgs,
        gate::{GateKind, kda_gate},
        kda,
        record::{self, RecordArgs, kda_record},
        replay::{self, ReplayArgs, kda_replay},
    },
    l2norm::{L2NormArgs, l2norm},
    level::Level,
    part::Part,
    pool::Worker,
    router::{self, RouterArgs, router_topk},
    short_conv::{self, ShortConvArgs, Window, short_conv},
    state_slots,
};

/// Whether this file has the kernel.
pub(super) const fn handles(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::Slice
            | OpKind::Concat
            | OpKind::Sigmoid
            | OpKind::SigmoidMul
            | OpKind::SituMul
            | OpKind::L2Norm
            | OpKind::GatedRmsNorm
            | OpKind::ShortConv
            | OpKind::KdaGate
            | OpKind::KdaStep
            | OpKind::KdaVerify
            | OpKind::KdaChunk
            | OpKind::KdaRecord
            | OpKind::KdaReplay
            | OpKind::RouterTopk
            | OpKind::AttnResMix
            | OpKind::AttnResScores
            | OpKind::AttnResPartial
            | OpKind::AttnResCombine
    )
}

/// Why a kernel here cannot run an op that passed the catalogue's schema.
pub(super) fn refusal(kind: OpKind, operands: &[Tensor]) -> Option<String> {
    let gate = operands.get(4).filter(|_| kind == OpKind::KdaReplay)?;
    (!gemm::supported(gate.dtype, gate.row_len())).then(|| format!("no kernel for {}", gate.dtype))
}

/// Scratch one worker needs.
pub(super) fn scratch_bytes(level: Level, kind: OpKind, o: &[Operand]) -> usize {
    let dims = |i: usize| o[i].tensor.dims;
    match kind {
        OpKind::ShortConv => short_conv::scratch_bytes(dims(3)[1]),
        OpKind::KdaStep | OpKind::KdaVerify | OpKind::KdaChunk => kda::scratch_bytes(dims(5)[3], dims(5)[2]),
        OpKind::KdaReplay => {
            let (wf, dim) = (&o[4].tensor, dims(8)[3]);
            replay::scratch_bytes(level, wf.dtype, wf.row_len(), dim, dims(1)[1], dims(0)[1])
        }
        OpKind::RouterTopk => router::scratch_bytes(o[0].tensor.row_len(), o[0].tensor.row_len()),
        OpKind::AttnResMix | OpKind::AttnResPartial | OpKind::AttnResCombine => attn_res::scratch_bytes(o.len()),
        _ => 0,
    }
}

/// What an op of this file keeps beside its operands.
#[derive(Debug, Default)]
pub(super) struct Prepared {
    /// f32 operands that come in any number.
    many: Vec<*const f32>,
    /// A second such list.
    more: Vec<*const f32>,
    /// Scores of snapshots with their numbers.
    scores: Vec<(*const f32, usize)>,
    /// Memory that the workers share.
    shared: Vec<UnsafeCell<f32>>,
}

// SAFETY: pointers of operands, as in `Operand`; each worker writes its own part of `shared`, and reads others' parts only
// after a barrier.
unsafe impl Send for Prepared {}
// SAFETY: as above.
unsafe impl Sync for Prepared {}

impl Prepared {
    pub(super) fn new(kind: OpKind, snapshots: usize, o: &[Operand]) -> Self {
        let pointers = |range: std::ops::Range<usize>| {
            o[range].iter().map(|o| o.data.cast_const().cast()).collect::<Vec<*const f32>>()
        };
        let last = o.len().saturating_sub(1);
        let shared = |candidates| {
            let n = attn_res::shared_len(candidates, o[last].tensor.row_len());
            (0..n).map(|_| UnsafeCell::new(0.0)).collect()
        };
        match kind {
            OpKind::AttnResMix => Self { many: pointers(2..last), shared: shared(last - 2), ..Self::default() },
            OpKind::AttnResCombine => Self { shared: shared(1), ..Self::default() },
            OpKind::AttnResScores => {
                let n = (last - 1) / 2;
                Self { many: pointers(1..1 + n), more: pointers(1 + n..last), ..Self::default() }
            }
            OpKind::AttnResPartial => {
                let scores =
                    o[snapshots..2 * snapshots].iter().map(|o| (o.data.cast_const().cast(), o.tensor.row_len()));
                Self { many: pointers(0..snapshots), scores: scores.collect(), ..Self::default() }
            }
            _ => Self::default(),
        }
    }

    fn shared(&self) -> Shared {
        Shared { data: self.shared.as_ptr().cast_mut().cast() }
    }
}

/// One worker's share.
///
/// # Errors
/// A step whose state slots are not what the op needs; nothing is written then.
///
/// # Safety
/// The operands were checked against the catalogue's schema and their bindings, the step against the capacities; `level`
/// is available; every worker of the region calls this.
pub(super) unsafe fn run(op: &FastOp, level: Level, worker: &mut Worker<'_>, step: &StepView<'_>) -> Result<(), Fault> {
    let o = &op.operands[..];
    let part = worker.part();
    // The first operand of a mixture is a weight, its last one counts tokens.
    let weights_first = matches!(op.kind, OpKind::AttnResMix | OpKind::AttnResCombine);
    let rows = op.count(step, if weights_first { o.len() - 1 } else { 0 });
    let width = o[0].tensor.row_len();
    let [f0, f1, ..] = op.attrs.f.map(|f| f as f32);
    // SAFETY: the caller's promise.
    unsafe {
        match op.kind {
            OpKind::Slice => {
                let n = o[1].tensor.row_len();
                let from = op.f32(0).cast_const().add(op.attrs.i[0] as usize);
                copy_columns(part, rows, n, (from, width), (op.f32(1), n));
            }
            OpKind::Concat => {
                let (left, right) = (width, o[1].tensor.row_len());
                let all = left + right;
                copy_columns(part, rows, left, (op.f32(0), left), (op.f32(2), all));
                copy_columns(part, rows, right, (op.f32(1), right), (op.f32(2).add(left), all));
            }
            OpKind::Sigmoid | OpKind::SigmoidMul | OpKind::SituMul => {
                let (kind, x, y) = match op.kind {
                    OpKind::Sigmoid => (Gate::Sigmoid, 0, 1),
                    OpKind::SigmoidMul => (Gate::SigmoidMul, 1, 2),
                    _ => (Gate::Situ { beta: f0, linear: f1 }, 1, 2),
                };
                let args = GateArgs { gate: op.f32(0), x: op.f32(x), y: op.f32(y), n: rows * width };
                gate(level, part, kind, args);
            }
            OpKind::L2Norm => {
                let dim = o[0].tensor.last();
                let rows = rows * width / dim;
                l2norm(level, part, L2NormArgs { x: op.f32(0), y: op.f32(1), rows, width: dim, eps: f0, scale: f1 });
            }
            OpKind::GatedRmsNorm => {
                let dim = o[0].tensor.last();
                let args = GatedRmsNormArgs {
                    x: op.f32(0),
                    gate: op.f32(1),
                    weight: op.f32(2),
                    y: op.f32(3),
                    rows: rows * width / dim,
                    width: dim,
                    eps: f0,
                };
                gated_rmsnorm(level, part, args);
            }
            OpKind::KdaGate => {
                let args = kda::gate::GateArgs {
                    f: op.f32(0),
                    a_log: op.f32(1),
                    dt_bias: op.f32(2),
                    g: op.f32(3),
                    tokens: rows,
                    heads: o[0].tensor.dims[1],
                    keys: o[0].tensor.dims[2],
                    kind: gate_kind(op),
                };
                kda_gate(level, part, args);
            }
            OpKind::RouterTopk => {
                let args = RouterArgs {
                    logits: op.f32(0),
                    bias: op.f32(1),
                    ids: o[2].data.cast(),
                    weights: op.f32(3),
                    tokens: rows,
                    experts: width,
                    k: o[2].tensor.row_len(),
                    groups: op.attrs.i[0] as usize,
                    chosen: op.attrs.i[1] as usize,
                    renormalise: op.attrs.i[2] == 1,
                    scale: op.attrs.f[0],
                };
                router_topk(level, part, worker.scratch(), args);
            }
            OpKind::ShortConv => return conv(op, level, part, worker, step),
            OpKind::KdaStep | OpKind::KdaVerify | OpKind::KdaChunk => return recurrence(op, level, part, worker, step),
            OpKind::KdaRecord => return recorded(op, part, step),
            OpKind::KdaReplay => return replayed(op, level, part, worker, step),
            _ => residual(op, level, part, worker, rows),
        }
    }
    Ok(())
}

fn gate_kind(op: &FastOp) -> GateKind {
    if op.attrs.i[0] == 1 { GateKind::Bounded(op.attrs.f[0] as f32) } else { GateKind::Softplus }
}

fn window(o: &Operand) -> Window {
    Window { data: o.data, dtype: o.tensor.dtype, width: o.tensor.dims[2] }
}

/// # Safety
/// As [`run`].
unsafe fn conv(
    op: &FastOp,
    level: Level,
    part: Part,
    worker: &mut Worker<'_>,
    step: &StepView<'_>,
) -> Result<(), Fault> {
    let o = &op.operands;
    state_slots::check(step.rows, o[6].tensor.dims[0])?;
    let args = ShortConvArgs {
        x: [0, 1, 2].map(|i| op.f32(i).cast_const()),
        weights: [3, 4, 5].map(|i| op.f32(i).cast_const()),
        window: window(&o[6]),
        y: [7, 8, 9].map(|i| op.f32(i)),
        rows: step.rows,
        channels: o[0].tensor.row_len(),
        taps: o[3].tensor.dims[1],
        keep: op.attrs.i[0] == 0,
    };
    // SAFETY: the caller's promise; slots were checked.
    unsafe { short_conv(level, part, worker.scratch(), &args) };
    Ok(())
}

/// # Safety
/// As [`run`].
unsafe fn recurrence(
    op: &FastOp,
    level: Level,
    part: Part,
    worker: &mut Worker<'_>,
    step: &StepView<'_>,
) -> Result<(), Fault> {
    let [slots, heads, values, keys] = op.operands[5].tensor.dims;
    state_slots::check(step.rows, slots)?;
    let args = KdaArgs {
        q: op.f32(0),
        k: op.f32(1),
        v: op.f32(2),
        g: op.f32(3),
        beta: op.f32(4),
        state: op.f32(5),
        o: op.f32(6),
        rows: step.rows,
        heads,
        keys,
        values,
        keep: op.kind != OpKind::KdaVerify,
        tiles: op.kind == OpKind::KdaChunk,
    };
    // SAFETY: the caller's promise; slots were checked.
    unsafe { kda(level, part, worker.scratch(), &args) };
    Ok(())
}

/// # Safety
/// As [`run`].
unsafe fn recorded(op: &FastOp, part: Part, step: &StepView<'_>) -> Result<(), Fault> {
    let record = &op.operands[5];
    state_slots::check(step.rows, record.tensor.dims[0])?;
    record::check(step.rows, record.tensor.dims[1])?;
    let args = RecordArgs {
        inputs: [0, 1, 2, 3, 4].map(|i| (op.f32(i).cast_const(), op.operands[i].tensor.row_len())),
        record: record.data,
        dtype: record.tensor.dtype,
        capacity: record.tensor.dims[1],
        rows: step.rows,
    };
    // SAFETY: the caller's promise; slots and capacity were checked.
    unsafe { kda_record(part, &args) };
    Ok(())
}

/// # Safety
/// As [`run`].
unsafe fn replayed(
    op: &FastOp,
    level: Level,
    part: Part,
    worker: &mut Worker<'_>,
    step: &StepView<'_>,
) -> Result<(), Fault> {
    let o = &op.operands;
    let slots = [0, 7, 8].map(|i| o[i].tensor.dims[0]);
    state_slots::check(step.rows, slots.into_iter().fold(usize::MAX, usize::min))?;
    record::check(step.rows, o[0].tensor.dims[1])?;
    let args = ReplayArgs {
        record: o[0].data,
        record_dtype: o[0].tensor.dtype,
        capacity: o[0].tensor.dims[1],
        taps: [1, 2, 3].map(|i| op.f32(i).cast_const()),
        n_taps: o[1].tensor.dims[1],
        gate: o[4].data,
        gate_dtype: o[4].tensor.dtype,
        gate_width: o[4].tensor.row_len(),
        a_log: op.f32(5),
        dt_bias: op.f32(6),
        window: window(&o[7]),
        state: op.f32(8),
        rows: step.rows,
        heads: o[5].tensor.dims[0],
        dim: o[8].tensor.dims[3],
        kind: gate_kind(op),
        eps: op.attrs.f[1] as f32,
        scale: op.attrs.f[2] as f32,
    };
    // SAFETY: the caller's promise; slots and lengths were checked.
    unsafe { kda_replay(level, part, worker.scratch(), &args) };
    Ok(())
}

/// # Safety
/// As [`run`].
unsafe fn residual(op: &FastOp, level: Level, part: Part, worker: &mut Worker<'_>, rows: usize) {
    let (o, kept) = (&op.operands, &op.kimi);
    let last = o.len() - 1;
    let eps = op.attrs.f[0] as f32;
    let scorer = |norm, proj| Scorer { norm, proj, eps };
    let y = op.f32(last);
    // SAFETY: the caller's promise; the shared memory is this op's.
    unsafe {
        match op.kind {
            OpKind::AttnResMix => {
                let scorer = scorer(op.f32(0).cast_const(), op.f32(1).cast_const());
                let width = o[last].tensor.row_len();
                let args = MixArgs { scorer, candidates: &kept.many, y, tokens: rows, width };
                attn_res::mix(level, worker, kept.shared(), &args);
            }
            OpKind::AttnResCombine => {
                let args = CombineArgs {
                    scorer: scorer(op.f32(0).cast_const(), op.f32(1).cast_const()),
                    acc: op.f32(2),
                    stats: op.f32(3),
                    sum: op.f32(4),
                    y,
                    tokens: rows,
                    width: o[last].tensor.row_len(),
                };
                attn_res::combine(level, worker, kept.shared(), &args);
            }
            OpKind::AttnResScores => {
                let args = ScoresArgs {
                    snapshot: op.f32(0),
                    norms: &kept.many,
                    projs: &kept.more,
                    y,
                    tokens: rows,
                    width: o[0].tensor.row_len(),
                    eps,
                };
                attn_res::scores(level, part, &args);
            }
            OpKind::AttnResPartial => {
                let args = PartialArgs {
                    snapshots: &kept.many,
                    scores: &kept.scores,
                    left: op.attrs.i[1] as usize,
                    acc: op.f32(last - 1),
                    stats: y,
                    tokens: rows,
                    width: o[0].tensor.row_len(),
                };
                attn_res::partial(level, part, worker.scratch(), &args);
            }
            other => unreachable!("{other} is not one of this file's"),
        }
    }
}
