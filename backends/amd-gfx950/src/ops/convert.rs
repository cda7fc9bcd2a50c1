//! `copy`: rows in another element format.

use tokenspeed_backend_api::{
    catalogue::OpDesc,
    dtype::DType,
    op::OpKind,
    sdk::{Fault, Support},
};

use super::{BoundOp, OpEntry, elementwise::row_to_row};
use crate::{kernel::Plan, settings::Settings};

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
    row_to_row(op, plan, &kernel(x.tensor.dtype, y.tensor.dtype).expect("supported"), x, y)
}
