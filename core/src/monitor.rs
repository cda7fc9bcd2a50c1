//! A value under a lock that threads can wait for: all that the driver's threaded pieces need of `std::sync`.
//!
//! They take it as a parameter, so that tests can put a model checker's locks in its place and try every order of threads,
//! while what is shipped is the same code over std's. Rejected: a `cfg` that swaps the imports; what was checked would then
//! be another build than what runs.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A value that one thread at a time looks at or changes, and that threads can wait for.
pub(crate) trait Monitor<T> {
    /// Around a value.
    fn new(value: T) -> Self;

    /// Look or change, alone.
    fn with<R>(&self, act: impl FnOnce(&mut T) -> R) -> R;

    /// Sleep until `act` gives something; it is asked again after each [`Monitor::notify`], alone.
    fn wait_for<R>(&self, act: impl FnMut(&mut T) -> Option<R>) -> R;

    /// Wake one that waits. Call it after a change that somebody may be waiting for.
    fn notify(&self);
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

    fn notify(&self) {
        self.changed.notify_one();
    }
}
