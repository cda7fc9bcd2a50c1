//! Latent attention: `mla_write`, `mla_absorb`, `mla_attention`, `mla_value`.
//!
//! Attention goes to `mla_split` where the shape is that of its kernels, else to a portable kernel for all widths and formats.
//! Projections take weights as `gemm` does: bf16 as they are, everything else expanded at load.

use tokenspeed_backend_api::{
    catalogue::OpDesc,
    graph::Vary,
    op::OpKind,
    sdk::{Fault, Support},
};

use super::{
    BoundOp, OpEntry, Operand,
    cache::pages,
    convert::format_name,
    float, gemm, int,
    mla_split::{self, Shape, Split},
};
use crate::{
    kernel::{Argument, Extent, Plan},
    settings::Settings,
};

/// (Token, head) pairs per work-group of `mla_attention`.
const PAIRS: usize = 16;
/// Widest latent row.
const LATENT_MAX: usize = 512;
/// Columns per work-group of a projection, and what FULL variants want the inner length to be a multiple of.
pub(super) const PANEL: usize = 64;

inventory::submit! {
    OpEntry { kind: OpKind::MlaWrite, support: |_, _| Support::yes("mla_write"), plan: plan_write, pack: None }
}
inventory::submit! {
    OpEntry { kind: OpKind::MlaAbsorb, support: project, plan: plan_absorb, pack: Some(gemm::expand) }
}
inventory::submit! { OpEntry { kind: OpKind::MlaAttention, support: attention, plan: plan_attention, pack: None } }
inventory::submit! { OpEntry { kind: OpKind::MlaValue, support: project, plan: plan_value, pack: Some(gemm::expand) } }

fn project(op: &OpDesc, settings: &Settings) -> Support {
    let mut support = settings.rounded(Support::yes(format!("mla_project, {} factors", settings.factors())));
    support.packs.extend(gemm::packing(op, 1, settings));
    support
}

fn attention(op: &OpDesc, settings: &Settings) -> Support {
    let (width, rank) = (op.operands[0].dims[2] as usize, op.operands[3].dims[2] as usize);
    let size = size(width, rank);
    if rank > LATENT_MAX || (size == "512_ragged" && settings.exact()) {
        return Support::no(format!(
            "a latent row of {width} values, {rank} of them latent: at most 64 are, or 512, or with bf16 factors fewer"
        ));
    }
    let cache = &op.operands[1];
    let shape = Shape {
        tokens: op.operands[0].dims[0] as usize,
        heads: op.operands[0].dims[1] as usize,
        widths: (width, rank),
        cache: cache.dtype,
        pages: (cache.dims[1] as usize, op.operands[2].dims[1] as usize),
    };
    match Split::new(&shape, settings) {
        Some(split) => {
            let mut support = settings.rounded(Support::yes("mla_decode, bf16 factors"));
            support.workspace_bytes = split.workspace_bytes();
            support
        }
        None => settings.rounded(Support::yes(format!("mla_attention, {} factors", settings.factors()))),
    }
}

/// The kernel's tile of latent columns; the one that is not ragged is for whole panels alone.
fn size(width: usize, rank: usize) -> &'static str {
    match rank {
        0..=64 => "64_ragged",
        LATENT_MAX if width.is_multiple_of(PANEL) => "512",
        _ => "512_ragged",
    }
}

fn plan_write(op: &BoundOp<'_>, plan: &mut Plan<'_>) -> Result<(), Fault> {
    let [x, w, cache, table] = op.operands else { unreachable!("checked") };
    let [a, b, c, d, e] = pages(cache, table);
    let arguments = [
        op.step(),
        ("x", x.pointer()),
        ("w", w.pointer()),
        a,
        b,
        c,
        d,
        e,
        ("R", int(w.tensor.dims[0])),
        ("W", x.row_len()),
        ("ldx", x.stride()),
        ("eps", float(op.op.attrs().f[0])),
    ];
    let kernel = format!("mla_write_{}", format_name(cache.tensor.dtype).expect("a cache format"));
    Ok(plan.launch(&kernel, [x.rows(1), Extent::ONE, Extent::ONE], &arguments)?)
}

/// What tells projections apart.
pub(super) struct Projection {
    /// Output columns and inner length per head.
    pub n: usize,
    pub k: usize,
    /// Values behind the inner ones that are copied.
    pub rope: usize,
    /// Row of a head's part of w where its matrix begins.
    pub first: usize,
    /// Panels that copy.
    pub extra: usize,
}

