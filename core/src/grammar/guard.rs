//! One request's constraint with the masks of its rows, and the work of filling them.
//!
//! A failure belongs to a row. Without guesses a request that never gets there never fails, so with guesses it must not
//! either: when the walk along the guesses fails, the constraint is made again from the tokens that were accepted.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{Constraint, ConstraintError, TokenMask};
use crate::{bug::seeded, request::RequestId};

/// A constraint, and room for the masks of all rows that one step may have; reserved when the request is submitted.
#[derive(Debug)]
pub(crate) struct Guard {
    constraint: Box<dyn Constraint>,
    /// All tokens of the answer so far.
    accepted: Vec<u32>,
    /// Of the rows behind 0, 1, … right guesses.
    masks: Vec<TokenMask>,
    /// Of these, how many are filled for the current tokens.
    n_ready: usize,
    /// Guesses that the masks are for.
    guesses: Vec<u32>,
    /// Why the next row has no mask.
    failure: Option<ConstraintError>,
}

/// A panic of foreign code is an error like any other.
fn guarded<T>(call: impl FnOnce() -> Result<T, ConstraintError>) -> Result<T, ConstraintError> {
    let panicked = |_| Err(ConstraintError { message: "it panicked".into() });
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(panicked)
}

impl Guard {
    /// For steps with at most `guesses_max` guesses and answers of at most `tokens_max`.
    pub fn new(constraint: Box<dyn Constraint>, vocab_size: u32, guesses_max: u32, tokens_max: u32) -> Self {
        Self {
            constraint,
            accepted: Vec::with_capacity(tokens_max as usize),
            masks: vec![TokenMask::new(vocab_size); guesses_max as usize + 1],
            n_ready: 0,
            guesses: Vec::with_capacity(guesses_max as usize),
            failure: None,
        }
    }

    /// Of `guesses`, how many the grammar lets follow.
    pub fn count_allowed(&mut self, guesses: &[u32]) -> usize {
        if guesses.is_empty() {
            return 0;
        }
        guarded(|| self.constraint.count_allowed(guesses)).unwrap_or_else(|_| {
            self.make_again();
            0
        })
    }

    /// The guesses of the planned step.
    pub fn expect(&mut self, guesses: &[u32]) {
        self.n_ready = 0;
        self.failure = None;
        self.guesses.clear();
        self.guesses.extend_from_slice(guesses);
    }

    /// Fill the masks of all rows that can count. Pure: depends on the accepted tokens and the guesses alone.
    pub fn prepare(&mut self) {
        if self.n_ready > 0 || self.failure.is_some() {
            return;
        }
        if let Err(failure) = guarded(|| self.walk()) {
            self.failure = Some(failure);
            self.make_again();
        }
    }

    fn walk(&mut self) -> Result<(), ConstraintError> {
        let mut n_ahead = 0;
        loop {
            let mask = &mut self.masks[n_ahead];
            mask.clear();
            self.constraint.mask(mask)?;
            self.n_ready += 1;
            let Some(&guess) = self.guesses.get(n_ahead).filter(|guess| mask.allows(**guess)) else { break };
            self.constraint.accept(guess)?;
            n_ahead += 1;
            if self.constraint.is_complete() {
                break;
            }
        }
        let n_back = n_ahead - usize::from(n_ahead > 0 && seeded!(GuessStaysInTheGrammar));
        if n_back > 0 { self.constraint.roll_back(n_back) } else { Ok(()) }
    }

    /// The state behind the accepted tokens, after a failure ahead of it. If they cannot be accepted again, neither can
    /// what follows, and `mask` or `accept` says so then.
    fn make_again(&mut self) {
        let made = guarded(|| {
            self.constraint = self.constraint.fresh();
            self.accepted.iter().try_for_each(|id| self.constraint.accept(*id))
        });
        if let Err(failure) = made {
            self.failure = Some(failure);
        }
    }

    /// The mask of the row behind `n` right guesses.
    pub fn mask(&mut self, n: u32) -> Result<&TokenMask, ConstraintError> {
        self.prepare();
        match &self.failure {
            Some(failure) if n as usize >= self.n_ready || seeded!(FailureAheadEndsTheAnswer) => Err(failure.clone()),
            _ => Ok(&self.masks[..self.n_ready][if seeded!(MaskOfTheFirstRowForAll) { 0 } else { n as usize }]),
        }
    }

    /// The mask of that row, if it has one: a row behind a guess that cannot be right has none, nor has one where making it failed.
    pub fn ready(&mut self, n: u32) -> Option<&TokenMask> {
        self.prepare();
        let n = if seeded!(MaskOfTheFirstRowForAll) { 0 } else { n as usize };
        self.masks[..self.n_ready].get(n)
    }

    /// A token was sampled that does not end the answer. True if the answer is whole now.
    pub fn accept(&mut self, id: u32) -> Result<bool, ConstraintError> {
        guarded(|| self.constraint.accept(id))?;
        self.accepted.push(id);
        Ok(self.constraint.is_complete())
    }
}

/// Where a request's guard is.
#[derive(Debug, Default)]
pub(crate) enum Guide {
    /// Nothing constrains this request.
    #[default]
    Free,
    /// With the request.
    Here(Box<Guard>),
    /// In a [`MaskJob`].
    Lent,
}

impl Guide {
    /// The guard of a constrained request.
    ///
    /// # Panics
    /// While it is lent.
    pub fn guard(&mut self) -> Option<&mut Guard> {
        match self {
            Self::Free => None,
            Self::Here(guard) => Some(guard),
            Self::Lent => panic!("masks come back before the step is taken in"),
        }
    }
}

/// The masks of one request in the planned step: work that needs neither the engine nor the device.
#[derive(Debug)]
#[must_use = "give it back to the engine before `advance`"]
pub struct MaskJob {
    pub(crate) id: RequestId,
    pub(crate) guard: Box<Guard>,
}

impl MaskJob {
    /// Do it; on any thread, once is enough. Neither fails nor panics: what goes wrong ends the request in `advance`.
    pub fn run(&mut self) {
        self.guard.prepare();
    }
}
