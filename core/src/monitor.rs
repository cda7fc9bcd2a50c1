//! A value under a lock that threads can wait for, and those threads: all that the driver's threaded pieces need of `std`.
//!
//! They take it as a parameter, so that tests can put a model checker's locks in its place and try every order of threads,
//! while what is shipped is the same code over std's. Rejected: a `cfg` that swaps the imports; what was checked would then
//! be another build than what runs.

use std::{
    io,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

/// A thread.
pub(crate) trait Thread: Sized {
    /// Start one, under a name for whoever looks at the process.
    fn start(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<Self>;

    /// Sleep until it has ended, well or by a panic.
    fn join(self);
}

/// A value that one thread at a time looks at or changes, and that threads can wait for.
pub(crate) trait Monitor<T> {
    /// The threads that can wait for it: a checker's locks know its own threads only.
    type Thread: Thread;

    /// Around a value.
    fn new(value: T) -> Self;

    /// Look or change, alone.
    fn with<R>(&self, act: impl FnOnce(&mut T) -> R) -> R;

    /// Sleep until `act` gives something; it is asked again after each [`Monitor::notify`], alone.
    fn wait_for<R>(&self, act: impl FnMut(&mut T) -> Option<R>) -> R;

    /// As [`Monitor::wait_for`], but not beyond a time; `None` if it has come.
    fn wait_until<R>(&self, deadline: Instant, act: impl FnMut(&mut T) -> Option<R>) -> Option<R>;

    /// Wake one that waits. Call it after a change that somebody may be waiting for.
    fn notify(&self);

    /// Wake all that wait.
    fn notify_all(&self);
}

impl Thread for std::thread::JoinHandle<()> {
    fn start(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        std::thread::Builder::new().name(name.into()).spawn(run)
    }

    fn join(self) {
        // What a panic was about has been said where it happened.
        let _ = std::thread::JoinHandle::join(self);
    }
}

/// The one that is shipped.
#[derive(Debug, Default)]
pub(crate) struct StdMonitor<T> {
    value: Mutex<T>,
    changed: Condvar,
}

impl<T> StdMonitor<T> {
    fn lock(&self) -> MutexGuard<'_, T> {
        // Nothing panics while holding the lock; a poisoned one still holds a usable value.
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Monitor<T> for StdMonitor<T> {
    type Thread = std::thread::JoinHandle<()>;

    fn new(value: T) -> Self {
        Self { value: Mutex::new(value), changed: Condvar::new() }
    }

    fn with<R>(&self, act: impl FnOnce(&mut T) -> R) -> R {
        act(&mut self.lock())
    }

    fn wait_for<R>(&self, mut act: impl FnMut(&mut T) -> Option<R>) -> R {
        let mut value = self.lock();
        loop {
            match act(&mut value) {
                Some(result) => return result,
                None => value = self.changed.wait(value).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn wait_until<R>(&self, deadline: Instant, mut act: impl FnMut(&mut T) -> Option<R>) -> Option<R> {
        let mut value = self.lock();
        loop {
            if let Some(result) = act(&mut value) {
                return Some(result);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            value = self.changed.wait_timeout(value, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn notify(&self) {
        self.changed.notify_one();
    }

    fn notify_all(&self) {
        self.changed.notify_all();
    }
}
