//! The draft's passes between two turns, as the driver runs them: until there is none, or one fails.

use tokenspeed_core::{driver::StepRunner, engine::inspect::Holder};

use super::{
    Simulation, held,
    passes::{FaultyPass, digest},
};
use crate::check::Failure;

/// A draft is worth running: its passes take less time than a token of a step.
const PASS_NS: u64 = 20;

impl Simulation<'_> {
    /// Guesses for the next turn.
    pub(super) fn draft(&mut self, fault: Option<FaultyPass>) -> Result<(), Failure> {
        if self.scenario.config.draft.is_none() {
            return Ok(());
        }
        loop {
            // Pages are taken for guesses, but not by anybody else.
            let holders: Vec<Holder> = self.engine.holders().collect();
            let cached_pages = self.engine.cached_pages().collect();
            let Some(draft) = self.engine.draft_step(self.now_ns) else { return Ok(()) };
            let fault_here = fault.filter(|fault| fault.pass == draft.pass).map(|fault| fault.what);
            let mut world = self.registered.world.lock();
            world.begin_draft(draft.pass, holders.iter().map(held).collect(), cached_pages, fault_here);
            drop(world);
            digest(&mut self.outcome, draft.step);
            let pass = draft.pass;
            let result = self.program.run(pass, draft.step.bytes(), draft.n_logit_rows);
            self.now_ns = self.now_ns.saturating_add(PASS_NS);
            self.seen(&result)?;
            match result {
                Ok(()) => self.engine.drafted(self.now_ns, self.program.logits(pass)),
                Err(message) => return self.fail_and_flush(fault, message),
            }
            self.outcome.tally.draft_passes += 1;
            self.conserve()?;
        }
    }
}
