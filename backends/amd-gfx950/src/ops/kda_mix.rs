//! `kda_mix`: one launch for heads of Kimi's size in programs that cannot hold a chunk of 64 tokens, its parts in all others.
//!
//! Both have the same bits: sums run in one order, and only a whole chunk takes the form of matrix products. That is why
//! a program that can hold one is not decoded by the fused kernel: the bits of a long request would depend on who
//! shares its step. The parts are planned by their own entries, with values between them in the workspace.

use tokenspeed_backend_api::{
    catalogue::OpDesc,
    dtype::DType,
    op::{Attrs, OpKind},
    record::OpRecord,
    sdk::{Fault, OpView, Support, Tensor},
};

use super::{
    BoundOp, OpEntry, Operand,
    convert::format_name,
    float, int,
    kda::REQUESTS,
    kda_chunk::{self, CHUNK},
};
use crate::{
    kernel::{Extent, Plan},
    settings::Settings,
};

/// Head size and taps that the fused kernel is made for.
const FUSED: (u64, u64) = (128, 4);
/// Values of [T, C] between the parts: three behind the convolution, q and k of unit length, decay, output.
const BETWEEN: usize = 7;

inventory::submit! { OpEntry { kind: OpKind::KdaMix, support, plan, pack: None } }

fn fused(settings: &Settings, window: DType, dim: u64, taps: u64, capacity: usize) -> bool {
    settings.specialised() && (dim, taps) == FUSED && matches!(window, DType::F32 | DType::BF16) && capacity < CHUNK
}

fn support(op: &OpDesc, settings: &Settings) -> Support {
    let (q, taps, window, y) = (&op.operands[0], op.operands[6].dims[1], &op.operands[12], &op.operands[14]);
    let (tokens, heads, dim) = (q.dims[0] as usize, y.dims[1] as usize, y.dims[2]);
    if fused(settings, window.dtype, dim, taps, tokens) {
        return Support::yes("kda_mix, one launch");
    }
    let Some(size) = kda_chunk::padded(dim as usize, dim as usize) else {
        return Support::no(format!("heads of {dim}, at most 128"));
    };
    let mut support = Support::yes("kda_mix, in parts");
    if tokens >= CHUNK && op.attrs.i[1] == 0 {
        support = settings.rounded(support);
    }
    let values = BETWEEN * value_bytes(tokens, y.row_len()) + value_bytes(tokens, heads);
    support.workspace_bytes = (values + kda_chunk::scratch_bytes(tokens, heads, size, settings)) as u64;
    support
}

/// Bytes of a value of so many f32 per token, with the alignment that kernels are promised.
fn value_bytes(tokens: usize, width: usize) -> usize {
    (tokens * width * 4).next_multiple_of(256)
}

fn plan(op: &BoundOp<'_>, plan: &mut Plan<'_>) -> Result<(), Fault> {
    let [q, .., window, _, y] = op.operands else { unreachable!("checked") };
    let taps = op.operands[6].tensor.dims[1] as u64;
    if fused(op.settings, window.tensor.dtype, y.tensor.dims[2] as u64, taps, q.tensor.dims[0]) {
        return plan_fused(op, plan);
    }
    plan_parts(op, plan)
}

