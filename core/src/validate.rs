//! What makes a request acceptable, decided before the scheduler sees it.
//!
//! Every rejection is a [`RequestError`] with a machine-readable [`RequestErrorKind`], the parameter at fault and a
//! message with the true numbers. Rejected alternative: clamping values into range, which hides the caller's mistake.
#![forbid(unsafe_code)]

use crate::request::{BOUNDARIES_MAX, Request, SamplingParams};

/// What sort of rejection it is, for protocols that have codes for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestErrorKind {
    /// The prompt does not fit the model's context (OpenAI: `context_length_exceeded`).
    ContextLength,
    /// A token id that does not exist.
    TokenOutOfRange,
    /// A parameter outside its documented range.
    InvalidParameter,
    /// No prompt tokens.
    EmptyPrompt,
}

/// Why a request was not accepted; the message is for the user.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RequestError {
    /// No token to start from.
    #[error("the prompt is empty; send at least one token")]
    EmptyPrompt,
    /// The prompt is longer than the context.
    #[error("prompt has {prompt_tokens} tokens, the model's context is {context_tokens}; shorten the prompt")]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Tokens of the context.
        context_tokens: u32,
    },
    /// The prompt fills the context and something was to be generated.
    #[error(
        "prompt has {prompt_tokens} tokens, the model's context is {context_tokens}, which leaves no room for \
         generated tokens; shorten the prompt"
    )]
    NoRoomToGenerate {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Tokens of the context.
        context_tokens: u32,
    },
    /// A token id at or above the tokenizer's vocabulary.
    #[error("{parameter}[{index}] is token id {id}, the vocabulary has {vocab_size} ids (0 to {})", vocab_size - 1)]
    TokenOutOfRange {
        /// The list that holds it.
        parameter: &'static str,
        /// Where in the list.
        index: usize,
        /// The id.
        id: u32,
        /// Ids at or above this do not exist.
        vocab_size: u32,
    },
    /// A number outside its range.
    #[error("{parameter} is {value}, it must be {range}")]
    OutOfRange {
        /// Name as in [`SamplingParams`].
        parameter: &'static str,
        /// What was sent.
        value: f64,
        /// Words for the accepted range.
        range: &'static str,
    },
    /// More was asked for than the engine is configured to give.
    #[error("{parameter} is {value}, this server allows at most {max}")]
    TooLarge {
        /// Name as in [`SamplingParams`].
        parameter: &'static str,
        /// What was sent.
        value: u64,
        /// The limit.
        max: u64,
    },
    /// Boundaries that are none of the prompt.
    #[error("boundaries must be ascending and at most the prompt's {prompt_tokens} tokens")]
    Boundaries {
        /// Tokens of the prompt.
        prompt_tokens: usize,
    },
    /// A parameter that contradicts the grammar of the answer.
    #[error("{parameter} cannot stand together with a grammar: {why}")]
    NotWithConstraint {
        /// Name as in [`SamplingParams`].
        parameter: &'static str,
        /// Words for the reason.
        why: &'static str,
    },
    /// An empty list where one makes no sense.
    #[error("{parameter} must not be empty; leave it out instead")]
    EmptyList {
        /// Name as in [`SamplingParams`].
        parameter: &'static str,
    },
}

impl RequestError {
    /// Machine-readable sort of the rejection.
    pub fn kind(&self) -> RequestErrorKind {
        match self {
            Self::EmptyPrompt => RequestErrorKind::EmptyPrompt,
            Self::PromptTooLong { .. } | Self::NoRoomToGenerate { .. } => RequestErrorKind::ContextLength,
            Self::TokenOutOfRange { .. } => RequestErrorKind::TokenOutOfRange,
            Self::OutOfRange { .. }
            | Self::TooLarge { .. }
            | Self::EmptyList { .. }
            | Self::Boundaries { .. }
            | Self::NotWithConstraint { .. } => RequestErrorKind::InvalidParameter,
        }
    }

    /// The parameter at fault, `prompt` included.
    pub fn parameter(&self) -> &'static str {
        match self {
            Self::EmptyPrompt | Self::PromptTooLong { .. } | Self::NoRoomToGenerate { .. } => "prompt",
            Self::Boundaries { .. } => "boundaries",
            Self::TokenOutOfRange { parameter, .. }
            | Self::OutOfRange { parameter, .. }
            | Self::TooLarge { parameter, .. }
            | Self::EmptyList { parameter }
            | Self::NotWithConstraint { parameter, .. } => parameter,
        }
    }
}

/// The limits a request is checked against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// Prompt plus generated tokens of one request.
    pub max_model_len: u32,
    /// Ids at or above this do not exist.
    pub vocab_size: u32,
    /// Most alternatives reported per position.
    pub max_logprobs: u32,
}

