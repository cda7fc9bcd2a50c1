//! `moe_input` and `moe_output`: the way into and out of a latent mixture of experts, a launch each.
//!
//! A tile belongs to one matrix (gate and up share theirs), so those in a format of factors stay where they are; others are expanded at
//! load, each for itself. With `precision=fp8` all but the router's are quantised (`moe_edges_fp8`).

use tokenspeed_backend_api::{
    catalogue::OpDesc,
    dtype::DType,
    op::OpKind,
    sdk::{Fault, OpView, Support},
};

use super::{BoundOp, OpEntry, Operand, ahead, float, gemm, gemm_few, gemm_many, int, moe_edges_fp8};
use crate::{
    kernel::{Argument, Extent, Plan},
    settings::Settings,
};

inventory::submit! {
    OpEntry { kind: OpKind::MoeInput, support: support_input, plan: plan_input, pack: Some(pack) }
}
inventory::submit! {
    OpEntry { kind: OpKind::MoeOutput, support: support_output, plan: plan_output, pack: Some(pack) }
}

/// What extents of rows must be multiples of: a promise to the kernels, which have no form without it.
const VECTOR: u64 = 16;

/// The router of `moe_input`, which decides.
pub(super) const ROUTER: usize = 1;

fn support_input(op: &OpDesc, settings: &Settings) -> Support {
    let extents = [op.operands[0].row_len() as u64, op.operands[2].dims[0], op.operands[3].dims[0]];
    support(op, settings, &[ROUTER, 2, 3, 4], &extents)
}

fn support_output(op: &OpDesc, settings: &Settings) -> Support {
    let [_, _, up, _, down, ..] = &op.operands[..] else { unreachable!("checked") };
    support(op, settings, &[2, 4], &[up.dims[0], up.row_len() as u64, down.row_len() as u64])
}

fn support(op: &OpDesc, settings: &Settings, matrices: &[usize], extents: &[u64]) -> Support {
    if !settings.specialised() {
        return Support::no("in parts with kernels=portable");
    }
    if let Some(odd) = extents.iter().find(|n| **n % VECTOR != 0) {
        return Support::no(format!("rows of {odd}, not a multiple of {VECTOR}"));
    }
    if let Some(support) = moe_edges_fp8::support(op, settings, matrices) {
        return support;
    }
    // Which are bf16 factors only because they lie so; the others are expanded.
    let as_bf16 = |i: &&usize| op.operands[**i].dtype == DType::BF16;
    if settings.exact() && !matches!(matrices.iter().filter(as_bf16).count(), n if n == 0 || n == matrices.len()) {
        return Support::no("of its matrices, with f32 factors, some lie as bf16 and some do not");
    }
    let mut support =
        settings.rounded(Support::yes(format!("{}, one launch, {} factors", op.kind, settings.factors())));
    support.packs.extend(matrices.iter().filter_map(|i| gemm::packing(op, *i, settings)));
    support
}

fn pack(op: &OpView<'_>, operand: usize, source: &[u8], settings: &Settings) -> Result<Vec<u8>, Fault> {
    match moe_edges_fp8::packed(op, operand, settings)? {
        Some(shape) => Ok(shape.pack(&op.operand(operand)?, source)),
        None => gemm::expand(op, operand, source, settings),
    }
}

/// The launch of a kernel for a program's rows and matrices like `w`, each of so many columns of results.
fn launch(
    op: &BoundOp<'_>,
    plan: &mut Plan<'_>,
    (name, w, rows): (&str, &Operand, &Operand),
    columns: &[usize],
    arguments: &[(&str, Argument)],
) -> Result<(), Fault> {
    let (format, _) = gemm::stored(&w.tensor);
    let (tokens, n) = (op.capacity(rows), columns.iter().sum());
    let many = !op.settings.exact() && tokens as usize > gemm_few::TILE;
    let (bm, bn) = if many { gemm_many::tile(tokens, n) } else { gemm::tile(op, rows, n, format) };
    let tiles = columns.iter().map(|n| n.div_ceil(bn as usize)).sum();
    let tiles = if many { gemm_many::columns(bm, tiles) } else { tiles };
    let kernel = format!("{name}_{format}_{}_{bm}x{bn}", op.settings.factors());
    Ok(plan.launch(&kernel, [rows.rows(bm), Extent::Fixed(tiles as u32), Extent::ONE], arguments)?)
}

/// Values between rows of a matrix.
fn ld(w: &Operand) -> Argument {
    int(gemm::stored(&w.tensor).1)
}

/// What a kernel of `moe_input` is told in every format of the matrices.
pub(super) fn input_arguments(op: &BoundOp<'_>) -> [(&'static str, Argument); 22] {
    let [x, router, down, gate, up, logits, z, h] = op.operands else { unreachable!("checked") };
    let [word, fixed] = x.count();
    let [experts, latent, width] = [router, down, gate].map(|w| int(w.tensor.dims[0]));
    let [beta, linear] = [0, 1].map(|at| float(op.op.attrs().f[at]));
    [
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
        ("E", experts),
        ("L", latent),
        ("S", width),
        ("K", x.row_len()),
        ("ldx", x.stride()),
        ("ldr", ld(router)),
        ("ldl", logits.stride()),
        ("ldz", z.stride()),
        ("ldh", h.stride()),
        ("beta", beta),
        ("linear", linear),
    ]
}

fn plan_input(op: &BoundOp<'_>, plan: &mut Plan<'_>) -> Result<(), Fault> {
    let [x, router, down, gate, up, _, z, _] = op.operands else { unreachable!("checked") };
    if moe_edges_fp8::is(down) {
        return moe_edges_fp8::plan_input(op, plan);
    }
    let [experts, latent, width] = [router, down, gate].map(|w| w.tensor.dims[0]);
    let strides = [("ldd", ld(down)), ("ldg", ld(gate)), ("ldu", ld(up))];
    let [flag, rows, _] = ahead::nowhere(z);
    let arguments = [&input_arguments(op)[..], &strides, &[flag, rows]].concat();
    launch(op, plan, ("moe_input", router, x), &[experts, latent, 2 * width], &arguments)?;
    if !op.settings.exact() {
        ahead::offer(op, plan, z, ahead::Form::Bf16);
    }
    Ok(())
}

fn plan_output(op: &BoundOp<'_>, plan: &mut Plan<'_>) -> Result<(), Fault> {
    let [r, norm, up, h, down, rest @ ..] = op.operands else { unreachable!("checked") };
    if moe_edges_fp8::is(up) {
        return moe_edges_fp8::plan_output(op, plan);
    }
    let y = rest.last().expect("checked");
    let add = op.op.attrs().i[0] == 1;
    let residual = if add { &rest[0] } else { y };
    let [word, fixed] = r.count();
    let columns = up.tensor.dims[0];
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
        ("ldu", ld(up)),
        ("ldh", h.stride()),
        ("ldd", ld(down)),
        ("lde", residual.stride()),
        ("ldy", y.stride()),
        ("add", int(usize::from(add))),
        ("eps", float(op.op.attrs().f[0])),
    ];
    launch(op, plan, ("moe_output", up, r), &[columns], &arguments)
}
