//! Ops that pick or join columns: `slice`, `concat`.

use tokenspeed_backend_api::{
    op::OpKind,
    sdk::{Fault, Support},
};

use super::{BoundOp, OpEntry, Operand, PANEL, elementwise::row_to_row, panels};
use crate::kernel::{Extent, Plan};

inventory::submit! { OpEntry { kind: OpKind::Slice, support: |_, _| Support::yes("slice"), plan: plan_slice, pack: None } }
inventory::submit! { OpEntry { kind: OpKind::Concat, support: |_, _| Support::yes("concat"), plan: plan_concat, pack: None } }

fn plan_slice(op: &BoundOp<'_>, plan: &mut Plan<'_>) -> Result<(), Fault> {
    let [x, y] = op.operands else { unreachable!("checked") };
    let first = Operand { address: x.address + op.op.attrs().i[0] as u64 * 4, ..*x };
    row_to_row(op, plan, "slice", &first, y)
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
    let grid = [y.rows(1), panels(y.tensor.row_len(), PANEL), Extent::ONE];
    Ok(plan.launch("concat", grid, &arguments)?)
}
