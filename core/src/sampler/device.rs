//! Rows that the device samples: what its op `sample` is told of a request, and what it says back.
//!
//! The engine leaves to the device what a fixed record says in full, and what rows of the op's side tables say ([`super::side`]). Whatever
//! else a request may ask for keeps its steps with the host's sampler, by [`HostOnly`]. Rejected: leaving the host's rows out of steps
//! that the device samples. They would come every other step.
//!
//! Rows behind guesses are sampled before anybody knows whether their guesses are right, and the engine then looks at those that
//! are: a draw depends on seed and position alone, never on what was drawn before.

use tokenspeed_backend_api::{
    abi::{TS_SAMPLED_NOT_FINITE, TS_SAMPLED_NOTHING_LEFT, TS_SAMPLED_TOKEN, TS_TOP_LOGPROBS_MAX, ts_sample},
    catalogue::{CHOSEN_WIDTH, LOGPROBS_WIDTH},
};

use super::{
    Choice, SampleError,
    side::{Handles, Side},
};
use crate::request::{SamplingParams, TokenLogprobs};

/// Why the host samples a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostOnly {
    /// A constraint says what may come next, and the device has no side tables.
    Constraint,
    /// `prompt_logprobs` are read from the logits.
    PromptLogprobs,
    /// `logit_bias`, `allowed_token_ids` or `bad_words` change logits, and the device has no side tables; or an id has two biases.
    Bias,
    /// So do penalties, without side tables.
    Penalties,
    /// Before `min_tokens`, ids that end the answer are masked; without side tables, by the host.
    MinTokens,
    /// The side tables have no row left.
    SideRows,
    /// More alternatives are asked for than the device reports.
    Logprobs,
    /// The device samples nothing: so it was decided when the engine was made, or the backend cannot.
    Device,
}

impl HostOnly {
    /// How many there are.
    pub const COUNT: usize = 8;
    /// All of them, in the order of [`HostOnly::index`].
    pub const ALL: [Self; Self::COUNT] = [
        Self::Constraint,
        Self::PromptLogprobs,
        Self::Bias,
        Self::Penalties,
        Self::MinTokens,
        Self::SideRows,
        Self::Logprobs,
        Self::Device,
    ];

    /// Place in arrays of counts.
    pub fn index(self) -> usize {
        self as usize
    }

    /// As in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Constraint => "constraint",
            Self::PromptLogprobs => "prompt_logprobs",
            Self::Bias => "bias",
            Self::Penalties => "penalties",
            Self::MinTokens => "min_tokens",
            Self::SideRows => "side_rows",
            Self::Logprobs => "logprobs",
            Self::Device => "device",
        }
    }

    /// Of a row behind `n_generated` tokens of a request without constraint; `None` if the device can sample it, with the help of
    /// side tables if it has them.
    pub fn of(params: &SamplingParams, side: &Side, n_generated: u32, has_tables: bool) -> Option<Self> {
        if side.adds_twice || !has_tables && side.changes_logits() {
            Some(Self::Bias)
        } else if !has_tables && side.has_counts {
            Some(Self::Penalties)
        } else if !has_tables && n_generated < params.min_tokens {
            Some(Self::MinTokens)
        } else if params.logprobs.is_some_and(|k| k as usize > TS_TOP_LOGPROBS_MAX) {
            Some(Self::Logprobs)
        } else {
            None
        }
    }
}

/// The record of a row that the device can sample: of the token at `position`, for `relay_slot`, with these rows of the side
/// tables.
pub fn record(params: &SamplingParams, position: u32, relay_slot: u32, handles: Handles) -> ts_sample {
    let [counts_handle, bias_handle, mask_handle] = handles;
    ts_sample {
        temperature: params.temperature,
        top_p: params.top_p,
        min_p: params.min_p,
        repetition_penalty: params.repetition_penalty,
        frequency_penalty: params.frequency_penalty,
        presence_penalty: params.presence_penalty,
        top_k: params.top_k,
        n_logprobs: params.logprobs.map_or(0, |k| k + 1),
        seed: params.seed,
        position,
        sample_index: params.sample_index,
        counts_handle,
        bias_handle,
        mask_handle,
        relay_slot,
    }
}

/// What the device sampled in the passes of a turn; nothing of a pass that did not run.
#[derive(Clone, Copy, Debug, Default)]
pub struct SampledPasses<'a> {
    /// Of the forward pass.
    pub forward: Sampled<'a>,
    /// Of the pass that checks guesses.
    pub verify: Sampled<'a>,
}

impl<'a> From<Sampled<'a>> for SampledPasses<'a> {
    fn from(forward: Sampled<'a>) -> Self {
        Self { forward, verify: Sampled::default() }
    }
}

/// What the device sampled, by row of logits.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sampled<'a> {
    /// `[rows, CHOSEN_WIDTH]`, see the op `sample`.
    pub chosen: &'a [u32],
    /// `[rows, LOGPROBS_WIDTH]`.
    pub logprobs: &'a [f32],
}

impl Sampled<'_> {
    /// Rows of logits; `None` if the two differ.
    pub fn n_rows(&self) -> Option<usize> {
        let n = self.chosen.len() / CHOSEN_WIDTH;
        (self.chosen.len() == n * CHOSEN_WIDTH && self.logprobs.len() == n * LOGPROBS_WIDTH).then_some(n)
    }

    /// The token of row `at`, which must be an id below `n_ids`; with its scores if they were asked for.
    pub fn token(&self, at: u32, n_ids: u32, reports: bool) -> Result<Choice, SampleError> {
        let words = &self.chosen[at as usize * CHOSEN_WIDTH..][..CHOSEN_WIDTH];
        let values = &self.logprobs[at as usize * LOGPROBS_WIDTH..][..LOGPROBS_WIDTH];
        let [what, id, rank, n_top] = [words[0], words[1], words[2], words[3]];
        match what {
            TS_SAMPLED_TOKEN if id < n_ids && n_top as usize <= TS_TOP_LOGPROBS_MAX => {
                let top = || words[4..].iter().copied().zip(values[1..].iter().copied()).take(n_top as usize);
                let logprobs = reports.then(|| TokenLogprobs { logprob: values[0], rank, top: top().collect() });
                Ok(Choice { id, logprobs })
            }
            TS_SAMPLED_NOT_FINITE => Err(SampleError::NotFinite { id }),
            TS_SAMPLED_NOTHING_LEFT => Err(SampleError::NothingLeft),
            _ => Err(SampleError::Device { row: at, what, id }),
        }
    }
}
