//! Reads a parameter block back: the twin of the writer, with every offset checked. For tests and fake devices.

use std::mem::offset_of;

use tokenspeed_backend_api::abi::{ts_sample, ts_step, ts_step_row, ts_step_token, ts_table_delta};

use super::STEP_ALIGNMENT;

/// What is wrong with a parameter block.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepReadError {
    /// Shorter than it says.
    #[error("the parameter block has {have} bytes, {what} needs {need}")]
    TooShort {
        /// Part.
        what: &'static str,
        /// Bytes given.
        have: usize,
        /// Bytes needed.
        need: usize,
    },
    /// An array off the 16-byte grid.
    #[error("{what} starts at byte {offset}, not a multiple of {STEP_ALIGNMENT}")]
    Misaligned {
        /// Array.
        what: &'static str,
        /// Where.
        offset: usize,
    },
}

/// A parameter block, decoded.
#[derive(Clone, Default)]
pub struct StepReader {
    /// The header.
    pub header: ts_step,
    /// One per request.
    pub rows: Vec<ts_step_row>,
    /// All tokens.
    pub tokens: Vec<ts_step_token>,
    /// Token indices whose logits are wanted.
    pub logit_rows: Vec<u32>,
    /// Block-table changes.
    pub deltas: Vec<ts_table_delta>,
    /// Sampling records.
    pub samples: Vec<ts_sample>,
}

impl std::fmt::Debug for StepReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "step {}: {} rows, {} tokens", self.header.sequence, self.rows.len(), self.tokens.len())
    }
}

