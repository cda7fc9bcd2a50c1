//! The persistent thread pool: one parallel region per program run.
//!
//! `run` executes a closure on every worker, the caller being worker 0. Workers wait for the next region by spinning
//! briefly (steps follow each other closely while requests run) and then parking, so that an idle server costs nothing.
//!
//! Rejected: rayon. Its work stealing has no fixed worker identity, and a fork-join per op costs more than a decode op.

use crate::{barrier::Barrier, part::Part, scratch::Scratch};
use std::{
    cell::UnsafeCell,
    hint::spin_loop,
    io,
    marker::PhantomData,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread::{self, JoinHandle, yield_now},
};

/// Spins of an idle worker before it parks: about a quarter millisecond.
const IDLE_SPINS: u32 = 20_000;

/// The region being run, type-erased. The pointer lives as long as the `run` call that published it.
type Job = *const (dyn Fn(&mut Worker<'_>) + Sync);

struct Shared {
    /// Grows by one per region; workers wait for it to change.
    epoch: AtomicU32,
    /// Workers still inside the region.
    running: AtomicU32,
    stop: AtomicBool,
    panicked: AtomicBool,
    job: UnsafeCell<Option<Job>>,
    barrier: Barrier,
    asleep: Vec<AtomicBool>,
    scratch: Vec<UnsafeCell<Scratch>>,
}

// SAFETY: `job` is written by the owner only while no worker is inside a region, and published by `epoch`; the closure
// behind it is Sync. Scratch `i` is touched by worker `i` inside a region and by the owner (`&mut Pool`) outside.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

/// A fixed set of threads. Dropping it joins them.
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("workers", &self.workers()).finish()
    }
}

/// One worker inside a region.
#[derive(Debug)]
pub struct Worker<'a> {
    part: Part,
    barrier: &'a Barrier,
    scratch: &'a mut Scratch,
    not_send: PhantomData<*mut ()>,
}

impl Worker<'_> {
    /// Which share of each op is this worker's.
    pub fn part(&self) -> Part {
        self.part
    }

    /// Wait until every worker is here.
    pub fn barrier(&self) {
        self.barrier.wait();
    }

    /// This worker's scratch memory.
    pub fn scratch(&mut self) -> &mut Scratch {
        self.scratch
    }
}

impl Pool {
    /// `workers` ≥ 1 threads, the caller of [`Pool::run`] included. Fails if the system refuses a thread.
    pub fn new(workers: usize) -> io::Result<Self> {
        let workers = workers.max(1);
        let shared = Arc::new(Shared {
            epoch: AtomicU32::new(0),
            running: AtomicU32::new(0),
            stop: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
            job: UnsafeCell::new(None),
            barrier: Barrier::new(workers),
            asleep: (0..workers).map(|_| AtomicBool::new(false)).collect(),
            scratch: (0..workers).map(|_| UnsafeCell::new(Scratch::new(0))).collect(),
        });
        let mut pool = Self { shared, threads: Vec::new() };
        for index in 1..workers {
            let shared = pool.shared.clone();
            let body = move || worker_loop(&shared, Part { index, count: workers });
            pool.threads.push(thread::Builder::new().name(format!("cpu-worker-{index}")).spawn(body)?);
        }
        Ok(pool)
    }

    /// Number of workers.
    pub fn workers(&self) -> usize {
        self.shared.scratch.len()
    }

    /// Give every worker at least `bytes` of scratch. Call before the first step; later calls allocate only to grow.
    pub fn reserve_scratch(&mut self, bytes: usize) {
        for cell in &self.shared.scratch {
            // SAFETY: `&mut self` means no region runs.
            unsafe { (*cell.get()).reserve(bytes) };
        }
    }

