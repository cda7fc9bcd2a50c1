//! Experts and latent attention bound to their kernels.

use super::FastOp;
use crate::{
    experts::{self, Act, ExpertsArgs, Matrix},
    level::Level,
    mla::{
        attention::{self, MlaArgs, mla_attention},
        project::{self, ProjectArgs, mla_absorb, mla_value},
        write::{self, MlaWriteArgs, mla_write},
    },
    pool::Worker,
    residency::{Residency, Stacks},
};
use std::sync::Arc;
use tokenspeed_backend_api::{
    abi::TS_LOG_WARN,
    dtype::DType,
    op::OpKind,
    sdk::{Fault, HostServices, Operand, StepView},
    tensor::Tensor,
};

/// Whether an op's kernel is bound here.
pub(super) const fn handles(kind: OpKind) -> bool {
    matches!(kind, OpKind::Experts | OpKind::MlaWrite | OpKind::MlaAbsorb | OpKind::MlaAttention | OpKind::MlaValue)
}

/// Whether the kernel reads these formats; if not, the op runs as the catalogue's reference.
pub(super) fn takes(kind: OpKind, dtype: impl Fn(usize) -> DType) -> bool {
    match kind {
        OpKind::Experts => experts::supported(dtype(4)),
        OpKind::MlaAbsorb | OpKind::MlaValue => project::supported(dtype(1)),
        _ => true,
    }
}

/// Whether operand `i` may have a stride: stacks of experts that lie in a file.
pub(super) fn takes_stride(kind: OpKind, i: usize, operands: usize) -> bool {
    kind == OpKind::Experts && (4..operands - 1).contains(&i)
}

/// Memory that all workers share during the op.
pub(super) fn workspace_bytes(kind: OpKind, operands: &[Tensor]) -> u64 {
    match kind {
        OpKind::Experts => experts::hidden_bytes(operands[4].dims[1] as usize) as u64,
        OpKind::MlaAttention => {
            let [q, cache, table, y] = operands else { unreachable!("checked") };
            let slots = attention::slots(q.dims[0] as usize, (table.dims[1] * cache.dims[1]) as usize);
            attention::workspace_bytes(q.dims[1] as usize, y.dims[2] as usize, slots) as u64
        }
        _ => 0,
    }
}

/// Kernel name for the support table.
pub(super) fn kernel_name(level: Level, kind: OpKind, operands: &[Tensor]) -> String {
    match kind {
        OpKind::Experts => experts::kernel_name(level, operands[4].dtype),
        _ => format!("{kind}-{level}"),
    }
}

/// Scratch one worker needs.
pub(super) fn scratch_bytes(level: Level, op: &FastOp) -> usize {
    let tensor = |i: usize| &op.operands[i].tensor;
    match op.kind {
        OpKind::Experts => {
            let (ids, w1) = (tensor(1), tensor(4));
            let [experts, n, k, _] = w1.dims;
            experts::scratch_bytes(level, w1.dtype, ids.dims[0], ids.row_len(), experts, k, n)
        }
        OpKind::MlaWrite => write::scratch_bytes(tensor(0).row_len()),
        OpKind::MlaAttention => attention::scratch_bytes(tensor(0).dims[1], tensor(0).dims[2], tensor(3).dims[2]),
        _ => 0,
    }
}

/// What keeps an op's mapped experts within the device's budget; `None` if nothing of them is mapped.
pub(super) fn residency(
    kind: OpKind,
    label: &str,
    operands: &[Operand],
    residency: &Arc<Residency>,
) -> Result<Option<(Arc<Residency>, Stacks)>, Fault> {
    if kind != OpKind::Experts {
        return Ok(None);
    }
    let Some(stacks) = Stacks::of(&operands[4..operands.len() - 1]) else {
        let message = format!("{label}: no expert lies in a mapped file, so expert_cache_bytes does not limit them");
        HostServices::get().log(TS_LOG_WARN, &message);
        return Ok(None);
    };
    let (largest, most) = (stacks.largest(), residency.wave_bytes());
    if largest > most {
        return Err(Fault::invalid(format!(
            "{label}: one expert takes {largest} bytes with its pages, and two must fit: expert_cache_bytes must be at least {}",
            2 * largest
        )));
    }
    Ok(Some((Arc::clone(residency), stacks)))
}

