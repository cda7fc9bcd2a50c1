//! The engine as one pure state machine: requests and logits in, parameter blocks and events out.
//!
//! The caller owns threads, the clock and the device. One turn is: [`EngineState::plan`] writes the parameter block of
//! a step, the caller runs it, [`EngineState::advance`] takes the logits and delivers what they mean. `submit` and
//! `abort` may come between the two, and so may [`EngineState::plan_ahead`]. A plan is a move-only ticket for a step in
//! flight. There is one, or, where the device relays ids, a second one behind it ([`behind`]).
//!
//! Rejected: an engine that owns its thread. The simulator could then not own time, and a failing seed not replay.
#![forbid(unsafe_code)]

mod advance;
mod behind;
mod config;
mod draft;
pub mod inspect;
mod masks;
mod parts;
mod replay;
mod seen;
#[cfg(test)]
mod tests;

use advance::Taker;
pub use config::{ComponentClass, ComponentConfig, ConfigError, EngineConfig};
pub use draft::DraftStep;
use draft::Drafting;
pub use masks::SamplingStep;
use parts::StepParts;
use replay::Replay;
use seen::Seen;

use crate::{
    bug::seeded,
    cache::{
        copies::CopyOrder,
        index::{FoundPath, STORES_MAX},
        memory::{Memory, MemorySize},
        tally::Tally,
    },
    client::{Limits, Metrics},
    grammar::{Guard, Guide},
    request::{Event, FinishReason, Request, RequestId},
    sampler::{
        History, Sampler,
        device::{HostOnly, SampledPasses},
        side::{Side, SideTables, SideUpdates},
    },
    scheduler::{
        decision::Decisions,
        marks::MARKS_MAX,
        plan::{Scheduler, StepLimits},
        queue::{self, Queues, Running, Waiting},
        sequence::{Body, Ending, Sequence},
    },
    speculation::{DRAFT_MAX, drafts::Drafts, looks::Checked, width::StepCost},
    step::StepBuffer,
    validate::RequestError,
};

/// Pages copied to host memory per step, at most.
const STORES_BESIDE_STEPS: usize = 4;

/// Why [`EngineState::submit`] took nothing.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SubmitError {
    /// The request is wrong; see [`RequestError::kind`] for a machine-readable reason.
    #[error(transparent)]
    Invalid(#[from] RequestError),
    /// Too many wait already.
    #[error("{waiting} requests are waiting already; try again later")]
    QueueFull {
        /// How many, the configured limit.
        waiting: u32,
    },
}

/// Why the cache was not flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the cache cannot be flushed while {requests} requests are running or waiting and {copies} copies to or from host \
     memory are under way; nothing was flushed"
)]
pub struct FlushError {
    /// Requests that have not ended.
    pub requests: usize,
    /// Copies that have not ended.
    pub copies: usize,
}

/// The kinds of step, in the order in which a turn runs those it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Computes tokens and advances recurrent states over them.
    Forward,
    /// Computes guesses whose states are not advanced; only for models with recurrent state.
    Verify,
    /// Advances the states over the right guesses; no logits.
    Replay,
    /// The draft model over tokens of the text.
    DraftFirst,
    /// The draft model over its own last guess.
    DraftNext,
}

/// What the passes of a turn computed, each row-major `[its logit rows, vocab_size]`; empty for a pass that did not run.
#[derive(Clone, Copy, Debug)]
pub struct Logits<'a> {
    /// Of [`Pass::Forward`].
    pub forward: &'a [f32],
    /// Of [`Pass::Verify`].
    pub verify: &'a [f32],
}

impl<'a> From<&'a [f32]> for Logits<'a> {
    fn from(forward: &'a [f32]) -> Self {
        Self { forward, verify: &[] }
    }
}

impl<'a> From<&'a Vec<f32>> for Logits<'a> {
    fn from(forward: &'a Vec<f32>) -> Self {
        Self::from(&forward[..])
    }
}