    /// Run `job` on every worker and return when all are done.
    ///
    /// # Panics
    /// If `job` panicked on any worker.
    pub fn run(&mut self, job: impl Fn(&mut Worker<'_>) + Sync) {
        let shared = &*self.shared;
        let job: &(dyn Fn(&mut Worker<'_>) + Sync) = &job;
        // SAFETY: only the lifetime is erased; this call does not return before every worker left the closure.
        let erased: Job = unsafe { std::mem::transmute::<&(dyn Fn(&mut Worker<'_>) + Sync), Job>(job) };
        // SAFETY: no worker is inside a region (`running` is 0), so nobody reads the cell.
        unsafe { *shared.job.get() = Some(erased) };
        shared.running.store(self.threads.len() as u32, Ordering::Relaxed);
        shared.epoch.fetch_add(1, Ordering::SeqCst);
        for (thread, asleep) in self.threads.iter().zip(&shared.asleep[1..]) {
            if asleep.load(Ordering::SeqCst) {
                thread.thread().unpark();
            }
        }
        let mine = catch_unwind(AssertUnwindSafe(|| enter(shared, Part { index: 0, count: self.workers() }, job)));
        if mine.is_err() {
            shared.barrier.poison();
        }
        let mut spins = 0u32;
        while shared.running.load(Ordering::Acquire) != 0 {
            spins += 1;
            if spins < IDLE_SPINS { spin_loop() } else { yield_now() }
        }
        // SAFETY: every worker has left the region.
        unsafe { *shared.job.get() = None };
        shared.barrier.reset();
        let others = shared.panicked.swap(false, Ordering::Relaxed);
        match mine {
            Err(panic) => resume_unwind(panic),
            Ok(()) => assert!(!others, "a CPU worker panicked; its message stands above"),
        }
    }
}

fn enter(shared: &Shared, part: Part, job: &(dyn Fn(&mut Worker<'_>) + Sync)) {
    // SAFETY: scratch `index` belongs to this worker while it is inside the region.
    let scratch = unsafe { &mut *shared.scratch[part.index].get() };
    job(&mut Worker { part, barrier: &shared.barrier, scratch, not_send: PhantomData });
}

fn worker_loop(shared: &Shared, part: Part) {
    let mut seen = 0;
    loop {
        let mut spins = 0;
        while shared.epoch.load(Ordering::Acquire) == seen {
            if spins < IDLE_SPINS {
                spins += 1;
                spin_loop();
                continue;
            }
            // Announce, look again, then park: the owner either sees the flag or we see the new epoch.
            shared.asleep[part.index].store(true, Ordering::SeqCst);
            if shared.epoch.load(Ordering::SeqCst) == seen {
                thread::park();
            }
            shared.asleep[part.index].store(false, Ordering::SeqCst);
        }
        seen = shared.epoch.load(Ordering::Acquire);
        if shared.stop.load(Ordering::Acquire) {
            return;
        }
        // SAFETY: the epoch changed, so the owner published a job and waits for `running` to reach 0.
        let job = unsafe { (*shared.job.get()).map(|job| &*job) };
        if let Some(job) = job
            && catch_unwind(AssertUnwindSafe(|| enter(shared, part, job))).is_err()
        {
            shared.panicked.store(true, Ordering::Relaxed);
            shared.barrier.poison();
        }
        shared.running.fetch_sub(1, Ordering::Release);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.epoch.fetch_add(1, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            // A worker never ends by panic: panics of jobs are caught inside its loop.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn every_worker_runs_every_region_and_barriers_order_phases() {
        let mut pool = Pool::new(3).unwrap();
        let phases: Vec<AtomicUsize> = (0..50).map(|_| AtomicUsize::new(0)).collect();
        for round in 1..=20 {
            pool.run(|w| {
                for (i, phase) in phases.iter().enumerate() {
                    if i > 0 {
                        assert_eq!(phases[i - 1].load(Ordering::Relaxed), 3 * round);
                    }
                    phase.fetch_add(1, Ordering::Relaxed);
                    w.barrier();
                }
            });
        }
    }

    #[test]
    fn a_panic_on_any_worker_reaches_the_caller_and_the_pool_lives_on() {
        let mut pool = Pool::new(2).unwrap();
        for bad in 0..2 {
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.run(|w| {
                    assert_ne!(w.part().index, bad, "on purpose");
                    w.barrier();
                })
            }));
            assert!(result.is_err());
            let count = AtomicUsize::new(0);
            pool.run(|w| {
                w.barrier();
                count.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(count.into_inner(), 2);
        }
    }

    #[test]
    fn a_parked_worker_wakes_up() {
        let mut pool = Pool::new(2).unwrap();
        pool.reserve_scratch(128);
        let count = AtomicUsize::new(0);
        for _ in 0..3 {
            thread::sleep(std::time::Duration::from_millis(20));
            pool.run(|w| {
                assert_eq!(w.scratch().bytes(), 128);
                count.fetch_add(1, Ordering::Relaxed);
            });
        }
        assert_eq!(count.into_inner(), 6);
    }
}
