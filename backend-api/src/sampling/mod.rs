//! From a row of f32 logits to a token id: the formulas that the host's sampler and the op `sample` share.
//!
//! One implementation, because a token must not depend on where it was drawn: what `core` samples from logits and what the
//! reference samples for a step that nobody on the host has seen are the same bits. A backend with kernels of its own is held
//! against it by the conformance suite.
//!
//! The order of the filters is part of the interface; masks, biases and penalties come first and are the caller's (they
//! live in lists on the host and in tables on the device, with [`penalise`] in common):
//! 1. temperature 0: the largest logit wins, and nothing below applies;
//! 2. logits minus the largest one are divided by the temperature, in f64, so that tiny temperatures are greedy and not
//!    infinite;
//! 3. `top_k` keeps exactly k; `top_p` keeps the shortest run of most likely ids, among those kept, that reaches it;
//!    `min_p` drops ids less likely than that fraction of the most likely one;
//! 4. an id is drawn by inverting the cumulative distribution in order of falling probability.
//!
//! Every tie goes to the lower id. The draw is Philox4x32-10 with the seed as key and (position, sample index) as
//! counter, so it depends on nothing else: not on the batch, the step or the neighbours. Rejected: the formulas in the op's
//! reference again, written the obvious way. Two sums in another order differ in the last bit, and once in a million tokens
//! that is another text; the obvious way stands in the tests of both users.

mod draw;
mod exp;
pub mod philox;
mod scan;
mod score;
mod select;

pub use draw::Filters;
pub use scan::{NotFinite, finite_max};
pub use score::{Score, score};
pub use select::{id_of, logit_of};

/// A row that can be sampled: after masks, biases and penalties.
#[derive(Clone, Copy, Debug)]
pub struct Draw {
    /// 0 is greedy.
    pub temperature: f32,
    /// What is drawn from.
    pub filters: Filters,
    /// Key of the generator.
    pub seed: u64,
    /// Of the token to be drawn: how many come before it.
    pub position: u32,
    /// Which of several choices this is.
    pub sample_index: u32,
}

/// Choose an id; `max` is the largest of `logits` and above -infinity. `keys` is scratch memory; with room for the whole row,
/// nothing is allocated.
pub fn choose(logits: &[f32], max: f32, draw: &Draw, keys: &mut Vec<u64>) -> u32 {
    if draw.temperature == 0.0 {
        return scan::first_index_of(logits, max);
    }
    let uniform = philox::uniform(draw.seed, draw.position, draw.sample_index);
    draw::draw(logits, max, draw.temperature, &draw.filters, uniform, keys)
}

/// How penalties change the logit of an id that occurs in the text.
#[derive(Clone, Copy, Debug)]
pub struct Penalties {
    /// Divides positive logits and multiplies negative ones; 1 changes nothing.
    pub repetition: f32,
    /// Subtracted once per generated occurrence.
    pub frequency: f32,
    /// Subtracted once if it was generated at all.
    pub presence: f32,
}

/// The logit of an id that occurs in the text, `count` times in what was generated.
pub fn penalise(logit: f32, count: u32, penalties: &Penalties) -> f32 {
    let mut logit = if logit > 0.0 { logit / penalties.repetition } else { logit * penalties.repetition };
    if count > 0 {
        logit -= penalties.frequency * count as f32;
        logit -= penalties.presence;
    }
    logit
}
