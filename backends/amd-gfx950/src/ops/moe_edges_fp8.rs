//! `moe_input` and `moe_output` of e4m3 factors, with `precision=fp8`: half the weight bytes of both, in two launches each.
//!
//! The first launch rounds rows once for all tiles of columns, norm included (`kernels/moe_edges_fp8.py`). Rejected: rounding them in
//! each tile, as short rows of single products are: 7,168 values take a wave longer than the launch.
//!
//! The router keeps its bf16 factors, since a rounding there would change who is chosen; in programs of more than 256 tokens its product is
//! a launch of `gemm`, a third one. Matrices are quantised as those of single products are, or none is.

use tokenspeed_backend_api::{
    catalogue::OpDesc,
    op::OpKind,
    sdk::{Fault, OpView, Support},
    support::Rounding,
};

use super::{
    BoundOp, Operand, float, gemm,
    gemm_few::{self, TILE},
    gemm_fp8::{self, Shape},
    int,
    moe_edges::{ROUTER, input_arguments},
};
use crate::{
    kernel::{Argument, Extent, Plan},
    settings::Settings,
};

/// Columns per work-group of the launch that makes factors of `moe_output`'s inputs, its `B`.
const READY: usize = 4096;

/// Most tiles of 16 rows that one of a launch's may hold for the router to be in it: its weights are fetched for each.
const MOST: usize = 4;

/// Operands whose rows are rounded, each with bytes of scratch.
fn inputs(kind: OpKind) -> &'static [usize] {
    if kind == OpKind::MoeInput { &[0] } else { &[0, 3] }
}

/// The answer for matrices that are quantised; `None` if they are not.
pub(super) fn support(op: &OpDesc, settings: &Settings, matrices: &[usize]) -> Option<Support> {
    let rows = op.operands[0].vary;
    let mut support = Support::yes(format!("{}_fp8", op.kind));
    support.rounding = Rounding::Fp8;
    for i in matrices {
        let w = &op.operands[*i];
        match decides(op.kind, *i) {
            true => support.packs.extend(gemm::packing(op, *i, settings)),
            false => {
                let shape = Shape::of_matrix(w.dims[0], w.row_len(), rows, settings)?;
                support.packs.push(shape.packing(*i as u32));
            }
        }
    }
    let room = |i: &usize| gemm_fp8::room(op.operands[*i].dims[0], op.operands[*i].row_len());
    support.workspace_bytes = inputs(op.kind).iter().map(room).sum();
    Some(support)
}

fn decides(kind: OpKind, operand: usize) -> bool {
    kind == OpKind::MoeInput && operand == ROUTER
}

/// What an operand is quantised to, if [`support`] asked for that.
pub(super) fn packed(op: &OpView<'_>, operand: usize, settings: &Settings) -> Result<Option<Shape>, Fault> {
    if decides(op.kind(), operand) {
        return Ok(None);
    }
    let matrices: &[usize] = if op.kind() == OpKind::MoeInput { &[2, 3, 4] } else { &[2, 4] };
    let rows = op.operand(0)?.vary;
    let mut found = None;
    for i in matrices {
        let w = op.operand(*i)?;
        match Shape::of_matrix(w.dims[0] as u64, w.row_len(), rows, settings) {
            Some(shape) if *i == operand => found = Some(shape),
            Some(_) => {}
            None => return Ok(None),
        }
    }
    Ok(found)
}

/// Whether a matrix is quantised.
pub(super) fn is(w: &Operand) -> bool {
    w.tensor.layout == gemm_fp8::AS_FP8
}

fn padded(x: &Operand) -> Argument {
    int(gemm_fp8::padded(x.tensor.row_len()))
}

/// Tiles of `columns`.
fn tiles(columns: usize, each: usize) -> u32 {
    columns.div_ceil(each) as u32
}

pub(super) fn plan_input(op: &BoundOp<'_>, plan: &mut Plan<'_>) -> Result<(), Fault> {
    let [x, router, down, gate, _, logits, ..] = op.operands else { unreachable!("checked") };
    let [experts, latent, width] = [router, down, gate].map(|w| w.tensor.dims[0]);
    gemm_fp8::plan_rounding(op, plan, x)?;
    let (rows, scales) = gemm_fp8::rounded(op, x);
    let arguments = [&input_arguments(op)[..], &[("xq", rows), ("xs", scales), ("KP", padded(x))]].concat();
    let (form, bm, bn) = form(op.capacity(x) as usize);
    // The router's tiles have 16 rows.
    let routers = match bm as usize / TILE {
        each @ 1..=MOST => each as u32 * tiles(experts, bn),
        _ => {
            if !gemm_few::single(op, plan, [x, router, logits])? {
                gemm::multiply(op, plan, [x, router, logits], None)?;
            }
            0
        }
    };
    let columns = routers + tiles(latent, bn) + tiles(width, bn);
    let grid = [x.rows(bm), Extent::Fixed(columns), Extent::ONE];
    Ok(plan.launch(&format!("moe_input_fp8_{form}"), grid, &arguments)?)
}

/// What the kernels for programs of so many tokens are called, and their tile: rows and columns.
fn form(tokens: usize) -> (String, u32, usize) {
    if tokens <= TILE {
        return ("few".to_owned(), TILE as u32, TILE);
    }
    let (bm, bn) = gemm_fp8::tile(tokens);
    (format!("{bm}x{bn}"), bm, bn as usize)
}

pub(super) fn plan_output(op: &BoundOp<'_>, plan: &mut Plan<'_>) -> Result<(), Fault> {
    let [r, norm, up, h, down, rest @ ..] = op.operands else { unreachable!("checked") };
    let y = rest.last().expect("checked");
    let add = op.op.attrs().i[0] == 1;
    let residual = if add { &rest[0] } else { y };
    let [word, fixed] = r.count();
    let step = [op.step(), word, fixed];
    let behind = op.workspace + gemm_fp8::room(r.tensor.dims[0] as u64, r.tensor.row_len());
    let ((rq, rs), (hq, hs)) = (gemm_fp8::rounded(op, r), gemm_fp8::rounded_at(behind, h));
    let factors = [("rq", rq), ("rs", rs), ("hq", hq), ("hs", hs), ("L", r.row_len()), ("S", h.row_len())];
    let inputs = [
        ("r", r.pointer()),
        ("norm", norm.pointer()),
        ("h", h.pointer()),
        ("ldr", r.stride()),
        ("ldh", h.stride()),
        ("eps", float(op.op.attrs().f[0])),
    ];
    let panels = 1 + tiles(h.tensor.row_len(), READY);
    let grid = [r.rows(1), Extent::Fixed(panels), Extent::ONE];
    plan.launch("moe_output_fp8_ready", grid, &[&step[..], &factors, &inputs].concat())?;
    let columns = up.tensor.dims[0];
    let products = [
        ("up", up.pointer()),
        ("down", down.pointer()),
        ("residual", residual.pointer()),
        ("y", y.pointer()),
        ("N", int(columns)),
        ("LP", padded(r)),
        ("SP", padded(h)),
        ("lde", residual.stride()),
        ("ldy", y.stride()),
        ("add", int(usize::from(add))),
    ];
    let (form, bm, bn) = form(op.capacity(r) as usize);
    let grid = [r.rows(bm), Extent::Fixed(tiles(columns, bn)), Extent::ONE];
    Ok(plan.launch(&format!("moe_output_fp8_{form}"), grid, &[&step[..], &factors, &products].concat())?)
}
