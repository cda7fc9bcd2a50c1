//! The step's parameter block as Rust sees it: a checked view, and an owned builder for tests and conformance.
//!
//! `core` writes the block itself into a reused buffer; this builder is the dumb twin.

mod view;

pub use view::StepView;

use crate::abi::*;

impl std::fmt::Debug for ts_step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "step {} ({} tokens, {} rows)", self.sequence, self.n_tokens, self.n_rows)
    }
}

macro_rules! debug_plain {
    ($($t:ident { $($field:ident),* })*) => {$(
        impl std::fmt::Debug for $t {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($t))$(.field(stringify!($field), &self.$field))*.finish()
            }
        }
    )*};
}
debug_plain! {
    ts_step_row { table_row, computed, query_start, query_len, state_read, state_write, state_tokens, branch_offset }
    ts_step_token { id, position, row }
    ts_table_delta { component, table_row, index, block }
    ts_sample { temperature, top_p, min_p, top_k, seed, position, sample_index, relay_slot }
}

impl ts_step_row {
    /// Row of the request's cache that holds the token at `position`.
    pub fn cache_row(&self, position: u32) -> u32 {
        if position < self.computed { position } else { position + self.branch_offset }
    }

    /// Cache rows it needs.
    pub fn cache_rows(&self) -> u32 {
        self.computed + self.branch_offset + self.query_len
    }
}

/// A parameter block being built, for tests and conformance.
#[derive(Clone, Debug, Default)]
pub struct StepData {
    /// See [`ts_step::sequence`].
    pub sequence: u64,
    /// Requests.
    pub rows: Vec<ts_step_row>,
    /// Tokens, grouped by row.
    pub tokens: Vec<ts_step_token>,
    /// Token indices whose logits are wanted.
    pub logit_rows: Vec<u32>,
    /// Block-table changes.
    pub deltas: Vec<ts_table_delta>,
    /// Sampling records: none, or one per logit row.
    pub samples: Vec<ts_sample>,
}

/// Bytes aligned to 16, as a parameter block must be.
#[derive(Clone, Debug, Default)]
pub struct AlignedBytes {
    words: Vec<u128>,
    len: usize,
}

impl AlignedBytes {
    /// `len` zero bytes.
    pub fn zeroed(len: usize) -> Self {
        Self { words: vec![0; len.div_ceil(16)], len }
    }
}

impl std::ops::Deref for AlignedBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `words` holds at least `len` initialised bytes.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), self.len) }
    }
}

impl std::ops::DerefMut for AlignedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and uniquely borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.words.as_mut_ptr().cast(), self.len) }
    }
}

impl StepData {
    /// One row per entry of `spans`: (table row, tokens already computed, token ids of this step). Wants the logits of
    /// each row's last token. Entries of one table row are branches, one behind the other in the cache.
    pub fn from_spans(spans: &[(u32, u32, &[i32])]) -> Self {
        let mut step = Self { sequence: 1, ..Self::default() };
        for (row, (table_row, computed, ids)) in spans.iter().enumerate() {
            let before = spans[..row].iter().filter(|(other, ..)| other == table_row);
            step.rows.push(ts_step_row {
                table_row: *table_row,
                computed: *computed,
                query_start: step.tokens.len() as u32,
                query_len: ids.len() as u32,
                branch_offset: before.map(|(_, _, ids)| ids.len() as u32).sum(),
                ..Default::default()
            });
            for (i, id) in ids.iter().enumerate() {
                step.tokens.push(ts_step_token {
                    id: *id,
                    position: computed + i as u32,
                    row: row as u32,
                    reserved: 0,
                });
            }
            step.logit_rows.push(step.tokens.len() as u32 - 1);
        }
        step
    }

    /// The parameter block.
    pub fn to_bytes(&self) -> AlignedBytes {
        let mut at = size_of::<ts_step>();
        let mut place = |bytes: usize| {
            at = at.next_multiple_of(16);
            let offset = at;
            at += bytes;
            offset
        };
        let rows = place(size_of_val(&self.rows[..]));
        let tokens = place(size_of_val(&self.tokens[..]));
        let logit_rows = place(size_of_val(&self.logit_rows[..]));
        let deltas = place(size_of_val(&self.deltas[..]));
        let samples = place(size_of_val(&self.samples[..]));
        let header = ts_step {
            struct_size: size_of::<ts_step>() as u32,
            n_tokens: self.tokens.len() as u32,
            n_rows: self.rows.len() as u32,
            n_logit_rows: self.logit_rows.len() as u32,
            n_deltas: self.deltas.len() as u32,
            n_samples: self.samples.len() as u32,
            sequence: self.sequence,
            rows_offset: rows as u32,
            tokens_offset: tokens as u32,
            logit_rows_offset: logit_rows as u32,
            deltas_offset: deltas as u32,
            samples_offset: samples as u32,
            bytes: at as u32,
        };
        let mut out = AlignedBytes::zeroed(at);
        put(&mut out, 0, std::slice::from_ref(&header));
        put(&mut out, rows, &self.rows);
        put(&mut out, tokens, &self.tokens);
        put(&mut out, logit_rows, &self.logit_rows);
        put(&mut out, deltas, &self.deltas);
        put(&mut out, samples, &self.samples);
        out
    }
}

fn put<T: Copy>(out: &mut [u8], offset: usize, values: &[T]) {
    let bytes = size_of_val(values);
    assert!(offset + bytes <= out.len());
    // SAFETY: `values` is plain data of `bytes` bytes and the destination is in bounds.
    unsafe { std::ptr::copy_nonoverlapping(values.as_ptr().cast::<u8>(), out.as_mut_ptr().add(offset), bytes) }
}
