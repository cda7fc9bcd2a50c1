//! The engine thread's loop.

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, PoisonError, atomic::Ordering},
};

use super::{Shared, StepRunner, budget::StepBudget, inbox::Command, report::Reporter};
use crate::{
    client::Mailbox,
    engine::{EngineState, Logits, Pass, Plan, SubmitError},
    request::{Event, RequestId},
    step::StepBuffer,
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

pub(super) fn main(shared: Arc<Shared>, state: EngineState, runner: Box<dyn StepRunner>, target_ms: Option<f64>) {
    let mut engine = EngineThread {
        step: state.new_step_buffer(),
        budget: StepBudget::new(target_ms),
        reporter: Reporter::new(shared.gate().is_on()),
        routes: Routes::default(),
        shared: Arc::clone(&shared),
        state,
        runner,
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| engine.run()));
    let why = match outcome {
        Ok(Ok(())) => "the engine was stopped".to_owned(),
        Ok(Err(why)) => why,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            format!("the engine thread panicked: {}", text.unwrap_or("no message"))
        }
    };
    *shared.dead.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.clone());
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
    runner: Box<dyn StepRunner>,
    step: StepBuffer,
    budget: StepBudget,
    reporter: Reporter,
    routes: Routes,
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
            match self.state.plan(began_ns, &mut self.step) {
                Some(plan) => {
                    self.shared.trace().planned(self.state.decisions());
                    let sequence = plan.sequence;
                    self.shared.step_began_ns.store(began_ns.max(1), Ordering::Release);
                    let (decode, prefill) = (plan.n_decode_tokens, plan.n_tokens - plan.n_decode_tokens);
                    let outcome = self.run_passes(&plan);
                    let now_ns = self.shared.now_ns();
                    let routes = &mut self.routes;
                    let deliver = &mut |id, event| routes.deliver(id, event);
                    let outcome = outcome.and_then(|()| {
                        let runner = &mut *self.runner;
                        let verified = if plan.verify.is_some() { runner.logits(Pass::Verify) } else { &[] };
                        let forward = if plan.n_rows > 0 { runner.logits(Pass::Forward) } else { &[] };
                        self.state.advance(now_ns, plan, Logits { forward, verify: verified }, deliver);
                        let Some(replay) = self.state.replay_step() else { return Ok(()) };
                        let replayed = runner.run(Pass::Replay, replay.bytes(), 0);
                        self.state.replayed(self.shared.now_ns());
                        replayed
                    });
                    if let Err(message) = outcome {
                        self.state.fail_all(&message, deliver);
                        // States that were to be replayed may be stored already.
                        self.state.flush_cache().expect("nothing runs after everything failed");
                        self.runner.status()?;
                    }
                    self.shared.step_began_ns.store(0, Ordering::Release);
                    self.budget.observe(decode, prefill, now_ns - began_ns);
                    self.state.set_step_tokens(self.budget.tokens(decode));
                    self.shared.trace().ended(sequence, self.shared.now_ns());
                    self.reporter.step(decode, now_ns - began_ns);
                    self.publish();
                }
                None => {
                    self.publish();
                    self.shared.inbox.wait();
                }
            }
        }
    }

    fn run_passes(&mut self, plan: &Plan) -> Result<(), String> {
        if plan.n_rows > 0 {
            self.runner.run(Pass::Forward, self.step.bytes(), plan.n_logit_rows)?;
        }
        match plan.verify {
            Some(n_logit_rows) => self.runner.run(Pass::Verify, self.state.verify_step().bytes(), n_logit_rows),
            None => Ok(()),
        }
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
                let answer = self.state.flush_cache().map(drop).map_err(|e| e.to_string());
                // The asker may have given up; then nobody is told.
                let _ = reply.send(answer);
            }
            Command::Stop => return true,
        }
        false
    }

    fn publish(&mut self) {
        let ended = std::mem::take(&mut self.routes.ended);
        self.shared.outstanding.fetch_sub(ended, Ordering::AcqRel);
        let metrics = self.state.metrics();
        self.reporter.report(&self.state, &metrics, &self.budget, &self.shared);
        *self.shared.metrics.lock().unwrap_or_else(PoisonError::into_inner) = metrics;
    }
}
