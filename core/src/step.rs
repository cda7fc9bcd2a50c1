//! The parameter block of one step, as bytes: header, rows, tokens, logit rows, table deltas, sampling records.
//!
//! The layout is `abi::ts_step`'s: native byte order, array offsets from the header, each a multiple of 16. The buffer
//! is made once with room for the largest step and written in place, so a step allocates nothing and a backend can
//! copy it in one go. Fields are written one by one with safe code; rejected: casting structs to bytes, which needs
//! `unsafe` and gains nothing measurable at 48 bytes per decoding request.
#![forbid(unsafe_code)]

mod reader;

pub use reader::{StepReadError, StepReader};
use tokenspeed_backend_api::abi::{ts_sample, ts_step, ts_step_row, ts_step_token, ts_table_delta};

/// Alignment of the block and of every array in it, in bytes.
pub const STEP_ALIGNMENT: usize = 16;

/// Most entries of each array of a parameter block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepCapacity {
    /// Tokens of one step.
    pub tokens: u32,
    /// Requests of one step.
    pub rows: u32,
    /// Rows of logits of one step.
    pub logit_rows: u32,
    /// Block-table changes of one step.
    pub deltas: u32,
    /// Rows of logits that the device samples; 0 if it samples none.
    pub samples: u32,
}

impl StepCapacity {
    /// Bytes of the largest block.
    pub fn bytes(&self) -> usize {
        let align = |bytes: usize| bytes.next_multiple_of(STEP_ALIGNMENT);
        align(size_of::<ts_step>())
            + align(self.rows as usize * size_of::<ts_step_row>())
            + align(self.tokens as usize * size_of::<ts_step_token>())
            + align(self.logit_rows as usize * size_of::<u32>())
            + align(self.deltas as usize * size_of::<ts_table_delta>())
            + align(self.samples as usize * size_of::<ts_sample>())
    }
}

/// A reusable, 16-byte aligned parameter block.
#[derive(Debug)]
pub struct StepBuffer {
    storage: Vec<u8>,
    /// First aligned byte of `storage`, which never grows and so never moves.
    start: usize,
    bytes: usize,
    capacity: StepCapacity,
}

impl StepBuffer {
    /// A buffer for steps of at most `capacity`.
    pub fn new(capacity: StepCapacity) -> Self {
        let storage = vec![0; capacity.bytes() + STEP_ALIGNMENT];
        let start = storage.as_ptr().align_offset(STEP_ALIGNMENT);
        assert!(start < STEP_ALIGNMENT, "a byte buffer can always be aligned");
        Self { storage, start, bytes: 0, capacity }
    }

    /// The block written last; empty before the first.
    pub fn bytes(&self) -> &[u8] {
        &self.storage[self.start..self.start + self.bytes]
    }

    /// Become a copy of `other`, which must fit.
    pub fn copy_from(&mut self, other: &Self) {
        let bytes = other.bytes();
        assert!(self.start + bytes.len() <= self.storage.len(), "{} bytes do not fit", bytes.len());
        self.storage[self.start..self.start + bytes.len()].copy_from_slice(bytes);
        self.bytes = bytes.len();
    }

    /// What fits.
    pub fn capacity(&self) -> StepCapacity {
        self.capacity
    }

    /// Write a step whose logits the host reads. Every array must fit the capacity: the scheduler plans within it.
    pub fn write(&mut self, content: &StepContent<'_>) {
        self.write_ids(content, &[], &[]);
    }

