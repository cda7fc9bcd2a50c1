//! One request's guesses: where they come from, what is being checked, and how well it went so far.

use super::{DRAFT_MAX, SpeculationConfig, branches::Branches, ngram::NgramIndex, width::Record};

/// Where the guesses of one request come from.
#[derive(Debug, Default)]
pub enum Drafter {
    /// Nowhere.
    #[default]
    None,
    /// The request's own text.
    Lookup(NgramIndex),
    /// A model that ran ahead.
    Ahead(Ahead),
}

/// What a model guessed after the last step.
#[derive(Debug)]
pub struct Ahead {
    ids: Vec<u32>,
    /// The second choice in place of each.
    seconds: Vec<Option<u32>>,
    /// Tokens of the text that they follow.
    len: u32,
}

/// Guesses of one request.
#[derive(Debug, Default)]
pub struct Drafts {
    drafter: Drafter,
    /// Tokens guessed to follow the request's own, in the step being planned or in flight.
    pub ids: Vec<u32>,
    /// Continuations that leave them.
    pub branches: Branches,
    /// What became of earlier ones.
    pub record: Record,
}

impl Drafts {
    /// For a text of at most `max_len` tokens; `None` = no guesses. `by_model`: a model makes them, not the text.
    pub fn new(config: Option<&SpeculationConfig>, by_model: bool, max_len: u32) -> Self {
        let room = if config.is_some() { DRAFT_MAX as usize } else { 0 };
        let drafter = match config {
            None => Drafter::None,
            Some(_) if by_model => {
                Drafter::Ahead(Ahead { ids: Vec::with_capacity(room), seconds: Vec::with_capacity(room), len: 0 })
            }
            Some(config) => Drafter::Lookup(NgramIndex::new(config.ngram, max_len)),
        };
        let branches = config.map_or_else(Branches::default, |config| Branches::new(config.branches, config.draft_max));
        Self { drafter, ids: Vec::with_capacity(room), branches, record: Record::default() }
    }

    /// Guess at most `at_most` tokens after `tokens`.
    pub fn propose(&mut self, tokens: &[u32], at_most: u32) {
        self.clear();
        let at_most = at_most.min(DRAFT_MAX) as usize;
        match &mut self.drafter {
            Drafter::None => {}
            Drafter::Lookup(ngrams) => {
                ngrams.propose(tokens, at_most, &mut self.ids);
                if let Some((fork, other)) = ngrams.other(tokens, &self.ids) {
                    self.branches.push(&self.ids, fork, other);
                }
            }
            Drafter::Ahead(ahead) if ahead.len as usize == tokens.len() => {
                self.ids.extend(ahead.ids.iter().take(at_most));
                for (fork, second) in (0..).zip(&ahead.seconds) {
                    self.branches.push(&self.ids, fork, second.iter().copied());
                }
            }
            Drafter::Ahead(_) => {}
        }
    }

    /// Whether the request's own text says what may follow `tokens`.
    pub fn finds(&mut self, tokens: &[u32]) -> bool {
        match &mut self.drafter {
            Drafter::Lookup(ngrams) => ngrams.find(tokens).is_some(),
            Drafter::None | Drafter::Ahead(_) => false,
        }
    }

    /// Whether it was decided when the guesses were made how many of them to check: a model's guesses cost before.
    pub fn are_paid(&self) -> bool {
        matches!(self.drafter, Drafter::Ahead(_))
    }

    /// A model starts to guess what follows a text of `len` tokens.
    pub fn run_ahead(&mut self, len: u32) {
        if let Drafter::Ahead(ahead) = &mut self.drafter {
            ahead.ids.clear();
            ahead.seconds.clear();
            ahead.len = len;
        }
    }

    /// A model's next guess, and its second choice for it.
    pub fn push_ahead(&mut self, id: u32, second: Option<u32>) {
        if let Drafter::Ahead(ahead) = &mut self.drafter {
            ahead.ids.push(id);
            ahead.seconds.push(second);
        }
    }

    /// A model's guesses after a text of `len` tokens.
    pub fn ahead(&self, len: u32) -> &[u32] {
        match &self.drafter {
            Drafter::Ahead(ahead) if ahead.len == len => &ahead.ids,
            _ => &[],
        }
    }

    /// Of the guesses that were checked, how many were right; with `fork`, the first so many of the chain and then those of
    /// the branch that leaves it there.
    pub fn observe(&mut self, accepted: u32, fork: Option<u32>) {
        let n = self.ids.len() as u32;
        if n > 0 {
            self.record.observe(n, fork.unwrap_or(accepted));
            if accepted < n || fork.is_some() {
                self.branches.observe(fork.unwrap_or(accepted), fork.is_some());
            }
        }
        self.clear();
    }

    /// Guess nothing in this step.
    pub fn clear(&mut self) {
        self.ids.clear();
        self.branches.clear();
    }

    /// Keep the first `len` guesses, and what leaves them.
    pub fn truncate(&mut self, len: usize) {
        self.ids.truncate(len);
        self.branches.cut(self.ids.len() as u32);
    }

    /// Tokens of the rows of all side branches, for a request whose own row has `own` tokens before its guesses.
    pub fn branch_tokens(&self, own: u32) -> u32 {
        self.branches.open().iter().map(|branch| own + branch.depth()).sum()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_models_guesses_hold_for_the_text_they_were_made_for() {
        let mut drafts = Drafts::new(Some(&SpeculationConfig::default()), true, 100);
        drafts.run_ahead(3);
        [7, 8, 9].into_iter().for_each(|id| drafts.push_ahead(id, None));
        drafts.propose(&[1, 2, 3], 2);
        assert_eq!(drafts.ids, [7, 8]);
        drafts.propose(&[1, 2, 3, 7], 2);
        assert!(drafts.is_empty() && drafts.ahead(4).is_empty() && drafts.ahead(3).len() == 3);
    }
}
