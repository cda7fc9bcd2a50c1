//! The loop: one thread, simulated time, one scenario.
//!
//! A tick is a turn of the engine: requests come, callers give up, a step is planned, runs on the device, stalls for so
//! many ticks (in which more come and go) and is taken in. When the scenario has no more arrivals and faults, everything
//! must end within a bound, memory must be as at the start, and a flush must leave nothing.

mod promise;
mod variants;

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
};

use tokenspeed_backend_api::{abi::TS_ERR_DEVICE_LOST, backend::Backend};
use tokenspeed_core::{
    driver::StepRunner,
    engine::{ComponentClass, EngineConfig, EngineState, SubmitError, inspect::Holder},
    load::{DeviceProgram, LoadError},
    lower::LowerError,
    request::{Event, Request},
    step::StepBuffer,
};

use crate::{
    alone::Alone,
    campaign::simulating,
    check::{Check, Failure, ensure},
    ears::{Asked, EarlyEnd, Ears, Tally},
    model::{self, DeviceChoice, OpenError},
    scenario::{Arrival, Fault, LoadFault, Origin, Scenario},
    watch::{Rank, Watch},
    world::{Held, Registered, Sizes, StepFault, Truth, World},
};
use promise::Promises;

/// What a run did.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Counts.
    pub tally: Tally,
    /// Hash of all parameter blocks.
    pub digest: u64,
    /// What each request heard, by label.
    pub heard: BTreeMap<u32, Vec<Event>>,
}

/// Run a scenario, and its repetition and variants if it asks for them.
pub fn examine(scenario: &Scenario) -> Result<Tally, Failure> {
    let backend = model::backend();
    let outcome = run(&backend, scenario)?;
    let mut tally = outcome.tally;
    if scenario.repeats {
        let again = run(&backend, scenario)?;
        ensure(outcome.digest == again.digest, Check::Repeat, || "the same scenario gave other steps".into())?;
    }
    if scenario.varies {
        variants::compare(&backend, scenario, &mut tally)?;
    }
    Ok(tally)
}

/// Run a scenario once; a panic of the engine is a failure.
pub fn run(backend: &Backend, scenario: &Scenario) -> Result<Outcome, Failure> {
    let simulate = || {
        load_faults(backend, scenario)?;
        Simulation::new(backend, scenario)?.run()
    };
    let outcome = simulating(|| catch_unwind(AssertUnwindSafe(simulate)));
    outcome.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        Err(Failure::new(Check::Assertion, text.unwrap_or("a panic without words")))
    })
}

fn sizes(config: &EngineConfig) -> Sizes {
    let blocks = |class| config.components_of(class).map(|at| config.components[at].n_blocks);
    Sizes {
        blocks: blocks(ComponentClass::Paged).min().expect("one component is paged"),
        states: blocks(ComponentClass::State).next().unwrap_or(0),
        block_tokens: config.block_tokens,
        chunk_grid: config.chunk_grid(),
        chunk_cap: config.chunked_prefill_size,
        n_ids: config.tokenizer_vocab_size,
    }
}

/// Faults while loading are errors of the right kind, and leave a backend that works.
fn load_faults(backend: &Backend, scenario: &Scenario) -> Result<(), Failure> {
    for fault in &scenario.load_faults {
        let registered = Registered::new(World::new(sizes(&scenario.config)));
        let (prepare, refuse) = match fault {
            LoadFault::NoArena => ("arena", None),
            LoadFault::NoMemory => ("memory", None),
            LoadFault::NoCapture => ("capture", None),
            LoadFault::RefusedOp => ("ok", Some("kv_write")),
        };
        let via = tokenspeed_backend_api::exec::Via::Program;
        let choice = DeviceChoice { via, refuse, prepare };
        let wanted = match fault {
            LoadFault::NoArena | LoadFault::NoMemory => "memory",
            LoadFault::NoCapture => "captured",
            LoadFault::RefusedOp => "kv_write",
        };
        let found = match model::open(backend, &scenario.config, registered.number, 1 << 16, choice) {
            Err(OpenError::Load(error @ LoadError::Backend(_))) => error.to_string(),
            Err(OpenError::Lower(error @ LowerError::Unsupported { .. })) => error.to_string(),
            other => format!("{other:?}"),
        };
        ensure(found.contains(wanted), Check::Load, || format!("{fault:?} was reported as: {found}"))?;
    }
    Ok(())
}

