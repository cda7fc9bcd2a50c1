//! The device's own thread: runs the passes of a turn while the engine thread plans the next step.
//!
//! The device and the parameter blocks travel together in one boxed [`Turn`], to the device's thread and back. Whoever
//! has the turn has the device, so nothing is shared and nothing can race; at most one turn exists, so the channels
//! never hold more than one. Every pass runs on this one thread, as device runtimes with a per-thread current device need.
//!
//! Rejected: the engine thread launching and polling a queue, which works only for devices that run on their own, and
//! the CPU backend computes in the call.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread::JoinHandle,
};

use super::StepRunner;
use crate::{
    engine::{EngineState, Pass, Plan},
    step::StepBuffer,
};

/// A device and what it is to run.
pub(super) struct Turn {
    pub runner: Box<dyn StepRunner>,
    /// Of the forward pass.
    pub step: StepBuffer,
    /// Of any other pass.
    second: StepBuffer,
    /// Passes to run, in order, with their rows of logits.
    passes: [Option<(Pass, u32)>; 2],
    /// Of the passes run last; later ones are left out after the first failure.
    pub outcome: Result<(), Failure>,
}

/// Why a pass did not run to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The device says so.
    Refused(String),
    /// The code that drives it panicked.
    Panicked(String),
}

impl Turn {
    pub fn new(runner: Box<dyn StepRunner>, state: &EngineState) -> Box<Self> {
        let (step, second) = (state.new_step_buffer(), state.new_step_buffer());
        Box::new(Self { runner, step, second, passes: [None; 2], outcome: Ok(()) })
    }

    /// What `plan` wants; its forward block is in `step` already.
    pub fn set_plan(&mut self, plan: &Plan, state: &EngineState) {
        let forward = (plan.n_rows > 0).then_some((Pass::Forward, plan.n_logit_rows));
        let verify = plan.verify.map(|n_logit_rows| (Pass::Verify, n_logit_rows));
        if verify.is_some() {
            self.second.copy_from(state.verify_step());
        }
        self.passes = [forward, verify];
    }

    /// One pass behind the turn's own: a replay, or a draft's.
    pub fn set_pass(&mut self, pass: Pass, step: &StepBuffer, n_logit_rows: u32) {
        self.second.copy_from(step);
        self.passes = [Some((pass, n_logit_rows)), None];
    }

    fn run(&mut self) {
        self.outcome = Ok(());
        for (pass, n_logit_rows) in std::mem::take(&mut self.passes).into_iter().flatten() {
            let block = if pass == Pass::Forward { &self.step } else { &self.second };
            let runner = &mut self.runner;
            // After a panic the device is only dropped.
            let run = AssertUnwindSafe(|| runner.run(pass, block.bytes(), n_logit_rows));
            self.outcome = match catch_unwind(run) {
                Ok(outcome) => outcome.map_err(Failure::Refused),
                Err(panic) => Err(Failure::Panicked(super::panic_text(&*panic))),
            };
            if self.outcome.is_err() {
                return;
            }
        }
    }
}

/// The thread. Dropping it ends the thread.
pub(super) struct DeviceThread {
    orders: Option<SyncSender<Box<Turn>>>,
    done: Receiver<Box<Turn>>,
    thread: Option<JoinHandle<()>>,
}

/// A turn that runs.
#[must_use = "wait for it: it has the device"]
pub(super) struct Flight<'a>(&'a DeviceThread);

impl DeviceThread {
    pub fn start() -> Self {
        let (orders, todo) = sync_channel::<Box<Turn>>(1);
        let (report, done) = sync_channel(1);
        let run = move || {
            while let Ok(mut turn) = todo.recv() {
                turn.run();
                if report.send(turn).is_err() {
                    break;
                }
            }
        };
        let thread = std::thread::Builder::new().name("device".into()).spawn(run).expect("a thread can be started");
        Self { orders: Some(orders), done, thread: Some(thread) }
    }

    /// Run a turn's passes.
    pub fn launch(&self, turn: Box<Turn>) -> Flight<'_> {
        let sent = self.orders.as_ref().expect("taken only when dropped").send(turn);
        assert!(sent.is_ok(), "the thread ends only after its orders do");
        Flight(self)
    }
}

impl Flight<'_> {
    /// The turn, when its passes have run.
    pub fn wait(self) -> Box<Turn> {
        self.0.done.recv().expect("a turn always comes back: panics are caught")
    }
}

impl Drop for DeviceThread {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // It cannot have panicked.
            let _ = thread.join();
        }
    }
}
