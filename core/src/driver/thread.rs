//! The engine thread's loop.

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, PoisonError, atomic::Ordering},
};

use super::{
    Shared, StepRunner,
    budget::StepBudget,
    device::{DeviceThread, Failure, Turn},
    inbox::Command,
    masks::MaskThreads,
    report::Reporter,
};
use crate::{
    client::Mailbox,
    engine::{EngineState, Logits, Pass, Plan, SubmitError},
    request::{Event, RequestId},
};

/// Where a request's events go. Only looked up, never iterated except to fail everybody.
struct Route {
    ticket: RequestId,
    mailbox: Arc<Mailbox>,
}

#[derive(Default)]
struct Routes {
    by_id: HashMap<RequestId, Route>,
    by_ticket: HashMap<RequestId, RequestId>,
    ended: u64,
}

impl Routes {
    fn deliver(&mut self, id: RequestId, event: Event) {
        if matches!(event, Event::Finished { .. } | Event::Failed { .. }) {
            if let Some(route) = self.by_id.remove(&id) {
                self.by_ticket.remove(&route.ticket);
                self.ended += 1;
                route.mailbox.push(event);
            }
        } else if let Some(route) = self.by_id.get(&id) {
            route.mailbox.push(event);
        }
    }
}

pub(super) fn main(
    shared: Arc<Shared>,
    state: EngineState,
    runner: Box<dyn StepRunner>,
    target_ms: Option<f64>,
    overlap: bool,
) {
    let mut engine = EngineThread {
        turn: Some(Turn::new(runner, &state)),
        device: DeviceThread::start(),
        overlap,
        budget: StepBudget::new(target_ms),
        reporter: Reporter::new(shared.gate().is_on()),
        routes: Routes::default(),
        masks: MaskThreads::new(),
        shared: Arc::clone(&shared),
        state,
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| engine.run()));
    let why = match outcome {
        Ok(Ok(())) => "the engine was stopped".to_owned(),
        Ok(Err(why)) => why,
        Err(panic) => format!("the engine thread panicked: {}", super::panic_text(&*panic)),
    };
    *shared.dead.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.clone());
    shared.feed.end();
    // After a panic the state machine is not to be trusted; the mailboxes are.
    for (_, route) in engine.routes.by_id.drain() {
        route.mailbox.push(Event::Failed { message: why.clone() });
    }
    for command in shared.inbox.close() {
        match command {
            Command::Submit { mailbox, .. } => mailbox.push(Event::Failed { message: why.clone() }),
            Command::Flush { reply } => drop(reply.send(Err(why.clone()))),
            Command::Abort { .. } | Command::Stop => {}
        }
    }
}

struct EngineThread {
    shared: Arc<Shared>,
    state: EngineState,
    /// The device; away while it runs.
    turn: Option<Box<Turn>>,
    device: DeviceThread,
    overlap: bool,
    budget: StepBudget,
    reporter: Reporter,
    routes: Routes,
    masks: MaskThreads,
}

impl EngineThread {
    /// Until told to stop (`Ok`) or the device is lost (`Err`).
    fn run(&mut self) -> Result<(), String> {
        loop {
            while let Some(command) = self.shared.inbox.pop() {
                if self.obey(command) {
                    let routes = &mut self.routes;
                    self.state.fail_all("the engine is shutting down", &mut |id, event| routes.deliver(id, event));
                    return Ok(());
                }
            }
            let began_ns = self.shared.now_ns();
            let mut turn = self.turn.take().expect("the device is back between steps");
            let plan = self.state.plan(began_ns, &mut turn.step);
            let has_copied = copy(&mut self.state, &mut turn);
            let Some(plan) = plan else {
                self.turn = Some(turn);
                if has_copied {
                    // Somebody may have waited for it, and there may be more to copy.
                    continue;
                }
                self.publish();
                self.shared.inbox.wait();
                continue;
            };
            self.shared.trace().planned(self.state.decisions());
            let sequence = plan.sequence;
            self.shared.step_began_ns.store(began_ns.max(1), Ordering::Release);
            let (decode, prefill) = (plan.n_decode_tokens, plan.n_tokens - plan.n_decode_tokens);
            turn.set_plan(&plan, &self.state);
            let flight = self.device.launch(turn);
            let masks = &mut self.masks;
            self.state.lend_masks(&mut |job| masks.begin(job));
            if self.overlap {
                self.state.plan_ahead();
            }
            let state = &mut self.state;
            self.masks.finish(&mut |job| state.return_masks(job));
            let turn = flight.wait();
            let now_ns = self.shared.now_ns();
            let turn = match &turn.outcome {
                Ok(()) => self.take_in(now_ns, plan, turn),
                Err(_) => turn,
            };
            let outcome = turn.outcome.clone();
            let is_ok = outcome.is_ok();
            let turn = self.turn.insert(turn);
            match outcome {
                Ok(()) => {}
                Err(Failure::Refused(message)) => {
                    let status = turn.runner.status();
                    let routes = &mut self.routes;
                    self.state.fail_all(&message, &mut |id, event| routes.deliver(id, event));
                    // States that were to be replayed may be stored already.
                    self.state.flush_cache().expect("nothing runs after everything failed");
                    status?;
                }
                Err(Failure::Panicked(text)) => return Err(format!("the device thread panicked: {text}")),
            }
            self.shared.step_began_ns.store(0, Ordering::Release);
            self.budget.observe(decode, prefill, now_ns - began_ns);
            self.state.set_step_tokens(self.budget.tokens(decode));
            if is_ok {
                self.shared.trace().ended(sequence, self.shared.now_ns());
            }
            self.reporter.step(decode, now_ns - began_ns);
            self.publish();
        }
    }

