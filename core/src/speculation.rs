//! Speculative decoding: tokens guessed cheaply, checked in one step with the next real one.
//!
//! * A [`Drafter`] guesses what follows a request's tokens. [`ngram`] looks it up in the request's own text.
//! * [`width`] decides how many guesses are worth their cost, per request and step, from what was accepted before and
//!   from measured step times.
//!
//! A guess never changes an answer. Every row of a step is sampled as it would be without speculation, by the same
//! counter-based generator and with the tokens accepted before it; a guess is accepted if it equals the token sampled in
//! its place. Rejected: rejection sampling against the drafter's distribution. It accepts a little more at high
//! temperature, but the text then depends on the drafter, and "the same as without" could only be tested statistically.
#![forbid(unsafe_code)]

pub mod drafts;
pub mod ngram;
pub mod width;

/// How many tokens a step may guess for one request, at most.
pub const DRAFT_MAX: u32 = 15;

/// How many tokens a step may guess for all requests together.
pub const GUESSES_MAX: u32 = 64;

/// How to speculate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpeculationConfig {
    /// Guesses per request and step, at most; 1 to [`DRAFT_MAX`].
    pub draft_max: u32,
    /// Tokens that must repeat before what followed them is guessed; at least 1.
    pub ngram: u32,
}

impl Default for SpeculationConfig {
    fn default() -> Self {
        Self { draft_max: 12, ngram: 3 }
    }
}
