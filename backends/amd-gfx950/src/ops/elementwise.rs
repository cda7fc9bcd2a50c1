//! Ops on values one by one: `add`, `mul`, `silu`, `sigmoid`, `silu_mul`, `sigmoid_mul`.

use tokenspeed_backend_api::{
    catalogue::OpDesc,
    op::OpKind,
    sdk::{Fault, Support},
};

use super::{BoundOp, OpEntry, int};
use crate::{
    kernel::{Extent, Plan},
    settings::Settings,
};

/// Columns per work-group, the kernels' `B`.
const PANEL: usize = 1024;

macro_rules! entries {
    ($($kind:ident: $plan:ident, $kernel:literal;)*) => {$(
        inventory::submit! {
            OpEntry {
                kind: OpKind::$kind,
                support: |_: &OpDesc, _: &Settings| Support::yes($kernel),
                plan: |op, plan| $plan(op, plan, $kernel),
                pack: None,
            }
        }
    )*};
}

entries! {
    Add: binary, "binary_add";
    Mul: binary, "binary_mul";
    SiluMul: binary, "binary_silu_mul";
    SigmoidMul: binary, "binary_sigmoid_mul";
    Silu: unary, "unary_silu";
    Sigmoid: unary, "unary_sigmoid";
}

fn unary(op: &BoundOp<'_>, plan: &mut Plan<'_>, kernel: &str) -> Result<(), Fault> {
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
    Ok(plan.launch(kernel, grid, &arguments)?)
}

fn binary(op: &BoundOp<'_>, plan: &mut Plan<'_>, kernel: &str) -> Result<(), Fault> {
    let [a, b, y] = op.operands else { unreachable!("checked") };
    let [word, fixed] = a.count();
    let d = a.tensor.row_len();
    let grid = [a.rows(1), Extent::Fixed(d.div_ceil(PANEL) as u32), Extent::ONE];
    let arguments = [
        op.step(),
        word,
        fixed,
        ("a", a.pointer()),
        ("b", b.pointer()),
        ("y", y.pointer()),
        ("D", int(d)),
        ("lda", a.stride()),
        ("ldb", b.stride()),
        ("ldy", y.stride()),
    ];
    Ok(plan.launch(kernel, grid, &arguments)?)
}
