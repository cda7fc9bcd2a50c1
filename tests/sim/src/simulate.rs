//! The loop: one thread, simulated time, one scenario.
//!
//! A tick is a turn of the engine: requests come, callers give up, a step is planned, runs on the device, stalls for so
//! many ticks (in which more come and go) and is taken in. When the scenario has no more arrivals and faults, everything
//! must end within a bound, memory must be as at the start, and a flush must leave nothing.

mod boot;
mod door;
mod drafting;
mod ending;
mod passes;
mod promise;
mod requests;
mod told;
mod variants;
mod wire;

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::{AssertUnwindSafe, catch_unwind},
};

use tokenspeed_backend_api::backend::Backend;
use tokenspeed_core::{
    engine::{EngineState, Plan, inspect::Holder},
    grammar::MaskJob,
    load::DeviceProgram,
    request::{Event, RequestId},
    sampler::SampleError,
    step::StepBuffer,
};

use crate::{
    alone::failed,
    campaign::simulating,
    check::{Check, Failure, ensure},
    ears::{Asked, Ears, Tally},
    model,
    scenario::{Arrival, Fault, Scenario},
    service::{Open, Opens, Service},
    watch::Watch,
    world::{Held, Registered, StepFault, World},
};
use boot::{boot, load_faults, sizes};
use door::Door;
use passes::FaultyPass;
use promise::Promises;
use told::Told;
use wire::Wire;

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

fn held(h: &Holder) -> Held {
    Held { id: h.id, table_row: h.table_row, computed: h.computed, planned: h.planned }
}

struct Simulation<'s> {
    backend: &'s Backend,
    scenario: &'s Scenario,
    engine: EngineState,
    step: StepBuffer,
    /// The step behind the one that ran last, which the device has already.
    behind: Option<(StepBuffer, Plan)>,
    program: DeviceProgram,
    registered: Registered,
    ears: Ears,
    watch: Watch,
    service: Service,
    wire: Wire,
    /// Refuses requests that would start too late.
    door: Option<Door>,
    promises: Promises,
    told: Told,
    /// Labels to ids, for later turns.
    ids: BTreeMap<u32, RequestId>,
    outcome: Outcome,
    next_arrival: usize,
    /// Turns that wait for an end.
    held_back: Vec<&'s Arrival>,
    faults: std::slice::Iter<'s, (u32, Fault)>,
    tick: u32,
    now_ns: u64,
    /// What goes wrong in this turn's replay, if there is one.
    replay_fault: Option<StepFault>,
    /// Steps allowed from here on.
    steps_left: u64,
    /// Ticks in a row in which everybody waited for host memory.
    idle_ticks: u32,
}

/// Steps more than the tokens of all requests, one after the other, before a run counts as stuck.
const SLACK_STEPS: u64 = 100;
/// Ticks in a row in which nothing runs because everybody waits for host memory: each waits a few times, for copies that take
/// a few ticks.
const IDLE_TICKS_MAX: u32 = 2000;
/// Pools up to this size are counted after every call, larger ones every so many steps.
const SMALL_POOL_PAGES: u32 = 3000;
const CHECK_EVERY_STEPS: u64 = 50;

