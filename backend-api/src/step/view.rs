//! A checked view of the parameter block.
//!
//! One pass over the block per step proves every offset, count and cross reference, so kernels index without asking
//! again. Kernels still check what only the device knows: the blocks in the tables.

use crate::{abi::*, graph::Vary, sized};
use core::mem::{align_of, size_of};

/// Everything that changes from step to step.
#[derive(Clone, Copy)]
pub struct StepView<'a> {
    /// The header as read.
    pub header: ts_step,
    /// One per request. `query_start + query_len` is within the tokens.
    pub rows: &'a [ts_step_row],
    /// One per token. `row` is within the rows.
    pub tokens: &'a [ts_step_token],
    /// Token indices whose logits are wanted, each within the tokens.
    pub logit_rows: &'a [u32],
    /// Block-table changes to apply before the step.
    pub deltas: &'a [ts_table_delta],
    /// Sampling records: none, or one per logit row.
    pub samples: &'a [ts_sample],
}

impl<'a> StepView<'a> {
    /// Checks `block`, which starts with a [`ts_step`] and is aligned to 8 bytes.
    pub fn new(block: &'a [u8]) -> Result<Self, String> {
        let bad = |what: &str| format!("parameter block: {what}");
        if !(block.as_ptr() as usize).is_multiple_of(align_of::<ts_step>()) {
            return Err(bad("not aligned to 8 bytes"));
        }
        if block.len() < size_of::<u32>() {
            return Err(bad("empty"));
        }
        // SAFETY: aligned, and at least the size field is readable; the size itself is checked before use.
        let size = unsafe { block.as_ptr().cast::<u32>().read() } as usize;
        if size < size_of::<u32>() || size > block.len() {
            return Err(format!("parameter block: header of {size} bytes in {} bytes", block.len()));
        }
        // SAFETY: `size` bytes are readable.
        let header = unsafe { sized::read(block.as_ptr().cast::<ts_step>()) }.ok_or_else(|| bad("no header"))?;
        if header.bytes as usize > block.len() {
            return Err(bad("longer than the memory it is in"));
        }
        let block = &block[..header.bytes as usize];
        let view = Self {
            header,
            rows: array(block, header.rows_offset, header.n_rows, "rows")?,
            tokens: array(block, header.tokens_offset, header.n_tokens, "tokens")?,
            logit_rows: array(block, header.logit_rows_offset, header.n_logit_rows, "logit rows")?,
            deltas: array(block, header.deltas_offset, header.n_deltas, "deltas")?,
            samples: array(block, header.samples_offset, header.n_samples, "samples")?,
        };
        for (i, r) in view.rows.iter().enumerate() {
            if u64::from(r.query_start) + u64::from(r.query_len) > u64::from(header.n_tokens) {
                return Err(bad(&format!("row {i} ends after the last token")));
            }
        }
        if let Some(i) = view.tokens.iter().position(|t| t.row >= header.n_rows) {
            return Err(bad(&format!("token {i} names row {} of {}", view.tokens[i].row, header.n_rows)));
        }
        if let Some(i) = view.logit_rows.iter().position(|&t| t >= header.n_tokens) {
            return Err(bad(&format!("logit row {i} names token {} of {}", view.logit_rows[i], header.n_tokens)));
        }
        if !view.samples.is_empty() && view.samples.len() != view.logit_rows.len() {
            return Err(bad(&format!("{} samples for {} logit rows", header.n_samples, header.n_logit_rows)));
        }
        Ok(view)
    }

    /// Actual entries of a first dimension with capacity `capacity`.
    pub fn count(&self, vary: Vary, capacity: usize) -> usize {
        match vary {
            Vary::Fixed => capacity,
            Vary::Tokens => self.tokens.len(),
            Vary::Rows => self.rows.len(),
            Vary::LogitRows => self.logit_rows.len(),
        }
    }
}

impl std::fmt::Debug for StepView<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let h = &self.header;
        write!(f, "step {}: {} tokens, {} rows, {} logit rows", h.sequence, h.n_tokens, h.n_rows, h.n_logit_rows)
    }
}

