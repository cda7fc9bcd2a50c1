//! Everything the engine is told once, and the checks that make later failures impossible.

use tokenspeed_backend_api::{
    abi::ts_bucket,
    graph::{ComponentKind, ComponentSpec},
};

use crate::{
    scheduler::policy::SchedulingConfig,
    speculation::{BRANCH_ROWS_MAX, BRANCHES_MAX, DRAFT_MAX, DraftModel, SpeculationConfig},
    step::StepCapacity,
    validate::RequestLimits,
};

/// How a cache component is stored, without its tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComponentClass {
    /// Rows per token, in pages under a block table.
    Paged,
    /// One fixed-size state per running request.
    State,
}

/// A cache component as the scheduler sees it. Its place in the list is its number in the parameter block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComponentConfig {
    /// For messages.
    pub name: String,
    /// Storage.
    pub class: ComponentClass,
    /// Pages or state slots in its arena, scratch slot 0 included.
    pub n_blocks: u32,
}

impl ComponentConfig {
    /// From the model graph's component.
    pub fn of(spec: &ComponentSpec, n_blocks: u32) -> Self {
        let class = match spec.kind {
            ComponentKind::Paged { .. } => ComponentClass::Paged,
            ComponentKind::State { .. } => ComponentClass::State,
        };
        Self { name: spec.name.clone(), class, n_blocks }
    }
}

/// Sizes and policies of an engine.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineConfig {
    /// Part of every cache key, so that two models never share a prefix.
    pub model_id: String,
    /// Cache components, in the model graph's order; at least one is paged, at most one is a state.
    pub components: Vec<ComponentConfig>,
    /// Tokens per page, also the prefix granularity.
    pub block_tokens: u32,
    /// Rows of the device's block tables; at least `max_num_seqs`.
    pub table_rows: u32,
    /// Entries of one block-table row; enough for `max_model_len` tokens.
    pub blocks_per_row: u32,
    /// Requests running at once.
    pub max_num_seqs: u32,
    /// Tokens of one step; at least `max_num_seqs` plus one chunk on the grid, so that decoding never starves prefill.
    pub max_batch_tokens: u32,
    /// Rows of logits of one step; at least `max_num_seqs` plus one chunk on the grid. Prompt log-probabilities need
    /// one row per prompt token, so this caps their chunks.
    pub max_logit_rows: u32,
    /// Most prompt tokens of one request in one step.
    pub chunked_prefill_size: u32,
    /// Prompt plus generated tokens of one request.
    pub max_model_len: u32,
    /// Width of a row of logits.
    pub vocab_size: u32,
    /// Ids at or above this are padding of the head and never sampled; at most `vocab_size`.
    pub tokenizer_vocab_size: u32,
    /// Ids that end generation.
    pub eos_ids: Vec<u32>,
    /// Reuse computed prefixes.
    pub prefix_cache: bool,
    /// Guess tokens and check them together; `None` = one token per step.
    pub speculation: Option<SpeculationConfig>,
    /// The model whose passes guess; `None` = guesses come from the text itself.
    pub draft: Option<DraftModel>,
    /// The device samples rows that need nothing of the host, those behind guesses too, and without guesses the step behind
    /// takes their tokens from its relay slots.
    pub relay: bool,
    /// Rows of the device's side tables, for requests with biases, penalties or masks and for their guesses; 0 = the host samples
    /// those.
    pub side_rows: u32,
    /// Keys the prefix hash; random per process in production, fixed in simulation.
    pub secret: [u64; 2],
    /// Requests waiting at once; more are refused.
    pub max_waiting: u32,
    /// Who goes first.
    pub scheduling: SchedulingConfig,
    /// Most alternatives reported per position.
    pub max_logprobs: u32,
    /// Block events of the prefix cache kept for readers, the oldest making room; 0 = none are made.
    pub cache_events: u32,
    /// Pages kept in host memory when they leave the device, 0 = none.
    pub host_pages: u32,
    /// Recurrent states kept there with them.
    pub host_states: u32,
}

/// Why a configuration cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A number below what the others need.
    #[error("{parameter} is {value}, it must be at least {min}: {because}")]
    TooSmall {
        /// Name as in [`EngineConfig`].
        parameter: &'static str,
        /// As given.
        value: u64,
        /// The least that works.
        min: u64,
        /// Why.
        because: &'static str,
    },
    /// A number above what the others allow.
    #[error("{parameter} is {value}, it must be at most {max}: {because}")]
    TooLarge {
        /// Name as in [`EngineConfig`].
        parameter: &'static str,
        /// As given.
        value: u64,
        /// The most that works.
        max: u64,
        /// Why.
        because: &'static str,
    },
    /// The cache cannot hold one request of full length.
    #[error(
        "cache component {component} has {pages} pages of {block_tokens} tokens, one request of {max_model_len} \
         tokens needs {needed}; give it more memory or lower the context length"
    )]
    PoolTooSmall {
        /// Component name.
        component: String,
        /// Usable pages.
        pages: u32,
        /// Tokens per page.
        block_tokens: u32,
        /// Context length.
        max_model_len: u32,
        /// Pages needed.
        needed: u32,
    },
    /// Not one paged component, or several states.
    #[error("the model has {paged} paged and {state} state components; at least 1 and at most 1 are supported")]
    Components {
        /// Paged ones.
        paged: usize,
        /// State ones.
        state: usize,
    },
}

