//! One request's guesses: the table they come from, what is being checked, and how well it went so far.

use super::{DRAFT_MAX, SpeculationConfig, ngram::NgramIndex, width::Record};

/// Guesses of one request.
#[derive(Debug, Default)]
pub struct Drafts {
    ngrams: Option<NgramIndex>,
    /// Tokens guessed to follow the request's own, in the step being planned or in flight.
    pub ids: Vec<u32>,
    /// What became of earlier ones.
    pub record: Record,
}

impl Drafts {
    /// For a text of at most `max_len` tokens; `None` = no guesses.
    pub fn new(config: Option<&SpeculationConfig>, max_len: u32) -> Self {
        let ngrams = config.map(|c| NgramIndex::new(c.ngram, max_len));
        let ids = Vec::with_capacity(if ngrams.is_some() { DRAFT_MAX as usize } else { 0 });
        Self { ngrams, ids, record: Record::default() }
    }

    /// Guess at most `at_most` tokens after `tokens`.
    pub fn propose(&mut self, tokens: &[u32], at_most: u32) {
        self.ids.clear();
        if let Some(ngrams) = &mut self.ngrams {
            ngrams.propose(tokens, at_most.min(DRAFT_MAX) as usize, &mut self.ids);
        }
    }

    /// Of the guesses that were checked, how many were right.
    pub fn observe(&mut self, accepted: u32) {
        let n = self.ids.len() as u32;
        if n > 0 {
            self.record.observe(n, accepted);
        }
        self.ids.clear();
    }

    /// Guesses.
    pub fn len(&self) -> u32 {
        self.ids.len() as u32
    }

    /// None.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }
}
