//! What the ops over recurrent state share: which slots a request uses, parts of a slot's values, and generated steps.
//!
//! A request reads slot `state_read` and writes slot `state_write`; they may be one slot. A request with nothing
//! computed starts from zeros and reads no slot, so slots need no clearing. `state_write` = 0 keeps nothing: slot 0,
//! the scratch slot, is neither read nor written.

use super::{Case, cases::Gen};
use crate::{abi::ts_step_row, op::OpKind, quant, tensor::View};

/// Slot to start from; `None` = zeros.
pub(super) fn read_slot(row: &ts_step_row) -> Option<usize> {
    if row.computed == 0 {
        return None;
    }
    assert_eq!(row.state_tokens, row.computed, "the state slot encodes another token count than the request has");
    assert_ne!(row.state_read, 0, "a request with tokens reads a state slot");
    Some(row.state_read as usize)
}

/// Slot to leave the state in; `None` = nowhere.
pub(super) fn write_slot(row: &ts_step_row) -> Option<usize> {
    (row.state_write != 0).then_some(row.state_write as usize)
}

/// Tokens of a request in this step.
pub(super) fn tokens(row: &ts_step_row) -> std::ops::Range<usize> {
    row.query_start as usize..(row.query_start + row.query_len) as usize
}

/// Copy values `first..first + out.len()` of row `row` into `out`. Unlike [`View::row_bytes`] it touches no other byte,
/// so threads may work on disjoint parts of one slot.
pub(super) fn load_part(view: &View, row: usize, first: usize, out: &mut [f32]) {
    let tensor = &view.tensor;
    let size = tensor.dtype.block_bytes();
    assert!(tensor.dtype.block_len() == 1 && row < view.rows() && first + out.len() <= view.row_len());
    // SAFETY: in bounds by the assert and `View::new`'s contract; no thread writes these values meanwhile.
    let bytes =
        unsafe { std::slice::from_raw_parts(view.data().add(row * tensor.stride() + first * size), out.len() * size) };
    quant::dequantize_row(tensor.dtype, bytes, out);
}

/// A case whose requests (tokens already computed, tokens in this step) have state slots: in place, from one slot to
/// another, and kept nowhere, in turn. Returns the number of slots.
pub(super) fn case(g: &mut Gen, kind: OpKind, name: String, spans: &[(u32, usize)]) -> (Case, u64) {
    let spans: Vec<(u32, u32, usize)> = spans.iter().enumerate().map(|(i, (c, n))| (i as u32, *c, *n)).collect();
    let mut case = g.paged_case(kind, name, &spans);
    for (i, row) in case.step.rows.iter_mut().enumerate() {
        let slot = 2 * i as u32 + 1;
        row.state_read = slot;
        row.state_write = [slot, slot + 1, 0][i % 3];
        row.state_tokens = row.computed;
    }
    (case, 2 * spans.len() as u64 + 1)
}

/// Requests that start, continue, decode, and cross chunk edges.
pub(super) const SPANS: [&[(u32, usize)]; 4] =
    [&[(0, 1)], &[(0, 2), (7, 5), (3, 1)], &[(61, 9), (0, 70), (128, 1), (5, 1)], &[(40, 150)]];
