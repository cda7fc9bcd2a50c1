//! Masks of constrained requests leave the engine while the device is busy, and come back.
//!
//! Purely a matter of when: `advance` computes what it needs and nobody has. An engine that plans ahead calls these after
//! it took in the step before, because a mask depends on the last token.
//!
//! Where the device samples, masks are rows of its side tables. A step with constrained rows is run in two parts, so that making
//! masks stays hidden behind it: the passes, whose blocks have no records, and, when the masks are back, [`EngineState::sampling_step`],
//! the same blocks with records for programs that have nothing but the op `sample`. Between the two the logits stay where they are.
//! Nothing is planned behind such a step. Rejected: masks made before the step is run, which adds their whole cost to it; and
//! records in the first part, which would count tokens that nobody drew.

use super::{EngineState, Plan};
use crate::{
    grammar::{Guide, MaskJob},
    sampler::side::{SideText, SideUpdates},
    scheduler::queue::Running,
    step::StepBuffer,
};

/// What is left to do of a step that waited for masks.
#[derive(Clone, Copy, Debug)]
pub struct SamplingStep<'a> {
    /// To be written to side tables first.
    pub side: &'a SideUpdates,
    /// Block of the forward pass, if that ran.
    pub forward: Option<&'a StepBuffer>,
    /// Block of the verify pass, if that ran.
    pub verify: Option<&'a StepBuffer>,
}

impl EngineState {
    /// Take out the masks of the planned step, one job per constrained request with a row to sample. Run them anywhere,
    /// then give each back with [`EngineState::return_masks`] before `advance` or `fail_all`.
    pub fn lend_masks(&mut self, take: &mut dyn FnMut(MaskJob)) {
        for running in self.queues.running.iter_mut().flatten() {
            if matches!(running, Running::Leaving(_)) {
                continue;
            }
            let (body, active) = running.parts_mut();
            if active.planned == 0 || active.computed + active.planned < body.len() || body.len() >= body.max_len {
                continue;
            }
            match std::mem::take(&mut body.guide) {
                Guide::Here(guard) => {
                    body.guide = Guide::Lent;
                    take(MaskJob { id: body.id, guard });
                }
                other => body.guide = other,
            }
        }
    }

    /// Give back a job. The request may have been aborted in the meantime.
    pub fn return_masks(&mut self, job: MaskJob) {
        let Some(at) = self.queues.position_running(job.id) else { return };
        if let Some(running) = &mut self.queues.running[at] {
            running.parts_mut().0.guide = Guide::Here(job.guard);
        }
    }

    /// What is left to do of the step in flight, whose passes may still run: its masks are back, or are made now.
    ///
    /// # Panics
    /// If `plan` is not the step in flight, or does not wait for masks.
    pub fn sampling_step(&mut self, plan: &Plan) -> SamplingStep<'_> {
        let in_flight = self.in_flight.as_ref().expect("a step is in flight");
        assert!(in_flight.sequence == plan.sequence && in_flight.samples_later, "the step in flight waits for masks");
        self.side.begin_masks();
        let verify = self.verify.as_ref().filter(|_| plan.verify.is_some()).map(|(parts, _)| parts);
        let forward = (plan.n_rows > 0).then_some(&self.parts);
        for guided in [forward, verify].into_iter().flatten().flat_map(|parts| parts.guided()) {
            let at = self.queues.position_running(guided.id).expect("a request in flight stays");
            let (body, _) = self.queues.running[at].as_mut().expect("no request is changing state").parts_mut();
            let text = SideText {
                id: body.id,
                params: &body.sampling,
                history: &body.history,
                tokens: &body.tokens,
                prompt_tokens: body.prompt_tokens,
                len: body.tokens.len() as u32,
            };
            let guesses = &body.drafts.ids[..guided.n as usize];
            // A row without a mask counts for nothing: `advance` says why.
            let mask = body.guide.guard().and_then(|guard| guard.ready(guided.n));
            self.side.guide(guided.handle, &text, guesses, mask);
        }
        let [first, second] = &mut self.sampling;
        for (parts, step) in [(forward, first), (verify, second)] {
            if let (Some(parts), Some(step)) = (parts, step) {
                parts.write(step, plan.sequence, &[], true);
            }
        }
        let [first, second] = &self.sampling;
        SamplingStep {
            side: self.side.updates(),
            forward: first.as_ref().filter(|_| plan.n_rows > 0),
            verify: second.as_ref().filter(|_| plan.verify.is_some()),
        }
    }
}
