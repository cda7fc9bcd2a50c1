//! Where a request will stand once the step in flight has been taken in, as far as that can be known.
//!
//! Planning ahead rests on it: of a request that decodes, everything but the token's id is known, unless that id ends
//! it, and then its part of the planned step is dropped. Without a step in flight it is simply where the request stands.

use super::queue::Running;

/// Expected progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outlook {
    /// Tokens whose cache rows are written.
    pub computed: u32,
    /// Tokens it has, the one being sampled included.
    pub len: u32,
    /// First position whose logits prompt reports still need.
    pub next_prompt_logits: Option<u32>,
    /// It generates.
    pub is_decoding: bool,
    /// The step in flight is its last for certain.
    pub ends: bool,
}

impl Outlook {
    /// Of a request without guesses in the step in flight.
    pub fn of(running: &Running) -> Self {
        let (body, active) = running.parts();
        if active.planned == 0 {
            return Self {
                computed: active.computed,
                len: body.len(),
                next_prompt_logits: body.next_prompt_logits(),
                is_decoding: matches!(running, Running::Decoding(_)),
                ends: false,
            };
        }
        debug_assert!(body.drafts.is_empty(), "what becomes of guesses cannot be known");
        let computed = active.computed + active.planned;
        let samples = computed >= body.len();
        let len = body.len() + u32::from(samples);
        Self {
            computed,
            len,
            next_prompt_logits: body.next_prompt_logits_after(active.n_prompt_logit_rows),
            is_decoding: samples,
            ends: matches!(running, Running::Leaving(_)) || samples && len >= body.max_len,
        }
    }

    /// Whether it will have a token to compute and another to sample behind it.
    pub fn generates(&self) -> bool {
        self.is_decoding && !self.ends
    }
}
