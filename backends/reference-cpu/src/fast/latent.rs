//! Experts and latent attention bound to their kernels.

use super::FastOp;
use crate::{
    experts::{self, Act, ExpertsArgs, Matrix},
    level::Level,
    pool::Worker,
};
use tokenspeed_backend_api::{
    dtype::DType,
    op::OpKind,
    sdk::{Fault, StepView},
    tensor::Tensor,
};

/// Whether an op's kernel is bound here.
pub(super) const fn handles(kind: OpKind) -> bool {
    matches!(kind, OpKind::Experts)
}

/// Whether operand `i` may have a stride: stacks of experts that lie in a file.
pub(super) fn takes_stride(kind: OpKind, i: usize, operands: usize) -> bool {
    kind == OpKind::Experts && (4..operands - 1).contains(&i)
}

/// Why the kernels cannot run an op that passed the catalogue's schema.
pub(super) fn refusal(kind: OpKind, operands: &[Tensor]) -> Option<String> {
    match kind {
        OpKind::Experts if !experts::supported(operands[4].dtype) => {
            Some(format!("no kernel for experts in {}", operands[4].dtype))
        }
        _ => None,
    }
}

/// Memory that all workers share during the op.
pub(super) fn workspace_bytes(kind: OpKind, operands: &[Tensor]) -> u64 {
    match kind {
        OpKind::Experts => experts::hidden_bytes(operands[4].dims[1] as usize) as u64,
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
        other => unreachable!("{other} is bound elsewhere"),
    }
}

/// One worker's share.
///
/// # Safety
/// As [`FastOp::run`].
pub(super) unsafe fn run(op: &FastOp, level: Level, worker: &mut Worker<'_>, step: &StepView<'_>) -> Result<(), Fault> {
    // SAFETY: the caller's promise.
    unsafe {
        match op.kind {
            OpKind::Experts => experts::experts(level, worker, &experts_args(op, step)).map_err(Fault::invalid),
            other => unreachable!("{other} is bound elsewhere"),
        }
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
    }
}
