//! Threads that fill masks while the device runs the step.
//!
//! They start with the first constrained request: a server without any has none. Having planned ahead, the engine thread
//! takes over what nobody has begun and waits only for what is being done, so a step never costs more than without
//! helpers. Queues keep their room; handing over a job moves a pointer. Rejected: a thread per step (20 µs each), and
//! the device's own worker threads, which are busy with the very step that is to be overlapped.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
};

use crate::grammar::MaskJob;

#[derive(Default)]
struct Queue {
    todo: VecDeque<MaskJob>,
    done: Vec<MaskJob>,
    /// Jobs being run.
    n_running: usize,
    is_closed: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// Something to do, or the end.
    filled: Condvar,
    /// A job is done.
    finished: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // A job never panics, and nothing else is done while the lock is held.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut queue = self.lock();
        loop {
            let Some(mut job) = queue.todo.pop_front() else {
                if queue.is_closed {
                    return;
                }
                queue = self.filled.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            queue.n_running += 1;
            drop(queue);
            job.run();
            queue = self.lock();
            queue.n_running -= 1;
            queue.done.push(job);
            self.finished.notify_one();
        }
    }
}

/// The threads and what they are to do.
pub(super) struct MaskThreads {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// How many to start.
    count: usize,
}

impl MaskThreads {
    /// None yet; a quarter of the cores later, at most 4.
    pub(super) fn new() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self { shared: Arc::default(), threads: Vec::new(), count: (cores / 4).clamp(1, 4) }
    }

    /// Begin a job in the background.
    pub(super) fn begin(&mut self, job: MaskJob) {
        if self.threads.is_empty() {
            // A machine that gives no thread does without: `finish` does the jobs.
            self.threads.extend((0..self.count).filter_map(|_| {
                let shared = Arc::clone(&self.shared);
                std::thread::Builder::new().name("masks".into()).spawn(move || shared.work()).ok()
            }));
        }
        self.shared.lock().todo.push_back(job);
        self.shared.filled.notify_one();
    }

    /// Hand every job back, done. The calling thread helps.
    pub(super) fn finish(&mut self, take: &mut dyn FnMut(MaskJob)) {
        if self.threads.is_empty() {
            // Nothing was ever begun, or no thread could be started.
            self.shared.lock().todo.drain(..).for_each(take);
            return;
        }
        let mut queue = self.shared.lock();
        while let Some(mut job) = queue.todo.pop_front() {
            drop(queue);
            job.run();
            take(job);
            queue = self.shared.lock();
        }
        while queue.n_running > 0 {
            queue = self.shared.finished.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        queue.done.drain(..).for_each(take);
    }
}

impl Drop for MaskThreads {
    fn drop(&mut self) {
        {
            let mut queue = self.shared.lock();
            queue.is_closed = true;
            queue.todo.clear();
        }
        self.shared.filled.notify_all();
        for thread in self.threads.drain(..) {
            // It cannot have panicked: a job catches what its grammar does.
            let _ = thread.join();
        }
    }
}
