//! The device's own thread: runs the passes of a turn while the engine thread plans the next step.
//!
//! The device and the parameter blocks travel together in one boxed [`Turn`], to the device's thread and back. Whoever
//! has the device has it alone, so nothing is shared and nothing can race. A step that the device samples leaves the device
//! with its thread, and comes back with copies of the few words that were sampled: the step behind it can then be waiting in
//! the queue, and starts without anybody's help. So there are two turns, and the queues never hold more than two.
//! The next turn that is not sampled brings the device home; so does a replay or a draft's pass behind a sampled turn, and then
//! nothing else is under way. Every pass runs on this one thread, as device runtimes with a per-thread current device need.
//!
//! Copies to and from host memory go with a turn too, and are carried out before its passes: between two turns nothing else uses
//! the device, whichever thread plans meanwhile. The engine orders them so that it may be any two (`cache/copies.rs`).
//!
//! Rejected: the engine thread launching and polling a queue, which works only for devices that run on their own, and
//! the CPU backend computes in the call. Rejected too: a device that never leaves its thread. The host's sampler reads logits
//! where they are, and copying them, a vocabulary per request and step, costs more than sending a pointer.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tokenspeed_backend_api::catalogue::{CHOSEN_WIDTH, LOGPROBS_WIDTH};

use super::{StepRunner, queue::Items, workers::Workers};
use crate::{
    bug::seeded,
    cache::copies::CopyOrder,
    engine::{EngineState, Pass, Plan, SamplingStep},
    monitor::{Monitor, StdMonitor},
    sampler::{
        device::{Sampled, SampledPasses},
        side::SideUpdates,
    },
    step::StepBuffer,
};

/// What a device is to run; perhaps with the device.
pub(super) struct Turn {
    /// With a turn that is to be run, or was run without being sampled.
    pub runner: Option<Box<dyn StepRunner>>,
    /// Of the forward pass.
    pub step: StepBuffer,
    /// Of any other pass.
    second: StepBuffer,
    /// Rows of side tables to write before the passes.
    side: SideUpdates,
    /// Copies to carry out before the passes, and which of them were, well. Whoever waits for the turn takes them.
    pub copies: Vec<(CopyOrder, bool)>,
    /// Passes to run, in order, with their rows of logits.
    passes: [Option<(Pass, u32)>; 2],
    /// The device samples, and stays.
    is_sampled: bool,
    /// The passes have run; their rows are to be sampled.
    is_sampling: bool,
    /// To be left alone if the turn before it fails.
    is_behind: bool,
    /// Of the forward pass, then of the verify pass.
    chosen: Vec<u32>,
    logprobs: Vec<f32>,
    /// Rows of these that are the forward pass's.
    n_forward: usize,
    /// When they had run, in the engine's nanoseconds.
    pub ended_ns: u64,
    /// Of the passes run last; later ones are left out after the first failure.
    pub outcome: Result<(), Failure>,
    /// After a failure that was not a panic: `Err` if the device is lost.
    pub status: Result<(), String>,
}

/// Why a pass did not run to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The device says so.
    Refused(String),
    /// The code that drives it panicked.
    Panicked(String),
    /// The turn before it failed.
    NotRun,
}

impl Turn {
    pub fn new(state: &EngineState) -> Box<Self> {
        let mut turn = Self::of(state.new_step_buffer(), state.new_step_buffer());
        turn.side = state.new_side_updates();
        turn
    }

    /// With room for what fits the blocks.
    pub(super) fn of(step: StepBuffer, second: StepBuffer) -> Box<Self> {
        let rows = step.capacity().samples as usize;
        Box::new(Self {
            runner: None,
            step,
            second,
            side: SideUpdates::default(),
            copies: Vec::new(),
            passes: [None; 2],
            is_sampled: false,
            is_sampling: false,
            is_behind: false,
            chosen: Vec::with_capacity(rows * CHOSEN_WIDTH),
            logprobs: Vec::with_capacity(rows * LOGPROBS_WIDTH),
            n_forward: 0,
            ended_ns: 0,
            outcome: Ok(()),
            status: Ok(()),
        })
    }

