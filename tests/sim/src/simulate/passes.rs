//! The passes of a turn on the device, as the driver runs them: those that compute tokens, and once these are taken in, the
//! one that advances states over right guesses; those of a draft model are in [`super::drafting`].
//!
//! A pass more is a call of [`Simulation::pass`] in its place.

use std::collections::BTreeSet;

use tokenspeed_core::{
    driver::StepRunner,
    engine::{EngineConfig, EngineState, Logits, Pass, Plan, SamplingStep},
    request::RequestId,
    sampler::device::{Sampled, SampledPasses},
    step::StepBuffer,
};

use super::{Outcome, Simulation};
use crate::{
    check::{Check, Failure, ensure},
    world::StepFault,
};

/// What goes wrong in a turn, and in which of its passes.
#[derive(Clone, Copy, Debug)]
pub(super) struct FaultyPass {
    pub what: StepFault,
    /// If it runs; else the first that computes tokens.
    pub pass: Pass,
}

impl FaultyPass {
    /// The fault of `pass` in the turn of `plan`.
    fn of(fault: Option<Self>, pass: Pass, plan: &Plan, config: &EngineConfig) -> Option<StepFault> {
        let fault = fault?;
        let first = if plan.n_rows > 0 { Pass::Forward } else { Pass::Verify };
        let at = match fault.pass {
            Pass::Verify if plan.verify.is_some() => Pass::Verify,
            // Whether there is one shows when the turn has been taken in.
            Pass::Replay if config.verifies() || config.branch_rows() > 0 => Pass::Replay,
            Pass::DraftFirst | Pass::DraftNext if config.draft.is_some() => fault.pass,
            _ => first,
        };
        (at == pass).then_some(fault.what)
    }
}

/// Hash a parameter block.
pub(super) fn digest(outcome: &mut Outcome, step: &StepBuffer) {
    let digest = &mut outcome.digest;
    for word in step.bytes().chunks(8) {
        let word = word.iter().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
        *digest = (*digest ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
}

impl Simulation<'_> {
    /// Run the passes that compute tokens; the inner error is the device's.
    pub(super) fn compute(&mut self, plan: &Plan, fault: Option<FaultyPass>) -> Result<Result<(), String>, Failure> {
        let fault_of = |pass| FaultyPass::of(fault, pass, plan, &self.scenario.config);
        let mut result = Ok(());
        let samples = plan.is_sampled && !plan.samples_later;
        let side = self.engine.side_updates();
        if !side.is_empty() {
            let written = self.program.write_side(side);
            ensure(written.is_ok(), Check::Load, || format!("side tables were not written: {written:?}"))?;
        }
        if plan.n_rows > 0 {
            self.registered.world.lock().begin_pass(Pass::Forward, plan.verify.is_none(), fault_of(Pass::Forward));
            digest(&mut self.outcome, &self.step);
            result = match samples {
                true => self.program.run_sampled(Pass::Forward, self.step.bytes(), plan.n_logit_rows),
                false => self.program.run(Pass::Forward, self.step.bytes(), plan.n_logit_rows),
            };
            self.seen(&result)?;
        }
        if let (Ok(()), Some(n_logit_rows)) = (&result, plan.verify) {
            self.registered.world.lock().begin_pass(Pass::Verify, true, fault_of(Pass::Verify));
            let step = self.engine.verify_step();
            digest(&mut self.outcome, step);
            result = match samples {
                true => self.program.run_sampled(Pass::Verify, step.bytes(), n_logit_rows),
                false => self.program.run(Pass::Verify, step.bytes(), n_logit_rows),
            };
            self.seen(&result)?;
        }
        self.replay_fault = fault_of(Pass::Replay);
        Ok(result)
    }

    /// Sample the rows of a turn that waited for masks.
    pub(super) fn sample_masked(&mut self, plan: &Plan) -> Result<(), Failure> {
        let SamplingStep { side, forward, verify } = self.engine.sampling_step(plan);
        let written = if side.is_empty() { Ok(()) } else { self.program.write_side(side) };
        ensure(written.is_ok(), Check::Load, || format!("masks were not written: {written:?}"))?;
        let passes = [(Pass::Forward, forward, plan.n_logit_rows), (Pass::Verify, verify, plan.verify.unwrap_or(0))];
        let mut result = Ok(());
        for (pass, step, n_logit_rows) in passes {
            let Some(step) = step else { continue };
            digest(&mut self.outcome, step);
            self.registered.world.lock().begin_pass(pass, true, None);
            result = result.and_then(|()| self.program.sample(pass, step.bytes(), n_logit_rows));
        }
        self.seen(&result)
    }

    /// What the device found, if it found something.
    pub(super) fn seen(&self, result: &Result<(), String>) -> Result<(), Failure> {
        let mut world = self.registered.world.lock();
        if let Some(failure) = world.failure.take() {
            return Err(Failure { what: format!("tick {}: {}", self.tick, failure.what), ..failure });
        }
        let must_fail = matches!(world.fault, Some(StepFault::Fails | StepFault::Lost));
        ensure(result.is_err() == must_fail, Check::Load, || {
            format!("the pass with fault {:?} ended with {result:?}", world.fault)
        })
    }

    /// Take in what was computed.
    pub(super) fn take_in(&mut self, plan: Plan) {
        let (program, ears) = (&self.program, &mut self.ears);
        let deliver = &mut |id, event| ears.hear(id, event);
        let (forward, verify) = (plan.n_rows > 0, plan.verify.is_some());
        if plan.is_sampled {
            let of = |runs: bool, pass| if runs { program.sampled(pass) } else { Sampled::default() };
            let sampled = SampledPasses { forward: of(forward, Pass::Forward), verify: of(verify, Pass::Verify) };
            let accepted = |engine: &EngineState| engine.metrics().accepted.iter().sum::<u64>();
            let before = accepted(&self.engine);
            self.engine.advance_sampled(self.now_ns, plan, sampled, deliver);
            self.outcome.tally.accepted_on_device += accepted(&self.engine) - before;
            return;
        }
        let of = |runs: bool, pass| if runs { program.logits(pass) } else { &[] };
        let logits = Logits { forward: of(forward, Pass::Forward), verify: of(verify, Pass::Verify) };
        self.engine.advance(self.now_ns, plan, logits, deliver);
    }

    /// Replay what the turn just taken in wants replayed. If that fails, stored states are in doubt and the cache is flushed; false.
    pub(super) fn replay(&mut self, fault: Option<FaultyPass>) -> Result<bool, Failure> {
        let Some(step) = self.engine.replay_step() else { return Ok(true) };
        let asked = &self.ears.asked;
        let unheard = |id: &&RequestId| asked[*id].is_over && !asked[*id].is_whole;
        let mut world = self.registered.world.lock();
        let unheard: BTreeSet<RequestId> = world.verified.keys().map(|(id, _)| id).filter(unheard).copied().collect();
        world.begin_replay(unheard, self.replay_fault.take());
        drop(world);
        digest(&mut self.outcome, step);
        let result = self.program.run(Pass::Replay, step.bytes(), 0);
        self.now_ns = self.now_ns.saturating_add(500);
        self.engine.replayed(self.now_ns);
        self.seen(&result)?;
        let Err(message) = result else { return Ok(true) };
        self.fail_and_flush(fault, message)?;
        Ok(false)
    }
}