impl<'s> Simulation<'s> {
    fn new(backend: &'s Backend, scenario: &'s Scenario) -> Result<Self, Failure> {
        let (engine, registered, program) = boot(backend, scenario)?;
        let ears = Ears::new(scenario.config.clone(), registered.world.clone());
        let door = scenario.queue_delay_ns.map(|ns| Door::new(ns, scenario.forecast, &engine));
        Ok(Self {
            backend,
            scenario,
            step: engine.new_step_buffer(),
            behind: None,
            engine,
            program,
            ears,
            registered,
            watch: Watch::new(scenario.config.block_tokens),
            service: Service::new(&scenario.config),
            wire: Wire::default(),
            door,
            promises: Promises::new(&scenario.config),
            told: Told::default(),
            ids: BTreeMap::new(),
            outcome: Outcome::default(),
            next_arrival: 0,
            held_back: Vec::new(),
            faults: scenario.faults.iter(),
            tick: 0,
            now_ns: 1 << 60,
            replay_fault: None,
            steps_left: SLACK_STEPS,
            idle_ticks: 0,
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
                    Fault::Step(what, pass) => fault = Some(FaultyPass { what, pass }),
                    Fault::Stall(ticks) => stall = ticks,
                    Fault::Clock(jump) => self.now_ns = self.now_ns.saturating_add_signed(jump),
                    Fault::StepTokens(tokens) => self.engine.set_step_tokens(tokens),
                    Fault::Flush => self.flush()?,
                    Fault::Damage => self.damage(),
                }
            }
            self.land(false)?;
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

    /// Plan and run one turn; false if there was nothing to do.
    fn turn(&mut self, fault: Option<FaultyPass>, stall: u32) -> Result<bool, Failure> {
        self.now_ns = self.now_ns.saturating_add(1000);
        let available = |engine: &EngineState| {
            let metrics = engine.metrics();
            metrics.pages_total - metrics.pages_used + metrics.pages_cached
        };
        let (plan, holders) = if let Some((step, plan)) = self.behind.take() {
            self.step = step;
            let holders: Vec<Holder> = self.engine.holders().collect();
            self.watch.moved_up(&holders);
            (Some(plan), holders)
        } else {
            self.watch.before_plan(&self.engine.holders().collect::<Vec<_>>(), available(&self.engine));
            let plan = self.engine.plan(self.now_ns, &mut self.step);
            let holders: Vec<Holder> = self.engine.holders().collect();
            let opens = self.open();
            let decisions = self.engine.decisions();
            self.watch.planned(&holders, &opens, available(&self.engine), decisions, &mut self.service)?;
            self.service.planned(&holders, &opens, self.engine.decisions(), self.now_ns)?;
            (plan, holders)
        };
        let metrics = self.engine.metrics();
        self.conserve()?;
        self.look_at_loading()?;
        self.promises.looked_at(&metrics);
        self.take_orders();
        let are_loading = self.wire.are_loading();
        self.land(false)?;
        let Some(plan) = plan else {
            return self.idle(are_loading);
        };
        self.idle_ticks = 0;
        ensure(self.steps_left > 0, Check::Progress, || {
            let open: Vec<_> = self.ears.open().map(|(id, asked)| (id.0, asked.label)).collect();
            format!("steps ran out with requests (id, label) {open:?} not ended")
        })?;
        self.steps_left -= 1;
        if !self.promises.is_on() {
            self.ears.asked.values_mut().for_each(|asked| asked.must_hit = None);
        }
        self.tell_world(&holders);
        let load = (plan.n_decode_tokens, plan.n_tokens - plan.n_decode_tokens);
        let result = self.compute(&plan, fault)?;
        let began_ns = self.now_ns;
        let masks = self.lend_masks();
        if self.scenario.overlaps {
            self.follow()?;
        }
        if self.scenario.overlaps && self.engine.plan_ahead() {
            self.outcome.tally.plans_ahead += 1;
            // Memory may be full only until the step in flight has been taken in.
            self.promises.looked_at(&self.engine.metrics());
            self.watch.planned_ahead(&self.engine.holders().collect::<Vec<_>>(), &self.open(), &mut self.service)?;
            self.conserve()?;
            self.look_at_loading()?;
        }
        for _ in 0..stall {
            self.tick += 1;
            self.arrive()?;
            self.give_up(true)?;
            self.take_orders();
            self.land(false)?;
        }
        self.give_up(true)?;
        for mut job in masks {
            // Half of them are left to the engine.
            if self.outcome.tally.lent_masks.is_multiple_of(2) {
                job.run();
            }
            self.outcome.tally.lent_masks += 1;
            self.engine.return_masks(job);
        }
        let holders: Vec<Holder> = self.engine.holders().collect();
        self.watch.before_advance(&holders)?;
        self.now_ns = self.now_ns.saturating_add(1000 + 100 * u64::from(plan.n_tokens));
        match result {
            Ok(()) => {
                if plan.samples_later {
                    self.sample_masked(&plan)?;
                }
                self.take_in(plan);
                self.heard()?;
                if self.replay(fault)? {
                    self.draft(fault)?;
                }
            }
            Err(message) => self.fail_all(fault, message)?,
        }
        self.heard()?;
        let is_ready = self.settle()?;
        self.report(load, self.now_ns.saturating_sub(began_ns));
        Ok(is_ready)
    }

    /// Nothing can be planned: everybody waits for host memory, or for what loads hold that nobody waits for any more.
    fn idle(&mut self, waits: bool) -> Result<bool, Failure> {
        let open = self.ears.open().next().map(|(id, _)| *id);
        ensure(open.is_none() || waits, Check::Progress, || format!("{open:?} waits and there is nothing to run"))?;
        self.idle_ticks = if open.is_none() { 0 } else { self.idle_ticks + 1 };
        ensure(self.idle_ticks <= IDLE_TICKS_MAX, Check::Progress, || {
            format!("{open:?} waits for ever for its pages")
        })?;
        Ok(open.is_some())
    }

    fn lend_masks(&mut self) -> Vec<MaskJob> {
        let mut masks = Vec::new();
        if self.scenario.lends_masks {
            self.engine.lend_masks(&mut |job| masks.push(job));
        }
        masks
    }

    /// What the driver tells its gate after a turn.
    fn report(&mut self, load: (u32, u32), ns: u64) {
        let (holders, opens) = (self.engine.holders().collect::<Vec<_>>(), self.open());
        if let Some(door) = &mut self.door {
            let tokens = door.turned(&self.engine, load, ns);
            self.engine.set_step_tokens(tokens);
            door.report(&self.engine, load.0, &holders, &opens);
        }
    }

    /// Give the device the step behind the one that ran, before that is taken in.
    fn follow(&mut self) -> Result<(), Failure> {
        let mut step = self.engine.new_step_buffer();
        let plan = self.engine.plan_behind(self.now_ns, &mut step);
        self.promises.looked_at(&self.engine.metrics());
        self.watch.planned_ahead(&self.engine.holders().collect::<Vec<_>>(), &self.open(), &mut self.service)?;
        self.conserve()?;
        self.look_at_loading()?;
        let speculates = self.engine.config().speculation.is_some();
        self.outcome.tally.relayed_steps += u64::from(plan.is_some());
        self.outcome.tally.relayed_unguessed += u64::from(plan.is_some() && speculates);
        self.behind = plan.map(|plan| (step, plan));
        Ok(())
    }

    /// Pages of a request whose logits were not finite must not be hit again: those that no other request can have
    /// continued, because it has another text there, and that no earlier life of the same request did.
    fn doubt(&mut self) {
        let mut world = self.registered.world.lock();
        let Some((id, _, token, _)) = world.poisoned.take() else { return };
        let asked = &self.ears.asked[&id];
        // Aborted meanwhile, or its grammar failed: nobody has looked at the logits.
        if asked.heard.last() != Some(&failed(SampleError::NotFinite { id: token })) {
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
        let is_behind = |holder: &Holder| self.behind.is_some() && holder.planned > 0;
        let lingers = holders.iter().find(|holder| ears.asked[&holder.id].is_over && !is_behind(holder));
        ensure(lingers.is_none(), Check::Baseline, || {
            format!("{lingers:?} has ended and holds memory after the step")
        })?;
        let metrics = self.engine.metrics();
        let open = ears.open().count() as u64;
        ensure(metrics.running + metrics.waiting == open, Check::Baseline, || {
            format!("{} run and {} wait, {open} have not ended", metrics.running, metrics.waiting)
        })?;
        let mut world = self.registered.world.lock();
        world.truths.retain(|id, _| holders.iter().any(|holder| holder.id == *id) || !ears.asked[id].is_over);
        let World { ahead, truths, wishes, .. } = &mut *world;
        ahead.retain(|id, _| truths.contains_key(id));
        wishes.retain(|id, _| truths.contains_key(id));
        drop(world);
        self.promises.looked_at(&metrics);
        self.promises.ended(ears);
        self.conserve()?;
        Ok(true)
    }

    fn heard(&mut self) -> Result<(), Failure> {
        self.ears
            .failure
            .take()
            .map_or(Ok(()), |f| Err(Failure { what: format!("tick {}: {}", self.tick, f.what), ..f }))
    }

    fn open(&self) -> Opens {
        let loading: BTreeSet<RequestId> = self.engine.loading().collect();
        let entry = |id: RequestId, asked: &Asked| Open {
            rank: (asked.alone.request.priority, id.0),
            len: asked.alone.tokens().len() as u32,
            submitted_ns: asked.submitted_ns,
            is_loading: loading.contains(&id),
        };
        self.ears.open().map(|(id, asked)| (*id, entry(*id, asked))).collect()
    }

    /// Whether pools are small enough to be looked through after every call.
    fn is_looked_through(&self) -> bool {
        sizes(&self.scenario.config).blocks <= SMALL_POOL_PAGES
    }

    fn tell_world(&mut self, holders: &[Holder]) {
        let mut world = self.registered.world.lock();
        world.begin_turn(holders.iter().map(held).collect());
        world.cached_pages = self.engine.cached_pages().collect();
        world.cached_states = self.engine.cached_states().collect();
        world.held_states = self.engine.held_states().map(|(id, slot)| (slot, id)).collect();
    }

    fn conserve(&mut self) -> Result<(), Failure> {
        if self.is_looked_through() || self.steps_left.is_multiple_of(CHECK_EVERY_STEPS) {
            let tick = self.tick;
            self.engine
                .check_conservation()
                .map_err(|what| Failure::new(Check::Conservation, format!("tick {tick}: {what}")))?;
            self.told.read(&self.engine, tick)?;
        }
        Ok(())
    }
}
