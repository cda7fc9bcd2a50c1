//! Why a draft model is refused: one line each.

/// A refused draft.
#[derive(Debug, thiserror::Error)]
pub enum Eagle3Error {
    /// A tensor is not there.
    #[error("{checkpoint}: tensor `{name}` is missing; an EAGLE3 draft of this configuration has it")]
    Missing {
        /// The checkpoint.
        checkpoint: String,
        /// The tensor.
        name: String,
    },
    /// A tensor is not as the configuration says.
    #[error("{checkpoint}: tensor `{name}` is {actual}, but {expected} is needed")]
    Mismatch {
        /// The checkpoint.
        checkpoint: String,
        /// The tensor.
        name: String,
        /// What it is.
        actual: String,
        /// What it should be.
        expected: String,
    },
    /// Weights of another kind of draft.
    #[error("{checkpoint}: tensor `{name}` belongs to {kind}, which is not supported; use an EAGLE3 draft")]
    OtherDraft {
        /// The checkpoint.
        checkpoint: String,
        /// The tensor that gives it away.
        name: String,
        /// What it is instead.
        kind: &'static str,
    },
    /// A vocabulary table that cannot be followed.
    #[error("{checkpoint}: tensor `{name}` {cause}")]
    Vocabulary {
        /// The checkpoint.
        checkpoint: String,
        /// `d2t` or `t2d`.
        name: &'static str,
        /// What is wrong.
        cause: String,
    },
    /// Made for another target.
    #[error("the draft's {what} is {draft}, but the target's is {target}: this draft was made for another model")]
    Target {
        /// Field of the configuration.
        what: &'static str,
        /// Here.
        draft: u64,
        /// There.
        target: u64,
    },
    /// Taps that the target does not have.
    #[error("the draft reads the hidden state after layer {tap}, but the target has {layers} layers")]
    Layers {
        /// Completed layers.
        tap: u64,
        /// How many there are.
        layers: u64,
    },
}
