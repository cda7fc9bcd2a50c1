//! A run as data: configuration, requests and faults. Nothing in it depends on how the run goes but the texts of later
//! turns, which continue what was said.

use tokenspeed_backend_api::exec::Via;
use tokenspeed_core::{
    driver::cost::Cost,
    engine::{EngineConfig, Pass},
    request::SamplingParams,
};

use crate::{grammar::Grammar, model::DeviceChoice, rng::Rng, world::StepFault};

/// Tokens of the longest kind of prompt, at least.
pub const MILLION: u32 = 1_000_000;

/// Everything about a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Where it comes from; also makes the base texts.
    pub seed: u64,
    /// The engine.
    pub config: EngineConfig,
    /// Programs or op by op.
    pub via: Via,
    /// The fused op is refused and expanded.
    pub refuses_fused: bool,
    /// Steps are planned while the one before runs.
    pub overlaps: bool,
    /// Masks of grammars are taken out of the engine while a step runs, and half of them are made there.
    pub lends_masks: bool,
    /// Requests that would start later than this are refused, in nanoseconds.
    pub queue_delay_ns: Option<u64>,
    /// What the device expects of its steps, right or wrong.
    pub forecast: Option<Cost>,
    /// How copies to and from host memory fare.
    pub wire: Wire,
    /// Requests, in order of their ticks.
    pub arrivals: Vec<Arrival>,
    /// Faults, each at a tick.
    pub faults: Vec<(u32, Fault)>,
    /// Failures of loading to go through first.
    pub load_faults: Vec<LoadFault>,
    /// Run twice and compare the steps.
    pub repeats: bool,
    /// Run other configurations and compare the text.
    pub varies: bool,
}

/// What becomes of copies: a function of the seed, the page's name and how often it was copied before, so that it stays what
/// it is when others are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wire {
    /// Of the draws.
    pub seed: u64,
    /// Most ticks that a copy takes.
    pub delay: u32,
    /// One copy in so many fares badly; 0 = none.
    pub trouble: u32,
}

/// How one copy fares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It ends well.
    Arrives,
    /// So it does, and its end is told again later.
    ToldTwice,
    /// Nothing arrives, and somebody notices in the end.
    Lost,
    /// A part of it arrives.
    Half,
    /// A bit flips in host memory.
    Damaged,
}

impl Wire {
    /// Ticks that a copy takes, and how it fares.
    pub fn fate(&self, name: u64, is_load: bool, times: u32) -> (u32, Fate) {
        let rng = &mut Rng::new(self.seed ^ name, 2 * u64::from(times) + u64::from(is_load));
        let delay = if rng.one_in(3) { 0 } else { rng.below(self.delay + 1) };
        let is_well = self.trouble == 0 || !rng.one_in(self.trouble);
        let fates = [Fate::ToldTwice, Fate::Lost, Fate::Half, Fate::Damaged];
        (delay, if is_well { Fate::Arrives } else { rng.pick(&fates) })
    }
}

/// A request to come.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrival {
    /// Name that stays when others are removed.
    pub label: u32,
    /// Not before this tick.
    pub tick: u32,
    /// Its prompt.
    pub text: Text,
    /// How it is sampled.
    pub sampling: SamplingParams,
    /// Smaller goes first.
    pub priority: i32,
    /// Cache salt.
    pub salt: Option<String>,
    /// What it says about where others part from it, in thousandths of what it begins with; ascending.
    pub boundaries: Vec<u32>,
    /// What its answer must look like.
    pub grammar: Option<Grammar>,
    /// When the caller gives up.
    pub abort: Option<Abort>,
}

/// The caller gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abort {
    /// Ticks after submission.
    pub after: u32,
    /// While a step is in flight, not between steps.
    pub in_flight: bool,
}

/// A prompt: the beginning of something known, perhaps with one token changed, and something new.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text {
    /// What it begins with.
    pub origin: Origin,
    /// How much of it, in thousandths.
    pub keep: u32,
    /// Where a token is changed, in thousandths of what is kept.
    pub edit: Option<u32>,
    /// New tokens.
    pub fresh: u32,
    /// Of the new tokens.
    pub seed: u64,
}

/// What a prompt begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// One of a few texts that all know.
    Base(u32),
    /// Prompt and output of another request.
    Turn {
        /// Its label; if it was removed, base text 0 stands in.
        of: u32,
        /// Wait for its end, or fork while it still talks.
        waits: bool,
    },
}

/// What goes wrong, or changes, from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// In the turn of this tick: in this pass if it runs, in another if not.
    Step(StepFault, Pass),
    /// The step of this tick takes so many ticks, in which requests come and go.
    Stall(u32),
    /// The clock jumps.
    Clock(i64),
    /// Another budget of tokens per step.
    StepTokens(u32),
    /// A flush is asked for.
    Flush,
    /// A bit flips in everything that is in host memory.
    Damage,
}

/// How loading fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadFault {
    /// No memory for the cache.
    NoArena,
    /// No memory for the program.
    NoMemory,
    /// The program cannot be captured.
    NoCapture,
    /// An op without decomposition is refused.
    RefusedOp,
}

impl Scenario {
    /// How the device is opened once loading works.
    pub fn choice(&self) -> DeviceChoice {
        DeviceChoice { via: self.via, refuse: self.refuses_fused.then_some("sigmoid_mul"), prepare: "ok" }
    }

    /// Base text `number`.
    pub fn base(&self, number: u32) -> Vec<u32> {
        let mut rng = Rng::new(self.seed, 1000 + u64::from(number));
        let n = rng.between(1, self.config.max_model_len);
        // Few different tokens: different texts share beginnings, and pages of equal tokens with other histories occur.
        let ids = self.config.tokenizer_vocab_size.min(if rng.one_in(2) { 3 } else { u32::MAX });
        (0..n).map(|_| rng.below(ids)).collect()
    }
}

impl Text {
    /// The prompt, given the text of its origin; at least one token, at most `max` tokens.
    pub fn resolve(&self, mut text: Vec<u32>, n_ids: u32, max: u32) -> Vec<u32> {
        let part = |of: usize, thousandths: u32| (of as u64 * u64::from(thousandths) / 1000) as usize;
        text.truncate(part(text.len(), self.keep).min(max as usize));
        if let Some(edit) = self.edit
            && !text.is_empty()
        {
            let at = part(text.len() - 1, edit);
            text[at] = (text[at] + 1) % n_ids;
        }
        let mut rng = Rng::new(self.seed, 2);
        text.extend((0..self.fresh).map(|_| rng.below(n_ids)));
        text.truncate(max as usize);
        if text.is_empty() {
            text.push(0);
        }
        text
    }

    /// Where others part from a prompt made of this.
    pub fn boundaries(&self, prompt: &[u32], thousandths: &[u32]) -> Vec<u32> {
        let begins_with = (prompt.len() as u32).saturating_sub(self.fresh);
        thousandths.iter().map(|&part| (u64::from(begins_with) * u64::from(part) / 1000) as u32).collect()
    }
}