fn plan_fused(op: &BoundOp<'_>, plan: &mut Plan<'_>) -> Result<(), Fault> {
    let [q, k, v, f, b, gate, wq, wk, wv, a_log, dt_bias, norm, window, state, y] = op.operands else {
        unreachable!("checked")
    };
    let attrs = op.op.attrs();
    let heads = y.tensor.dims[1];
    let arguments = [
        op.step(),
        ("q", q.pointer()),
        ("k", k.pointer()),
        ("v", v.pointer()),
        ("f", f.pointer()),
        ("b", b.pointer()),
        ("gate", gate.pointer()),
        ("wq", wq.pointer()),
        ("wk", wk.pointer()),
        ("wv", wv.pointer()),
        ("a_log", a_log.pointer()),
        ("dt_bias", dt_bias.pointer()),
        ("norm", norm.pointer()),
        ("window", window.pointer()),
        ("state", state.pointer()),
        ("y", y.pointer()),
        ("H", int(heads)),
        ("ldq", q.stride()),
        ("ldk", k.stride()),
        ("ldv", v.stride()),
        ("ldf", f.stride()),
        ("ldb", b.stride()),
        ("ldg", gate.stride()),
        ("ldw", window.stride()),
        ("lds", state.stride()),
        ("ldy", y.stride()),
        ("bounded", int(attrs.i[0] as usize)),
        ("bound", float(attrs.f[0])),
        ("l2_eps", float(attrs.f[1])),
        ("scale", float(attrs.f[2])),
        ("norm_eps", float(attrs.f[3])),
    ];
    let form = if attrs.i[1] == 1 { "candidates" } else { "decode" };
    let kernel = format!("kda_{form}_{}", format_name(window.tensor.dtype).expect("supported"));
    Ok(plan.launch(&kernel, [REQUESTS, Extent::Fixed(heads as u32), Extent::ONE], &arguments)?)
}

/// Cuts values from the workspace.
struct Scratch {
    at: u64,
    tokens: usize,
}

impl Scratch {
    fn value(&mut self, like: &Tensor, width: usize) -> Operand {
        let tensor = Tensor { row_bytes: width * 4, bytes: self.tokens * width * 4, ..*like };
        let value = Operand { tensor, address: self.at };
        self.at += value_bytes(self.tokens, width) as u64;
        value
    }
}

fn plan_parts(op: &BoundOp<'_>, plan: &mut Plan<'_>) -> Result<(), Fault> {
    let [q, k, v, f, b, gate, wq, wk, wv, a_log, dt_bias, norm, window, state, y] = *op.operands else {
        unreachable!("checked")
    };
    let (i, c) = (op.op.attrs().i, op.op.attrs().f);
    let mut scratch = Scratch { at: op.workspace, tokens: q.tensor.dims[0] };
    let width = y.tensor.row_len();
    let [yq, yk, yv, uq, uk, g, o] = [0; BETWEEN].map(|_| scratch.value(&y.tensor, width));
    let beta = scratch.value(&b.tensor, b.tensor.row_len());
    // Seen as heads, whatever its rank.
    let f = Operand { tensor: Tensor { rank: y.tensor.rank, dims: y.tensor.dims, ..f.tensor }, ..f };
    let recurrence = if i[1] == 1 { OpKind::KdaVerify } else { OpKind::KdaChunk };
    let parts: [(OpKind, i64, [f64; 2], Vec<Operand>); 7] = [
        (OpKind::ShortConv, i[1], [0.0; 2], vec![q, k, v, wq, wk, wv, window, yq, yk, yv]),
        (OpKind::L2Norm, 0, [c[1], c[2]], vec![yq, uq]),
        (OpKind::L2Norm, 0, [c[1], 1.0], vec![yk, uk]),
        (OpKind::KdaGate, i[0], [c[0], 0.0], vec![f, a_log, dt_bias, g]),
        (OpKind::Sigmoid, 0, [0.0; 2], vec![b, beta]),
        (recurrence, 0, [0.0; 2], vec![uq, uk, yv, g, beta, state, o]),
        (OpKind::GatedRmsNorm, 0, [c[3], 0.0], vec![o, gate, norm, y]),
    ];
    for (kind, flag, floats, operands) in &parts {
        let mut attrs = Attrs::default();
        attrs.i[0] = *flag;
        attrs.f[..2].copy_from_slice(floats);
        let record = OpRecord::new(*kind, Vec::new(), attrs, op.op.label());
        let view = OpView::from_record(&record)?;
        let part = BoundOp { op: &view, operands, workspace: scratch.at, ..*op };
        let entry = super::entry(*kind).expect("every part is an op of this backend");
        (entry.plan)(&part, plan)?;
    }
    Ok(())
}
