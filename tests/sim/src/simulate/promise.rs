//! What must be in the cache: text that was computed to its end before a request came, as long as no page and no state
//! slot was ever needed for something else and nothing happened that puts them in doubt. A cache that never hits, or
//! forgets what it had no reason to forget, does not show in any text.
//!
//! Models without recurrent state resume at every page. Those with one resume where a state is stored: at least at the
//! last boundary before a prompt's last token (the same prompt again, another answer), at the last boundary of what
//! was computed (the next turn), and where a prompt's caller said that others will part from it, if that was computed.

use std::collections::BTreeSet;

use tokenspeed_core::{
    client::Metrics,
    engine::{ComponentClass, EngineConfig},
    request::{Request, RequestId},
};

use crate::ears::Ears;

/// A text that is cached for sure.
#[derive(Debug)]
struct Text {
    salt: Option<String>,
    tokens: Vec<u32>,
    n_prompt: u32,
    /// Of the boundaries that its caller told, those it did not find but computed.
    told: Vec<u32>,
}

/// All of them.
#[derive(Debug)]
pub struct Promises {
    texts: Vec<Text>,
    seen: BTreeSet<RequestId>,
    is_on: bool,
    has_state: bool,
    page_tokens: u32,
}

impl Promises {
    /// Nothing is cached yet.
    pub fn new(config: &EngineConfig) -> Self {
        let has_state = config.components_of(ComponentClass::State).next().is_some();
        let (is_on, page_tokens) = (config.prefix_cache, config.block_tokens);
        Self { texts: Vec::new(), seen: BTreeSet::new(), is_on, has_state, page_tokens }
    }

    /// False once cached text may have been lost: promises made before are off too.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// The model has a recurrent state.
    pub fn has_state(&self) -> bool {
        self.has_state
    }

    /// A step was planned or taken in: full pools may have lost what was cached.
    pub fn looked_at(&mut self, metrics: &Metrics) {
        self.is_on &= metrics.pages_used < metrics.pages_total;
        self.is_on &= !self.has_state || metrics.states_used < metrics.states_total;
    }

    /// Pages may have been dropped.
    pub fn doubt(&mut self) {
        self.is_on = false;
    }

    /// The cache is empty.
    pub fn flushed(&mut self) {
        self.texts.clear();
    }

    /// Note who has ended.
    pub fn ended(&mut self, ears: &Ears) {
        if !self.is_on {
            return;
        }
        for (id, asked) in ears.asked.iter().filter(|(_, asked)| asked.is_whole) {
            if self.seen.insert(*id) {
                // The last generated token was never computed.
                let tokens = asked.alone.tokens();
                let n_computed = tokens.len() - usize::from(asked.alone.n_generated() > 0);
                let request = &asked.alone.request;
                let found = asked.cached_tokens.unwrap_or(0);
                let told = request.boundaries.iter().copied().filter(|tokens| *tokens > found).collect();
                self.texts.push(Text {
                    salt: request.cache_salt.clone(),
                    tokens: tokens[..n_computed].to_vec(),
                    n_prompt: request.prompt.len() as u32,
                    told,
                });
            }
        }
    }

    /// Tokens of its prompt that a new request must find.
    pub fn must_hit(&self, request: &Request) -> Option<u32> {
        if !self.is_on || request.sampling.prompt_logprobs.is_some() {
            return None;
        }
        let same_salt = self.texts.iter().filter(|text| text.salt == request.cache_salt);
        Some(same_salt.map(|text| self.resumable(text, &request.prompt)).max().unwrap_or(0))
    }

    /// The deepest boundary where `prompt` can go on from `text`; its last token is always computed.
    fn resumable(&self, text: &Text, prompt: &[u32]) -> u32 {
        let shared = text.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count().min(prompt.len() - 1) as u32;
        let boundary = |tokens: u32| tokens / self.page_tokens * self.page_tokens;
        if !self.has_state {
            return boundary(shared);
        }
        let told = text.told.iter().map(|tokens| *tokens.min(&(text.n_prompt - 1)));
        let stored = told.chain([text.n_prompt - 1, text.tokens.len() as u32]).map(boundary);
        stored.filter(|tokens| *tokens <= shared).max().unwrap_or(0)
    }
}
