//! What a step's guesses came to, told from the counters before and after it.

use super::Counters;
use crate::speculation::{DRAFT_MAX, looks::Checked};

/// The counters as they were.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    generated: u64,
    drafts: [u64; DRAFT_MAX as usize],
    accepted: [u64; DRAFT_MAX as usize],
}

impl Seen {
    /// What came since the call before.
    pub fn take(&mut self, counters: &Counters) -> Checked {
        let mut checked = Checked { generated: counters.generation_tokens - self.generated, ..Checked::default() };
        let mut reached = u64::MAX;
        for at in 0..DRAFT_MAX as usize {
            let [n, right] = [counters.drafts[at] - self.drafts[at], counters.accepted[at] - self.accepted[at]];
            // A guess is held against a token only if those before it were right.
            checked.tried += n.min(reached) as u32;
            checked.guesses += n as u32;
            checked.accepted += right as u32;
            reached = right;
        }
        *self = Self { generated: counters.generation_tokens, drafts: counters.drafts, accepted: counters.accepted };
        checked
    }
}