/// A step to run: the ticket that [`EngineState::advance`] takes back with the logits.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "run the step and give the plan to `advance`"]
pub struct Plan {
    /// Step counter, also in the parameter block.
    pub sequence: u64,
    /// Tokens of both passes.
    pub n_tokens: u32,
    /// Requests of the forward pass; with none it need not run.
    pub n_rows: u32,
    /// Rows of logits of the forward pass; may be 0.
    pub n_logit_rows: u32,
    /// Rows of logits of the verify pass, if there is one: run [`EngineState::verify_step`] after the forward pass.
    pub verify: Option<u32>,
    /// Of the tokens, those that decode.
    pub n_decode_tokens: u32,
    /// Sum over rows of query length times context length, for whoever models what a step costs.
    pub attention_pairs: u64,
    /// The device samples the rows of all its passes: take it in with [`EngineState::advance_sampled`]. Until then
    /// [`EngineState::plan_behind`] may plan the step behind it.
    pub is_sampled: bool,
    /// But not in those passes, which are run as those of a step whose logits nobody reads: when the masks of its requests are
    /// back, run [`EngineState::sampling_step`].
    pub samples_later: bool,
}

/// What a step gives: rows to sample from, or what the device sampled from them.
#[derive(Clone, Copy, Debug)]
enum Results<'a> {
    Logits(Logits<'a>),
    Sampled(SampledPasses<'a>),
}

/// Hears events in order; called by the engine only inside `advance`, `abort` and `fail_all`.
pub type Deliver<'a> = dyn FnMut(RequestId, Event) + 'a;

/// The engine.
#[derive(Debug)]
pub struct EngineState {
    config: EngineConfig,
    queues: Queues,
    scheduler: Scheduler,
    memory: Memory,
    sampler: Sampler,
    parts: StepParts,
    /// Of the device, if it samples.
    side: SideTables,
    /// Blocks of passes that are sampled when there are masks.
    sampling: [Option<StepBuffer>; 2],
    /// Second pass of models with recurrent state, and its parameter block.
    verify: Option<(StepParts, StepBuffer)>,
    replay: Replay,
    /// For guesses by a model.
    drafting: Option<Drafting>,
    /// Measured, for speculation.
    step_cost: StepCost,
    in_flight: Option<InFlight>,
    /// The step behind the one in flight, if the device has it already.
    behind: Option<InFlight>,
    counters: Counters,
    /// The counters after the step taken in last.
    seen: Seen,
    next_id: u64,
    sequence: u64,
}

#[derive(Debug)]
struct InFlight {
    sequence: u64,
    /// Of the forward and the verify pass.
    n_logit_rows: [u32; 2],
    /// Tokens that decode.
    n_decode_tokens: u32,
    /// There are others.
    is_mixed: bool,
    /// Tokens on side branches.
    branch_tokens: u32,
    planned_ns: u64,
    /// By the device.
    is_sampled: bool,
    /// When there are masks.
    samples_later: bool,
}

impl InFlight {
    fn new(plan: &Plan, branch_tokens: u32, planned_ns: u64) -> Self {
        Self {
            sequence: plan.sequence,
            n_logit_rows: [plan.n_logit_rows, plan.verify.unwrap_or(0)],
            n_decode_tokens: plan.n_decode_tokens,
            is_mixed: plan.n_decode_tokens != plan.n_tokens,
            branch_tokens,
            planned_ns,
            is_sampled: plan.is_sampled,
            samples_later: plan.samples_later,
        }
    }

    /// Requests that decode, where so many guesses were checked.
    fn decoding(&self, guesses: u32) -> u32 {
        self.n_decode_tokens.saturating_sub(guesses + self.branch_tokens).max(1)
    }
}

/// Counts since start.
#[derive(Debug, Default)]
struct Counters {
    prompt_tokens: u64,
    cached_tokens: u64,
    generation_tokens: u64,
    /// Stop, length, abort, failed.
    finished: [u64; 4],
    steps: u64,
    step_ns: u64,
    drafts: [u64; DRAFT_MAX as usize],
    accepted: [u64; DRAFT_MAX as usize],
    branches: [u64; 2],
    ahead_steps: u64,
    relayed_steps: u64,
    host_steps: [u64; HostOnly::COUNT],
}

impl Counters {
    fn finish(&mut self, reason: FinishReason) {
        self.finished[match reason {
            FinishReason::Stop => 0,
            FinishReason::Length => 1,
            FinishReason::Abort => 2,
        }] += 1;
    }

    fn fail(&mut self) {
        self.finished[3] += 1;
    }
}

/// Whether a request has guesses to check in the planned step.
fn guesses(running: &Running) -> bool {
    !running.parts().0.drafts.is_empty()
}

/// Who may have rows in side tables.
fn sides(queues: &Queues) -> impl Iterator<Item = (RequestId, &Side)> {
    queues.iter_running().map(|running| running.parts().0).map(|body| (body.id, &body.side))
}

impl EngineState {
    /// An idle engine with an empty cache.
    pub fn new(config: EngineConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        let smallest = |class| config.components_of(class).map(|at| config.components[at].n_blocks).min();
        let memory = Memory::new(MemorySize {
            page_tokens: config.block_tokens,
            pages: smallest(ComponentClass::Paged).expect("validated: one is paged"),
            table_rows: config.table_rows,
            states: smallest(ComponentClass::State),
            prefix_cache: config.prefix_cache,
            secret: config.secret,
            events: config.cache_events,
            host: (config.host_pages, config.host_states),
        });
        let capacity = config.step_capacity();
        let limits = StepLimits {
            max_num_seqs: config.max_num_seqs,
            max_batch_tokens: config.max_batch_tokens,
            max_logit_rows: config.max_logit_rows,
            max_deltas: capacity.deltas,
            late_deltas: config.late_deltas(),
            table_rows: config.table_rows,
            chunk_cap: config.chunked_prefill_size,
            chunk_grid: config.chunk_grid(),
            max_model_len: config.max_model_len,
            draft_max: config.speculation.map_or(0, |s| s.draft_max),
            branch_rows: config.branch_rows(),
            paged_components: config.components_of(ComponentClass::Paged).map(|at| at as u32).collect(),
        };
        Ok(Self {
            queues: Queues::new(config.max_waiting, config.max_num_seqs),
            scheduler: Scheduler::new(limits, config.max_waiting, config.scheduling.policy()),
            memory,
            sampler: Sampler::new(config.tokenizer_vocab_size),
            parts: StepParts::new(&config),
            sampling: [config.side_rows > 0, config.side_rows > 0 && config.verifies()]
                .map(|is_there| (is_there && config.relay).then(|| StepBuffer::new(capacity))),
            side: SideTables::new(if config.relay { config.side_rows } else { 0 }, config.vocab_size, &config.eos_ids),
            verify: config.verifies().then(|| (StepParts::new(&config), StepBuffer::new(capacity))),
            replay: Replay::new((config.verifies() || config.branch_rows() > 0).then_some(capacity)),
            drafting: config.draft.clone().map(|model| Drafting::new(model, capacity)),
            step_cost: StepCost::default(),
            in_flight: None,
            behind: None,
            counters: Counters::default(),
            seen: Seen::default(),
            next_id: 1,
            sequence: 0,
            config,
        })
    }

    /// As given.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// A buffer for this engine's steps.
    pub fn new_step_buffer(&self) -> StepBuffer {
        StepBuffer::new(self.config.step_capacity())
    }

    /// Queue a request. `now_ns` starts its waiting time.
    pub fn submit(&mut self, request: Request, now_ns: u64) -> Result<RequestId, SubmitError> {
        let limits = self.config.request_limits();
        request.validate_but_prompt_ids(&limits)?;
        let waiting = self.queues.iter_waiting().count() as u32;
        if waiting >= self.config.max_waiting {
            return Err(SubmitError::QueueFull { waiting });
        }
        let id = RequestId(self.next_id);
        let Request { prompt, sampling, priority, cache_salt, boundaries, constraint } = request;
        let prompt_tokens = prompt.len() as u32;
        let max_len = prompt_tokens.saturating_add(sampling.max_tokens).min(self.config.max_model_len);
        let history = History::new(&sampling, &prompt, (max_len - prompt_tokens) as usize);
        let side = Side::of(&sampling, constraint.is_some());
        let mut tokens = prompt;
        tokens.reserve_exact((max_len - prompt_tokens) as usize);
        let namespace = self.memory.index.open(&self.config.model_id, cache_salt.as_deref());
        let max_pages = self.memory.pages_of(max_len) as usize;
        let prompt_logprobs = sampling.prompt_logprobs.map(|_| Vec::with_capacity(tokens.len() - 1));
        let mut body = Body {
            id,
            rank: (priority, id.0),
            sampling,
            tokens,
            prompt_tokens,
            max_len,
            history,
            side,
            namespace,
            hashes: Vec::with_capacity(max_pages),
            found: FoundPath::with_capacity(if self.config.prefix_cache { max_pages } else { 0 }),
            boundaries,
            marks: Vec::with_capacity(if self.memory.has_states() { MARKS_MAX } else { 0 }),
            drafts: Drafts::new(self.config.speculation.as_ref(), self.drafting.is_some(), max_len),
            guide: constraint.map_or(Guide::Free, |constraint| {
                let guesses_max = self.config.speculation.map_or(0, |s| s.draft_max);
                Guide::Here(Box::new(Guard::new(
                    constraint,
                    self.config.tokenizer_vocab_size,
                    guesses_max,
                    max_len - prompt_tokens,
                )))
            }),
            cached_tokens: None,
            prompt_logprobs,
            n_loads: 0,
            is_started: false,
            submitted_ns: now_ns,
            uncached: prompt_tokens,
            overtaken_steps: 0,
        };
        self.scheduler.foresee(&mut body, &self.memory);
        // What is cached was checked when it came, or sampled.
        let n_checked = body.found.nodes().len() * self.config.block_tokens as usize;
        if let Err(error) = limits.check_prompt_ids(&body.tokens, n_checked) {
            self.memory.index.close(body.namespace);
            return Err(error.into());
        }
        self.next_id += 1;
        if self.config.prefix_cache {
            // Now rather than in a step.
            let whole = (prompt_tokens / self.config.block_tokens) as usize;
            self.memory.index.hash_pages(&body.namespace, &body.tokens, whole, &mut body.hashes);
        }
        self.queues.wait(Waiting::Queued(Sequence::new(Box::new(body))));
        Ok(id)
    }

    /// End a request: it hears `Finished` with [`FinishReason::Abort`] now; its memory is free at once, or when the
    /// step in flight has been taken in. False, and nothing happens, if the id is unknown or has ended.
    pub fn abort(&mut self, id: RequestId, deliver: &mut Deliver<'_>) -> bool {
        let usage = if let Some(waiting) = self.queues.take_waiting(id) {
            #[cfg(debug_assertions)]
            if seeded!(AbortEndsTheLoad) {
                self.memory.give_up_loads();
            }
            let usage = waiting.body().usage();
            self.cancel(waiting);
            usage
        } else if let Some(at) = self.queues.position_running(id) {
            let usage = queue::present(&self.queues.running[at]).parts().0.usage();
            if !self.leave(at) {
                return false;
            }
            usage
        } else {
            return false;
        };
        if !seeded!(AbortIsNotCounted) {
            self.counters.finish(FinishReason::Abort);
        }
        deliver(id, Event::Finished { reason: FinishReason::Abort, usage });
        true
    }

    fn cancel(&mut self, waiting: Waiting) {
        match waiting {
            Waiting::Queued(sequence) => sequence.cancel(),
            Waiting::Preempted(sequence) => sequence.cancel(),
        }
        .close(&mut self.memory);
    }

    /// Take a running request out, or mark it if a step in flight writes its pages. False if it was marked before.
    fn leave(&mut self, at: usize) -> bool {
        let running = self.queues.running[at].take().expect("no request is changing state");
        let was_leaving = matches!(running, Running::Leaving(_));
        if running.parts().1.is_in_flight() && !seeded!(AbortFreesBeforeTheStepEnds) {
            self.queues.running[at] = Some(Running::Leaving(match running {
                Running::Prefilling(sequence) => sequence.leave(Ending::Release),
                Running::Decoding(sequence) => sequence.leave(Ending::Release),
                Running::Leaving(sequence) => sequence,
            }));
            return !was_leaving;
        }
        self.queues.running.remove(at);
        let memory = &mut self.memory;
        match running {
            Running::Prefilling(sequence) => sequence.drop_memory(memory),
            Running::Decoding(sequence) => sequence.drop_memory(memory),
            Running::Leaving(_) => unreachable!("only requests in a step in flight are marked"),
        }
        .close(memory);
        true
    }

    /// Plan the step after the one in flight, as far as that can be done before it has been taken in; the next
    /// [`EngineState::plan`] completes it. Optional: it moves work into the time in which the device computes, and
    /// changes no answer. False, and nothing happens, if guesses are in flight or may be made, if there already is such a
    /// plan, or a step behind the one in flight, or if nothing is in flight.
    pub fn plan_ahead(&mut self) -> bool {
        let can = self.in_flight.is_some() && self.behind.is_none() && self.scheduler.can_plan_ahead(&self.queues);
        if !can || self.may_guess() {
            return false;
        }
        self.scheduler.plan_ahead(&mut self.queues, &mut self.memory);
        self.counters.ahead_steps += 1;
        true
    }

    /// Choose the next step and write its parameter block; `None` when there is nothing to run.
    ///
    /// # Panics
    /// While a step is in flight, or if `step` was made for a smaller engine.
    pub fn plan(&mut self, now_ns: u64, step: &mut StepBuffer) -> Option<Plan> {
        assert!(self.in_flight.is_none(), "take in the step in flight before planning another");
        if let Some(drafting) = &mut self.drafting {
            drafting.settle(now_ns, &self.step_cost);
        }
        // Somebody waits for each step that runs, nobody for a store.
        self.memory.order_stores(if self.queues.running.is_empty() { STORES_MAX } else { STORES_BESIDE_STEPS });
        self.scheduler.plan(now_ns, &mut self.queues, &mut self.memory, &self.step_cost);
        let verifies = self.verify.is_some() && !seeded!(VerifyWritesTheState);
        self.side.begin(sides(&self.queues));
        let mut plan = self.parts.collect(&mut self.queues, &mut self.side, |running| !(verifies && guesses(running)));
        self.sequence += 1;
        plan.sequence = self.sequence;
        self.scheduler.decisions.sequence = self.sequence;
        // Tables are shared: whichever pass runs first takes in the changes.
        let mut deltas = &self.scheduler.deltas[..];
        let mut second = self.verify.as_mut().filter(|_| verifies);
        let load = second.as_mut().map(|(parts, _)| parts.collect(&mut self.queues, &mut self.side, guesses));
        if let (Some((parts, _)), Some(load)) = (&mut second, &load) {
            // The passes of a turn are taken in together: the device samples both, or none.
            let needs_host = !load.is_sampled && !seeded!(ForwardPassDecidesWhoSamples);
            plan.is_sampled &= !needs_host;
            plan.samples_later |= load.samples_later;
            let host_only = self.parts.host_only.or(parts.host_only);
            self.parts.host_only = host_only;
            parts.host_only = host_only;
        }
        if self.parts.host_only.is_some() {
            self.side.leave_to_host();
            plan.samples_later = false;
        }
        let samples_now = !plan.samples_later;
        if plan.n_rows > 0 {
            self.parts.write(step, self.sequence, std::mem::take(&mut deltas), samples_now);
        }
        if let (Some((parts, step)), Some(load)) = (second, load)
            && load.n_rows > 0
        {
            parts.write(step, self.sequence, deltas, samples_now);
            plan.verify = Some(load.n_logit_rows);
            plan.n_tokens += load.n_tokens;
            plan.n_decode_tokens += load.n_decode_tokens;
            plan.attention_pairs += load.attention_pairs;
        }
        if plan.n_tokens == 0 {
            assert!(self.is_idle() || self.memory.n_loads() > 0, "requests wait and none of them can go on");
            // Whoever waits for pages still has to tell of those it exchanged.
            if seeded!(ChangesAreForgottenUntold) {
                self.scheduler.deltas.clear();
            }
            return None;
        }
        self.scheduler.deltas.clear();
        let in_verify =
            self.verify.as_ref().map_or(0, |(parts, _)| if plan.verify.is_some() { parts.branch_tokens } else { 0 });
        let branch_tokens = self.parts.branch_tokens + in_verify;
        self.in_flight = Some(InFlight::new(&plan, branch_tokens, now_ns));
        self.count_sampling();
        Some(plan)
    }

    /// What the last plan decided about whom, and why.
    pub fn decisions(&self) -> &Decisions {
        &self.scheduler.decisions
    }

    /// Parameter block of the verify pass planned last.
    ///
    /// # Panics
    /// If the engine has no such pass.
    pub fn verify_step(&self) -> &StepBuffer {
        &self.verify.as_ref().expect("the plan has a verify pass").1
    }

    /// What to write to the device's side tables before it runs the step planned last.
    pub fn side_updates(&self) -> &SideUpdates {
        self.side.updates()
    }

    /// A buffer for copies of [`EngineState::side_updates`].
    pub fn new_side_updates(&self) -> SideUpdates {
        self.side.new_updates()
    }

    /// What has to be replayed of the step just taken in, if anything: run it before the next step, then call
    /// [`EngineState::replayed`].
    pub fn replay_step(&mut self) -> Option<&StepBuffer> {
        self.replay.write(self.sequence)
    }

    /// The replay has run (or failed); the whole turn ended at `now_ns`.
    pub fn replayed(&mut self, now_ns: u64) {
        if let Some((in_flight, checked)) = self.replay.finish() {
            let ns = now_ns.saturating_sub(in_flight.planned_ns);
            self.learn(in_flight, checked, ns);
        }
    }

    /// Take the logits of a step and deliver what follows from them. Then run [`EngineState::replay_step`].
    ///
    /// # Panics
    /// If `plan` is not the step in flight or `logits` has another size.
    pub fn advance<'l>(&mut self, now_ns: u64, plan: Plan, logits: impl Into<Logits<'l>>, deliver: &mut Deliver<'_>) {
        let logits = logits.into();
        let in_flight = self.land(&plan);
        assert!(!in_flight.is_sampled, "the device has sampled this step");
        let vocab_size = self.config.vocab_size as usize;
        let sizes = [logits.forward, logits.verify].map(<[f32]>::len);
        assert_eq!(sizes, in_flight.n_logit_rows.map(|n| n as usize * vocab_size), "one row of logits per logit row");
        self.take_in(now_ns, in_flight, Results::Logits(logits), deliver);
    }

    fn take_in(&mut self, now_ns: u64, in_flight: InFlight, results: Results<'_>, deliver: &mut Deliver<'_>) {
        self.counters.steps += 1;
        let ns = now_ns.saturating_sub(in_flight.planned_ns);
        self.counters.step_ns += ns;
        let mut taker = Taker {
            config: &self.config,
            memory: &mut self.memory,
            sampler: &mut self.sampler,
            counters: &mut self.counters,
            verifies: self.verify.is_some() && !seeded!(VerifyWritesTheState),
            replay: &mut self.replay,
            results,
            deliver,
        };
        for slot in &mut self.queues.running {
            let running = slot.take().expect("no request is changing state");
            *slot = taker.take_in(running);
        }
        self.queues.running.retain(Option::is_some);
        self.in_flight = self.behind.take().map(|behind| InFlight { planned_ns: now_ns, ..behind });
        let checked = self.seen.take(&self.counters);
        if let Some(drafting) = &mut self.drafting {
            drafting.taken_in(&in_flight, checked, now_ns);
            if self.in_flight.is_some() {
                // The next turn has begun.
                drafting.settle(now_ns, &self.step_cost);
            }
        }
        if !in_flight.is_mixed {
            if self.replay.is_empty() {
                self.learn(in_flight, checked, ns);
            } else {
                self.replay.learn_later(in_flight, checked);
            }
        }
    }

    /// A step of nothing but decoding took `ns`, its replay included.
    fn learn(&mut self, in_flight: InFlight, checked: Checked, ns: u64) {
        let tokens = in_flight.n_decode_tokens;
        match checked.guesses {
            0 => self.step_cost.observe_plain(tokens, ns),
            _ => self.step_cost.observe(tokens, ns),
        }
        if self.drafting.is_none() {
            let rows = in_flight.decoding(checked.guesses);
            self.scheduler.looks.checked(rows, tokens, checked, ns, &self.step_cost);
        }
    }

    /// End every request with `Failed`: the step in flight, if any, and the one behind it are lost and their plans must be
    /// dropped. The device must not be running them any more.
    pub fn fail_all(&mut self, message: &str, deliver: &mut Deliver<'_>) {
        (self.in_flight, self.behind) = (None, None);
        self.side.clear();
        self.replay.clear();
        self.scheduler.forget_ahead();
        if let Some(drafting) = &mut self.drafting {
            drafting.clear();
        }
        let mut fail = |counters: &mut Counters, id| {
            counters.fail();
            deliver(id, Event::Failed { message: message.to_owned() });
        };
        let memory = &mut self.memory;
        for running in self.queues.running.drain(..).flatten() {
            let id = running.parts().0.id;
            match running {
                Running::Prefilling(sequence) => sequence.discard(memory),
                Running::Decoding(sequence) => sequence.discard(memory),
                Running::Leaving(sequence) => {
                    // Has heard its end already.
                    sequence.discard(memory).close(memory);
                    continue;
                }
            }
            .close(memory);
            fail(&mut self.counters, id);
        }
        loop {
            let next = self.queues.iter_waiting().next().map(|body| body.id);
            let Some((id, waiting)) = next.and_then(|id| Some((id, self.queues.take_waiting(id)?))) else { break };
            self.cancel(waiting);
            fail(&mut self.counters, id);
        }
    }

    /// Drop every cached prefix, in both tiers or in none; returns how many pages of the device that freed.
    pub fn flush_cache(&mut self) -> Result<u32, FlushError> {
        let (requests, copies) =
            (self.queues.running.len() + self.queues.iter_waiting().count(), self.memory.n_copies());
        if requests > 0 && !seeded!(FlushIgnoresRunningRequests) || copies > 0 && !seeded!(FlushIgnoresCopies) {
            return Err(FlushError { requests, copies });
        }
        Ok(self.memory.flush())
    }

    /// Something to copy between the device and host memory, which may be done at any time; then call
    /// [`EngineState::copied`]. A plan of `None` may mean that requests wait for these.
    pub fn next_copy(&mut self) -> Option<CopyOrder> {
        self.memory.next_copy()
    }

    /// A copy has ended; `false` if it failed or is not what was stored. Nothing happens if it has ended before, or if there
    /// is no such order.
    pub fn copied(&mut self, id: u64, is_ok: bool) {
        let over = self.memory.copied(id, is_ok);
        if let Some(load) = over.filter(|_| !seeded!(LoadWakesNobody)) {
            self.queues.loaded(load);
        }
    }

    /// The backend forecasts that a step of 1, 2, 3, … decoding tokens takes so many nanoseconds. Guesses are chosen by that where nothing
    /// was measured; to be told before the first step.
    pub fn expect_costs(&mut self, forecast_ns: &[u64]) {
        self.step_cost.expect(forecast_ns);
    }

    /// Most tokens of the following steps, from the caller's cost model. Decoding requests always run and one chunk on
    /// the page grid is always allowed, so any value keeps everything moving. Default: `max_batch_tokens`.
    pub fn set_step_tokens(&mut self, tokens: u32) {
        self.scheduler.set_step_tokens(tokens);
    }

    /// True when no request runs or waits.
    pub fn is_idle(&self) -> bool {
        self.queues.running.is_empty() && self.queues.iter_waiting().next().is_none()
    }

    /// How long the request that waits longest has done so, in nanoseconds.
    pub fn oldest_waiting_ns(&self, now_ns: u64) -> Option<u64> {
        let submitted_ns = self.queues.iter_waiting().map(|body| body.submitted_ns).min()?;
        Some(now_ns.saturating_sub(submitted_ns))
    }

    /// Gauges and counters.
    pub fn metrics(&self) -> Metrics {
        let (pages_used, pages_cached, pages_total) = self.memory.page_counts();
        let (states_used, states_cached, states_total) = self.memory.state_counts();
        let ([host_pages, host_states], tier) = (self.memory.host_counts(), self.memory.tier_counts());
        let counters = &self.counters;
        let leaving = self.queues.iter_running().filter(|running| matches!(running, Running::Leaving(_))).count();
        Metrics {
            running: (self.queues.running.len() - leaving) as u64,
            waiting: self.queues.iter_waiting().count() as u64,
            loading: self.queues.loading.len() as u64,
            host_pages: [host_pages.0, host_pages.1].map(u64::from),
            host_states: [host_states.0, host_states.1].map(u64::from),
            host_stored: tier.stored,
            host_loaded: tier.loaded,
            host_failed: tier.failed,
            pages_used: u64::from(pages_used),
            pages_cached: u64::from(pages_cached),
            pages_total: u64::from(pages_total),
            states_used: u64::from(states_used),
            states_cached: u64::from(states_cached),
            states_total: u64::from(states_total),
            cacheable_tokens: if self.config.prefix_cache { u64::from(self.config.block_tokens) } else { 0 },
            cut_tokens: self.scheduler.n_cut_tokens,
            prompt_tokens: counters.prompt_tokens,
            cached_tokens: counters.cached_tokens,
            generation_tokens: counters.generation_tokens,
            finished: counters.finished,
            preemptions: self.scheduler.n_preemptions,
            steps: counters.steps,
            step_ns: counters.step_ns,
            draft_max: self.config.speculation.map_or(0, |speculation| speculation.draft_max),
            drafts: counters.drafts,
            accepted: counters.accepted,
            branches: counters.branches,
            ahead_steps: counters.ahead_steps,
            relayed_steps: counters.relayed_steps,
            host_steps: counters.host_steps,
        }
    }

    /// Static limits.
    pub fn limits(&self) -> Limits {
        Limits {
            max_model_len: self.config.max_model_len,
            vocab_size: self.config.tokenizer_vocab_size,
            max_num_seqs: self.config.max_num_seqs,
            prefix_granularity: self.config.block_tokens,
        }
    }

    /// Check that every page, row and state slot is accounted for and every reference count is right; says what is
    /// wrong. O(pool): for tests and for idle moments.
    pub fn check_conservation(&self) -> Result<(), String> {
        self.check_conservation_in(&mut Tally::default())
    }

    /// The same in room that is kept between checks: only the first one allocates.
    pub fn check_conservation_in(&self, tally: &mut Tally) -> Result<(), String> {
        self.memory.check(self.queues.iter_running().map(|running| &running.parts().1.lease), tally)
    }
}