impl EngineConfig {
    /// Reasonable sizes for one paged component of `n_blocks` pages.
    pub fn paged(max_model_len: u32, block_tokens: u32, n_blocks: u32, vocab_size: u32) -> Self {
        let max_num_seqs = 256;
        let chunked_prefill_size = 8192;
        Self {
            model_id: String::new(),
            components: vec![ComponentConfig { name: "kv".into(), class: ComponentClass::Paged, n_blocks }],
            block_tokens,
            table_rows: max_num_seqs,
            blocks_per_row: max_model_len.div_ceil(block_tokens.max(1)),
            max_num_seqs,
            max_batch_tokens: max_num_seqs + chunked_prefill_size,
            max_logit_rows: max_num_seqs + block_tokens,
            chunked_prefill_size,
            max_model_len,
            vocab_size,
            tokenizer_vocab_size: vocab_size,
            eos_ids: Vec::new(),
            prefix_cache: true,
            speculation: None,
            draft: None,
            relay: false,
            side_rows: 0,
            secret: [0; 2],
            max_waiting: 4096,
            scheduling: SchedulingConfig::default(),
            max_logprobs: 20,
            cache_events: 0,
            host_pages: 0,
            host_states: 0,
        }
    }

    /// Refuse what cannot work, by name.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let at_least = |parameter, value: u32, min: u64, because| {
            let value = u64::from(value);
            if value < min { Err(ConfigError::TooSmall { parameter, value, min, because }) } else { Ok(()) }
        };
        at_least("block_tokens", self.block_tokens, 1, "a page holds tokens")?;
        at_least("max_num_seqs", self.max_num_seqs, 1, "something must run")?;
        at_least("chunked_prefill_size", self.chunked_prefill_size, 1, "a prompt must advance")?;
        at_least("max_model_len", self.max_model_len, 2, "a prompt token and a generated one")?;
        at_least("tokenizer_vocab_size", self.tokenizer_vocab_size, 1, "something must be sampled")?;
        let seqs = u64::from(self.max_num_seqs);
        at_least("table_rows", self.table_rows, seqs, "each running request has a row (max_num_seqs)")?;
        let pages = u64::from(self.pages_of(self.max_model_len));
        at_least("blocks_per_row", self.blocks_per_row, pages, "a row holds max_model_len tokens")?;
        let least = seqs + u64::from(self.chunk_grid());
        let because = "max_num_seqs plus one chunk on the page grid, so that prefill never starves";
        at_least("max_batch_tokens", self.max_batch_tokens, least, because)?;
        at_least("max_logit_rows", self.max_logit_rows, least, because)?;
        at_least("max_waiting", self.max_waiting, 1, "a request waits before it runs")?;
        let at_most = |parameter, value: u32, max: u32, because| {
            let (value, max) = (u64::from(value), u64::from(max));
            if value > max { Err(ConfigError::TooLarge { parameter, value, max, because }) } else { Ok(()) }
        };
        at_most("tokenizer_vocab_size", self.tokenizer_vocab_size, self.vocab_size, "logits have vocab_size columns")?;
        at_most("vocab_size", self.vocab_size, i32::MAX as u32, "the parameter block holds ids as i32")?;
        at_most("max_model_len", self.max_model_len, i32::MAX as u32, "positions must not wrap")?;
        for &id in &self.eos_ids {
            at_most("eos_ids", id, self.tokenizer_vocab_size - 1, "it is a token id")?;
        }
        if let Some(speculation) = &self.speculation {
            at_least("speculation.draft_max", speculation.draft_max, 1, "guesses are what it is about")?;
            at_least("speculation.ngram", speculation.ngram, 1, "something must repeat")?;
            at_most("speculation.branches", speculation.branches, BRANCHES_MAX, "each has a row of its own")?;
            at_most("speculation.draft_max", speculation.draft_max, DRAFT_MAX, "steps are of limited width")?;
        }
        if let Some(draft) = &self.draft {
            let is_on = u32::from(self.speculation.is_some());
            at_least("speculation", is_on, 1, "a draft model makes the guesses that speculation checks")?;
            at_least("draft.vocab_size", draft.vocab_size, 1, "something must be guessed")?;
            if let Some(ids) = &draft.token_ids {
                let columns = u64::from(draft.vocab_size);
                at_least("draft.token_ids", ids.len() as u32, columns, "each of the draft's columns is a token")?;
            }
        }
        let count = |class| self.components_of(class).count();
        let (paged, state) = (count(ComponentClass::Paged), count(ComponentClass::State));
        if paged == 0 || state > 1 {
            return Err(ConfigError::Components { paged, state });
        }
        for component in &self.components {
            let (usable, needed) = match component.class {
                ComponentClass::Paged => (component.n_blocks.saturating_sub(1), self.pages_of(self.max_model_len)),
                ComponentClass::State => (component.n_blocks.saturating_sub(1), 1),
            };
            if usable < needed {
                return Err(ConfigError::PoolTooSmall {
                    component: component.name.clone(),
                    pages: usable,
                    block_tokens: self.block_tokens,
                    max_model_len: self.max_model_len,
                    needed,
                });
            }
        }
        Ok(())
    }

    /// Pages that hold `tokens` tokens.
    pub fn pages_of(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.block_tokens)
    }

    /// Whether guesses have a pass of their own, and right ones are replayed: a recurrent state cannot be taken back.
    pub fn verifies(&self) -> bool {
        self.speculation.is_some() && self.components_of(ComponentClass::State).next().is_some()
    }

    /// Chunks that do not finish a prompt end on multiples of this: the page, or the chunk cap where that is smaller.
    pub fn chunk_grid(&self) -> u32 {
        self.block_tokens.min(self.chunked_prefill_size)
    }

    /// Rows of a step that may be side branches.
    pub fn branch_rows(&self) -> u32 {
        self.speculation.map_or(0, |s| s.branches.saturating_mul(self.max_num_seqs).min(BRANCH_ROWS_MAX))
    }

    /// Tokens that one request may have in a pass that checks guesses: its own, its guesses, and as many on branches.
    pub fn candidates(&self) -> u32 {
        self.speculation.map_or(1, |s| (s.draft_max + 1) * if s.branches > 0 { 2 } else { 1 })
    }

    /// The bucket a program needs to run every step of this engine.
    pub fn bucket(&self) -> ts_bucket {
        ts_bucket {
            struct_size: size_of::<ts_bucket>() as u32,
            max_tokens: self.max_batch_tokens,
            max_rows: self.max_num_seqs + self.branch_rows(),
            max_logit_rows: self.max_logit_rows,
        }
    }

    /// Numbers of the components of one class.
    pub fn components_of(&self, class: ComponentClass) -> impl Iterator<Item = usize> + '_ {
        (0..self.components.len()).filter(move |&at| self.components[at].class == class)
    }

    /// Block-table changes that the second half of a plan made ahead may need, or those who get what a policy's favourites
    /// leave: the pages that a step's tokens can fill
    /// and two more per request, and as many that the step before turned out to share.
    pub fn late_deltas(&self) -> u32 {
        let pages = self.max_batch_tokens.div_ceil(self.block_tokens);
        let pages = pages.saturating_add(self.max_num_seqs.saturating_mul(2)).saturating_mul(2);
        pages.saturating_mul(self.components_of(ComponentClass::Paged).count() as u32)
    }

    /// The largest parameter block. Deltas: [`EngineConfig::late_deltas`] for each half of a plan, and the whole tables of
    /// two admissions with long cached prefixes (further ones wait for the next step).
    pub fn step_capacity(&self) -> StepCapacity {
        let paged = self.components_of(ComponentClass::Paged).count() as u32;
        let tables = self.blocks_per_row.saturating_mul(2).saturating_mul(paged);
        StepCapacity {
            tokens: self.max_batch_tokens,
            rows: self.max_num_seqs + self.branch_rows(),
            logit_rows: self.max_logit_rows,
            deltas: self.late_deltas().saturating_mul(2).saturating_add(tables),
            samples: if self.relay { self.max_logit_rows } else { 0 },
        }
    }

    /// What requests are checked against.
    pub fn request_limits(&self) -> RequestLimits {
        RequestLimits {
            max_model_len: self.max_model_len,
            vocab_size: self.tokenizer_vocab_size,
            max_logprobs: self.max_logprobs,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_impossible_size_is_named() {
        let good = || EngineConfig::paged(256, 16, 17, 100);
        assert_eq!(good().validate(), Ok(()));
        type Break = fn(&mut EngineConfig);
        let cases: [(&str, Break); 12] = [
            ("block_tokens", |c| c.block_tokens = 0),
            ("max_num_seqs", |c| c.max_num_seqs = 0),
            ("table_rows", |c| c.table_rows = 255),
            ("blocks_per_row", |c| c.blocks_per_row = 15),
            ("max_batch_tokens", |c| c.max_batch_tokens = 271),
            ("max_logit_rows", |c| c.max_logit_rows = 271),
            ("tokenizer_vocab_size", |c| c.tokenizer_vocab_size = 101),
            ("vocab_size", |c| c.vocab_size = u32::MAX),
            ("eos_ids", |c| c.eos_ids = vec![100]),
            ("16 pages", |c| c.max_model_len = 272),
            ("15 pages", |c| c.components[0].n_blocks = 16),
            ("0 paged", |c| c.components.clear()),
        ];
        for (name, damage) in cases {
            let mut config = good();
            damage(&mut config);
            if name == "16 pages" {
                config.blocks_per_row = 17;
            }
            let error = config.validate().unwrap_err().to_string();
            assert!(error.contains(name), "{name}: {error}");
        }
    }
}
