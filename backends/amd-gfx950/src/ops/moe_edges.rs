//! `moe_input` and `moe_output`: the way into and out of a latent mixture of experts, a launch each.
//!
//! Matrices are read where they lie: a tile belongs to one of them (gate and up share theirs), so nothing is packed and no weight is
//! there twice. Formats that have to be expanded at load are left to `gemm`, which packs them one by one.

use tokenspeed_backend_api::{
    catalogue::OpDesc,
    dtype::DType,
    op::OpKind,
    sdk::{Fault, Support},
    tensor::Tensor,
};

use super::{BoundOp, OpEntry, Operand, float, gemm, int};
use crate::{
    kernel::{Extent, Plan},
    settings::{Precision, Settings},
};

inventory::submit! {
    OpEntry { kind: OpKind::MoeInput, support: support_input, plan: plan_input, pack: None }
}
inventory::submit! {
    OpEntry { kind: OpKind::MoeOutput, support: support_output, plan: plan_output, pack: None }
}

/// What extents of rows must be multiples of: a promise to the kernels, which have no form without it.
const VECTOR: u64 = 16;

fn support_input(op: &OpDesc, settings: &Settings) -> Support {
    let [x, router, down, gate, up, ..] = &op.operands[..] else { unreachable!("checked") };
    let extents = [x.row_len() as u64, down.dims[0], gate.dims[0]];
    support(settings, "moe_input", &[router, down, gate, up], &extents)
}

fn support_output(op: &OpDesc, settings: &Settings) -> Support {
    let [_, _, up, _, down, ..] = &op.operands[..] else { unreachable!("checked") };
    let extents = [up.dims[0], up.row_len() as u64, down.row_len() as u64];
    support(settings, "moe_output", &[up, down], &extents)
}

fn support(settings: &Settings, name: &str, matrices: &[&Tensor], extents: &[u64]) -> Support {
    if !settings.specialised() {
        return Support::no("in parts with kernels=portable");
    }
    let dtype = matrices[0].dtype;
    let as_they_are = matches!((dtype, settings.precision), (DType::BF16, _) | (DType::F32, Precision::F32));
    if !as_they_are || matrices.iter().any(|w| w.dtype != dtype) {
        return Support::no("its matrices are used as they are, so all are of one format that needs no expansion");
    }
    if let Some(odd) = extents.iter().find(|n| **n % VECTOR != 0) {
        return Support::no(format!("rows of {odd}, not a multiple of {VECTOR}"));
    }
    settings.rounded(Support::yes(format!("{name}, one launch, {} factors", settings.factors())))
}

/// The kernel's variant for `n` rows of matrices like `w` and a program, and its tile: rows and columns.
fn variant(op: &BoundOp<'_>, name: &str, w: &Operand, n: usize, rows: &Operand) -> (String, u32, u32) {
    let (format, _) = gemm::stored(&w.tensor);
    let (bm, bn) = gemm::tile(op, rows, n, format);
    (format!("{name}_{format}_{}_{bm}x{bn}", op.settings.factors()), bm, bn)
}

fn plan_input(op: &BoundOp<'_>, plan: &mut Plan<'_>) -> Result<(), Fault> {
    let [x, router, down, gate, up, logits, z, h] = op.operands else { unreachable!("checked") };
    let [word, fixed] = x.count();
    let [experts, latent, width] = [router, down, gate].map(|w| w.tensor.dims[0]);
    let (kernel, bm, bn) = variant(op, "moe_input", router, experts + latent + 2 * width, x);
    let tiles: usize = [experts, latent, 2 * width].map(|n| n.div_ceil(bn as usize)).iter().sum();
    let arguments = [
        op.step(),
        word,
        fixed,
        ("x", x.pointer()),
        ("router", router.pointer()),
        ("down", down.pointer()),
        ("gate", gate.pointer()),
        ("up", up.pointer()),
        ("logits", logits.pointer()),
        ("z", z.pointer()),
        ("h", h.pointer()),
        ("E", int(experts)),
        ("L", int(latent)),
        ("S", int(width)),
        ("K", x.row_len()),
        ("ldx", x.stride()),
        ("ldr", router.stride()),
        ("ldd", down.stride()),
        ("ldg", gate.stride()),
        ("ldu", up.stride()),
        ("ldl", logits.stride()),
        ("ldz", z.stride()),
        ("ldh", h.stride()),
        ("beta", float(op.op.attrs().f[0])),
        ("linear", float(op.op.attrs().f[1])),
    ];
    Ok(plan.launch(&kernel, [x.rows(bm), Extent::Fixed(tiles as u32), Extent::ONE], &arguments)?)
}

fn plan_output(op: &BoundOp<'_>, plan: &mut Plan<'_>) -> Result<(), Fault> {
    let [r, norm, up, h, down, rest @ ..] = op.operands else { unreachable!("checked") };
    let y = rest.last().expect("checked");
    let add = op.op.attrs().i[0] == 1;
    let residual = if add { &rest[0] } else { y };
    let [word, fixed] = r.count();
    let columns = up.tensor.dims[0];
    let (kernel, bm, bn) = variant(op, "moe_output", up, columns, r);
    let arguments = [
        op.step(),
        word,
        fixed,
        ("r", r.pointer()),
        ("norm", norm.pointer()),
        ("up", up.pointer()),
        ("h", h.pointer()),
        ("down", down.pointer()),
        ("residual", residual.pointer()),
        ("y", y.pointer()),
        ("N", int(columns)),
        ("L", r.row_len()),
        ("S", h.row_len()),
        ("ldr", r.stride()),
        ("ldu", up.stride()),
        ("ldh", h.stride()),
        ("ldd", down.stride()),
        ("lde", residual.stride()),
        ("ldy", y.stride()),
        ("add", int(usize::from(add))),
        ("eps", float(op.op.attrs().f[0])),
    ];
    let grid = [r.rows(bm), Extent::Fixed(columns.div_ceil(bn as usize) as u32), Extent::ONE];
    Ok(plan.launch(&kernel, grid, &arguments)?)
}