struct Simulation<'s> {
    backend: &'s Backend,
    scenario: &'s Scenario,
    engine: EngineState,
    step: StepBuffer,
    program: DeviceProgram,
    registered: Registered,
    ears: Ears,
    watch: Watch,
    promises: Promises,
    /// Labels to ids, for later turns.
    ids: BTreeMap<u32, tokenspeed_core::request::RequestId>,
    outcome: Outcome,
    next_arrival: usize,
    /// Turns that wait for an end.
    held_back: Vec<&'s Arrival>,
    faults: std::slice::Iter<'s, (u32, Fault)>,
    tick: u32,
    now_ns: u64,
    /// Steps allowed from here on.
    steps_left: u64,
}

/// Steps more than the tokens of all requests, one after the other, before a run counts as stuck.
const SLACK_STEPS: u64 = 100;
/// Pools up to this size are counted after every call, larger ones every so many steps.
const SMALL_POOL_PAGES: u32 = 3000;
const CHECK_EVERY_STEPS: u64 = 50;

impl<'s> Simulation<'s> {
    fn new(backend: &'s Backend, scenario: &'s Scenario) -> Result<Self, Failure> {
        let (engine, registered, program) = boot(backend, scenario)?;
        let ears = Ears::new(scenario.config.clone(), registered.world.clone());
        Ok(Self {
            backend,
            scenario,
            step: engine.new_step_buffer(),
            engine,
            program,
            ears,
            registered,
            watch: Watch::default(),
            promises: Promises::new(&scenario.config),
            ids: BTreeMap::new(),
            outcome: Outcome::default(),
            next_arrival: 0,
            held_back: Vec::new(),
            faults: scenario.faults.iter(),
            tick: 0,
            now_ns: 1 << 60,
            steps_left: SLACK_STEPS,
        })
    }

    fn run(mut self) -> Result<Outcome, Failure> {
        loop {
            self.arrive()?;
            self.give_up(false)?;
            let mut fault = None;
            let mut stall = 0;
            while let Some((_, next)) = self.faults.as_slice().first().filter(|(tick, _)| *tick <= self.tick) {
                self.faults.next();
                match *next {
                    Fault::Step(what) => fault = Some(what),
                    Fault::Stall(ticks) => stall = ticks,
                    Fault::Clock(jump) => self.now_ns = self.now_ns.saturating_add_signed(jump),
                    Fault::StepTokens(tokens) => self.engine.set_step_tokens(tokens),
                    Fault::Flush => self.flush()?,
                }
            }
            if !self.turn(fault, stall)? && self.is_done() {
                break;
            }
            self.tick += 1;
        }
        self.end()
    }

    fn is_done(&self) -> bool {
        self.next_arrival == self.scenario.arrivals.len() && self.held_back.is_empty()
    }

    /// Plan and run one step; false if there was nothing to do.
    fn turn(&mut self, fault: Option<StepFault>, stall: u32) -> Result<bool, Failure> {
        self.now_ns = self.now_ns.saturating_add(1000);
        let plan = self.engine.plan(self.now_ns, &mut self.step);
        let holders: Vec<Holder> = self.engine.holders().collect();
        let metrics = self.engine.metrics();
        let n_available = metrics.pages_total - metrics.pages_used + metrics.pages_cached;
        self.watch.planned(&holders, &self.open(), n_available)?;
        self.conserve()?;
        let Some(plan) = plan else {
            let open = self.ears.open().next().map(|(id, _)| *id);
            ensure(open.is_none(), Check::Progress, || format!("{open:?} waits and there is nothing to run"))?;
            return Ok(false);
        };
        ensure(self.steps_left > 0, Check::Progress, || {
            let open: Vec<_> = self.ears.open().map(|(id, asked)| (id.0, asked.label)).collect();
            format!("steps ran out with requests (id, label) {open:?} not ended")
        })?;
        self.steps_left -= 1;
        self.promises.looked_at(&metrics);
        if !self.promises.is_on() {
            self.ears.asked.values_mut().for_each(|asked| asked.must_hit = None);
        }
        self.digest();
        self.tell_world(&holders, fault);
        let result = self.program.run(self.step.bytes(), plan.n_logit_rows).map(<[f32]>::to_vec);
        if let Some(failure) = self.registered.world.lock().failure.take() {
            return Err(Failure { what: format!("tick {}: {}", self.tick, failure.what), ..failure });
        }
        for _ in 0..stall {
            self.tick += 1;
            self.arrive()?;
            self.give_up(true)?;
        }
        self.give_up(true)?;
        let holders: Vec<Holder> = self.engine.holders().collect();
        self.watch.before_advance(&holders)?;
        self.now_ns = self.now_ns.saturating_add(1000);
        match result {
            Ok(logits) => {
                let ears = &mut self.ears;
                self.engine.advance(self.now_ns, plan, &logits, &mut |id, event| ears.hear(id, event));
            }
            Err(message) => self.fail_all(fault, message)?,
        }
        self.heard()?;
        self.settle()
    }

