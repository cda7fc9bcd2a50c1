//! Speculative decoding: tokens guessed cheaply, checked in one step with the next real one.
//!
//! * A [`drafts::Drafter`] guesses what follows a request's tokens: [`ngram`] looks it up in the request's own text when
//!   a step is planned; a draft model, whose passes run on the device between steps, has left its guesses there before.
//! * [`width`] decides how many guesses are worth their cost, per request and step, from what was accepted before and
//!   from measured step times; [`ledger`] holds that against what happened, and stops what does not pay. [`looks`] says when to look at all.
//!
//! Guesses may form a tree: beside the likeliest continuation, [`branches`] that leave it at some depth. Each is a row of the
//! step with the request's own text up to there; the accepted one's cache rows are moved to their places afterwards.
//!
//! A guess never changes an answer. Every row of a step is sampled as it would be without speculation, by the same
//! counter-based generator and with the tokens accepted before it; a guess is accepted if it equals the token sampled in
//! its place. Rejected: rejection sampling against the drafter's distribution. It accepts a little more at high
//! temperature, but the text then depends on the drafter, and "the same as without" could only be tested statistically.
#![forbid(unsafe_code)]

pub mod branches;
pub mod drafts;
pub mod ledger;
pub mod looks;
pub mod ngram;
pub mod width;

use std::sync::Arc;

/// How many tokens a step may guess for one request, at most.
pub const DRAFT_MAX: u32 = 15;

/// How many tokens a step may guess for all requests together.
pub const GUESSES_MAX: u32 = 64;

/// How many side branches one request may have in a step.
pub const BRANCHES_MAX: u32 = 3;

/// How many rows of a step may be side branches.
pub const BRANCH_ROWS_MAX: u32 = 64;

/// How to speculate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpeculationConfig {
    /// Guesses per request and step, at most; 1 to [`DRAFT_MAX`].
    pub draft_max: u32,
    /// Tokens that must repeat before what followed them is guessed; at least 1.
    pub ngram: u32,
    /// Side branches per request and step, 0 = a chain; at most [`BRANCHES_MAX`]. The device must know branch rows.
    pub branches: u32,
}

impl Default for SpeculationConfig {
    fn default() -> Self {
        Self { draft_max: 12, ngram: 3, branches: 0 }
    }
}

/// The model whose passes guess, as the engine sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DraftModel {
    /// Width of a row of its logits.
    pub vocab_size: u32,
    /// The token of each column of its logits; `None` = the column's own number.
    pub token_ids: Option<Arc<[u32]>>,
}

impl DraftModel {
    /// The likeliest token of one row of its logits among the first `n_ids`, the others being never sampled; the first of
    /// equals. Numbers that are none never win; `None` if there is no other.
    pub fn choice(&self, row: &[f32], n_ids: u32) -> Option<u32> {
        self.choices(row, n_ids)[0]
    }

    /// The likeliest and the second.
    pub fn choices(&self, row: &[f32], n_ids: u32) -> [Option<u32>; 2] {
        let id_of = |at: usize| self.token_ids.as_ref().map_or(at as u32, |ids| ids[at]);
        let mut best: [Option<(f32, u32)>; 2] = [None; 2];
        for (at, &value) in row.iter().enumerate() {
            let beats = |other: Option<(f32, u32)>| other.is_none_or(|(most, _)| value > most);
            if value.is_nan() || !beats(best[1]) || id_of(at) >= n_ids {
                continue;
            }
            let new = Some((value, id_of(at)));
            best = if beats(best[0]) { [new, best[0]] } else { [best[0], new] };
        }
        best.map(|choice| choice.map(|(_, id)| id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_likeliest_column_is_mapped_to_its_token() {
        let mut model = DraftModel { vocab_size: 3, token_ids: None };
        assert_eq!(model.choice(&[1.0, 3.0, 3.0], 3), Some(1));
        assert_eq!(model.choice(&[1.0, 0.0, 3.0], 2), Some(0), "token 2 does not exist");
        assert_eq!(model.choice(&[f32::NAN, f32::NEG_INFINITY, f32::NAN], 3), Some(1));
        assert_eq!(model.choice(&[f32::NAN; 3], 3), None);
        model.token_ids = Some(Arc::from([40, 50, 60]));
        assert_eq!(model.choice(&[1.0, 2.0, 3.0], 100), Some(60));
        assert_eq!(model.choice(&[1.0, 2.0, 3.0], 60), Some(50));
        assert_eq!(model.choices(&[2.0, 1.0, 3.0], 100), [Some(60), Some(40)]);
        assert_eq!(model.choices(&[2.0, f32::NAN, 2.0], 100), [Some(40), Some(60)]);
        assert_eq!(model.choices(&[2.0, 1.0, 3.0], 50), [Some(40), None]);
    }
}
