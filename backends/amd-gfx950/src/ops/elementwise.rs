//! Ops on values one by one: `add`, `mul`, `silu`, `sigmoid`, `silu_mul`, `sigmoid_mul`,
//! `situ_mul`.

use tokenspeed_backend_api::{
    catalogue::OpDesc,
    op::OpKind,
    sdk::{Fault, Support},
};

use super::{BoundOp, OpEntry, Operand, PANEL, ahead, float, int, panels};
use crate::{
    kernel::{Argument, Extent, Plan},
    settings::Settings,
};

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
    SigmoidMul: binary, "binary_sigmoid_mul";
    Silu: unary, "unary_silu";
    Sigmoid: unary, "unary_sigmoid";
}

inventory::submit! {
    OpEntry { kind: OpKind::SiluMul, support: |_, _| Support::yes("binary_silu_mul"), plan: silu, pack: None }
}
inventory::submit! {
    OpEntry { kind: OpKind::SituMul, support: |_, _| Support::yes("binary_situ_mul"), plan: situ, pack: None }
}

fn unary(op: &BoundOp<'_>, plan: &mut Plan<'_>, kernel: &str) -> Result<(), Fault> {
    let [x, y] = op.operands else { unreachable!("checked") };
    row_to_row(op, plan, kernel, x, y)
}

/// A launch that makes each row of y from the row of x, column by column.
pub(super) fn row_to_row(
    op: &BoundOp<'_>,
    plan: &mut Plan<'_>,
    kernel: &str,
    x: &Operand,
    y: &Operand,
) -> Result<(), Fault> {
    let [word, fixed] = y.count();
    let d = y.tensor.row_len();
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
    Ok(plan.launch(kernel, [y.rows(1), panels(d, PANEL), Extent::ONE], &arguments)?)
}

fn binary(op: &BoundOp<'_>, plan: &mut Plan<'_>, kernel: &str) -> Result<(), Fault> {
    launch(op, plan, kernel, &[])
}

fn silu(op: &BoundOp<'_>, plan: &mut Plan<'_>) -> Result<(), Fault> {
    gated(op, plan, "binary_silu_mul", [0.0; 2])
}

fn situ(op: &BoundOp<'_>, plan: &mut Plan<'_>) -> Result<(), Fault> {
    let f = op.op.attrs().f;
    gated(op, plan, "binary_situ_mul", [f[0], f[1]])
}

/// What products read next, so perhaps in e4m3 as well.
fn gated(op: &BoundOp<'_>, plan: &mut Plan<'_>, kernel: &str, [beta, linear]: [f64; 2]) -> Result<(), Fault> {
    let y = &op.operands[2];
    let limits = [("beta", float(beta)), ("linear", float(linear))];
    launch(op, plan, kernel, &[&limits[..], &ahead::nowhere(y)].concat())?;
    ahead::offer(op, plan, y, ahead::Form::E4m3);
    Ok(())
}

fn launch(op: &BoundOp<'_>, plan: &mut Plan<'_>, kernel: &str, more: &[(&str, Argument)]) -> Result<(), Fault> {
    let [a, b, y] = op.operands else { unreachable!("checked") };
    let [word, fixed] = a.count();
    let d = a.tensor.row_len();
    let grid = [a.rows(1), panels(d, PANEL), Extent::ONE];
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
    Ok(plan.launch(kernel, grid, &[&arguments[..], more].concat())?)
}
