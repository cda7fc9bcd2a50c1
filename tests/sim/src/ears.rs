//! Everybody who asked, and what they hear: each event is compared with the oracle when it comes.

use std::collections::BTreeMap;

use tokenspeed_core::{
    engine::EngineConfig,
    request::{Event, FinishReason, RequestId, Usage},
    sampler::SampleError,
};

use crate::{
    alone::{self, Alone},
    check::{Check, Failure},
    scenario::{Abort, MILLION},
    world::SharedWorld,
};

/// Why requests may end before they would alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EarlyEnd {
    /// The caller aborts this one.
    Abort(RequestId),
    /// Everybody fails with this message.
    FailAll(String),
}

/// A request and how far it is.
#[derive(Debug)]
pub struct Asked {
    /// Its name in the scenario.
    pub label: u32,
    /// What it hears alone.
    pub alone: Alone,
    /// It has heard its end.
    pub is_over: bool,
    /// That end was the one it has alone.
    pub is_whole: bool,
    /// When it was submitted.
    pub tick: u32,
    /// The same, on the clock.
    pub submitted_ns: u64,
    /// When the caller gives up.
    pub abort: Option<Abort>,
    /// Tokens of its prompt that must be found in the cache; `None` if nothing is promised.
    pub must_hit: Option<u32>,
    /// Tokens of its prompt that must be found in either tier.
    pub must_load: Option<u32>,
    /// Reported hit.
    pub cached_tokens: Option<u32>,
    /// All it heard, with no cached tokens.
    pub heard: Vec<Event>,
}

/// Totals of a run, to see that it did what it is meant to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Requests submitted.
    pub requests: u64,
    /// Steps run.
    pub steps: u64,
    /// Tokens heard.
    pub tokens: u64,
    /// Prompt tokens found in the cache.
    pub cached: u64,
    /// Requests with a hit on a model with a recurrent state.
    pub hybrid_hits: u64,
    /// Prompts of a million tokens that were computed.
    pub millions: u64,
    /// Prompts of which more than half a million tokens were found in the cache.
    pub million_hits: u64,
    /// Of the hits, those that had to be as long as they were.
    pub promised: u64,
    /// Requests that lost their memory.
    pub preemptions: u64,
    /// Most times that one request did.
    pub preempted_most: u64,
    /// Aborts that hit a request.
    pub aborts: u64,
    /// Requests that failed by themselves.
    pub failed: u64,
    /// Steps that failed, devices lost.
    pub step_failures: u64,
    /// Steps planned ahead.
    pub plans_ahead: u64,
    /// Steps that the device had before the one in front of them was taken in.
    pub relayed_steps: u64,
    /// Of these, those of engines that speculate.
    pub relayed_unguessed: u64,
    /// Rows sampled on the device.
    pub sampled: u64,
    /// The same, behind guesses.
    pub sampled_guesses: u64,
    /// Rows sampled on the device with the help of side tables.
    pub side_rows: u64,
    /// The same, behind guesses, with counts of their own.
    pub side_guesses: u64,
    /// Rows sampled on the device with a mask that a grammar made.
    pub guided_rows: u64,
    /// Right guesses that the device sampled.
    pub accepted_on_device: u64,
    /// Requests refused because too many waited.
    pub refused: u64,
    /// Rows that resumed from one state slot and wrote another.
    pub state_moves: u64,
    /// Tokens guessed.
    pub guesses: u64,
    /// Of these, right ones.
    pub accepted: u64,
    /// Rows whose state was advanced over right guesses.
    pub replays: u64,
    /// Passes of draft models.
    pub draft_passes: u64,
    /// Rows of these.
    pub draft_rows: u64,
    /// Of the right guesses, those of draft models.
    pub right_drafts: u64,
    /// Side branches checked.
    pub branches: u64,
    /// Of these, right ones.
    pub right_branches: u64,
    /// Cache rows of right ones, moved to their places.
    pub moves: u64,
    /// Tokens chosen under a grammar.
    pub constrained: u64,
    /// Answers that their grammar ended.
    pub whole: u64,
    /// Masks made outside of the engine.
    pub lent_masks: u64,
    /// Pages copied to host memory.
    pub stores: u64,
    /// Pages copied back.
    pub loads: u64,
    /// Copies that fared badly.
    pub bad_copies: u64,
    /// Copies between a step and the one that was planned behind it.
    pub copies_between: u64,
    /// Prompt tokens that had to be found in host memory.
    pub promised_loads: u64,
    /// Requests aborted while they waited for host memory.
    pub loads_aborted: u64,
    /// Requests refused because they would have started late.
    pub early_refusals: u64,
    /// Admissions of requests that came after one that went on waiting.
    pub overtaken: u64,
    /// Admissions of those who had been overtaken often enough.
    pub aged: u64,
    /// Steps in which new requests were kept waiting for one another.
    pub coalesced: u64,
    /// Runs of other configurations.
    pub variants: u64,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, o: Self) {
        self.requests += o.requests;
        self.steps += o.steps;
        self.tokens += o.tokens;
        self.cached += o.cached;
        self.hybrid_hits += o.hybrid_hits;
        self.millions += o.millions;
        self.million_hits += o.million_hits;
        self.promised += o.promised;
        self.preemptions += o.preemptions;
        self.preempted_most = self.preempted_most.max(o.preempted_most);
        self.aborts += o.aborts;
        self.failed += o.failed;
        self.step_failures += o.step_failures;
        self.plans_ahead += o.plans_ahead;
        self.relayed_steps += o.relayed_steps;
        self.relayed_unguessed += o.relayed_unguessed;
        self.sampled += o.sampled;
        self.sampled_guesses += o.sampled_guesses;
        self.side_rows += o.side_rows;
        self.side_guesses += o.side_guesses;
        self.guided_rows += o.guided_rows;
        self.accepted_on_device += o.accepted_on_device;
        self.refused += o.refused;
        self.state_moves += o.state_moves;
        self.guesses += o.guesses;
        self.accepted += o.accepted;
        self.replays += o.replays;
        self.draft_passes += o.draft_passes;
        self.draft_rows += o.draft_rows;
        self.right_drafts += o.right_drafts;
        self.branches += o.branches;
        self.right_branches += o.right_branches;
        self.moves += o.moves;
        self.constrained += o.constrained;
        self.whole += o.whole;
        self.lent_masks += o.lent_masks;
        self.stores += o.stores;
        self.loads += o.loads;
        self.bad_copies += o.bad_copies;
        self.copies_between += o.copies_between;
        self.promised_loads += o.promised_loads;
        self.loads_aborted += o.loads_aborted;
        self.early_refusals += o.early_refusals;
        self.overtaken += o.overtaken;
        self.aged += o.aged;
        self.coalesced += o.coalesced;
        self.variants += o.variants;
    }
}

