//! Ops that move rows: `table_update`, `embedding`, `row_gather`.

use tokenspeed_backend_api::{
    catalogue::OpDesc,
    dtype::DType,
    op::OpKind,
    quant,
    sdk::{Fault, OpView, Pack, Support},
};

use super::{BoundOp, OpEntry, PANEL, convert::format_name, int, panels};
use crate::{
    kernel::{Extent, Plan},
    settings::Settings,
};

/// Layout of a table whose block format was expanded to f32 at load.
const EXPANDED: u32 = 1;

inventory::submit! {
    OpEntry { kind: OpKind::TableUpdate, support: |_, _| Support::yes("table_update"), plan: plan_update, pack: None }
}
inventory::submit! {
    OpEntry { kind: OpKind::Embedding, support: support_embedding, plan: plan_embedding, pack: Some(expand) }
}
inventory::submit! {
    OpEntry { kind: OpKind::RowGather, support: |_, _| Support::yes("row_gather"), plan: plan_gather, pack: None }
}

fn plan_update(op: &BoundOp<'_>, plan: &mut Plan<'_>) -> Result<(), Fault> {
    for (component, table) in op.operands.iter().enumerate() {
        let arguments = [
            op.step(),
            ("table", table.pointer()),
            ("rows", int(table.tensor.dims[0])),
            ("width", int(table.tensor.dims[1])),
            ("component", int(component)),
        ];
        plan.launch("table_update", [Extent::ONE; 3], &arguments)?;
    }
    Ok(())
}

fn support_embedding(op: &OpDesc, _: &Settings) -> Support {
    let table = &op.operands[0];
    match table.dtype {
        DType::F32 | DType::BF16 | DType::F16 => Support::yes("embedding"),
        _ => {
            let mut support = Support::yes("embedding, expanded to f32");
            let bytes = table.dims[0] * table.row_len() as u64 * 4;
            support.packs.push(Pack { operand: 0, layout: EXPANDED, bytes });
            support
        }
    }
}

/// The table as f32.
fn expand(op: &OpView<'_>, operand: usize, source: &[u8], _: &Settings) -> Result<Vec<u8>, Fault> {
    let t = op.operand(operand)?;
    let mut values = vec![0f32; t.dims[0] * t.row_len()];
    quant::dequantize_row(t.dtype, source, &mut values);
    Ok(values.iter().flat_map(|v| v.to_le_bytes()).collect())
}

fn plan_embedding(op: &BoundOp<'_>, plan: &mut Plan<'_>) -> Result<(), Fault> {
    let (table, relay, y) = match op.operands {
        [table, relay, y] => (table, Some(relay), y),
        [table, y] => (table, None, y),
        _ => unreachable!("checked"),
    };
    let d = y.tensor.row_len();
    let (format, stride) = match table.tensor.layout {
        EXPANDED => ("f32", int(d)),
        _ => (format_name(table.tensor.dtype).expect("supported"), table.stride()),
    };
    let arguments = [
        op.step(),
        ("table", table.pointer()),
        ("relay", relay.unwrap_or(table).pointer()),
        ("y", y.pointer()),
        ("SLOTS", int(relay.map_or(0, |r| r.tensor.dims[0]))),
        ("V", int(table.tensor.dims[0])),
        ("D", int(d)),
        ("ldt", stride),
        ("ldy", y.stride()),
    ];
    let grid = [y.rows(1), panels(d, PANEL), Extent::ONE];
    Ok(plan.launch(&format!("embedding_{format}"), grid, &arguments)?)
}

fn plan_gather(op: &BoundOp<'_>, plan: &mut Plan<'_>) -> Result<(), Fault> {
    let [x, y] = op.operands else { unreachable!("checked") };
    let d = y.tensor.row_len();
    let arguments =
        [op.step(), ("x", x.pointer()), ("y", y.pointer()), ("D", int(d)), ("ldx", x.stride()), ("ldy", y.stride())];
    let grid = [y.rows(1), panels(d, PANEL), Extent::ONE];
    Ok(plan.launch("row_gather", grid, &arguments)?)
}
