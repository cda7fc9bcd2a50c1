//! What an answer must look like, as the engine sees it: a [`Constraint`] that says which tokens may come next.
//!
//! The seam is small on purpose. A constraint is made outside of core, belongs to one request, and is pure and
//! deterministic: the same tokens give the same masks, whoever asks and when. Core knows nothing of the grammar behind it.
//!
//! * [`Constraint::mask`] is the costly call (a walk over the vocabulary). It runs in a [`MaskJob`], which the caller
//!   may take out of the engine between `plan` and `advance` and run on another thread while the device is busy. A job
//!   that nobody took is done by `advance` itself, with the same result.
//! * With guesses `d1…dk` a request has `k + 1` rows, and the mask of each is the one after the right guesses before it:
//!   the job walks along the guesses and comes back. What the grammar forbids is cut off before it is verified.
//! * When nothing but the end can follow, the request ends at once; no step is spent on an end-of-sequence token.
//!
//! Rejected: masks computed on the device thread after the forward pass (their whole cost is then added to every token);
//! masks as a list of ids (a free string allows most of a vocabulary).
#![forbid(unsafe_code)]

mod guard;
mod mask;

pub use guard::MaskJob;
pub(crate) use guard::{Guard, Guide};
pub use mask::TokenMask;

/// A grammar cannot go on: it grew beyond its limits, or refused a token that its own mask allowed. Ends the request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the grammar of this request failed: {message}")]
pub struct ConstraintError {
    /// For the user.
    pub message: String,
}

/// The tokens that may follow those accepted so far. One per request; calls come from one thread at a time.
///
/// After an error, or a panic, only [`Constraint::fresh`] is called.
pub trait Constraint: Send + std::fmt::Debug {
    /// Allow in `mask`, which comes cleared, every token that may come next; end-of-sequence ids where the answer may
    /// end. At least one token is allowed unless [`Constraint::is_complete`].
    fn mask(&mut self, mask: &mut TokenMask) -> Result<(), ConstraintError>;

    /// Go on by a token that the current mask allows, and that does not end the answer.
    fn accept(&mut self, id: u32) -> Result<(), ConstraintError>;

    /// Take back the last `n` accepted tokens.
    fn roll_back(&mut self, n: usize) -> Result<(), ConstraintError>;

    /// How many of `ids`, from the first, may follow one after another without ending the answer. Changes nothing.
    fn count_allowed(&mut self, ids: &[u32]) -> Result<usize, ConstraintError>;

    /// The answer is whole and nothing but its end can follow.
    fn is_complete(&self) -> bool;

    /// An independent one for the same grammar, as before the first token.
    fn fresh(&self) -> Box<dyn Constraint>;
}

/// For requests, which are copied before they run.
impl Clone for Box<dyn Constraint> {
    fn clone(&self) -> Self {
        self.fresh()
    }
}
