//! Flushes, failed steps, and what must be so when all is over.

use tokenspeed_backend_api::abi::TS_ERR_DEVICE_LOST;
use tokenspeed_core::driver::StepRunner;

use super::{Door, FaultyPass, Outcome, Promises, Service, Simulation, Told, Wire, boot::boot};
use crate::{
    check::{Check, Failure, ensure},
    ears::{EarlyEnd, Ears},
    watch::Watch,
    world::StepFault,
};

impl Simulation<'_> {
    /// What the driver does when a step fails; after a lost device, what a supervisor does.
    pub(super) fn fail_all(&mut self, fault: Option<FaultyPass>, message: String) -> Result<(), Failure> {
        let is_lost = self.program.status().is_err();
        let must_be_lost = fault.map(|fault| fault.what == StepFault::Lost);
        ensure(Some(is_lost) == must_be_lost, Check::Load, || {
            format!("the device failed without being told to: {message} (status code {TS_ERR_DEVICE_LOST} if lost)")
        })?;
        self.outcome.tally.step_failures += 1;
        // The device does not run it.
        self.behind = None;
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
            (self.watch, self.promises) =
                (Watch::new(self.scenario.config.block_tokens), Promises::new(&self.scenario.config));
            self.service = Service::new(&self.scenario.config);
            (self.wire, self.door) = (
                Wire::default(),
                self.scenario.queue_delay_ns.map(|ns| Door::new(ns, self.scenario.forecast, &self.engine)),
            );
            self.told = Told::default();
            self.ids.clear();
        }
        Ok(())
    }

    /// What the driver does when a pass behind the turn's own fails: pages and states are in doubt.
    pub(super) fn fail_and_flush(&mut self, fault: Option<FaultyPass>, message: String) -> Result<(), Failure> {
        self.fail_all(fault, message)?;
        // As the driver does, which has no copies under way when a pass ends.
        self.take_orders();
        self.land(true)?;
        if self.engine.metrics().pages_used > 0 {
            let flushed = self.engine.flush_cache();
            ensure(flushed.is_ok(), Check::Baseline, || format!("a flush after all failed said {flushed:?}"))?;
        }
        self.promises.flushed();
        Ok(())
    }

    pub(super) fn flush(&mut self) -> Result<(), Failure> {
        self.take_orders();
        let is_idle = self.ears.open().next().is_none() && self.behind.is_none() && self.wire.is_empty();
        let result = self.engine.flush_cache();
        ensure(result.is_ok() == is_idle, Check::Baseline, || format!("a flush said {result:?}, idle: {is_idle}"))?;
        if is_idle {
            self.promises.flushed();
            self.empty()?;
        }
        Ok(())
    }

    /// Nothing is held and nothing is cached.
    pub(super) fn empty(&mut self) -> Result<(), Failure> {
        let (metrics, namespaces) = (self.engine.metrics(), self.engine.n_namespaces());
        let (used, host) = (metrics.pages_used, (metrics.host_pages[0], metrics.host_states[0]));
        ensure((used, host, namespaces) == (0, (0, 0), 0), Check::Baseline, || {
            format!(
                "{used} pages, {host:?} pages and states in host memory, {namespaces} namespaces are left after a flush"
            )
        })?;
        self.conserve()
    }

    /// Take what was heard and counted out of the ears of an engine that ends.
    pub(super) fn keep(&mut self) {
        let mut tally = std::mem::take(&mut self.ears.tally);
        tally.preemptions += self.engine.metrics().preemptions;
        tally.preempted_most = self.watch.preempted_most();
        let Service { n_overtaken, n_aged, n_coalesced, .. } = &self.service;
        (tally.overtaken, tally.aged, tally.coalesced) = (*n_overtaken, *n_aged, *n_coalesced);
        let world = self.registered.world.lock();
        (tally.steps, tally.state_moves, tally.guesses) = (world.n_steps, world.n_state_moves, world.n_guesses);
        (tally.sampled, tally.sampled_guesses) = (world.n_sampled, world.n_sampled_guesses);
        (tally.side_rows, tally.side_guesses) = (world.n_side_rows, world.n_side_guesses);
        tally.guided_rows = world.n_guided_rows;
        (tally.replays, tally.moves, tally.draft_rows) = (world.n_replays, world.n_moves, world.n_draft_rows);
        let metrics = self.engine.metrics();
        (tally.stores, tally.loads) = (metrics.host_stored, metrics.host_loaded);
        tally.accepted = metrics.accepted.iter().sum();
        tally.right_drafts = if world.sizes.drafts { tally.accepted } else { 0 };
        tally.branches = world.n_branches;
        tally.right_branches = metrics.branches[1];
        drop(world);
        self.outcome.tally += tally;
        let heard = self.ears.asked.values_mut().map(|asked| (asked.label, std::mem::take(&mut asked.heard)));
        self.outcome.heard.extend(heard);
    }

    pub(super) fn end(mut self) -> Result<Outcome, Failure> {
        self.take_orders();
        self.land(true)?;
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
