//! The engine thread's loop.

#[cfg(test)]
mod tests;
mod warm_up;

use std::{
    collections::{HashMap, VecDeque},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, PoisonError, atomic::Ordering, mpsc::SyncSender},
};

use super::{
    DriverConfig, Shared, StepRunner,
    budget::StepBudget,
    device::{DeviceThread, Failure, Turn},
    forecast::Forecast,
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
    config: &DriverConfig,
    ready: &SyncSender<()>,
) {
    let mut idle = vec![Turn::new(&state), Turn::new(&state)];
    idle[0].runner = Some(runner);
    let clock = Arc::clone(&shared);
    let mut engine = EngineThread {
        idle,
        device: DeviceThread::start(move || clock.now_ns()),
        flying: VecDeque::with_capacity(2),
        free_ns: 0,
        overlap: config.overlap,
        budget: StepBudget::new(config.step_time_target_ms),
        reporter: Reporter::new(shared.gate().is_on()),
        routes: Routes::default(),
        masks: MaskThreads::new(),
        shared: Arc::clone(&shared),
        state,
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        engine.ask()?;
        if config.warm_up {
            engine.warm_up()?;
        }
        // Nobody waits who has given up.
        let _ = ready.send(());
        engine.run()
    }));
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
    /// Turns that are not under way, one of them with the device unless that is away with another or stayed on its thread.
    #[expect(clippy::vec_box, reason = "they go through queues as they are, without moving their buffers")]
    idle: Vec<Box<Turn>>,
    device: DeviceThread,
    /// Steps under way, in order: the one in flight, and the one behind it.
    flying: VecDeque<Plan>,
    /// Since when the engine has been at its next step: the end of the one before, or of a rest. What a step took is counted from
    /// here until it was taken in, because a client waits for all of that: admission, planning, the device, sampling on the host,
    /// replay and guesses.
    free_ns: u64,
    overlap: bool,
    budget: StepBudget,
    reporter: Reporter,
    routes: Routes,
    masks: MaskThreads,
}

impl EngineThread {
    /// Begin with what the device expects its steps to cost, if it says so.
    fn ask(&mut self) -> Result<(), String> {
        let runner = self.idle.iter().find_map(|turn| turn.runner.as_deref()).expect("nothing is under way");
        if let Some(forecast) = Forecast::ask(self.state.config(), runner)? {
            self.state.expect_costs(&forecast.widths_ns);
            self.budget.expect(forecast.cost);
        }
        Ok(())
    }

    /// Until told to stop (`Ok`) or the device is lost (`Err`).
    fn run(&mut self) -> Result<(), String> {
        self.free_ns = self.shared.now_ns();
        loop {
            while let Some(command) = self.shared.inbox.pop() {
                if self.obey(command) {
                    self.let_land();
                    let routes = &mut self.routes;
                    self.state.fail_all("the engine is shutting down", &mut |id, event| routes.deliver(id, event));
                    return Ok(());
                }
            }
            if self.flying.is_empty() && !self.begin() {
                // Whoever waited for a copy may run now.
                if !self.copy() {
                    self.publish();
                    self.shared.inbox.wait();
                }
                self.free_ns = self.shared.now_ns();
                continue;
            }
            let masks = &mut self.masks;
            self.state.lend_masks(&mut |job| masks.begin(job));
            if self.overlap && !self.follow() {
                self.state.plan_ahead();
            }
            let state = &mut self.state;
            self.masks.finish(&mut |job| state.return_masks(job));
            self.end()?;
            self.publish();
        }
    }

    /// Plan a step and give it to the device. False if there was nothing to run.
    fn begin(&mut self) -> bool {
        let began_ns = self.shared.now_ns();
        let mut turn = self.idle.pop().expect("nothing is under way");
        let plan = self.state.plan(began_ns, &mut turn.step);
        self.idle.push(turn);
        let Some(plan) = plan else { return false };
        let turn = self.idle.pop().expect("put there above");
        self.launch(turn, plan, began_ns, false);
        true
    }

    /// Give the device the step behind the one in flight, if that can be planned already.
    fn follow(&mut self) -> bool {
        let Some(mut turn) = self.idle.pop() else { return false };
        let began_ns = self.shared.now_ns();
        let plan = self.state.plan_behind(began_ns, &mut turn.step);
        match plan {
            Some(plan) => self.launch(turn, plan, began_ns, true),
            None => {
                self.idle.push(turn);
                return false;
            }
        }
        true
    }

    fn launch(&mut self, mut turn: Box<Turn>, plan: Plan, began_ns: u64, is_behind: bool) {
        self.shared.steps.planned(self.state.decisions());
        if !is_behind {
            self.shared.step_began_ns.store(began_ns.max(1), Ordering::Release);
        }
        self.bring_device(&mut turn);
        turn.set_plan(&plan, &self.state, is_behind);
        self.give_copies(&mut turn);
        self.flying.push_back(plan);
        self.device.launch(turn);
    }

    /// Let the device go with a turn, if it is here.
    fn bring_device(&mut self, turn: &mut Turn) {
        if let Some(other) = self.idle.iter_mut().find(|other| other.runner.is_some()) {
            turn.runner = other.runner.take();
        }
    }