    /// What `plan` wants; its forward block is in `step` already.
    pub fn set_plan(&mut self, plan: &Plan, state: &EngineState, is_behind: bool) {
        // Logits that wait to be sampled stay where they are.
        let read = |n_logit_rows| if plan.samples_later { 0 } else { n_logit_rows };
        let forward = (plan.n_rows > 0).then_some((Pass::Forward, read(plan.n_logit_rows)));
        let verify = plan.verify.map(|n_logit_rows| (Pass::Verify, read(n_logit_rows)));
        if verify.is_some() {
            self.second.copy_from(state.verify_step());
        }
        self.passes = [forward, verify];
        self.side.copy_from(state.side_updates());
        (self.is_sampled, self.is_behind) = (plan.is_sampled && !plan.samples_later, is_behind);
        self.is_sampling = false;
    }

    /// What is left of `plan`, whose passes have run, now that there are masks.
    pub fn set_sampling(&mut self, plan: &Plan, state: &mut EngineState) {
        let SamplingStep { side, forward, verify } = state.sampling_step(plan);
        self.side.copy_from(side);
        forward.into_iter().for_each(|step| self.step.copy_from(step));
        verify.into_iter().for_each(|step| self.second.copy_from(step));
        let forward = forward.map(|_| (Pass::Forward, plan.n_logit_rows));
        self.passes = [forward, plan.verify.map(|n_logit_rows| (Pass::Verify, n_logit_rows))];
        (self.is_sampled, self.is_sampling, self.is_behind) = (false, true, false);
    }

    /// Nothing but copies.
    pub fn set_copies_only(&mut self) {
        self.side.clear();
        self.passes = [None; 2];
        (self.is_sampled, self.is_sampling, self.is_behind) = (false, false, false);
    }

    /// One pass behind the turn's own: a replay, or a draft's.
    pub fn set_pass(&mut self, pass: Pass, step: &StepBuffer, n_logit_rows: u32) {
        self.second.copy_from(step);
        self.side.clear();
        self.passes = [Some((pass, n_logit_rows)), None];
        (self.is_sampled, self.is_sampling, self.is_behind) = (false, false, false);
    }

    /// A forward pass over the block as it is.
    #[cfg(test)]
    pub(super) fn set_forward(&mut self, n_logit_rows: u32, is_sampled: bool, is_behind: bool) {
        self.passes = [Some((Pass::Forward, n_logit_rows)), None];
        (self.is_sampled, self.is_sampling, self.is_behind) = (is_sampled, false, is_behind);
    }

