//! `table_update`: apply the step's block-table changes to the persistent tables.

use super::{BIT_EXACT, Call, Case, Entry, OpDesc, Part, cases::Gen, inout};
use crate::{abi::ts_table_delta, dtype::DType, graph::Vary, op::OpKind};

pub(super) const ENTRY: Entry = Entry {
    kind: OpKind::TableUpdate,
    version: 1,
    doc: "For each delta of the parameter block, `table[component][table_row][index] = block`. One table operand per component, first op \
          of every program. A delta outside its table is ignored.",
    operands: &[inout("table [rows, blocks per row] u32, one per component")],
    check,
    reference,
    decompose: None,
    tolerance: BIT_EXACT,
    cases,
};

fn check(op: &OpDesc) -> Result<(), String> {
    op.require(!op.operands.is_empty(), || "no table".into())?;
    for (i, table) in op.operands.iter().enumerate() {
        op.dtype(i, &[DType::U32])?;
        op.require(table.rank == 2, || format!("table {i} is {:?}", table.dims()))?;
    }
    Ok(())
}

fn reference(call: &Call<'_>, part: Part) {
    // Deltas are few and may touch one row twice, in order: one thread applies them all.
    if part.index != 0 {
        return;
    }
    for d in call.step.deltas {
        if let Some(table) = call.operands.get(d.component as usize)
            && (d.table_row as usize) < table.rows()
            && (d.index as usize) < table.row_len()
        {
            table.store_u32(d.table_row as usize, d.index as usize, d.block);
        }
    }
}

fn cases(seed: u64) -> Vec<Case> {
    let mut g = Gen::new(seed);
    let mut c = g.case(OpKind::TableUpdate, "two components".into(), 1);
    let shapes = [[3, 5], [4, 2]];
    for [rows, blocks] in shapes {
        let bytes = (0..rows * blocks).flat_map(|i| (i as u32).to_ne_bytes()).collect();
        c.push_inout(DType::U32, Vary::Fixed, &[rows, blocks], bytes);
    }
    for i in 0..12 {
        let component = i % 2;
        let [rows, blocks] = shapes[component as usize];
        let (table_row, index) = (g.below(rows) as u32, g.below(blocks) as u32);
        c.step.deltas.push(ts_table_delta { component, table_row, index, block: 100 + i });
    }
    vec![c]
}