/// All ears of one engine.
#[derive(Debug)]
pub struct Ears {
    /// By the engine's ids; ends stay.
    pub asked: BTreeMap<RequestId, Asked>,
    /// The first wrong event.
    pub failure: Option<Failure>,
    /// Early ends that are right just now.
    pub early: Option<EarlyEnd>,
    /// Counts.
    pub tally: Tally,
    /// Ends by reason: stop, length, abort, failed.
    pub ended: [u64; 4],
    config: EngineConfig,
    world: SharedWorld,
}

impl Ears {
    /// Nobody has asked yet.
    pub fn new(config: EngineConfig, world: SharedWorld) -> Self {
        let (asked, tally) = (BTreeMap::new(), Tally::default());
        Self { asked, failure: None, early: None, tally, ended: [0; 4], config, world }
    }

    /// Requests that have not heard their end.
    pub fn open(&self) -> impl Iterator<Item = (&RequestId, &Asked)> {
        self.asked.iter().filter(|(_, asked)| !asked.is_over)
    }

    /// An event comes.
    pub fn hear(&mut self, id: RequestId, event: Event) {
        if let Err(failure) = self.check(id, event) {
            self.failure.get_or_insert(failure);
        }
    }

    fn check(&mut self, id: RequestId, event: Event) -> Result<(), Failure> {
        let wrong = |what: String| Failure::new(Check::Heard, what);
        let asked = self.asked.get_mut(&id).ok_or_else(|| wrong(format!("{id:?} never asked and hears {event:?}")))?;
        if asked.is_over {
            return Err(wrong(format!("{id:?} has ended and hears {event:?}")));
        }
        let (event, cached) = without_cached_tokens(event);
        if let Some(cached) = cached {
            match asked.cached_tokens {
                // Counted at admission, also for requests that end before they start.
                None if matches!(event, Event::Finished { .. }) => {}
                None => asked.cached_tokens = Some(cached),
                Some(before) if before == cached => {}
                Some(before) => return Err(wrong(format!("{id:?} had {before} cached tokens and now {cached}"))),
            }
        }
        let mut world = self.world.lock();
        let wanted = match &self.early {
            Some(EarlyEnd::Abort(which)) if *which == id => {
                Event::Finished { reason: FinishReason::Abort, usage: asked.alone.usage() }
            }
            Some(EarlyEnd::FailAll(message)) => Event::Failed { message: message.clone() },
            _ => match world.poisoned {
                // A row behind a wrong guess is not looked at.
                Some((which, len, token, fingerprint))
                    if which == id
                        && world.truths[&id].prefix.get(len as usize) == Some(&fingerprint)
                        && asked.alone.needs_logits()
                        // The row to be sampled is not looked at before there is a mask for it; rows of the prompt are.
                        && (asked.alone.tokens().len() > len as usize || asked.alone.lacks_mask(&self.config).is_none()) =>
                {
                    alone::failed(SampleError::NotFinite { id: token })
                }
                _ => asked.alone.next(&self.config),
            },
        };
        if event != wanted {
            return Err(wrong(format!("{id:?} (request {}) hears {event:?} and not {wanted:?}", asked.label)));
        }
        match &event {
            Event::Started { .. } => {
                let cached = asked.cached_tokens.unwrap_or(0);
                self.tally.cached += u64::from(cached);
                check_hit(id, asked, cached, &self.config)?;
                let is_million = asked.alone.request.prompt.len() as u32 >= MILLION;
                self.tally.millions += u64::from(is_million);
                self.tally.million_hits += u64::from(cached > MILLION / 2);
                let has_state = world.sizes.states > 0;
                self.tally.hybrid_hits += u64::from(cached > 0 && has_state);
                self.tally.promised += u64::from(asked.must_hit.is_some_and(|must| must > 0));
                self.tally.promised_loads += u64::from(asked.must_load.unwrap_or(0));
            }
            Event::Token { id: token, .. } => {
                self.tally.tokens += 1;
                self.tally.constrained += u64::from(asked.alone.request.constraint.is_some());
                if let Some(truth) = world.truths.get_mut(&id) {
                    truth.push(*token);
                }
            }
            Event::Finished { reason, .. } => {
                (asked.is_over, asked.is_whole) = (true, *reason != FinishReason::Abort);
                self.tally.whole += u64::from(*reason == FinishReason::Stop && asked.alone.is_whole());
                self.ended[match reason {
                    FinishReason::Stop => 0,
                    FinishReason::Length => 1,
                    FinishReason::Abort => 2,
                }] += 1;
            }
            Event::Failed { .. } => {
                asked.is_over = true;
                self.tally.failed += 1;
                self.ended[3] += 1;
            }
        }
        asked.heard.push(event);
        Ok(())
    }
}

