//! Sizes of a workload, each with a flag of its own.

use tokenspeed_core::{
    engine::{ComponentClass, ComponentConfig, EngineConfig},
    speculation::SpeculationConfig,
};

use crate::trace::Trace;

/// Tokens per page.
pub const BLOCK: u32 = 64;
/// Columns of a row of logits.
pub const VOCABULARY: u32 = 16;

/// All of them; defaults are those of the race.
#[derive(Clone, Debug)]
pub struct Options {
    /// Requests at once.
    pub running: u32,
    /// Pages; 0 = as many as the requests need and a tenth more.
    pub blocks: u32,
    /// Tokens of a prompt.
    pub total: u32,
    /// Of these, the same in every prompt; whole pages.
    pub shared: u32,
    /// Steps measured.
    pub steps: u32,
    /// Steps from the first with all requests to the first measured one.
    pub warm: u32,
    /// Tokens a request generates; 0 = nobody ends or comes while steps are measured.
    pub life: u32,
    /// With recurrent states.
    pub hybrid: bool,
    /// Prompt lookup with at most so many guesses; 0 = off.
    pub guesses: u32,
    /// Fill the pool with other cached prompts first.
    pub fill: bool,
    /// Empty the core's own caches before each timed call.
    pub cold: bool,
    /// Plan ahead while a step is in flight, as the driver does.
    pub ahead: bool,
    /// Requests waiting.
    pub waiting: u32,
    /// Samples of an admission.
    pub samples: u32,
}

impl Options {
    pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            running: 256,
            blocks: 0,
            total: 50_000,
            shared: 45_056,
            steps: 300,
            warm: 120,
            life: 100,
            hybrid: false,
            guesses: 0,
            fill: false,
            cold: false,
            ahead: false,
            waiting: 1024,
            samples: 41,
        };
        while let Some(name) = arguments.next() {
            let mut number = || -> Result<u32, String> {
                let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
                value.parse().map_err(|_| format!("{name}: `{value}` is not a number"))
            };
            match name.as_str() {
                "--running" => options.running = number()?,
                "--blocks" => options.blocks = number()?,
                "--total" => options.total = number()?,
                "--shared" => options.shared = number()?,
                "--steps" => options.steps = number()?,
                "--warm" => options.warm = number()?,
                "--life" => options.life = number()?,
                "--guesses" => options.guesses = number()?,
                "--waiting" => options.waiting = number()?,
                "--samples" => options.samples = number()?,
                "--hybrid" => options.hybrid = true,
                "--fill" => options.fill = true,
                "--cold" => options.cold = true,
                "--ahead" => options.ahead = true,
                other => return Err(format!("unknown option {other}")),
            }
        }
        if options.running == 0 || options.shared >= options.total || !options.shared.is_multiple_of(BLOCK) {
            return Err(format!(
                "--running and --shared are wrong: at least 1, and whole pages of {BLOCK} below --total"
            ));
        }
        if options.hybrid && options.guesses > 0 {
            return Err("--hybrid and --guesses together plan a second pass, which the digest does not read".into());
        }
        Ok(options)
    }

    /// Tokens the longest request can have.
    pub fn max_len(&self) -> u32 {
        self.total + BLOCK + Trace::new(self).life
    }

    /// Pages of the pool.
    pub fn n_blocks(&self) -> u32 {
        let own = self.max_len().div_ceil(BLOCK) - self.shared / BLOCK + 1;
        if self.blocks > 0 { self.blocks } else { self.shared / BLOCK + self.running * (own + own / 10) + 2 * own }
    }

    /// An engine that never has to wait for room in a step: what is planned is decided by requests and pages alone.
    pub fn engine(&self) -> EngineConfig {
        let mut config = EngineConfig::paged(self.max_len(), BLOCK, self.n_blocks() + 1, VOCABULARY);
        config.max_num_seqs = self.running + self.running / 20 + 8;
        config.table_rows = config.max_num_seqs;
        let step = (self.max_len() + 65_536).next_multiple_of(BLOCK);
        config.chunked_prefill_size = step;
        config.max_batch_tokens = config.max_num_seqs + step;
        config.max_logit_rows = config.max_num_seqs + step;
        // Tables of all that are admitted in one step.
        config.blocks_per_row *= self.running.div_ceil(100) + 2;
        config.max_waiting = self.waiting + self.running + 1;
        config.speculation =
            (self.guesses > 0).then(|| SpeculationConfig { draft_max: self.guesses, ..SpeculationConfig::default() });
        if self.hybrid {
            // Two slots per request and as many snapshots as half of them.
            let n_blocks = config.max_num_seqs * 5 / 2 + 3;
            let state = ComponentConfig { name: "state".into(), class: ComponentClass::State, n_blocks };
            config.components.push(state);
        }
        config
    }
}
