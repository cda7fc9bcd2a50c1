//! A toy grammar as data, and the constraint that an engine walks along it.
//!
//! Which ids may follow is a function of the answer so far, so the oracle makes every mask anew from the tokens, while the
//! engine's constraint keeps a path, goes ahead over guesses and comes back.

use tokenspeed_core::grammar::{Constraint, ConstraintError, TokenMask};

use crate::fingerprint::mix;

/// What an answer must look like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grammar {
    /// Which one.
    pub seed: u64,
    /// Tokens after which an answer is whole.
    pub whole_after: u32,
    /// What goes wrong with it.
    pub trouble: Option<(u32, Trouble)>,
}

/// What a grammar does instead of making a mask, from some number of tokens on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It says that it cannot.
    Refuses,
    /// It panics.
    Panics,
}

impl Grammar {
    /// Allow in `mask`, which is empty, what may follow an answer of `n` tokens with this fingerprint. One id always may.
    fn fill(&self, n: usize, state: u64, mask: &mut TokenMask) -> Result<(), ConstraintError> {
        match self.trouble {
            Some((from, Trouble::Refuses)) if n >= from as usize => {
                return Err(ConstraintError { message: "too deep".into() });
            }
            Some((from, Trouble::Panics)) if n >= from as usize => panic!("the grammar panics"),
            _ => {}
        }
        let n_ids = mask.vocab_size();
        (0..n_ids).filter(|id| allows(state, *id, n_ids)).for_each(|id| mask.allow(id));
        Ok(())
    }

    fn state_after(&self, answer: &[u32]) -> u64 {
        answer.iter().fold(self.seed, |state, &id| mix(state, id))
    }

    /// What may follow an answer, made anew; what the engine says if nothing can be made.
    pub fn mask(&self, answer: &[u32], n_ids: u32) -> Result<TokenMask, ConstraintError> {
        if let Some((from, Trouble::Panics)) = self.trouble
            && answer.len() >= from as usize
        {
            return Err(ConstraintError { message: "it panicked".into() });
        }
        let mut mask = TokenMask::new(n_ids);
        self.fill(answer.len(), self.state_after(answer), &mut mask)?;
        Ok(mask)
    }

    /// Nothing can follow.
    pub fn is_whole(&self, answer: &[u32]) -> bool {
        answer.len() >= self.whole_after as usize
    }

    /// For a request to an engine with so many ids, of which these end an answer.
    pub fn constraint(&self, n_ids: u32, eos_ids: &[u32]) -> Box<dyn Constraint> {
        Box::new(Walk { grammar: self.clone(), n_ids, eos_ids: eos_ids.to_vec(), path: vec![self.seed] })
    }
}

fn allows(state: u64, id: u32, n_ids: u32) -> bool {
    u64::from(id) == state % u64::from(n_ids) || mix(state, id).is_multiple_of(3)
}

/// The engine's way along a grammar.
#[derive(Clone, Debug)]
struct Walk {
    grammar: Grammar,
    n_ids: u32,
    eos_ids: Vec<u32>,
    /// Fingerprint of each beginning of the answer.
    path: Vec<u64>,
}

impl Walk {
    fn state(&self) -> u64 {
        *self.path.last().expect("the empty answer is there")
    }

    fn goes_on_with(&self, id: u32) -> bool {
        !self.is_complete() && !self.eos_ids.contains(&id) && allows(self.state(), id, self.n_ids)
    }
}

impl Constraint for Walk {
    fn mask(&mut self, mask: &mut TokenMask) -> Result<(), ConstraintError> {
        assert!(mask.is_empty(), "masks come cleared");
        self.grammar.fill(self.path.len() - 1, self.state(), mask)
    }

    fn accept(&mut self, id: u32) -> Result<(), ConstraintError> {
        // A guess may be an end; then what is made behind it is not looked at.
        if self.is_complete() || !allows(self.state(), id, self.n_ids) {
            return Err(ConstraintError { message: format!("id {id} was not allowed") });
        }
        self.path.push(mix(self.state(), id));
        Ok(())
    }

    fn roll_back(&mut self, n: usize) -> Result<(), ConstraintError> {
        assert!(n < self.path.len(), "{n} tokens of {} are taken back", self.path.len() - 1);
        self.path.truncate(self.path.len() - n);
        Ok(())
    }

    fn count_allowed(&mut self, ids: &[u32]) -> Result<usize, ConstraintError> {
        let mut ahead = self.clone();
        let goes_on = |id: &&u32| {
            let goes_on = ahead.goes_on_with(**id);
            ahead.path.push(mix(ahead.state(), **id));
            goes_on
        };
        Ok(ids.iter().take_while(goes_on).count())
    }

    fn is_complete(&self) -> bool {
        self.path.len() > self.grammar.whole_after as usize
    }

    fn fresh(&self) -> Box<dyn Constraint> {
        self.grammar.constraint(self.n_ids, &self.eos_ids)
    }
}
