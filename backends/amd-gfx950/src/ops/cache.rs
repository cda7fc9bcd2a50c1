//! Rows of paged caches: `kv_read`, `kv_move`.

use tokenspeed_backend_api::{
    graph::Vary,
    op::OpKind,
    sdk::{Fault, Support},
};

use super::{BoundOp, OpEntry, Operand, PANEL, convert::format_name, int, panels};
use crate::kernel::{Argument, Extent, Plan};

inventory::submit! {
    OpEntry {
        kind: OpKind::KvRead,
        support: |op, _| match i32::try_from(op.attrs.i[1]) {
            Ok(_) => Support::yes("kv_read"),
            Err(_) => Support::no(format!("{} positions back: at most 2^31 - 1", op.attrs.i[1])),
        },
        plan: plan_read,
        pack: None,
    }
}
inventory::submit! {
    OpEntry { kind: OpKind::KvMove, support: |_, _| Support::yes("kv_move"), plan: plan_move, pack: None }
}

/// What every kernel needs to find a row of a cache: the cache, its table, both widths and the page size.
pub(super) fn pages(cache: &Operand, table: &Operand) -> [(&'static str, Argument); 5] {
    [
        ("cache", cache.pointer()),
        ("table", table.pointer()),
        ("width", table.stride()),
        ("block_tokens", int(cache.tensor.dims[1])),
        ("ldc", cache.stride()),
    ]
}

/// Values of a token's row in a cache.
fn row_len(cache: &Operand) -> usize {
    cache.tensor.row_len() / cache.tensor.dims[1]
}

fn plan_read(op: &BoundOp<'_>, plan: &mut Plan<'_>) -> Result<(), Fault> {
    let [cache, table, y] = op.operands else { unreachable!("checked") };
    let d = row_len(cache);
    let [a, b, c, e, f] = pages(cache, table);
    let back = int(op.op.attrs().i[1] as usize);
    let arguments = [op.step(), a, b, c, e, f, ("y", y.pointer()), ("D", int(d)), ("ldy", y.stride()), ("back", back)];
    let kernel = format!("kv_read_{}", format_name(cache.tensor.dtype).expect("a cache format"));
    let grid = [y.rows(1), panels(d, PANEL), Extent::ONE];
    Ok(plan.launch(&kernel, grid, &arguments)?)
}

fn plan_move(op: &BoundOp<'_>, plan: &mut Plan<'_>) -> Result<(), Fault> {
    let [cache, table] = op.operands else { unreachable!("checked") };
    let d = row_len(cache);
    let [a, b, c, e, f] = pages(cache, table);
    let kernel = format!("kv_move_{}", 8 * cache.tensor.dtype.block_bytes());
    let rows = Extent::Per { count: Vary::Rows, each: 1, times: 1 };
    let grid = [rows, panels(d, PANEL), Extent::ONE];
    Ok(plan.launch(&kernel, grid, &[op.step(), a, b, c, e, f, ("D", int(d))])?)
}