    /// What the device sampled in this turn.
    pub fn sampled(&self) -> SampledPasses<'_> {
        let chosen = self.chosen.split_at(self.n_forward * CHOSEN_WIDTH);
        let logprobs = self.logprobs.split_at(self.n_forward * LOGPROBS_WIDTH);
        SampledPasses {
            forward: Sampled { chosen: chosen.0, logprobs: logprobs.0 },
            verify: Sampled { chosen: chosen.1, logprobs: logprobs.1 },
        }
    }

    /// The device, which is with this turn.
    pub fn runner(&mut self) -> &mut dyn StepRunner {
        &mut **self.runner.as_mut().expect("the device came with the turn")
    }

    /// After a failure; a device that panicked is not asked.
    fn ask_status(&mut self, runner: &mut dyn StepRunner) {
        if matches!(self.outcome, Err(Failure::Refused(_))) {
            self.status = runner.status();
        }
    }

    fn run(&mut self, runner: &mut dyn StepRunner) {
        self.outcome = Ok(());
        self.status = Ok(());
        self.chosen.clear();
        self.logprobs.clear();
        self.n_forward = 0;
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| copy(&mut self.copies, runner))) {
            self.outcome = Err(Failure::Panicked(super::panic_text(&*panic)));
            return;
        }
        if !self.side.is_empty() {
            let side = AssertUnwindSafe(|| runner.write_side(&self.side));
            self.outcome = outcome(catch_unwind(side));
            self.side.clear();
            if self.outcome.is_err() {
                return self.ask_status(runner);
            }
        }
        for (pass, n_logit_rows) in std::mem::take(&mut self.passes).into_iter().flatten() {
            let block = if pass == Pass::Forward { &self.step } else { &self.second };
            let (is_sampled, is_sampling) = (self.is_sampled, self.is_sampling);
            // After a panic the device is only dropped.
            let run = AssertUnwindSafe(|| match is_sampled {
                _ if is_sampling => runner.sample(pass, block.bytes(), n_logit_rows),
                true => runner.run_sampled(pass, block.bytes(), n_logit_rows),
                false => runner.run(pass, block.bytes(), n_logit_rows),
            });
            self.outcome = outcome(catch_unwind(run));
            if self.outcome.is_err() {
                return self.ask_status(runner);
            }
            if is_sampled || is_sampling {
                let Sampled { chosen, logprobs } = runner.sampled(pass);
                self.chosen.extend_from_slice(chosen);
                self.logprobs.extend_from_slice(logprobs);
                if pass == Pass::Forward {
                    self.n_forward = n_logit_rows as usize;
                }
            }
        }
    }
}

/// Of a call into the device.
fn outcome(result: std::thread::Result<Result<(), String>>) -> Result<(), Failure> {
    match result {
        Ok(outcome) => outcome.map_err(Failure::Refused),
        Err(panic) => Err(Failure::Panicked(super::panic_text(&*panic))),
    }
}

/// A copy that failed is a miss, and counted by the engine; a device that is lost shows in the next pass.
fn copy(copies: &mut [(CopyOrder, bool)], runner: &mut dyn StepRunner) {
    for (order, is_ok) in copies {
        *is_ok = runner.copy(order).is_ok();
    }
}

/// The thread. Dropping it ends the thread after the turn it runs.
pub(super) struct DeviceThread<M: Monitor<Items<Box<Turn>>> = StdMonitor<Items<Box<Turn>>>>(Workers<Box<Turn>, M>);

/// Turns under way, at most.
const TURNS: usize = 2;

impl<M: Monitor<Items<Box<Turn>>> + Send + Sync + 'static> DeviceThread<M> {
    /// It says itself when a turn ended, by `now_ns`: whoever waits may be late, and with a step behind another one late for
    /// both, so that the second would seem to have taken no time.
    pub fn start(now_ns: impl Fn() -> u64 + Send + 'static) -> Self {
        let mut kept = None;
        let mut has_failed = false;
        let run = move |mut turn: Box<Turn>| {
            let mut runner: Box<dyn StepRunner> =
                turn.runner.take().or_else(|| kept.take()).expect("the device is with a turn, or stayed");
            if turn.is_behind && has_failed && !seeded!(FailedTurnStopsNothing) {
                turn.outcome = Err(Failure::NotRun);
            } else {
                turn.run(&mut *runner);
            }
            has_failed = turn.outcome.is_err();
            turn.ended_ns = now_ns();
            if turn.is_sampled {
                kept = Some(runner);
            } else {
                turn.runner = Some(runner);
            }
            turn
        };
        let mut workers = Workers::new(TURNS);
        workers.start("device", run).expect("a thread can be started");
        Self(workers)
    }

    /// Run a turn's passes, behind those launched before. Each is to be waited for, in order.
    pub fn launch(&self, turn: Box<Turn>) {
        self.0.give(turn);
    }

    /// The turn launched first of those not waited for, when its passes have run.
    pub fn wait(&self) -> Box<Turn> {
        self.0.take()
    }
}
