//! The last steps, for readers on other threads.
//!
//! The engine's thread waits for the readers' lock, so they hold it for a few steps at a time and come again, by the number of
//! the last step they saw: what was displaced between is a gap in the numbers, nothing comes twice.

use crate::{
    bug::seeded,
    monitor::{Monitor, StdMonitor},
    scheduler::{
        decision::Decisions,
        trace::{StepRecord, StepTrace},
    },
};

/// Steps copied at once.
pub(super) const AT_ONCE: usize = 32;

/// Shared by the engine thread and the readers.
pub(super) struct Steps<M = StdMonitor<StepTrace>>(M);

impl<M: Monitor<StepTrace>> Steps<M> {
    pub(super) fn new(trace: StepTrace) -> Self {
        Self(M::new(trace))
    }

    /// A step has been planned.
    pub(super) fn planned(&self, step: &Decisions) {
        self.0.with(|trace| trace.planned(step));
    }

    /// Its results have been taken in.
    pub(super) fn ended(&self, sequence: u64, now_ns: u64) {
        self.0.with(|trace| trace.ended(sequence, now_ns));
    }

    /// The steps so far were nobody's.
    pub(super) fn forget(&self) {
        let nothing = StepTrace::default();
        drop(self.0.with(|trace| std::mem::replace(trace, nothing)));
    }

    /// Up to `most` steps with numbers above `after`, oldest first, copied so many at once.
    pub(super) fn copy(&self, mut after: u64, most: usize, at_once: usize) -> Vec<StepRecord> {
        let mut steps = Vec::new();
        while steps.len() < most {
            let before = steps.len();
            self.0.with(|trace| trace.copy(after, at_once.min(most - before), &mut steps));
            match steps.last() {
                Some(_) if steps.len() > before && seeded!(StepsAreCountedNotNumbered) => {
                    after += (steps.len() - before) as u64;
                }
                Some(last) if steps.len() > before => after = last.decisions.sequence,
                _ => break,
            }
        }
        steps
    }

    /// The last `n` steps, oldest first.
    pub(super) fn copy_last(&self, n: usize, at_once: usize) -> Vec<StepRecord> {
        let before = self.0.with(|trace| trace.before_last(n));
        self.copy(before, n, at_once)
    }
}