    /// Take in a step that has run, replay what it proved right, and let the draft model guess on.
    fn take_in(&mut self, now_ns: u64, plan: Plan, mut turn: Box<Turn>) -> Box<Turn> {
        let routes = &mut self.routes;
        let verify = if plan.verify.is_some() { turn.runner.logits(Pass::Verify) } else { &[] };
        let forward = if plan.n_rows > 0 { turn.runner.logits(Pass::Forward) } else { &[] };
        self.state.advance(now_ns, plan, Logits { forward, verify }, &mut |id, event| routes.deliver(id, event));
        if let Some(replay) = self.state.replay_step() {
            turn.set_pass(Pass::Replay, replay, 0);
            turn = self.device.launch(turn).wait();
            self.state.replayed(self.shared.now_ns());
        }
        // Guesses for the next turn.
        while turn.outcome.is_ok()
            && let Some(draft) = self.state.draft_step(self.shared.now_ns())
        {
            let pass = draft.pass;
            turn.set_pass(pass, draft.step, draft.n_logit_rows);
            turn = self.device.launch(turn).wait();
            if turn.outcome.is_ok() {
                self.state.drafted(self.shared.now_ns(), turn.runner.logits(pass));
            }
        }
        turn
    }

    /// True for `Stop`.
    fn obey(&mut self, command: Command) -> bool {
        let routes = &mut self.routes;
        self.reporter.obeyed(&command);
        match command {
            Command::Submit { ticket, request, mailbox } => match self.state.submit(*request, self.shared.now_ns()) {
                Ok(id) => {
                    routes.by_id.insert(id, Route { ticket, mailbox });
                    routes.by_ticket.insert(ticket, id);
                }
                Err(error) => {
                    routes.ended += 1;
                    let message = match error {
                        SubmitError::QueueFull { .. } | SubmitError::Invalid(_) => error.to_string(),
                    };
                    mailbox.push(Event::Failed { message });
                }
            },
            Command::Abort { ticket } => {
                if let Some(id) = routes.by_ticket.get(&ticket).copied() {
                    self.state.abort(id, &mut |id, event| routes.deliver(id, event));
                }
            }
            Command::Flush { reply } => {
                copy(&mut self.state, self.turn.as_mut().expect("the device is back between steps"));
                let answer = self.state.flush_cache().map(drop).map_err(|e| e.to_string());
                self.shared.feed.follow(self.state.cache_events());
                // The asker may have given up; then nobody is told.
                let _ = reply.send(answer);
            }
            Command::Stop => return true,
        }
        false
    }

    fn publish(&mut self) {
        let ended = std::mem::take(&mut self.routes.ended);
        self.shared.outstanding.leave(ended);
        self.shared.feed.follow(self.state.cache_events());
        let metrics = self.state.metrics();
        self.reporter.report(&self.state, &metrics, &self.budget, &self.shared);
        *self.shared.metrics.lock().unwrap_or_else(PoisonError::into_inner) = metrics;
    }
}

/// Carry out the copies ordered so far, between steps; true if there were any. They are few per plan while requests run, so
/// that a step is not long in coming.
fn copy(state: &mut EngineState, turn: &mut Turn) -> bool {
    let mut any = false;
    while let Some(order) = state.next_copy() {
        any = true;
        // A copy that failed is a miss, and counted; a device that is lost shows in the next step.
        let outcome = turn.runner.copy(&order);
        state.copied(order.id, outcome.is_ok());
    }
    any
}
