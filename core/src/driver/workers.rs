//! Threads that take things from one queue, work on them, and put them into another.
//!
//! What is worked on moves there and back, so whoever has it has it alone. Dropping the workers lets go what nobody has begun,
//! and returns when what was begun is done. A worker that panics closes both queues on its way out: whoever waits for it
//! hears of it instead of sleeping for ever.

use std::{io, sync::Arc};

use super::queue::{Items, Queue};
use crate::{
    bug::seeded,
    monitor::{Monitor, StdMonitor, Thread},
};

/// Both queues, as the threads and their owner share them.
struct Ends<T, M> {
    todo: Queue<T, M>,
    done: Queue<T, M>,
}

impl<T, M: Monitor<Items<T>>> Ends<T, M> {
    fn work(&self, mut work: impl FnMut(T) -> T) {
        let _guard = Closing(self);
        while let Some(item) = self.todo.take() {
            if !self.done.push(work(item)) {
                break;
            }
        }
    }
}

/// Closes both queues when a worker ends, however it does.
struct Closing<'a, T, M: Monitor<Items<T>>>(&'a Ends<T, M>);

impl<T, M: Monitor<Items<T>>> Drop for Closing<'_, T, M> {
    fn drop(&mut self) {
        drop((self.0.todo.close(), self.0.done.close()));
    }
}

/// The threads, as their owner sees them.
pub(super) struct Workers<T, M: Monitor<Items<T>> = StdMonitor<Items<T>>> {
    ends: Arc<Ends<T, M>>,
    threads: Vec<M::Thread>,
}

impl<T: Send + 'static, M: Monitor<Items<T>> + Send + Sync + 'static> Workers<T, M> {
    /// None yet. The queues hold so many things without allocating.
    pub(super) fn new(room: usize) -> Self {
        let ends = Ends { todo: Queue::with_room(room), done: Queue::with_room(room) };
        Self { ends: Arc::new(ends), threads: Vec::new() }
    }

    /// One more thread.
    pub(super) fn start(&mut self, name: &str, work: impl FnMut(T) -> T + Send + 'static) -> io::Result<()> {
        let ends = Arc::clone(&self.ends);
        self.threads.push(M::Thread::start(name, move || ends.work(work))?);
        Ok(())
    }

    /// Threads started.
    pub(super) fn n_threads(&self) -> usize {
        self.threads.len()
    }

    /// Something to work on.
    ///
    /// # Panics
    /// If a worker has panicked.
    pub(super) fn give(&self, item: T) {
        assert!(self.ends.todo.push(item), "a thread that works for this one has panicked");
    }

    /// Something that is done, in the order in which it was. Sleeps until there is something: ask once for each thing given.
    ///
    /// # Panics
    /// If a worker has panicked.
    pub(super) fn take(&self) -> T {
        self.ends.done.take().expect("a thread that works for this one has panicked")
    }

    /// The first thing given that nobody has begun; nobody will.
    pub(super) fn take_back(&self) -> Option<T> {
        self.ends.todo.pop()
    }
}

impl<T, M: Monitor<Items<T>>> Drop for Workers<T, M> {
    fn drop(&mut self) {
        drop(self.ends.todo.close());
        for thread in self.threads.drain(..) {
            if !seeded!(ThreadsAreLeftBehind) {
                thread.join();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "has panicked")]
    fn nobody_waits_for_one_that_panicked() {
        let mut workers = Workers::<u32>::new(1);
        workers.start("works", |n| 10 / n).unwrap();
        workers.give(5);
        assert_eq!(workers.take(), 2);
        workers.give(0);
        workers.take();
    }
}
