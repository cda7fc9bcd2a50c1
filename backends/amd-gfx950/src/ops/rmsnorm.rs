//! `rmsnorm` per head, and `add_rmsnorm`.

use tokenspeed_backend_api::{
    op::OpKind,
    sdk::{Fault, Support},
};

use super::{BoundOp, OpEntry, ahead, float, int};
use crate::kernel::{Extent, Plan};

/// Up to this length a row is a head, and one wave's work.
const HEAD: usize = 256;

inventory::submit! {
    OpEntry { kind: OpKind::RmsNorm, support: |_, _| Support::yes("rmsnorm_f32"), plan, pack: None }
}
inventory::submit! {
    OpEntry { kind: OpKind::AddRmsNorm, support: |_, _| Support::yes("add_rmsnorm_f32"), plan: plan_add, pack: None }
}

fn plan(op: &BoundOp<'_>, plan: &mut Plan<'_>) -> Result<(), Fault> {
    let [x, w, y] = op.operands else { unreachable!("checked") };
    let [word, fixed] = x.count();
    let d = x.tensor.last();
    let heads = x.tensor.row_len() / d;
    let size = if d <= HEAD { "head" } else { "row" };
    let kernel = format!("rmsnorm_f32_{size}");
    let arguments = [
        op.step(),
        word,
        fixed,
        ("x", x.pointer()),
        ("w", w.pointer()),
        ("y", y.pointer()),
        ("H", int(heads)),
        ("D", int(d)),
        ("ldx", x.stride()),
        ("ldy", y.stride()),
        ("eps", float(op.op.attrs().f[0])),
    ];
    let arguments = [&arguments[..], &ahead::nowhere(y)].concat();
    plan.launch(&kernel, [x.rows(1), Extent::Fixed(heads as u32), Extent::ONE], &arguments)?;
    if size == "row" && heads == 1 {
        ahead::offer(op, plan, y, ahead::Form::E4m3);
    }
    Ok(())
}

fn plan_add(op: &BoundOp<'_>, plan: &mut Plan<'_>) -> Result<(), Fault> {
    let [x, residual, w, total, y] = op.operands else { unreachable!("checked") };
    let [word, fixed] = x.count();
    let arguments = [
        op.step(),
        word,
        fixed,
        ("x", x.pointer()),
        ("residual", residual.pointer()),
        ("w", w.pointer()),
        ("total", total.pointer()),
        ("y", y.pointer()),
        ("D", int(x.tensor.row_len())),
        ("ldx", x.stride()),
        ("ldr", residual.stride()),
        ("ldt", total.stride()),
        ("ldy", y.stride()),
        ("eps", float(op.op.attrs().f[0])),
    ];
    let arguments = [&arguments[..], &ahead::nowhere(y)].concat();
    plan.launch("add_rmsnorm_f32", [x.rows(1), Extent::ONE, Extent::ONE], &arguments)?;
    ahead::offer(op, plan, y, ahead::Form::E4m3);
    Ok(())
}