/// One worker's share.
///
/// # Safety
/// As [`FastOp::run`].
pub(super) unsafe fn run(op: &FastOp, level: Level, worker: &mut Worker<'_>, step: &StepView<'_>) -> Result<(), Fault> {
    // SAFETY: the caller's promise.
    unsafe {
        match op.kind {
            OpKind::Experts => {
                return experts::experts(level, worker, &experts_args(op, step)).map_err(Fault::invalid);
            }
            OpKind::MlaWrite => {
                let args = MlaWriteArgs {
                    x: op.f32(0),
                    weight: op.f32(1),
                    rank: op.operands[1].tensor.dims[0],
                    eps: op.attrs.f[0] as f32,
                    pages: op.pages(2, 3),
                    tokens: step.tokens,
                    rows: step.rows,
                };
                mla_write(level, worker.part(), worker.scratch(), &args);
            }
            OpKind::MlaAbsorb => mla_absorb(level, worker.part(), &project_args(op, step)),
            OpKind::MlaValue => mla_value(level, worker.part(), &project_args(op, step)),
            OpKind::MlaAttention => mla_attention(level, worker, &attention_args(op, step)),
            other => unreachable!("{other} is bound elsewhere"),
        }
    }
    Ok(())
}

fn project_args(op: &FastOp, step: &StepView<'_>) -> ProjectArgs {
    let [x, w, y] = &op.operands[..] else { unreachable!("checked") };
    let heads = x.tensor.dims[1];
    ProjectArgs {
        x: op.f32(0),
        x_width: x.tensor.dims[2],
        w: w.data,
        dtype: w.tensor.dtype,
        per_head: w.tensor.dims[0] / heads,
        rank: w.tensor.dims[1],
        y: op.f32(2),
        y_width: y.tensor.dims[2],
        tokens: op.count(step, 0),
        heads,
    }
}

fn attention_args<'a>(op: &FastOp, step: &StepView<'a>) -> MlaArgs<'a> {
    let [q, cache, table, y] = &op.operands[..] else { unreachable!("checked") };
    MlaArgs {
        q: op.f32(0),
        cache: op.pages(1, 2),
        y: op.f32(3),
        rows: step.rows,
        heads: q.tensor.dims[1],
        rank: y.tensor.dims[2],
        scale: op.attrs.f[0] as f32,
        partial: op.workspace as *mut f32,
        slots: attention::slots(q.tensor.dims[0], table.tensor.dims[1] * cache.tensor.dims[1]),
    }
}

fn experts_args(op: &FastOp, step: &StepView<'_>) -> ExpertsArgs {
    let o = &op.operands;
    let matrix = |i: usize| {
        let (w, mx) = (&o[i].tensor, o[i].tensor.dtype == DType::Mxfp4);
        let scales = if mx { o[i + 3].data.cast_const() } else { std::ptr::null() };
        let scale_stride = if mx { o[i + 3].tensor.row_bytes } else { 0 };
        let [_, rows, k, _] = w.dims;
        Matrix { dtype: w.dtype, values: o[i].data, stride: w.row_bytes, scales, scale_stride, rows, k }
    };
    let act = match op.attrs.i[0] {
        0 => Act::Silu,
        _ => Act::Situ { beta: op.attrs.f[0] as f32, linear: op.attrs.f[1] as f32 },
    };
    ExpertsArgs {
        x: op.f32(0),
        ids: o[1].data.cast(),
        weights: op.f32(2),
        slots: o[3].data.cast(),
        w1: matrix(4),
        w3: matrix(5),
        w2: matrix(6),
        y: op.f32(o.len() - 1),
        hidden: op.workspace as *mut f32,
        tokens: op.count(step, 0),
        top: o[1].tensor.row_len(),
        experts: o[3].tensor.dims[0],
        act,
        residency: op
            .residency
            .as_ref()
            .map(|(residency, stacks)| (Arc::as_ptr(residency), std::ptr::from_ref(stacks))),
    }
}