    /// The same for a step that lists no tokens but the `ids` of all rows, row after row (where they are follows from the rows),
    /// and that the device samples if there are `samples`, one per row of logits.
    pub fn write_ids(&mut self, content: &StepContent<'_>, ids: &[u32], samples: &[ts_sample]) {
        let StepContent { sequence, rows, tokens, logit_rows, deltas } = *content;
        let StepCapacity {
            tokens: max_tokens,
            rows: max_rows,
            logit_rows: max_logit_rows,
            deltas: max_deltas,
            samples: max_samples,
        } = self.capacity;
        assert!(samples.is_empty() || samples.len() == logit_rows.len(), "a record per row of logits");
        assert!(samples.len() <= max_samples as usize, "{} samples, room for {max_samples}", samples.len());
        assert!(rows.len() <= max_rows as usize, "{} rows, room for {max_rows}", rows.len());
        assert!(tokens.is_empty() || ids.is_empty(), "tokens are listed, or follow from the rows");
        let n_tokens = tokens.len() + ids.len();
        assert!(n_tokens <= max_tokens as usize, "{n_tokens} tokens, room for {max_tokens}");
        assert!(
            logit_rows.len() <= max_logit_rows as usize,
            "{} logit rows, room for {max_logit_rows}",
            logit_rows.len()
        );
        assert!(deltas.len() <= max_deltas as usize, "{} deltas, room for {max_deltas}", deltas.len());

        let mut out = Writer { bytes: &mut self.storage[self.start..], at: size_of::<ts_step>() };
        let rows_offset = out.align();
        out.array(rows, |row| {
            [
                row.table_row,
                row.computed,
                row.query_start,
                row.query_len,
                row.state_read,
                row.state_write,
                row.state_tokens,
                row.branch_offset,
            ]
        });
        let tokens_offset = out.align();
        out.array(tokens, |token| [token.id.cast_unsigned(), token.position, token.row, 0]);
        if !ids.is_empty() {
            for (row, at) in rows.iter().zip(0..) {
                let own = &ids[row.query_start as usize..][..row.query_len as usize];
                out.array_at(own, |&id, n| [id, row.computed + n, at, 0]);
            }
        }
        let logit_rows_offset = out.align();
        out.array(logit_rows, |&row| [row]);
        let deltas_offset = out.align();
        out.array(deltas, |delta| [delta.component, delta.table_row, delta.index, delta.block]);
        let samples_offset = out.align();
        for sample in samples {
            out.sample(sample);
        }
        let end = out.align();
        out.at = 0;
        let count = |n: usize| u32::try_from(n).expect("fits the capacity, which is u32");
        out.words([
            count(size_of::<ts_step>()),
            count(n_tokens),
            count(rows.len()),
            count(logit_rows.len()),
            count(deltas.len()),
            count(samples.len()),
        ]);
        out.put(&sequence.to_ne_bytes());
        out.words([rows_offset, tokens_offset, logit_rows_offset, deltas_offset, samples_offset, end]);
        debug_assert_eq!(out.at, size_of::<ts_step>());
        self.bytes = end as usize;
    }
}

/// What one step says, before it becomes bytes.
#[derive(Clone, Copy)]
pub struct StepContent<'a> {
    /// Step counter.
    pub sequence: u64,
    /// One per request.
    pub rows: &'a [ts_step_row],
    /// All tokens, row after row.
    pub tokens: &'a [ts_step_token],
    /// Token indices whose logits are wanted, ascending.
    pub logit_rows: &'a [u32],
    /// Block-table changes, applied before anything else; each entry of a table at most once.
    pub deltas: &'a [ts_table_delta],
}

impl std::fmt::Debug for StepContent<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "step {}: {} rows, {} tokens", self.sequence, self.rows.len(), self.tokens.len())
    }
}

struct Writer<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn put(&mut self, data: &[u8]) {
        self.bytes[self.at..self.at + data.len()].copy_from_slice(data);
        self.at += data.len();
    }

    fn words<const N: usize>(&mut self, words: [u32; N]) {
        for word in words {
            self.put(&word.to_ne_bytes());
        }
    }

    fn sample(&mut self, sample: &ts_sample) {
        let float = f32::to_bits;
        self.words([
            float(sample.temperature),
            float(sample.top_p),
            float(sample.min_p),
            float(sample.repetition_penalty),
            float(sample.frequency_penalty),
            float(sample.presence_penalty),
            sample.top_k,
            sample.n_logprobs,
        ]);
        self.put(&sample.seed.to_ne_bytes());
        self.words([
            sample.position,
            sample.sample_index,
            sample.counts_handle,
            sample.bias_handle,
            sample.mask_handle,
            sample.relay_slot,
        ]);
    }

    fn array<T, const N: usize>(&mut self, items: &[T], words: impl Fn(&T) -> [u32; N]) {
        self.array_at(items, |item, _| words(item));
    }

    /// One bounds check for all of `items`: a prompt's chunk has thousands. `words` also gets the item's place among them.
    fn array_at<T, const N: usize>(&mut self, items: &[T], words: impl Fn(&T, u32) -> [u32; N]) {
        let size = N * size_of::<u32>();
        let bytes = &mut self.bytes[self.at..][..items.len() * size];
        let records = bytes.as_chunks_mut::<4>().0.as_chunks_mut::<N>().0;
        for ((item, record), n) in items.iter().zip(records).zip(0..) {
            *record = words(item, n).map(u32::to_ne_bytes);
        }
        self.at += items.len() * size;
    }

    /// Zero up to the next array's place and return it.
    fn align(&mut self) -> u32 {
        let next = self.at.next_multiple_of(STEP_ALIGNMENT);
        self.bytes[self.at..next].fill(0);
        self.at = next;
        u32::try_from(next).expect("a parameter block is smaller than 4 GiB")
    }
}