fn plan_absorb(op: &BoundOp<'_>, plan: &mut Plan<'_>) -> Result<(), Fault> {
    let rope = op.op.attrs().i[0] as usize;
    let (k, n) = (op.operands[0].tensor.dims[2] - rope, op.operands[1].tensor.row_len());
    plan_project(op, plan, "absorb", &Projection { n, k, rope, first: 0, extra: 1 })
}

fn plan_value(op: &BoundOp<'_>, plan: &mut Plan<'_>) -> Result<(), Fault> {
    let [x, w, y] = op.operands else { unreachable!("checked") };
    let (n, k) = (y.tensor.dims[2], x.tensor.dims[2]);
    let first = w.tensor.dims[0] / x.tensor.dims[1] - n;
    plan_project(op, plan, "value", &Projection { n, k, rope: 0, first, extra: 0 })
}

/// Launches a projection of operands x, w, y.
pub(super) fn plan_project(op: &BoundOp<'_>, plan: &mut Plan<'_>, name: &str, p: &Projection) -> Result<(), Fault> {
    let [x, w, y] = op.operands else { unreachable!("checked") };
    let (format, _) = gemm::stored(&w.tensor);
    let bm = if op.capacity(x) <= 16 { 16 } else { 64 };
    // f32 factors have one form, for all extents.
    let whole = op.settings.exact() || p.n.is_multiple_of(PANEL) && p.k.is_multiple_of(PANEL);
    let ragged = if whole { "" } else { "_ragged" };
    let kernel = format!("mla_{name}_{format}_{}_{bm}{ragged}", op.settings.factors());
    // The gate is not read.
    launch_project(op, plan, (&kernel, bm), y, None, p)
}

/// The same by a kernel that is given, with its rows per work-group, and a gate that lies as y does; flags of the requests that it
/// leaves out, for kernels that take them.
pub(super) fn launch_project(
    op: &BoundOp<'_>,
    plan: &mut Plan<'_>,
    (kernel, bm): (&str, u32),
    gate: &Operand,
    flags: Option<Argument>,
    p: &Projection,
) -> Result<(), Fault> {
    let [x, w, y] = op.operands else { unreachable!("checked") };
    let [word, fixed] = x.count();
    let heads = x.tensor.dims[1];
    let (_, ldw) = gemm::stored(&w.tensor);
    let mut arguments = vec![
        op.step(),
        word,
        fixed,
        ("x", x.pointer()),
        ("w", w.pointer()),
        ("gate", gate.pointer()),
        ("y", y.pointer()),
        ("N", int(p.n)),
        ("K", int(p.k)),
        ("rope", int(p.rope)),
        ("first", int(p.first)),
        ("per_head", int(w.tensor.dims[0] / heads)),
        ("ldw", int(ldw)),
        ("xh", int(x.tensor.dims[2])),
        ("yh", int(y.tensor.dims[2])),
        ("ldx", x.stride()),
        ("ldy", y.stride()),
    ];
    arguments.extend(flags.map(|flags| ("flags", flags)));
    let panels = (p.n.div_ceil(PANEL) + p.extra) as u32;
    let panels = if flags.is_some() { Extent::Rest(panels) } else { Extent::Fixed(panels) };
    Ok(plan.launch(kernel, [x.rows(bm), Extent::Fixed(heads as u32), panels], &arguments)?)
}

fn plan_attention(op: &BoundOp<'_>, plan: &mut Plan<'_>) -> Result<(), Fault> {
    if let Some(split) = Split::new(&mla_split::shape(op.operands), op.settings) {
        return split.plan(op, op.op.attrs(), plan);
    }
    let [q, cache, table, y] = op.operands else { unreachable!("checked") };
    let (heads, width, rank) = (q.tensor.dims[1], q.tensor.dims[2], y.tensor.dims[2]);
    let [a, b, c, d, e] = pages(cache, table);
    let arguments = [
        op.step(),
        ("q", q.pointer()),
        a,
        b,
        c,
        d,
        e,
        ("y", y.pointer()),
        ("H", int(heads)),
        ("R", int(rank)),
        ("W", int(width)),
        ("ldq", q.stride()),
        ("ldy", y.stride()),
        ("scale", float(op.op.attrs().f[0] * std::f64::consts::LOG2_E)),
    ];
    let size = size(width, rank);
    let format = format_name(cache.tensor.dtype).expect("a cache format");
    let kernel = format!("mla_attention_{format}_{}_{size}", op.settings.factors());
    let groups = Extent::Things { count: Vary::Tokens, times: heads as u32, each: PAIRS as u32 };
    let grid = [groups, Extent::ONE, Extent::ONE];
    Ok(plan.launch(&kernel, grid, &arguments)?)
}
