//! What the penalties need to know of a request's tokens: which occur in the prompt, and how often each was generated.
//!
//! A sorted list of distinct ids: penalties then cost what occurs, not the vocabulary. Rejected: a counter per
//! vocabulary entry (200 KB a request) and a hash map (allocates when it grows).

use crate::request::SamplingParams;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Occurrence {
    pub id: u32,
    /// Times generated.
    pub count: u32,
}

/// Token counts of one request; empty and free for requests without penalties.
#[derive(Clone, Debug, Default)]
pub struct History {
    is_tracking: bool,
    /// Ascending ids. Prompt ids are here, with count 0, only if the repetition penalty needs them.
    occurrences: Vec<Occurrence>,
}

impl History {
    /// Before the first generated token. Reserves room for `max_generated` more distinct ids.
    pub fn new(params: &SamplingParams, prompt: &[u32], max_generated: usize) -> Self {
        let repeats = params.repetition_penalty != 1.0;
        let is_tracking = repeats || params.frequency_penalty != 0.0 || params.presence_penalty != 0.0;
        if !is_tracking {
            return Self::default();
        }
        let mut distinct = if repeats { prompt.to_vec() } else { Vec::new() };
        distinct.sort_unstable();
        distinct.dedup();
        let mut occurrences = Vec::with_capacity(distinct.len() + max_generated);
        occurrences.extend(distinct.into_iter().map(|id| Occurrence { id, count: 0 }));
        Self { is_tracking, occurrences }
    }

    /// Count a generated token.
    pub fn push(&mut self, id: u32) {
        if !self.is_tracking {
            return;
        }
        match self.occurrences.binary_search_by_key(&id, |o| o.id) {
            Ok(at) => self.occurrences[at].count += 1,
            Err(at) => self.occurrences.insert(at, Occurrence { id, count: 1 }),
        }
    }

    pub(super) fn occurrences(&self) -> &[Occurrence] {
        &self.occurrences
    }
}
