//! Masks of constrained requests leave the engine while the device is busy, and come back.
//!
//! Purely a matter of when: `advance` computes what it needs and nobody has. An engine that plans ahead calls these after
//! it took in the step before, because a mask depends on the last token.

use super::EngineState;
use crate::{
    grammar::{Guide, MaskJob},
    scheduler::queue::Running,
};

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
}