/// A record of the block that any bytes are a valid value of.
trait Plain {}
impl Plain for ts_step_row {}
impl Plain for ts_step_token {}
impl Plain for u32 {}
impl Plain for ts_table_delta {}
impl Plain for ts_sample {}

fn array<'a, T: Plain>(block: &'a [u8], offset: u32, n: u32, what: &str) -> Result<&'a [T], String> {
    if n == 0 {
        return Ok(&[]);
    }
    let start = offset as usize;
    // u32 counts times at most 72 bytes fit into the 64-bit usize of every supported machine.
    let end = start + n as usize * size_of::<T>();
    if !start.is_multiple_of(16) || start < size_of::<u32>() || end > block.len() {
        return Err(format!(
            "parameter block: {n} {what} at {start} (end {end}, block {}, offsets are multiples of 16)",
            block.len()
        ));
    }
    // SAFETY: inside the block; the block is aligned to 8 and `start` to 16; `Plain` types are integers and floats.
    Ok(unsafe { core::slice::from_raw_parts(block[start..].as_ptr().cast::<T>(), n as usize) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 8-aligned block of 2 rows, 3 tokens, 1 logit row.
    fn block(change: impl FnOnce(&mut ts_step, &mut [ts_step_token; 3], &mut u32)) -> Vec<u64> {
        let mut h: ts_step = sized::zeroed();
        (h.n_tokens, h.n_rows, h.n_logit_rows) = (3, 2, 1);
        (h.rows_offset, h.tokens_offset, h.logit_rows_offset, h.bytes) = (64, 128, 176, 192);
        let rows = [
            ts_step_row { query_len: 2, ..Default::default() },
            ts_step_row { query_start: 2, query_len: 1, ..Default::default() },
        ];
        let mut tokens = [0, 0, 1].map(|row| ts_step_token { row, ..Default::default() });
        let mut logit = 2u32;
        change(&mut h, &mut tokens, &mut logit);
        let mut out = vec![0u64; 24];
        // SAFETY: 192 bytes, every record inside and aligned.
        unsafe {
            let p = out.as_mut_ptr().cast::<u8>();
            p.cast::<ts_step>().write(h);
            p.add(64).cast::<[ts_step_row; 2]>().write(rows);
            p.add(128).cast::<[ts_step_token; 3]>().write(tokens);
            p.add(176).cast::<u32>().write(logit);
        }
        out
    }

    fn bytes(words: &[u64]) -> &[u8] {
        // SAFETY: u64 has no padding.
        unsafe { core::slice::from_raw_parts(words.as_ptr().cast(), words.len() * 8) }
    }

    #[test]
    fn a_good_block() {
        let b = block(|_, _, _| {});
        let v = StepView::new(bytes(&b)).unwrap();
        assert_eq!((v.rows.len(), v.tokens.len(), v.logit_rows), (2, 3, &[2u32][..]));
        assert_eq!((v.count(Vary::Tokens, 9), v.count(Vary::Fixed, 9)), (3, 9));
    }

    #[test]
    fn bad_blocks_are_refused() {
        type Change = fn(&mut ts_step, &mut [ts_step_token; 3], &mut u32);
        let cases: [(&str, Change); 9] = [
            ("2 samples for 1 logit rows", |h, _, _| (h.n_samples, h.samples_offset) = (2, 16)),
            ("end", |h, _, _| h.n_rows = 1000),
            ("token 1 names row 2", |_, t, _| t[1].row = 2),
            ("logit row 0 names token 3", |_, _, l| *l = 3),
            ("row 1 ends after", |h, _, _| h.n_tokens = 2),
            ("multiples of 16", |h, _, _| h.tokens_offset = 130),
            ("longer than", |h, _, _| h.bytes = 4096),
            ("header of 4096", |h, _, _| h.struct_size = 4096),
            ("deltas", |h, _, _| h.n_deltas = u32::MAX),
        ];
        for (want, change) in cases {
            let b = block(change);
            let message = StepView::new(bytes(&b)).expect_err(want);
            assert!(message.contains(want), "{want}: {message}");
        }
        assert!(StepView::new(&[]).is_err());
    }
}