    /// Let the copies ordered so far go with a turn. They are few per plan while requests run, so that a step is not long in
    /// coming.
    fn give_copies(&mut self, turn: &mut Turn) {
        turn.copies.extend(std::iter::from_fn(|| self.state.next_copy()).map(|order| (order, false)));
    }

    /// A turn is back: tell how its copies ended. Those of a turn that was not run were not carried out.
    fn take_copies(&mut self, turn: &mut Turn) {
        for (order, is_ok) in turn.copies.drain(..) {
            self.state.copied(order.id, is_ok);
        }
    }

    /// Carry out the copies ordered so far in a turn of their own, with nothing under way; true if there were any.
    fn copy(&mut self) -> bool {
        let mut turn = self.idle.pop().expect("nothing is under way");
        turn.set_copies_only();
        self.give_copies(&mut turn);
        let any = !turn.copies.is_empty();
        if any {
            self.bring_device(&mut turn);
            self.device.launch(turn);
            turn = self.device.wait();
            assert_eq!(turn.outcome, Ok(()), "copies that fail are no failure of the turn");
            self.take_copies(&mut turn);
        }
        self.idle.push(turn);
        any
    }

    /// Wait for what is under way, and forget it.
    fn let_land(&mut self) {
        while self.flying.pop_front().is_some() {
            let mut turn = self.device.wait();
            self.take_copies(&mut turn);
            self.idle.push(turn);
        }
    }

    /// Wait for the step in flight and take it in.
    fn end(&mut self) -> Result<(), String> {
        let plan = self.flying.pop_front().expect("a step is in flight");
        let (decode, prefill) = (plan.n_decode_tokens, plan.n_tokens - plan.n_decode_tokens);
        let sequence = plan.sequence;
        let mut turn = self.device.wait();
        self.take_copies(&mut turn);
        if plan.samples_later && turn.outcome.is_ok() {
            turn.set_sampling(&plan, &mut self.state);
            self.device.launch(turn);
            turn = self.device.wait();
        }
        let now_ns = turn.ended_ns;
        let mut turn = match &turn.outcome {
            Ok(()) => self.take_in(now_ns, plan, turn),
            Err(_) => turn,
        };
        let (outcome, status) = (std::mem::replace(&mut turn.outcome, Ok(())), turn.status.clone());
        self.idle.push(turn);
        let is_ok = outcome.is_ok();
        match outcome {
            Ok(()) => {}
            Err(Failure::Refused(message)) => {
                self.let_land();
                let routes = &mut self.routes;
                self.state.fail_all(&message, &mut |id, event| routes.deliver(id, event));
                // What was planned ahead may have ordered copies; whatever they are of is forgotten next.
                while let Some(order) = self.state.next_copy() {
                    self.state.copied(order.id, false);
                }
                // States that were to be replayed may be stored already.
                self.state.flush_cache().expect("nothing runs after everything failed");
                status?;
            }
            Err(Failure::Panicked(text)) => return Err(format!("the device thread panicked: {text}")),
            Err(Failure::NotRun) => unreachable!("the step before it was waited for, and let this one land"),
        }
        let next_began_ns = if self.flying.is_empty() { 0 } else { now_ns.max(1) };
        self.shared.step_began_ns.store(next_began_ns, Ordering::Release);
        let free_ns = self.shared.now_ns();
        let took_ns = free_ns - std::mem::replace(&mut self.free_ns, free_ns);
        self.budget.observe(decode, prefill, took_ns);
        // Of the step just taken in, some may have ended: nobody is protected who is gone.
        self.state.set_step_tokens(self.budget.tokens(self.state.n_decoding()));
        if is_ok {
            self.shared.steps.ended(sequence, free_ns);
        }
        self.reporter.step(decode, took_ns);
        Ok(())
    }

    /// Take in a step that has run, replay what it proved right, and let the draft model guess on.
    fn take_in(&mut self, now_ns: u64, plan: Plan, mut turn: Box<Turn>) -> Box<Turn> {
        let routes = &mut self.routes;
        let deliver = &mut |id, event| routes.deliver(id, event);
        if plan.is_sampled {
            self.state.advance_sampled(now_ns, plan, turn.sampled(), deliver);
        } else {
            let runner = turn.runner();
            let verify = if plan.verify.is_some() { runner.logits(Pass::Verify) } else { &[] };
            let forward = if plan.n_rows > 0 { runner.logits(Pass::Forward) } else { &[] };
            self.state.advance(now_ns, plan, Logits { forward, verify }, deliver);
        }
        if let Some(replay) = self.state.replay_step() {
            turn.set_pass(Pass::Replay, replay, 0);
            self.device.launch(turn);
            turn = self.device.wait();
            self.state.replayed(self.shared.now_ns());
        }
        // Guesses for the next turn.
        while turn.outcome.is_ok()
            && let Some(draft) = self.state.draft_step(self.shared.now_ns())
        {
            let pass = draft.pass;
            turn.set_pass(pass, draft.step, draft.n_logit_rows);
            self.device.launch(turn);
            turn = self.device.wait();
            if turn.outcome.is_ok() {
                self.state.drafted(self.shared.now_ns(), turn.runner().logits(pass));
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
                if self.flying.is_empty() {
                    self.copy();
                }
                let answer = self.state.flush_cache().map(drop).map_err(|e| e.to_string());
                // Whoever asked may look at the figures next.
                self.publish();
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
