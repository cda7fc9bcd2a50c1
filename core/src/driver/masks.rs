//! Threads that fill masks while the device runs the step.
//!
//! They start with the first constrained request: a server without any has none. Having planned ahead, the engine thread
//! takes over what nobody has begun and waits only for what is being done, so a step never costs more than without
//! helpers. Queues keep their room; handing over a job moves a pointer. Rejected: a thread per step (20 µs each), and
//! the device's own worker threads, which are busy with the very step that is to be overlapped.

use super::{queue::Items, workers::Workers};
use crate::{
    bug::seeded,
    grammar::MaskJob,
    monitor::{Monitor, StdMonitor},
};

/// Something to be done once, on any thread.
pub(super) trait Job: Send + 'static {
    /// Do it. It does not panic.
    fn run(&mut self);
}

impl Job for MaskJob {
    fn run(&mut self) {
        Self::run(self);
    }
}

/// The threads and what they are to do.
pub(super) struct MaskThreads<J: Job = MaskJob, M: Monitor<Items<J>> = StdMonitor<Items<J>>> {
    workers: Workers<J, M>,
    /// How many to start.
    count: usize,
    /// Jobs begun and not handed back.
    n_lent: usize,
}

impl<J: Job, M: Monitor<Items<J>> + Send + Sync + 'static> MaskThreads<J, M> {
    /// None yet; a quarter of the cores later, at most 4.
    pub(super) fn new() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self::of((cores / 4).clamp(1, 4))
    }

    /// So many threads, later.
    pub(super) fn of(count: usize) -> Self {
        Self { workers: Workers::new(0), count, n_lent: 0 }
    }

    /// Begin a job in the background.
    pub(super) fn begin(&mut self, job: J) {
        if self.workers.n_threads() == 0 {
            // A machine that gives no thread does without: `finish` does the jobs.
            let start = |_| {
                let work = |mut job: J| {
                    job.run();
                    job
                };
                self.workers.start("masks", work).is_ok()
            };
            let _ = (0..self.count).all(start);
        }
        self.n_lent += 1;
        self.workers.give(job);
    }

    /// Hand every job back, done. The calling thread helps.
    pub(super) fn finish(&mut self, take: &mut dyn FnMut(J)) {
        while let Some(mut job) = self.workers.take_back() {
            job.run();
            take(job);
            self.n_lent -= 1;
        }
        let n_begun = std::mem::take(&mut self.n_lent);
        let n_begun = if seeded!(MaskBeingMadeIsNotWaitedFor) { 0 } else { n_begun };
        (0..n_begun).for_each(|_| take(self.workers.take()));
    }
}
