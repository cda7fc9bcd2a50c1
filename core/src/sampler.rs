//! The reference sampler: one row of f32 logits in, one token id and, if asked, its log-probabilities out.
//!
//! Order of the filters, which is part of the interface:
//! 1. masks: padding ids at or above the tokenizer's vocabulary do not exist; ids outside the grammar's mask and outside
//!    `allowed_token_ids`, the last id of a `bad_words` sequence about to be completed, and, before `min_tokens`, every id
//!    that would end generation;
//! 2. `logit_bias` is added;
//! 3. `repetition_penalty` divides positive and multiplies negative logits of ids in the prompt or generated;
//! 4. `frequency_penalty` times the count, then `presence_penalty`, are subtracted from generated ids;
//! 5. temperature 0: the largest logit wins, and nothing below applies;
//! 6. logits minus the largest one are divided by the temperature, in f64, so that tiny temperatures are greedy and
//!    not infinite;
//! 7. `top_k` keeps exactly k; 8. `top_p` keeps the shortest run of most likely ids, among those kept, that reaches it;
//!    9. `min_p` drops ids less likely than that fraction of the most likely one;
//! 10. an id is drawn by inverting the cumulative distribution in order of falling probability.
//!
//! Every tie goes to the lower id. The draw is Philox4x32-10 with the seed as key and (position, sample index) as
//! counter, so it depends on nothing else: not on the batch, the step or the neighbours. Log-probabilities are those of
//! the unmodified row, before any of the above.
//!
//! Steps 5 to 10 and the scores are [`tokenspeed_backend_api::sampling`], which the op `sample` uses too.
//!
//! One pass decides greedy rows; sampled rows never sort the vocabulary, but take the best few hundred and go on only if
//! the draw falls beyond them. The obvious implementation, a full sort in f64, is the twin in the tests.
#![forbid(unsafe_code)]

pub mod device;
mod edit;
mod history;
pub mod side;
#[cfg(test)]
mod tests;

pub use history::History;
pub use tokenspeed_backend_api::sampling::philox;
use tokenspeed_backend_api::sampling::{self, Draw, Filters, NotFinite, finite_max};

use crate::{
    grammar::{ConstraintError, TokenMask},
    request::{SamplingParams, TokenLogprobs},
};

/// Why a row gave no token. Ends that request only.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SampleError {
    /// The model produced NaN or +infinity.
    #[error("the model produced a logit that is not a finite number for token id {id}")]
    NotFinite {
        /// The first such id.
        id: u32,
    },
    /// Masks left nothing.
    #[error(
        "no token can be sampled: the grammar, allowed_token_ids, bad_words, logit_bias and min_tokens together exclude \
         every id"
    )]
    NothingLeft,
    /// The device did not do what the row's record says.
    #[error(
        "the device sampled no token of the vocabulary for logit row {row}: it reports outcome {what} with id {id}; \
         run with --host-sampling, and report it to the backend's authors"
    )]
    Device {
        /// Row of logits.
        row: u32,
        /// Its `TS_SAMPLED_*`.
        what: u32,
        /// The id it gave.
        id: u32,
    },
    /// There is no mask for the row.
    #[error(transparent)]
    Constraint(#[from] ConstraintError),
}

impl From<NotFinite> for SampleError {
    fn from(NotFinite { id }: NotFinite) -> Self {
        Self::NotFinite { id }
    }
}

/// What a row of logits is sampled with.
#[derive(Clone, Copy, Debug)]
pub struct RowContext<'a> {
    /// Validated parameters.
    pub params: &'a SamplingParams,
    /// Counts for the penalties.
    pub history: &'a History,
    /// Prompt and generated tokens; the new token's position is their number.
    pub tokens: &'a [u32],
    /// Of these, how many were generated.
    pub n_generated: u32,
    /// End-of-sequence ids that would end this request (none with `ignore_eos`).
    pub eos_ids: &'a [u32],
    /// Ids that the request's grammar allows here.
    pub mask: Option<&'a TokenMask>,
}

/// A sampled token.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Token id.
    pub id: u32,
    /// If `SamplingParams::logprobs` asked.
    pub logprobs: Option<TokenLogprobs>,
}

/// The sampler and its reusable memory; sampling without log-probabilities allocates nothing.
#[derive(Debug)]
pub struct Sampler {
    vocab_size: usize,
    /// An edited row.
    edited: Vec<f32>,
    /// Ordered candidates, see `select`.
    keys: Vec<u64>,
}

impl Sampler {
    /// For rows whose first `vocab_size` columns are real token ids.
    pub fn new(vocab_size: u32) -> Self {
        let vocab_size = vocab_size as usize;
        Self { vocab_size, edited: Vec::with_capacity(vocab_size), keys: Vec::with_capacity(vocab_size) }
    }

    /// Sample from a row of at least `vocab_size` logits.
    pub fn sample(&mut self, row: &[f32], context: &RowContext<'_>) -> Result<Choice, SampleError> {
        let row = &row[..self.vocab_size];
        let params = context.params;
        let raw_max = finite_max(row)?;
        let (logits, max) = if edit::is_needed(context) {
            edit::apply(row, context, &mut self.edited);
            (&self.edited[..], finite_max(&self.edited)?)
        } else {
            (row, raw_max)
        };
        if max == f32::NEG_INFINITY {
            return Err(SampleError::NothingLeft);
        }
        let draw = Draw {
            temperature: params.temperature,
            filters: Filters { top_k: params.top_k, top_p: params.top_p, min_p: params.min_p },
            seed: params.seed,
            position: u32::try_from(context.tokens.len()).expect("a request's length fits u32"),
            sample_index: params.sample_index,
        };
        let id = sampling::choose(logits, max, &draw, &mut self.keys);
        let logprobs = params.logprobs.map(|k| report(row, raw_max, id, k, &mut self.keys));
        Ok(Choice { id, logprobs })
    }

    /// Log-probability, rank and the `k` best of a row, for a token that is already known (a prompt token).
    pub fn score(&mut self, row: &[f32], id: u32, k: u32) -> Result<TokenLogprobs, SampleError> {
        let row = &row[..self.vocab_size];
        let max = finite_max(row)?;
        if max == f32::NEG_INFINITY {
            return Err(SampleError::NothingLeft);
        }
        Ok(report(row, max, id, k, &mut self.keys))
    }
}

fn report(row: &[f32], max: f32, id: u32, k: u32, keys: &mut Vec<u64>) -> TokenLogprobs {
    let score = sampling::score(row, max, id, k, keys);
    let top = keys.iter().map(|&key| (sampling::id_of(key), score.logprob_of(sampling::logit_of(key)))).collect();
    TokenLogprobs { logprob: score.logprob, rank: score.rank, top }
}
