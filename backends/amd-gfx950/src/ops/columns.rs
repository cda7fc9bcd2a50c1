//! Ops that pick or join columns: `slice`, `concat`.

use tokenspeed_backend_api::{
    op::OpKind,
    sdk::{Fault, Support},
};

use super::{BoundOp, OpEntry, int};
use crate::kernel::{Argument, Extent, Plan};

/// Columns per work-group, the kernels' `B`.
const PANEL: usize = 1024;

inventory::submit! { OpEntry { kind: OpKind::Slice, support: |_, _| Support::yes("slice"), plan: plan_slice, pack: None } }
inventory::submit! { OpEntry { kind: OpKind::Concat, support: |_, _| Support::yes("concat"), plan: plan_concat, pack: None } }

fn plan_slice(op: &BoundOp<'_>, plan: &mut Plan<'_>) -> Result<(), Fault> {
    let [x, y] = op.operands else { unreachable!("checked") };
    let [word, fixed] = y.count();
    let d = y.tensor.row_len();
    let arguments = [
        op.step(),
        word,
        fixed,
        ("x", Argument::Pointer(x.address + op.op.attrs().i[0] as u64 * 4)),
        ("y", y.pointer()),
        ("D", int(d)),
        ("ldx", x.stride()),
        ("ldy", y.stride()),
    ];
    let grid = [y.rows(1), Extent::Fixed(d.div_ceil(PANEL) as u32), Extent::ONE];
    Ok(plan.launch("slice", grid, &arguments)?)
}

fn plan_concat(op: &BoundOp<'_>, plan: &mut Plan<'_>) -> Result<(), Fault> {
    let [a, b, y] = op.operands else { unreachable!("checked") };
    let [word, fixed] = y.count();
    let arguments = [
        op.step(),
        word,
        fixed,
        ("a", a.pointer()),
        ("b", b.pointer()),
        ("y", y.pointer()),
        ("A", a.row_len()),
        ("C", b.row_len()),
        ("lda", a.stride()),
        ("ldb", b.stride()),
        ("ldy", y.stride()),
    ];
    let grid = [y.rows(1), Extent::Fixed(y.tensor.row_len().div_ceil(PANEL) as u32), Extent::ONE];
    Ok(plan.launch("concat", grid, &arguments)?)
}
