//! `kda_record`: keep the inputs of the step's candidate tokens.

use tokenspeed_backend_api::{abi::ts_step_row, dtype::DType, sdk::Fault};

use crate::{float_rows::store_row, part::Part, state_slots};

/// Operands.
#[derive(Clone, Copy, Debug)]
pub struct RecordArgs<'a> {
    /// q, k, v, f and b, with the width of a token's values: `[tokens, width]` each.
    pub inputs: [(*const f32, usize); 5],
    /// `[slots, capacity, sum of widths]` of `dtype`.
    pub record: *mut u8,
    /// f32, f16 or bf16.
    pub dtype: DType,
    /// Tokens a slot has room for.
    pub capacity: usize,
    /// Requests, their slots checked.
    pub rows: &'a [ts_step_row],
}

/// Whether every kept request fits the capacity.
///
/// # Errors
/// Names the first that does not.
pub fn check(rows: &[ts_step_row], capacity: usize) -> Result<(), Fault> {
    let end = |r: &ts_step_row| r.branch_offset as usize + r.query_len as usize;
    let over = |r: &ts_step_row| state_slots::write(r).is_some() && end(r) > capacity;
    match rows.iter().position(over) {
        None => Ok(()),
        Some(i) => {
            let n = end(&rows[i]);
            Err(Fault::invalid(format!("row {i} has {n} tokens, a record holds {capacity}")))
        }
    }
}

/// Write this worker's tokens.
///
/// # Safety
/// The operands have the shapes above; slots and capacity were checked; no other worker writes the record meanwhile but
/// in its share of this op.
pub unsafe fn kda_record(part: Part, args: &RecordArgs<'_>) {
    let width: usize = args.inputs.iter().map(|(_, n)| n).sum();
    let total: usize = args.rows.iter().map(|r| r.query_len as usize).sum();
    let mine = part.of(total);
    let mut index = 0;
    for row in args.rows {
        for i in 0..row.query_len as usize {
            let taken = mine.contains(&index);
            index += 1;
            let (true, Some(slot)) = (taken, state_slots::write(row)) else { continue };
            let mut at = (slot * args.capacity + row.branch_offset as usize + i) * width;
            for (x, n) in args.inputs {
                let token = row.query_start as usize + i;
                // SAFETY: the token's row, and its place in the slot's record.
                unsafe { store_row(args.dtype, args.record, at, x.add(token * n), n) };
                at += n;
            }
        }
    }
}
