//! The parts of a plan, in bytes on one rank.

use super::Draft;
use crate::kimi::slicing::Part;

/// Weights of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartBytes {
    /// Of the model.
    pub part: Part,
    /// On one rank.
    pub rank_bytes: u64,
    /// On one rank if it were the only one.
    pub whole_bytes: u64,
}

/// A draft on one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftBytes {
    /// Which.
    pub draft: Draft,
    /// Its tensors as stored.
    pub stored_bytes: u64,
    /// Weights on one rank; the embedding is the model's.
    pub rank_bytes: u64,
    /// Cache per token, bf16, the same on every rank.
    pub token_bytes: u64,
}

/// One state slot on one rank, all KDA layers together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotBytes {
    /// Recurrent states.
    pub state: u64,
    /// Convolution windows.
    pub window: u64,
    /// Inputs of candidates, kept until they are accepted or not.
    pub record: u64,
}

impl SlotBytes {
    /// What a sequence needs to go on: states and windows.
    pub fn recurrent(&self) -> u64 {
        self.state + self.window
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        self.recurrent() + self.record
    }
}

/// What a step needs on one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepBytes {
    /// Tokens there is room for: a chunk and one token per running request, or all candidates.
    pub tokens: u64,
    /// Rows of logits there is room for.
    pub logit_rows: u64,
    /// Values, without the kernels' own scratch.
    pub values: u64,
    /// Hidden states kept for the draft.
    pub taps: u64,
    /// Logits.
    pub logits: u64,
    /// Page numbers of running requests.
    pub tables: u64,
    /// Both ends of the largest exchange.
    pub exchange: u64,
}

impl StepBytes {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.values + self.taps + self.logits + self.tables + self.exchange
    }
}

/// What fits into a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceBytes {
    /// As asked.
    pub device: u64,
    /// Of which the engine uses.
    pub budget: u64,
    /// Of which weights, draft and step leave this for the cache; `Err` = how much is missing.
    pub left: Result<u64, u64>,
}

/// Conversations of one length under one prefix-cache budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fit {
    /// Length.
    pub tokens: u64,
    /// Snapshots kept per conversation, besides the two states it runs on; 0 = one state, no prefix cache.
    pub snapshots: u64,
    /// Cache of one conversation on one rank.
    pub bytes: u64,
    /// How many fit at once.
    pub conversations: u64,
}