    /// Pages of a request whose logits were not finite must not be hit again: those that no other request can have
    /// continued, because it has another text there, and that no earlier life of the same request did.
    fn doubt(&mut self) {
        let mut world = self.registered.world.lock();
        let Some((id, _)) = world.poisoned.take() else { return };
        let asked = &self.ears.asked[&id];
        // Aborted meanwhile: nobody has looked at the logits.
        if !matches!(asked.heard.last(), Some(Event::Failed { .. })) {
            return;
        }
        self.promises.doubt();
        let own = &asked.alone;
        let others = self
            .ears
            .asked
            .iter()
            .filter(|(other, asked)| **other != id && asked.alone.request.cache_salt == own.request.cache_salt);
        let shared = |tokens: &[u32]| tokens.iter().zip(own.tokens()).take_while(|(a, b)| a == b).count() as u32;
        let shared = others.map(|(_, asked)| shared(asked.alone.tokens())).max().unwrap_or(0);
        if !self.watch.was_preempted(id) {
            world.doubt(id, shared / self.scenario.config.block_tokens);
        }
    }

    /// After a step: forget those who are gone.
    fn settle(&mut self) -> Result<bool, Failure> {
        let holders: Vec<Holder> = self.engine.holders().collect();
        self.watch.after_step(&holders);
        self.doubt();
        let ears = &self.ears;
        let mut world = self.registered.world.lock();
        world.truths.retain(|id, _| holders.iter().any(|holder| holder.id == *id) || !ears.asked[id].is_over);
        drop(world);
        self.promises.looked_at(&self.engine.metrics());
        self.promises.ended(ears);
        self.conserve()?;
        Ok(true)
    }

    /// What the driver does when a step fails; after a lost device, what a supervisor does.
    fn fail_all(&mut self, fault: Option<StepFault>, message: String) -> Result<(), Failure> {
        let is_lost = self.program.status().is_err();
        ensure(is_lost == (fault == Some(StepFault::Lost)) && fault.is_some(), Check::Load, || {
            format!("the device failed without being told to: {message} (status code {TS_ERR_DEVICE_LOST} if lost)")
        })?;
        self.outcome.tally.step_failures += 1;
        self.promises.doubt();
        self.ears.early = Some(EarlyEnd::FailAll(message.clone()));
        let ears = &mut self.ears;
        self.engine.fail_all(&message, &mut |id, event| ears.hear(id, event));
        self.ears.early = None;
        let silent = self.ears.open().next().map(|(id, _)| *id);
        ensure(silent.is_none(), Check::Heard, || format!("{silent:?} did not hear that the step failed"))?;
        ensure(self.engine.is_idle(), Check::Baseline, || "requests are left after all failed".into())?;
        self.heard()?;
        self.conserve()?;
        if is_lost {
            self.keep();
            let (engine, registered, program) = boot(self.backend, self.scenario)?;
            (self.step, self.engine, self.program) = (engine.new_step_buffer(), engine, program);
            self.ears = Ears::new(self.scenario.config.clone(), registered.world.clone());
            self.registered = registered;
            (self.watch, self.promises) = (Watch::default(), Promises::new(&self.scenario.config));
            self.ids.clear();
        }
        Ok(())
    }

    fn heard(&mut self) -> Result<(), Failure> {
        self.ears
            .failure
            .take()
            .map_or(Ok(()), |f| Err(Failure { what: format!("tick {}: {}", self.tick, f.what), ..f }))
    }