impl SamplingParams {
    /// Check every range that does not depend on the model. NaN and infinities are out of every range.
    pub fn validate(&self) -> Result<(), RequestError> {
        let check = |parameter, value: f32, ok: bool, range| {
            if ok { Ok(()) } else { Err(RequestError::OutOfRange { parameter, value: f64::from(value), range }) }
        };
        let within = |value: f32, low: f32, high: f32| (low..=high).contains(&value);
        check("temperature", self.temperature, within(self.temperature, 0.0, 2.0), "between 0 and 2")?;
        check("top_p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "above 0 and at most 1")?;
        check("min_p", self.min_p, within(self.min_p, 0.0, 1.0), "between 0 and 1")?;
        let repetition = self.repetition_penalty;
        check("repetition_penalty", repetition, repetition > 0.0 && repetition <= 10.0, "above 0 and at most 10")?;
        let (frequency, presence) = (self.frequency_penalty, self.presence_penalty);
        check("frequency_penalty", frequency, within(frequency, -2.0, 2.0), "between -2 and 2")?;
        check("presence_penalty", presence, within(presence, -2.0, 2.0), "between -2 and 2")?;
        for &(_, bias) in &self.logit_bias {
            check("logit_bias", bias, within(bias, -100.0, 100.0), "between -100 and 100")?;
        }
        if self.min_tokens > self.max_tokens {
            return Err(RequestError::OutOfRange {
                parameter: "min_tokens",
                value: f64::from(self.min_tokens),
                range: "at most max_tokens",
            });
        }
        if self.allowed_token_ids.as_ref().is_some_and(Vec::is_empty) {
            return Err(RequestError::EmptyList { parameter: "allowed_token_ids" });
        }
        if self.bad_words.iter().any(Vec::is_empty) {
            return Err(RequestError::EmptyList { parameter: "bad_words" });
        }
        Ok(())
    }
}

impl RequestLimits {
    /// Check the ids of a prompt from the one at `first` on.
    pub fn check_prompt_ids(&self, prompt: &[u32], first: usize) -> Result<(), RequestError> {
        let (vocab_size, ids) = (self.vocab_size, &prompt[first..]);
        // All at once first: looking for the culprit one by one takes longer than planning the prompt.
        if ids.iter().fold(true, |known, &id| known & (id < vocab_size)) {
            return Ok(());
        }
        let wrong = (first..).zip(ids).find(|&(_, &id)| id >= vocab_size);
        wrong.map_or(Ok(()), |(index, &id)| {
            Err(RequestError::TokenOutOfRange { parameter: "prompt", index, id, vocab_size })
        })
    }
}

impl Request {
    /// Check the whole request.
    pub fn validate(&self, limits: &RequestLimits) -> Result<(), RequestError> {
        self.validate_but_prompt_ids(limits)?;
        limits.check_prompt_ids(&self.prompt, 0)
    }

