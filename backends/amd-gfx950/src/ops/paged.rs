//! `kv_write` and `paged_attention`: caches of keys and values per head.

use tokenspeed_backend_api::{
    catalogue::OpDesc,
    op::OpKind,
    sdk::{Fault, Support},
};

use super::{BoundOp, OpEntry, PANEL, convert::format_name, float, int, panels};
use crate::{
    kernel::{Extent, Plan},
    settings::Settings,
};

/// Largest head that the attention kernels hold in registers.
const HEAD_MAX: u64 = 128;
/// Rows of a tile of queries for steps of a few tokens, and for others.
const ROWS: [u32; 2] = [16, 64];

inventory::submit! { OpEntry { kind: OpKind::KvWrite, support: support_write, plan: plan_write, pack: None } }
inventory::submit! { OpEntry { kind: OpKind::PagedAttention, support, plan, pack: None } }

fn support_write(op: &OpDesc, _: &Settings) -> Support {
    match format_name(op.operands[1].dtype) {
        Some(format) => Support::yes(format!("kv_write_{format}")),
        None => Support::no(format!("the cache is {}", op.operands[1].dtype)),
    }
}

fn plan_write(op: &BoundOp<'_>, plan: &mut Plan<'_>) -> Result<(), Fault> {
    let [x, cache, table] = op.operands else { unreachable!("checked") };
    let width = x.tensor.row_len();
    let arguments = [
        op.step(),
        ("x", x.pointer()),
        ("cache", cache.pointer()),
        ("table", table.pointer()),
        ("W", int(width)),
        ("PB", int(cache.tensor.dims[1])),
        ("WIDTH", int(table.tensor.dims[1])),
        ("ldx", x.stride()),
    ];
    let kernel = format!("kv_write_{}", format_name(cache.tensor.dtype).expect("supported"));
    Ok(plan.launch(&kernel, [x.rows(1), panels(width, PANEL), Extent::ONE], &arguments)?)
}

fn support(op: &OpDesc, settings: &Settings) -> Support {
    let [q, k, v, ..] = &op.operands[..] else { unreachable!("checked") };
    if q.dims[2] > HEAD_MAX || v.dims[3] > HEAD_MAX {
        return Support::no(format!("heads of {} and {}, at most {HEAD_MAX}", q.dims[2], v.dims[3]));
    }
    if q.dims[1] / k.dims[2] > u64::from(ROWS[0]) {
        return Support::no(format!("{} query heads per key head, at most {}", q.dims[1] / k.dims[2], ROWS[0]));
    }
    if k.dtype != v.dtype || format_name(k.dtype).is_none() {
        return Support::no(format!("keys are {}, values are {}", k.dtype, v.dtype));
    }
    settings.rounded(Support::yes("paged_attention"))
}

fn plan(op: &BoundOp<'_>, plan: &mut Plan<'_>) -> Result<(), Fault> {
    let [q, k, v, table, y] = op.operands else { unreachable!("checked") };
    let (heads, d) = (q.tensor.dims[1], q.tensor.dims[2]);
    let (kv_heads, dv) = (k.tensor.dims[2], v.tensor.dims[3]);
    let group = heads / kv_heads;
    let padded = group.next_power_of_two() as u32;
    let is_short = op.bucket.max_tokens <= 2 * op.bucket.max_rows;
    let factors = op.settings.factors();
    let rows = if op.settings.exact() || is_short { ROWS[0] } else { ROWS[1] };
    let wide = if d.max(dv) <= 64 { 64 } else { 128 };
    let format = format_name(k.tensor.dtype).expect("supported");
    let arguments = [
        op.step(),
        ("q", q.pointer()),
        ("k", k.pointer()),
        ("v", v.pointer()),
        ("table", table.pointer()),
        ("y", y.pointer()),
        ("G", int(group)),
        ("GP", int(padded as usize)),
        ("HKV", int(kv_heads)),
        ("D", int(d)),
        ("DV", int(dv)),
        ("PB", int(k.tensor.dims[1])),
        ("WIDTH", int(table.tensor.dims[1])),
        ("ldq", q.stride()),
        ("ldy", y.stride()),
        ("scale", float(op.op.attrs().f[0])),
        ("window", int(op.op.attrs().i[1] as usize)),
    ];
    let grid = [Extent::QueryTiles { each: rows / padded }, Extent::Fixed(kv_heads as u32), Extent::ONE];
    Ok(plan.launch(&format!("paged_attention_{format}_{factors}_{rows}x{wide}"), grid, &arguments)?)
}
