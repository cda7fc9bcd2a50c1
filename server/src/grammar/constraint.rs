//! The library's matcher as the engine's [`Constraint`].

use std::sync::{Arc, Mutex, PoisonError};

use llguidance::Matcher;
use tokenspeed_core::grammar::{Constraint, ConstraintError, TokenMask};

/// A compiled grammar, before the first token of any answer.
pub struct Compiled {
    /// Never advanced. Behind a lock because copying it reads state that is not `Sync`.
    prototype: Mutex<Matcher>,
    /// Ascending.
    eos_ids: Arc<[u32]>,
}

impl std::fmt::Debug for Compiled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Compiled")
    }
}

impl Compiled {
    /// Take over a matcher that compiled without error.
    pub fn new(prototype: Matcher, eos_ids: &[u32]) -> Self {
        Self { prototype: Mutex::new(prototype), eos_ids: eos_ids.into() }
    }

    /// A constraint for one answer. It shares nothing that is written with its siblings: they would wait for each other,
    /// and what one may still spend would depend on the others.
    pub fn open(self: &Arc<Self>) -> Box<dyn Constraint> {
        let matcher = self.prototype.lock().unwrap_or_else(PoisonError::into_inner).deep_clone();
        Box::new(Guided { compiled: Arc::clone(self), matcher })
    }
}

struct Guided {
    compiled: Arc<Compiled>,
    matcher: Matcher,
}

impl std::fmt::Debug for Guided {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Guided({})", self.matcher.stop_reason())
    }
}

/// The library's words without its internals.
pub(super) fn plain(error: &impl std::fmt::Display) -> String {
    let text = error.to_string();
    let end = text.find("\n<").unwrap_or(text.len());
    text[..end].trim().to_owned()
}

fn failed(error: impl std::fmt::Display) -> ConstraintError {
    ConstraintError { message: plain(&error) }
}

impl Constraint for Guided {
    fn mask(&mut self, mask: &mut TokenMask) -> Result<(), ConstraintError> {
        let allowed = self.matcher.compute_mask().map_err(failed)?;
        mask.copy_from(allowed.as_slice());
        Ok(())
    }

    fn accept(&mut self, id: u32) -> Result<(), ConstraintError> {
        self.matcher.consume_token(id).map_err(failed)
    }

    fn roll_back(&mut self, n: usize) -> Result<(), ConstraintError> {
        self.matcher.rollback(n).map_err(failed)
    }

    fn count_allowed(&mut self, ids: &[u32]) -> Result<usize, ConstraintError> {
        let ends = |id: &u32| self.compiled.eos_ids.binary_search(id).is_ok();
        let n = ids.iter().position(ends).unwrap_or(ids.len());
        self.matcher.validate_tokens(&ids[..n]).map_err(failed)
    }

    fn is_complete(&self) -> bool {
        self.matcher.is_stopped() && !self.matcher.is_error()
    }

    fn fresh(&self) -> Box<dyn Constraint> {
        self.compiled.open()
    }
}
