//! What a caller asks of the engine and what it hears back. Token ids only: text, templates and stop strings belong to
//! the layers above.

use crate::grammar::Constraint;

/// How one sequence is sampled. Ranges are validated by [`SamplingParams::validate`]; a request that fails it never
/// reaches the scheduler.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// 0 is greedy; otherwise logits are divided by it. Range [0, 2].
    pub temperature: f32,
    /// Keep the smallest set of tokens whose probability reaches this. Range (0, 1].
    pub top_p: f32,
    /// Keep the k most likely tokens, ties to the lower id; 0 = off.
    pub top_k: u32,
    /// Drop tokens below this fraction of the most likely one. Range [0, 1].
    pub min_p: f32,
    /// Divide positive and multiply negative logits of every token seen (prompt included). Range (0, 10].
    pub repetition_penalty: f32,
    /// Subtract this times the count among generated tokens. Range [-2, 2].
    pub frequency_penalty: f32,
    /// Subtract this once if generated before. Range [-2, 2].
    pub presence_penalty: f32,
    /// (token id, added to its logit). Values in [-100, 100].
    pub logit_bias: Vec<(u32, f32)>,
    /// Key of the counter-based generator.
    pub seed: u64,
    /// Which of `n` choices this is; part of the generator's counter.
    pub sample_index: u32,
    /// No end-of-sequence and no stop token before this many tokens.
    pub min_tokens: u32,
    /// At most this many generated tokens.
    pub max_tokens: u32,
    /// Token ids that end generation with `FinishReason::Stop`; the id itself is not part of the text.
    pub stop_token_ids: Vec<u32>,
    /// Do not end at the model's end-of-sequence ids.
    pub ignore_eos: bool,
    /// `Some(k)`: report the chosen token's log-probability and the k most likely ones (k may be 0).
    pub logprobs: Option<u32>,
    /// `Some(k)`: the same for every prompt token (the first has none).
    pub prompt_logprobs: Option<u32>,
    /// `Some(ids)`: only these may be sampled.
    pub allowed_token_ids: Option<Vec<u32>>,
    /// Token sequences that must never be completed.
    pub bad_words: Vec<Vec<u32>>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
            sample_index: 0,
            min_tokens: 0,
            max_tokens: 16,
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            logprobs: None,
            prompt_logprobs: None,
            allowed_token_ids: None,
            bad_words: Vec::new(),
        }
    }
}

/// Most [`Request::boundaries`]: each may cost a step and the slot of a state.
pub const BOUNDARIES_MAX: usize = 4;

/// One sequence to generate.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Token ids of the prompt; at least one.
    pub prompt: Vec<u32>,
    /// Sampling.
    pub sampling: SamplingParams,
    /// Smaller runs first; 0 is the default class.
    pub priority: i32,
    /// Requests share cached prefixes only within one salt. `None` and `Some("")` differ.
    pub cache_salt: Option<String>,
    /// Lengths of beginnings of the prompt that others are likely to share, such as the system prompt with its tools; ascending, at
    /// most [`BOUNDARIES_MAX`]. Where a model has a recurrent state it is stored there, at the page boundary before; the answer
    /// does not depend on it.
    pub boundaries: Vec<u32>,
    /// What the answer must look like, before its first token; `None` = anything. Not with `ignore_eos`.
    pub constraint: Option<Box<dyn Constraint>>,
}

/// Identifies a request inside one engine; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// Why a request ended well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// An end-of-sequence id, a stop token id, or a stop string found by the layer above.
    Stop,
    /// `max_tokens` or the model's context length.
    Length,
    /// Aborted by the caller.
    Abort,
}

/// Token counts of a finished request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens.
    pub prompt_tokens: u32,
    /// Of these, how many were taken from the prefix cache at first admission.
    pub cached_tokens: u32,
    /// Generated tokens, a final end-of-sequence token included.
    pub completion_tokens: u32,
}

/// A log-probability report for one position.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenLogprobs {
    /// Log-probability of the token at this position (from the unmodified distribution).
    pub logprob: f32,
    /// Its rank, 1 = most likely.
    pub rank: u32,
    /// The most likely tokens, best first, ties to the lower id.
    pub top: Vec<(u32, f32)>,
}

/// What a request hears, in order: `Started`, any number of `Token`, then exactly one of `Finished` and `Failed`.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Prefill done; how much of the prompt came from the cache, and prompt log-probabilities if asked.
    Started {
        /// See [`Usage::cached_tokens`].
        cached_tokens: u32,
        /// One entry per prompt token after the first, if asked.
        prompt_logprobs: Option<Vec<TokenLogprobs>>,
    },
    /// A generated token (end-of-sequence and stop tokens are reported too, so counts add up).
    Token {
        /// Token id.
        id: u32,
        /// If asked.
        logprobs: Option<TokenLogprobs>,
    },
    /// The end.
    Finished {
        /// Why.
        reason: FinishReason,
        /// Counts.
        usage: Usage,
    },
    /// The request failed; nobody else is affected.
    Failed {
        /// For the user.
        message: String,
    },
}