    /// Check all but the ids of the prompt.
    pub fn validate_but_prompt_ids(&self, limits: &RequestLimits) -> Result<(), RequestError> {
        let sampling = &self.sampling;
        if self.prompt.is_empty() {
            return Err(RequestError::EmptyPrompt);
        }
        let (prompt_tokens, context_tokens) = (self.prompt.len(), limits.max_model_len);
        if prompt_tokens > context_tokens as usize {
            return Err(RequestError::PromptTooLong { prompt_tokens, context_tokens });
        }
        if prompt_tokens == context_tokens as usize && sampling.max_tokens > 0 {
            return Err(RequestError::NoRoomToGenerate { prompt_tokens, context_tokens });
        }
        if self.boundaries.len() > BOUNDARIES_MAX {
            let (value, max) = (self.boundaries.len() as u64, BOUNDARIES_MAX as u64);
            return Err(RequestError::TooLarge { parameter: "boundaries", value, max });
        }
        let is_in_prompt = self.boundaries.last().is_none_or(|&last| last as usize <= prompt_tokens);
        if !(is_in_prompt && self.boundaries.is_sorted()) {
            return Err(RequestError::Boundaries { prompt_tokens });
        }
        sampling.validate()?;
        if self.constraint.is_some() && sampling.ignore_eos {
            let why = "an answer ends where its grammar does";
            return Err(RequestError::NotWithConstraint { parameter: "ignore_eos", why });
        }
        let vocab_size = limits.vocab_size;
        let known =
            |parameter, ids: &mut dyn Iterator<Item = u32>| match ids.enumerate().find(|&(_, id)| id >= vocab_size) {
                Some((index, id)) => Err(RequestError::TokenOutOfRange { parameter, index, id, vocab_size }),
                None => Ok(()),
            };
        known("logit_bias", &mut sampling.logit_bias.iter().map(|&(id, _)| id))?;
        known("stop_token_ids", &mut sampling.stop_token_ids.iter().copied())?;
        known("allowed_token_ids", &mut sampling.allowed_token_ids.iter().flatten().copied())?;
        known("bad_words", &mut sampling.bad_words.iter().flatten().copied())?;
        for (parameter, wanted) in [("logprobs", sampling.logprobs), ("prompt_logprobs", sampling.prompt_logprobs)] {
            let max = limits.max_logprobs.min(vocab_size);
            if let Some(value) = wanted.filter(|&k| k > max) {
                return Err(RequestError::TooLarge { parameter, value: u64::from(value), max: u64::from(max) });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: RequestLimits = RequestLimits { max_model_len: 256, vocab_size: 100, max_logprobs: 20 };

    fn request(prompt_tokens: usize) -> Request {
        Request { prompt: vec![1; prompt_tokens], ..Request::default() }
    }

    #[test]
    fn too_long_prompt_names_true_numbers() {
        let error = request(300).validate(&LIMITS).unwrap_err();
        assert!(error.to_string().starts_with("prompt has 300 tokens, the model's context is 256"));
        assert_eq!(error.kind(), RequestErrorKind::ContextLength);
        let error = request(256).validate(&LIMITS).unwrap_err();
        assert_eq!(error.kind(), RequestErrorKind::ContextLength);
        assert_eq!(request(255).validate(&LIMITS), Ok(()));
        let mut scoring = request(256);
        scoring.sampling.max_tokens = 0;
        assert_eq!(scoring.validate(&LIMITS), Ok(()));
    }

    #[test]
    fn every_number_has_a_range_and_nan_is_in_none() {
        type Set = fn(&mut SamplingParams, f32);
        let cases: [(&str, Set, &[f32], &[f32]); 7] = [
            ("temperature", |s, v| s.temperature = v, &[0.0, 2.0], &[-0.1, 2.1]),
            ("top_p", |s, v| s.top_p = v, &[1e-4, 1.0], &[0.0, 1.1]),
            ("min_p", |s, v| s.min_p = v, &[0.0, 1.0], &[-0.1, 1.1]),
            ("repetition_penalty", |s, v| s.repetition_penalty = v, &[0.1, 10.0], &[0.0, -1.0, 11.0]),
            ("frequency_penalty", |s, v| s.frequency_penalty = v, &[-2.0, 2.0], &[-2.1, 2.1]),
            ("presence_penalty", |s, v| s.presence_penalty = v, &[-2.0, 2.0], &[-2.1, 2.1]),
            ("logit_bias", |s, v| s.logit_bias = vec![(3, v)], &[-100.0, 100.0], &[-101.0, 101.0]),
        ];
        for (name, set, good, bad) in cases {
            for &value in good {
                let mut request = request(3);
                set(&mut request.sampling, value);
                assert_eq!(request.validate(&LIMITS), Ok(()), "{name} = {value}");
            }
            for &value in bad.iter().chain(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY]) {
                let mut request = request(3);
                set(&mut request.sampling, value);
                let error = request.validate(&LIMITS).unwrap_err();
                assert_eq!((error.parameter(), error.kind()), (name, RequestErrorKind::InvalidParameter));
            }
        }
    }

    #[test]
    fn unknown_ids_and_empty_lists_are_named() {
        type Set = fn(&mut Request);
        let cases: [(&str, Set); 11] = [
            ("boundaries", |r| r.boundaries = vec![4]),
            ("boundaries", |r| r.boundaries = vec![2, 1]),
            ("boundaries", |r| r.boundaries = vec![1; 5]),
            ("prompt", |r| r.prompt.push(100)),
            ("prompt", |r| r.prompt.clear()),
            ("logit_bias", |r| r.sampling.logit_bias = vec![(100, 1.0)]),
            ("stop_token_ids", |r| r.sampling.stop_token_ids = vec![100]),
            ("allowed_token_ids", |r| r.sampling.allowed_token_ids = Some(vec![7, 100])),
            ("allowed_token_ids", |r| r.sampling.allowed_token_ids = Some(vec![])),
            ("bad_words", |r| r.sampling.bad_words = vec![vec![]]),
            ("logprobs", |r| r.sampling.logprobs = Some(21)),
        ];
        for (name, set) in cases {
            let mut request = request(3);
            set(&mut request);
            assert_eq!(request.validate(&LIMITS).unwrap_err().parameter(), name);
        }
    }
}
