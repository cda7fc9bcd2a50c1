//! Slots of recurrent state: which one a request reads, which one it writes, and whether it may.
//!
//! The catalogue's rules: a request with nothing computed starts from zeros and reads no slot; slot 0 keeps nothing. The
//! two slots may differ: then the one that is read, a cached snapshot say, is not written.

use tokenspeed_backend_api::{abi::ts_step_row, sdk::Fault};

/// Whether every row names slots that exist and a state that belongs to it. All workers ask, and all get one answer.
///
/// # Errors
/// Names the first bad row.
pub fn check(rows: &[ts_step_row], slots: usize) -> Result<(), Fault> {
    for (i, row) in rows.iter().enumerate() {
        let highest = row.state_read.max(row.state_write) as usize;
        if highest >= slots {
            return Err(Fault::invalid(format!("row {i} names state slot {highest} of {slots}")));
        }
        if row.computed > 0 && (row.state_read == 0 || row.state_tokens != row.computed) {
            return Err(Fault::invalid(format!(
                "row {i} has {} tokens computed, but its state slot {} encodes {}",
                row.computed, row.state_read, row.state_tokens
            )));
        }
    }
    Ok(())
}

/// Slot to start from; `None` = zeros.
#[inline]
pub fn read(row: &ts_step_row) -> Option<usize> {
    (row.computed > 0).then_some(row.state_read as usize)
}

/// Slot to leave the state in; `None` = nowhere.
#[inline]
pub fn write(row: &ts_step_row) -> Option<usize> {
    (row.state_write > 0).then_some(row.state_write as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_that_is_not_the_requests_is_refused_by_name() {
        let good = ts_step_row { computed: 5, state_read: 2, state_write: 3, state_tokens: 5, ..Default::default() };
        assert!(check(&[good], 4).is_ok());
        let bad = [
            (ts_step_row { state_write: 4, ..good }, "slot 4 of 4"),
            (ts_step_row { state_tokens: 4, ..good }, "encodes 4"),
            (ts_step_row { state_read: 0, ..good }, "slot 0"),
        ];
        for (row, part) in bad {
            let message = check(&[good, row], 4).unwrap_err().message;
            assert!(message.starts_with("row 1 ") && message.contains(part), "{message}");
        }
        let fresh = ts_step_row { state_read: 2, state_tokens: 9, ..Default::default() };
        assert!(check(&[fresh], 4).is_ok() && read(&fresh).is_none() && write(&fresh).is_none());
    }
}
