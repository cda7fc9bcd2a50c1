//! `gemm`: dense products. Weights are bf16 as they are, or expanded at load: to bf16, or to f32 with `precision=f32`.
//! With `precision=fp8` many are quantised instead (`gemm_fp8`).
//!
//! The tile follows the program's capacity; every tile walks K alike, so the choice changes no bit.

use tokenspeed_backend_api::{
    catalogue::OpDesc,
    dtype::DType,
    op::OpKind,
    quant,
    sdk::{Fault, OpView, Pack, Support, Tensor},
};

use super::{BoundOp, OpEntry, Operand, gemm_fp8, int};
use crate::{
    kernel::{Extent, Plan},
    settings::Settings,
};

/// Layout of a weight expanded to bf16.
const AS_BF16: u32 = 1;
/// Layout of a weight expanded to f32.
const AS_F32: u32 = 2;

inventory::submit! { OpEntry { kind: OpKind::Gemm, support, plan, pack: Some(pack) } }

fn support(op: &OpDesc, settings: &Settings) -> Support {
    if let Some(shape) = gemm_fp8::Shape::of(op, settings) {
        return shape.support(op);
    }
    let mut support = settings.rounded(Support::yes(format!("linear, {} factors", settings.factors())));
    support.packs.extend(packing(op, 1, settings));
    support
}

/// What a weight whose values are factors of products is packed to at load; `None` if it is used as it is.
pub(super) fn packing(op: &OpDesc, operand: usize, settings: &Settings) -> Option<Pack> {
    let w = &op.operands[operand];
    let bytes = w.dims[0] * w.row_len() as u64 * settings.factor_bytes() as u64;
    expanded(w.dtype, settings).map(|layout| Pack { operand: operand as u32, layout, bytes })
}

/// The layout that a weight of this format is expanded to, `None` if it is used as it is.
fn expanded(dtype: DType, settings: &Settings) -> Option<u32> {
    match (dtype, settings.exact()) {
        (DType::BF16, _) | (DType::F32, true) => None,
        (_, false) => Some(AS_BF16),
        (_, true) => Some(AS_F32),
    }
}

fn pack(op: &OpView<'_>, operand: usize, source: &[u8], settings: &Settings) -> Result<Vec<u8>, Fault> {
    match gemm_fp8::Shape::packed(op, settings)? {
        Some(shape) => Ok(shape.pack(&op.operand(operand)?, source)),
        None => expand(op, operand, source, settings),
    }
}

/// A weight in the layout that [`packing`] asked for.
pub(super) fn expand(op: &OpView<'_>, operand: usize, source: &[u8], settings: &Settings) -> Result<Vec<u8>, Fault> {
    let t = op.operand(operand)?;
    let mut values = vec![0f32; t.dims[0] * t.row_len()];
    quant::dequantize_row(t.dtype, source, &mut values);
    Ok(match expanded(t.dtype, settings) {
        Some(AS_BF16) => values.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect(),
        Some(_) => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        None => return Err(Fault::internal(format!("{} weights are used as they are", t.dtype))),
    })
}

/// Format of a weight in memory, and elements between its rows.
pub(super) fn stored(t: &Tensor) -> (&'static str, usize) {
    match t.layout {
        AS_BF16 => ("bf16", t.row_len()),
        AS_F32 => ("f32", t.row_len()),
        _ if t.dtype == DType::BF16 => ("bf16", t.row_bytes / 2),
        _ => ("f32", t.row_bytes / 4),
    }
}

/// Tiles of 16 rows and 64 columns below which narrow ones are quicker, by count (`benches/modelled`): fewer work-groups than compute
/// units do not read weights at the full rate.
const FEW: usize = 256;
/// Columns of a narrow tile.
const NARROW: u32 = 16;

/// Rows and columns of a work-group's tile for a program whose rows `x` has, and `n` rows of weights in a format.
pub(super) fn tile(op: &BoundOp<'_>, x: &Operand, n: usize, format: &str) -> (u32, u32) {
    let (bm, bn) = if op.capacity(x) <= 16 { (16, 64) } else { (64, 64) };
    let few = bm == 16 && n.div_ceil(bn as usize) < FEW;
    (bm, if few && format == "bf16" && !op.settings.exact() { NARROW } else { bn })
}

fn plan(op: &BoundOp<'_>, plan: &mut Plan<'_>) -> Result<(), Fault> {
    if op.operands[1].tensor.layout == gemm_fp8::AS_FP8 {
        return gemm_fp8::plan(op, plan);
    }
    let (x, w, y) = (&op.operands[0], &op.operands[1], op.operands.last().expect("checked"));
    let bias = (op.op.attrs().i[0] == 1).then(|| op.operands[2]);
    multiply(op, plan, [x, w, y], bias)
}

/// The launch for y = x · wᵀ (+ bias) of a weight that is not quantised.
pub(super) fn multiply(
    op: &BoundOp<'_>,
    plan: &mut Plan<'_>,
    [x, w, y]: [&Operand; 3],
    bias: Option<Operand>,
) -> Result<(), Fault> {
    let [word, fixed] = x.count();
    let (n, k) = (w.tensor.dims[0], w.tensor.row_len());
    let (format, ldw) = stored(&w.tensor);
    let factors = op.settings.factors();
    let (bm, bn) = tile(op, x, n, format);
    let kernel = format!("linear_{format}_{factors}_{bm}x{bn}");
    let arguments = [
        op.step(),
        word,
        fixed,
        ("x", x.pointer()),
        ("w", w.pointer()),
        ("bias", bias.unwrap_or(*x).pointer()),
        ("y", y.pointer()),
        ("N", int(n)),
        ("K", int(k)),
        ("ldx", x.stride()),
        ("ldw", int(ldw)),
        ("ldy", y.stride()),
        ("biased", int(usize::from(bias.is_some()))),
    ];
    Ok(plan.launch(&kernel, [x.rows(bm), Extent::Fixed(n.div_ceil(bn as usize) as u32), Extent::ONE], &arguments)?)
}