impl StepReader {
    /// Decode `bytes`.
    pub fn read(bytes: &[u8]) -> Result<Self, StepReadError> {
        let need = size_of::<ts_step>();
        if bytes.len() < need {
            return Err(StepReadError::TooShort { what: "the header", have: bytes.len(), need });
        }
        let u32_at = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let sequence = offset_of!(ts_step, sequence);
        let header = ts_step {
            struct_size: u32_at(offset_of!(ts_step, struct_size)),
            n_tokens: u32_at(offset_of!(ts_step, n_tokens)),
            n_rows: u32_at(offset_of!(ts_step, n_rows)),
            n_logit_rows: u32_at(offset_of!(ts_step, n_logit_rows)),
            n_deltas: u32_at(offset_of!(ts_step, n_deltas)),
            n_samples: u32_at(offset_of!(ts_step, n_samples)),
            sequence: u64::from_ne_bytes(bytes[sequence..sequence + 8].try_into().expect("eight bytes")),
            rows_offset: u32_at(offset_of!(ts_step, rows_offset)),
            tokens_offset: u32_at(offset_of!(ts_step, tokens_offset)),
            logit_rows_offset: u32_at(offset_of!(ts_step, logit_rows_offset)),
            deltas_offset: u32_at(offset_of!(ts_step, deltas_offset)),
            samples_offset: u32_at(offset_of!(ts_step, samples_offset)),
            bytes: u32_at(offset_of!(ts_step, bytes)),
        };
        let array = |what, offset: u32, n: u32, size: usize| {
            let (offset, need) = (offset as usize, offset as usize + n as usize * size);
            if need > bytes.len() {
                return Err(StepReadError::TooShort { what, have: bytes.len(), need });
            }
            if offset % STEP_ALIGNMENT != 0 {
                return Err(StepReadError::Misaligned { what, offset });
            }
            Ok((0..n as usize).map(move |i| offset + i * size))
        };
        let rows = array("rows", header.rows_offset, header.n_rows, size_of::<ts_step_row>())?
            .map(|at| ts_step_row {
                table_row: u32_at(at + offset_of!(ts_step_row, table_row)),
                computed: u32_at(at + offset_of!(ts_step_row, computed)),
                query_start: u32_at(at + offset_of!(ts_step_row, query_start)),
                query_len: u32_at(at + offset_of!(ts_step_row, query_len)),
                state_read: u32_at(at + offset_of!(ts_step_row, state_read)),
                state_write: u32_at(at + offset_of!(ts_step_row, state_write)),
                state_tokens: u32_at(at + offset_of!(ts_step_row, state_tokens)),
                branch_offset: u32_at(at + offset_of!(ts_step_row, branch_offset)),
            })
            .collect();
        let tokens = array("tokens", header.tokens_offset, header.n_tokens, size_of::<ts_step_token>())?
            .map(|at| ts_step_token {
                id: u32_at(at + offset_of!(ts_step_token, id)).cast_signed(),
                position: u32_at(at + offset_of!(ts_step_token, position)),
                row: u32_at(at + offset_of!(ts_step_token, row)),
                reserved: u32_at(at + offset_of!(ts_step_token, reserved)),
            })
            .collect();
        let logit_rows = array("logit rows", header.logit_rows_offset, header.n_logit_rows, 4)?.map(u32_at).collect();
        let deltas = array("deltas", header.deltas_offset, header.n_deltas, size_of::<ts_table_delta>())?
            .map(|at| ts_table_delta {
                component: u32_at(at + offset_of!(ts_table_delta, component)),
                table_row: u32_at(at + offset_of!(ts_table_delta, table_row)),
                index: u32_at(at + offset_of!(ts_table_delta, index)),
                block: u32_at(at + offset_of!(ts_table_delta, block)),
            })
            .collect();
        let f32_at = |at: usize| f32::from_bits(u32_at(at));
        let u64_at = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let samples = array("samples", header.samples_offset, header.n_samples, size_of::<ts_sample>())?
            .map(|at| ts_sample {
                temperature: f32_at(at + offset_of!(ts_sample, temperature)),
                top_p: f32_at(at + offset_of!(ts_sample, top_p)),
                min_p: f32_at(at + offset_of!(ts_sample, min_p)),
                repetition_penalty: f32_at(at + offset_of!(ts_sample, repetition_penalty)),
                frequency_penalty: f32_at(at + offset_of!(ts_sample, frequency_penalty)),
                presence_penalty: f32_at(at + offset_of!(ts_sample, presence_penalty)),
                top_k: u32_at(at + offset_of!(ts_sample, top_k)),
                n_logprobs: u32_at(at + offset_of!(ts_sample, n_logprobs)),
                seed: u64_at(at + offset_of!(ts_sample, seed)),
                position: u32_at(at + offset_of!(ts_sample, position)),
                sample_index: u32_at(at + offset_of!(ts_sample, sample_index)),
                counts_handle: u32_at(at + offset_of!(ts_sample, counts_handle)),
                bias_handle: u32_at(at + offset_of!(ts_sample, bias_handle)),
                mask_handle: u32_at(at + offset_of!(ts_sample, mask_handle)),
                relay_slot: u32_at(at + offset_of!(ts_sample, relay_slot)),
            })
            .collect();
        Ok(Self { header, rows, tokens, logit_rows, deltas, samples })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::{StepBuffer, StepCapacity, StepContent};

    #[test]
    fn what_is_written_is_read_at_every_size() {
        let capacity = StepCapacity { tokens: 9, rows: 5, logit_rows: 7, deltas: 6, samples: 7 };
        let mut buffer = StepBuffer::new(capacity);
        for n in [5usize, 0, 3, 1] {
            let word = |salt: usize, i: usize| u32::try_from(1000 * salt + i).unwrap();
            let rows: Vec<_> = (0..n)
                .map(|i| ts_step_row {
                    table_row: word(1, i),
                    computed: word(2, i),
                    query_start: word(3, i),
                    query_len: word(4, i),
                    state_read: word(5, i),
                    state_write: word(6, i),
                    state_tokens: word(7, i),
                    branch_offset: word(15, i),
                })
                .collect();
            let tokens: Vec<_> = (0..n + 4)
                .map(|i| ts_step_token {
                    id: -i32::try_from(i).unwrap(),
                    position: word(8, i),
                    row: word(9, i),
                    reserved: 0,
                })
                .collect();
            let logit_rows: Vec<_> = (0..n + 2).map(|i| word(10, i)).collect();
            let deltas: Vec<_> = (0..n + 1)
                .map(|i| ts_table_delta {
                    component: word(11, i),
                    table_row: word(12, i),
                    index: word(13, i),
                    block: word(14, i),
                })
                .collect();
            let float = |salt: usize, i: usize| f32::from_bits(word(salt, i));
            let samples: Vec<_> = (0..if n == 3 { 0 } else { n + 2 })
                .map(|i| ts_sample {
                    temperature: float(16, i),
                    top_p: float(17, i),
                    min_p: float(18, i),
                    repetition_penalty: float(19, i),
                    frequency_penalty: float(20, i),
                    presence_penalty: float(21, i),
                    top_k: word(22, i),
                    n_logprobs: word(23, i),
                    seed: u64::MAX - i as u64,
                    position: word(24, i),
                    sample_index: word(25, i),
                    counts_handle: word(26, i),
                    bias_handle: word(27, i),
                    mask_handle: word(28, i),
                    relay_slot: word(29, i),
                })
                .collect();
            let content = StepContent {
                sequence: u64::MAX - n as u64,
                rows: &rows,
                tokens: &tokens,
                logit_rows: &logit_rows,
                deltas: &deltas,
            };
            buffer.write_ids(&content, &[], &samples);
            assert_eq!(buffer.bytes().as_ptr().align_offset(STEP_ALIGNMENT), 0);
            let read = StepReader::read(buffer.bytes()).unwrap();
            assert_eq!(read.header.struct_size as usize, size_of::<ts_step>());
            assert_eq!((read.header.sequence, read.header.n_samples as usize), (u64::MAX - n as u64, samples.len()));
            let sample = |s: &ts_sample| format!("{s:?} {} {} {}", s.n_logprobs, s.counts_handle, s.mask_handle);
            assert!(read.samples.iter().map(sample).eq(samples.iter().map(sample)));
            assert_eq!(read.header.bytes as usize, buffer.bytes().len());
            assert_eq!(read.logit_rows, logit_rows);
            let row = |r: &ts_step_row| {
                [r.table_row, r.computed, r.query_start, r.query_len, r.state_read, r.state_write, r.state_tokens]
            };
            assert!(read.rows.iter().map(row).eq(rows.iter().map(row)));
            let token = |t: &ts_step_token| (t.id, t.position, t.row);
            assert!(read.tokens.iter().map(token).eq(tokens.iter().map(token)));
            let delta = |d: &ts_table_delta| [d.component, d.table_row, d.index, d.block];
            assert!(read.deltas.iter().map(delta).eq(deltas.iter().map(delta)));
        }
    }

    #[test]
    fn short_and_misaligned_blocks_are_refused() {
        let mut buffer = StepBuffer::new(StepCapacity { tokens: 2, rows: 2, logit_rows: 2, deltas: 2, samples: 0 });
        buffer.write(&StepContent {
            sequence: 1,
            rows: &[ts_step_row::default()],
            tokens: &[ts_step_token::default()],
            logit_rows: &[0],
            deltas: &[],
        });
        assert!(matches!(StepReader::read(&buffer.bytes()[..20]), Err(StepReadError::TooShort { .. })));
        assert!(matches!(StepReader::read(&buffer.bytes()[..70]), Err(StepReadError::TooShort { what: "rows", .. })));
        let mut bytes = buffer.bytes().to_vec();
        bytes[offset_of!(ts_step, rows_offset)] = 60;
        assert!(matches!(StepReader::read(&bytes), Err(StepReadError::Misaligned { what: "rows", .. })));
    }
}
