//! `copy`: rows in another element format.

use tokenspeed_backend_api::{
    catalogue::OpDesc,
    dtype::DType,
    op::OpKind,
    sdk::{Fault, Support},
};

use super::{BoundOp, OpEntry, int};
use crate::{
    kernel::{Extent, Plan},
    settings::Settings,
};

/// Columns per work-group, the kernel's `B`.
const PANEL: usize = 1024;

/// How kernel names call the formats without blocks.
pub(super) fn format_name(dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::F32 => Some("f32"),
        DType::BF16 => Some("bf16"),
        DType::F16 => Some("f16"),
        DType::F8E4M3 => Some("fp8"),
        _ => None,
    }
}

fn kernel(x: DType, y: DType) -> Option<String> {
    let (x, y) = (format_name(x)?, format_name(y)?);
    (x == "f32" || y == "f32").then(|| format!("convert_{x}_{y}"))
}

inventory::submit! { OpEntry { kind: OpKind::Copy, support, plan, pack: None } }

fn support(op: &OpDesc, _: &Settings) -> Support {
    let (x, y) = (op.operands[0].dtype, op.operands[1].dtype);
    kernel(x, y).map_or_else(|| Support::no(format!("{x} to {y}: one of them is to be f32")), Support::yes)
}

fn plan(op: &BoundOp<'_>, plan: &mut Plan<'_>) -> Result<(), Fault> {
    let [x, y] = op.operands else { unreachable!("checked") };
    let [word, fixed] = x.count();
    let d = x.tensor.row_len();
    let grid = [x.rows(1), Extent::Fixed(d.div_ceil(PANEL) as u32), Extent::ONE];
    let arguments = [
        op.step(),
        word,
        fixed,
        ("x", x.pointer()),
        ("y", y.pointer()),
        ("D", int(d)),
        ("ldx", x.stride()),
        ("ldy", y.stride()),
    ];
    let kernel = kernel(x.tensor.dtype, y.tensor.dtype).expect("supported");
    Ok(plan.launch(&kernel, grid, &arguments)?)
}