fn check_hit(id: RequestId, asked: &Asked, cached: u32, config: &EngineConfig) -> Result<(), Failure> {
    let n_prompt = asked.alone.request.prompt.len() as u32;
    if cached >= n_prompt || !cached.is_multiple_of(config.block_tokens) || cached > 0 && !config.prefix_cache {
        return Err(Failure::new(Check::Hit, format!("{id:?} reports {cached} cached of {n_prompt} prompt tokens")));
    }
    let promises = [(asked.must_hit, "were computed and never left"), (asked.must_load, "were there for all to know")];
    match promises.into_iter().find(|(must, _)| must.is_some_and(|must| cached < must)) {
        Some((must, why)) => {
            let must = must.unwrap_or(0);
            let what = format!("{id:?} found {cached} of {n_prompt} prompt tokens, {must} {why}");
            Err(Failure::new(Check::Hit, what))
        }
        None => Ok(()),
    }
}

/// The event with no cached tokens, and how many it had.
fn without_cached_tokens(mut event: Event) -> (Event, Option<u32>) {
    let cached = match &mut event {
        Event::Started { cached_tokens, .. } => Some(std::mem::take(cached_tokens)),
        Event::Finished { usage: Usage { cached_tokens, .. }, .. } => Some(std::mem::take(cached_tokens)),
        Event::Token { .. } | Event::Failed { .. } => None,
    };
    (event, cached)
}
