//! What must be in the cache: text that was computed to its end before a request came, as long as no page was ever needed
//! for something else and nothing happened that puts pages in doubt. A cache that never hits, or forgets what it had no
//! reason to forget, does not show in any text.

use tokenspeed_core::{
    client::Metrics,
    engine::{ComponentClass, EngineConfig},
    request::Request,
};

use crate::ears::Ears;

/// Texts that are cached for sure.
#[derive(Debug)]
pub struct Promises {
    /// (salt, tokens).
    texts: Vec<(Option<String>, Vec<u32>)>,
    /// Labels already looked at.
    n_seen: std::collections::BTreeSet<u64>,
    is_on: bool,
    block_tokens: u32,
}

impl Promises {
    /// Nothing is promised of models with a recurrent state: where they can resume is a matter of policy.
    pub fn new(config: &EngineConfig) -> Self {
        let is_on = config.prefix_cache && config.components_of(ComponentClass::State).next().is_none();
        Self { texts: Vec::new(), n_seen: Default::default(), is_on, block_tokens: config.block_tokens }
    }

    /// False once cached text may have been lost: promises made before are off too.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// A step was planned: a full pool may have lost cached pages.
    pub fn planned(&mut self, metrics: &Metrics) {
        self.is_on &= metrics.pages_used < metrics.pages_total;
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
            if self.n_seen.insert(id.0) {
                // The last generated token was never computed.
                let tokens = asked.alone.tokens();
                let n_computed = tokens.len() - usize::from(asked.alone.n_generated() > 0);
                self.texts.push((asked.alone.request.cache_salt.clone(), tokens[..n_computed].to_vec()));
            }
        }
    }

    /// Tokens of its prompt that a new request must find.
    pub fn must_hit(&self, request: &Request) -> Option<u32> {
        if !self.is_on || request.sampling.prompt_logprobs.is_some() {
            return None;
        }
        let shared = |tokens: &[u32]| tokens.iter().zip(&request.prompt).take_while(|(a, b)| a == b).count();
        let same_salt = self.texts.iter().filter(|(salt, _)| *salt == request.cache_salt);
        let longest = same_salt.map(|(_, tokens)| shared(tokens)).max().unwrap_or(0);
        let pages = longest.min(request.prompt.len() - 1) as u32 / self.block_tokens;
        Some(pages * self.block_tokens)
    }
}
