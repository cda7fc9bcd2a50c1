//! Two steps on the device: the one in flight, and the one behind it, which takes the tokens that the first samples from its
//! relay slots.
//!
//! A turn of a caller with such a device:
//!
//! ```text
//! plan n ── run n ── plan_behind n+1 ── run n+1 (queued) ── wait for n ── advance_sampled n ── plan_behind n+2 ── ...
//! ```
//!
//! so the device always has its next step before it has ended one, and the host's work (taking in, delivering, planning,
//! writing the block) is hidden behind the device's. What makes this exact:
//!
//! * A step with guesses is sampled on the device like any other, but nothing is planned behind it: what is right among its
//!   guesses decides the next step. Nor is a step that may have guesses: which ones is known when its tokens are. Whether it may
//!   is decided while the step before it runs; so where guesses do not pay, an engine that speculates has two steps on
//!   the device as any other.
//! * A row is relayed only if nothing but its token's id is unknown, and the device can choose that id as the host would
//!   ([`HostOnly`] has what it cannot). Penalties do not keep it from that, because the device counts what it samples; `bad_words` of
//!   several ids do: whether one of them is about to be completed follows from the newest token, so the next step is planned
//!   when that is known, and sampled on the device all the same. If one row of a step needs the host, its logits come back as ever, and the step behind is
//!   planned when they have been taken in: leaving such rows out would halve their speed.
//! * Whoever ends in the first step is in the second for nothing. Its caller hears the end at once; pages, state slots and table
//!   row stay held, as [`Running::Leaving`](crate::scheduler::queue::Running), until the second step has been taken in, and its
//!   row's result is never looked at. The length limit is known ahead and wastes nothing.
//! * After `advance` of the first, the second is the step in flight, exactly as if it had been planned then.
//!
//! At most two: a third step would plan with what nobody has seen end twice, to hide nothing more. Rejected: a second copy of
//! each request's progress for the second step; what differs is a share of tokens and a row number
//! ([`Behind`](crate::scheduler::sequence::Behind)).

use super::*;
use crate::scheduler::outlook::Outlook;

/// Whether a request has a row behind the step in flight whose mask depends on what is sampled there.
fn follows_text(running: &Running) -> bool {
    let (body, active) = running.parts();
    body.side.follows_text && active.planned > 0 && Outlook::of(running).generates()
}

impl EngineState {
    /// Plan the step behind the one in flight and write its parameter block, to be run before the one in flight has been taken
    /// in. `None` if it has to wait for that: the device does not sample the step in flight, somebody lacks pages, or may
    /// guess, or there is such a step already. [`EngineState::plan_ahead`] may then do what can be done now.
    pub fn plan_behind(&mut self, now_ns: u64, step: &mut StepBuffer) -> Option<Plan> {
        let in_flight = self.in_flight.as_ref()?;
        let can = in_flight.is_sampled
            && !in_flight.samples_later
            && self.behind.is_none()
            && self.scheduler.can_plan_behind(&self.queues, &self.memory);
        if !can || self.queues.iter_running().any(follows_text) || self.may_guess() {
            return None;
        }
        // Where steps run behind each other for long, no other plan would.
        self.memory.order_stores(STORES_BESIDE_STEPS);
        if !self.scheduler.plan_behind(now_ns, &mut self.queues, &mut self.memory) {
            return None;
        }
        self.side.begin(sides(&self.queues));
        let mut plan = self.parts.collect_behind(&mut self.queues, &mut self.side);
        if self.parts.host_only.is_some() {
            self.side.leave_to_host();
        }
        self.sequence += 1;
        plan.sequence = self.sequence;
        self.scheduler.decisions.sequence = self.sequence;
        self.parts.write(step, self.sequence, &self.scheduler.deltas, !plan.samples_later);
        self.scheduler.deltas.clear();
        self.behind = Some(InFlight::new(&plan, 0, now_ns));
        self.counters.relayed_steps += 1;
        self.count_sampling();
        Some(plan)
    }

    /// Take what the device sampled in a step whose plan says so, and deliver what follows from it. Then run
    /// [`EngineState::replay_step`].
    ///
    /// # Panics
    /// If `plan` is not the step in flight, the device did not sample it, or `sampled` has another size.
    pub fn advance_sampled<'s>(
        &mut self,
        now_ns: u64,
        plan: Plan,
        sampled: impl Into<SampledPasses<'s>>,
        deliver: &mut Deliver<'_>,
    ) {
        let sampled = sampled.into();
        let in_flight = self.land(&plan);
        assert!(in_flight.is_sampled, "the device has not sampled this step");
        let n_rows = [sampled.forward, sampled.verify].map(|pass| pass.n_rows());
        assert_eq!(n_rows, in_flight.n_logit_rows.map(|n| Some(n as usize)), "a result per row of logits");
        self.take_in(now_ns, in_flight, Results::Sampled(sampled), deliver);
    }

    /// The step in flight, which is that of `plan`, has run.
    pub(super) fn land(&mut self, plan: &Plan) -> InFlight {
        let in_flight = self.in_flight.take().expect("a step is in flight");
        assert_eq!(plan.sequence, in_flight.sequence, "steps are taken in as they were planned");
        in_flight
    }

    /// A step has been planned: note who samples it, and why.
    pub(super) fn count_sampling(&mut self) {
        let reason = if self.config.relay { self.parts.host_only } else { Some(HostOnly::Device) };
        if let Some(reason) = reason {
            self.counters.host_steps[reason.index()] += 1;
        }
    }
}