    fn open(&self) -> BTreeMap<tokenspeed_core::request::RequestId, (Rank, u32)> {
        let entry = |asked: &Asked, id: u64| ((asked.alone.request.priority, id), asked.alone.tokens().len() as u32);
        self.ears.open().map(|(id, asked)| (*id, entry(asked, id.0))).collect()
    }

    fn tell_world(&mut self, holders: &[Holder], fault: Option<StepFault>) {
        let mut world = self.registered.world.lock();
        let held = |h: &Holder| Held { id: h.id, table_row: h.table_row, computed: h.computed, planned: h.planned };
        world.held = holders.iter().map(held).collect();
        world.cached_pages = self.engine.cached_pages().collect();
        world.cached_states = self.engine.cached_states().collect();
        world.held_states = self.engine.held_states().map(|(id, slot)| (slot, id)).collect();
        world.fault = fault;
    }

    fn digest(&mut self) {
        let digest = &mut self.outcome.digest;
        for word in self.step.bytes().chunks(8) {
            let word = word.iter().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
            *digest = (*digest ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        }
    }

    fn conserve(&mut self) -> Result<(), Failure> {
        let pages = sizes(&self.scenario.config).blocks;
        if pages <= SMALL_POOL_PAGES || self.steps_left.is_multiple_of(CHECK_EVERY_STEPS) {
            let tick = self.tick;
            self.engine
                .check_conservation()
                .map_err(|what| Failure::new(Check::Conservation, format!("tick {tick}: {what}")))?;
        }
        Ok(())
    }

    fn arrive(&mut self) -> Result<(), Failure> {
        while let Some(arrival) = self.scenario.arrivals.get(self.next_arrival).filter(|a| a.tick <= self.tick) {
            self.next_arrival += 1;
            self.held_back.push(arrival);
        }
        for arrival in std::mem::take(&mut self.held_back) {
            if self.must_wait(arrival) { self.held_back.push(arrival) } else { self.submit(arrival)? }
        }
        Ok(())
    }

    /// A turn that waits for the end of another, which is here and has not ended or is still to come.
    fn must_wait(&self, arrival: &Arrival) -> bool {
        let Origin::Turn { of, waits: true } = arrival.text.origin else { return false };
        match self.ids.get(&of) {
            Some(id) => !self.ears.asked[id].is_over,
            None => self.held_back.iter().any(|other| other.label == of),
        }
    }

    fn submit(&mut self, arrival: &'s Arrival) -> Result<(), Failure> {
        let config = &self.scenario.config;
        let origin = match arrival.text.origin {
            Origin::Base(number) => self.scenario.base(number),
            Origin::Turn { of, .. } => match self.ids.get(&of) {
                Some(id) => self.ears.asked[id].alone.tokens().to_vec(),
                None => self.scenario.base(0),
            },
        };
        let max = config.max_model_len - u32::from(arrival.sampling.max_tokens > 0);
        let prompt = arrival.text.resolve(origin, config.tokenizer_vocab_size, max);
        let request = Request {
            prompt,
            sampling: arrival.sampling.clone(),
            priority: arrival.priority,
            cache_salt: arrival.salt.clone(),
        };
        let waiting = self.engine.metrics().waiting;
        let id = match self.engine.submit(request.clone(), self.now_ns) {
            Ok(id) => id,
            Err(SubmitError::QueueFull { .. }) if waiting >= u64::from(config.max_waiting) => {
                self.outcome.tally.refused += 1;
                return Ok(());
            }
            Err(error) => {
                return Err(Failure::new(Check::Heard, format!("request {} was refused: {error}", arrival.label)));
            }
        };
        let alone = Alone::new(request);
        self.steps_left += u64::from(alone.max_len(config)) + 1;
        let truth = Truth::new(arrival.salt.as_deref(), &alone.request.prompt);
        self.registered.world.lock().truths.insert(id, truth);
        let asked = Asked {
            label: arrival.label,
            must_hit: self.promises.must_hit(&alone.request),
            alone,
            is_over: false,
            is_whole: false,
            tick: self.tick,
            abort: arrival.abort,
            cached_tokens: None,
            heard: Vec::new(),
        };
        self.ids.insert(arrival.label, id);
        self.ears.asked.insert(id, asked);
        self.outcome.tally.requests += 1;
        self.conserve()
    }

    fn give_up(&mut self, in_flight: bool) -> Result<(), Failure> {
        let tick = self.tick;
        let is_due = |asked: &&Asked| {
            asked.abort.is_some_and(|abort| abort.in_flight == in_flight && tick >= asked.tick + abort.after)
        };
        let due: Vec<_> = self.ears.asked.iter().filter(|(_, asked)| is_due(asked)).map(|(id, _)| *id).collect();
        for id in due {
            let asked = self.ears.asked.get_mut(&id).expect("just found");
            asked.abort = None;
            let was_open = !asked.is_over;
            self.ears.early = Some(EarlyEnd::Abort(id));
            let ears = &mut self.ears;
            let mut deliver = |id, event| ears.hear(id, event);
            let (first, second) = (self.engine.abort(id, &mut deliver), self.engine.abort(id, &mut deliver));
            self.ears.early = None;
            ensure((first, second) == (was_open, false), Check::Heard, || {
                format!("aborting {id:?} (not ended: {was_open}) twice said {first} and {second}")
            })?;
            ensure(self.ears.asked[&id].is_over, Check::Heard, || format!("{id:?} did not hear its abort"))?;
            self.outcome.tally.aborts += u64::from(was_open);
            self.heard()?;
            self.conserve()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Failure> {
        let is_idle = self.ears.open().next().is_none();
        let result = self.engine.flush_cache();
        ensure(result.is_ok() == is_idle, Check::Baseline, || format!("a flush said {result:?}, idle: {is_idle}"))?;
        if is_idle {
            self.promises.flushed();
            self.empty()?;
        }
        Ok(())
    }

    /// Nothing is held and nothing is cached.
    fn empty(&mut self) -> Result<(), Failure> {
        let (used, namespaces) = (self.engine.metrics().pages_used, self.engine.n_namespaces());
        ensure((used, namespaces) == (0, 0), Check::Baseline, || {
            format!("{used} pages and {namespaces} namespaces are left after a flush")
        })?;
        self.conserve()
    }

    /// Take what was heard and counted out of the ears of an engine that ends.
    fn keep(&mut self) {
        let mut tally = std::mem::take(&mut self.ears.tally);
        tally.preemptions += self.engine.metrics().preemptions;
        tally.preempted_most = self.watch.preempted_most();
        let world = self.registered.world.lock();
        (tally.steps, tally.state_moves) = (world.n_steps, world.n_state_moves);
        drop(world);
        self.outcome.tally += tally;
        let heard = self.ears.asked.values_mut().map(|asked| (asked.label, std::mem::take(&mut asked.heard)));
        self.outcome.heard.extend(heard);
    }

    fn end(mut self) -> Result<Outcome, Failure> {
        let metrics = self.engine.metrics();
        ensure((metrics.running, metrics.waiting) == (0, 0), Check::Baseline, || format!("{metrics:?} when idle"))?;
        ensure(metrics.pages_used == metrics.pages_cached, Check::Baseline, || format!("{metrics:?} when idle"))?;
        ensure(metrics.finished == self.ears.ended, Check::Baseline, || {
            format!("ends are counted as {:?}, they were {:?}", metrics.finished, self.ears.ended)
        })?;
        let tokens = self.ears.tally.tokens;
        ensure(metrics.generation_tokens == tokens, Check::Baseline, || {
            format!("{} generated tokens are counted, {tokens} were heard", metrics.generation_tokens)
        })?;
        self.engine
            .flush_cache()
            .map_err(|error| Failure::new(Check::Baseline, format!("no flush of an idle engine: {error}")))?;
        self.empty()?;
        self.keep();
        Ok(self.outcome)
    }
}

/// An engine, and a device with its program.
fn boot(backend: &Backend, scenario: &Scenario) -> Result<(EngineState, Registered, DeviceProgram), Failure> {
    let config = &scenario.config;
    let engine = EngineState::new(config.clone()).map_err(|e| Failure::new(Check::Load, format!("config: {e}")))?;
    let registered = Registered::new(World::new(sizes(config)));
    let step_bytes = config.step_capacity().bytes() as u64;
    let program = model::open(backend, config, registered.number, step_bytes, scenario.choice())
        .map_err(|error| Failure::new(Check::Load, format!("{error:?}")))?;
    Ok((engine, registered, program))
}
