//! Locks and threads of the checker's, and locks with a race built in.

use std::{cell::Cell, io, sync::PoisonError, time::Instant};

use shuttle::{
    rand::{Rng, thread_rng},
    sync::{Condvar, Mutex, MutexGuard},
    thread,
};

use crate::monitor::{Monitor, Thread};

thread_local! {
    /// Threads of this run that have not ended. All of them are coroutines of one thread.
    static N_LIVE: Cell<u32> = const { Cell::new(0) };
}

/// Threads started through [`Spawned`] that have not ended.
pub fn n_live() -> u32 {
    N_LIVE.get()
}

/// A run begins. One that failed may have left threads behind.
pub fn nobody_lives() {
    N_LIVE.set(0);
}

/// One of two, by the checker's choice.
pub fn toss() -> bool {
    thread_rng().gen_bool(0.5)
}

/// A thread of the checker's.
pub struct Spawned(thread::JoinHandle<()>);

struct Life;

impl Drop for Life {
    fn drop(&mut self) {
        N_LIVE.set(N_LIVE.get().saturating_sub(1));
    }
}

impl Thread for Spawned {
    fn start(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        N_LIVE.set(N_LIVE.get() + 1);
        let life = Life;
        let run = move || {
            let _life = life;
            run();
        };
        thread::Builder::new().name(name.into()).spawn(run).map(Self)
    }

    fn join(self) {
        // A thread that panics fails the run by itself; a run that has failed is only cleared away.
        if !std::thread::panicking() {
            let _ = self.0.join();
        }
    }
}

/// As std's, under the checker.
pub struct Sound<T> {
    value: Mutex<T>,
    changed: Condvar,
}

impl<T> Sound<T> {
    /// As std's do: a thread that panics lets go of what it holds.
    fn lock(&self) -> MutexGuard<'_, T> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Monitor<T> for Sound<T> {
    type Thread = Spawned;

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

    /// The time may come whenever there is nothing.
    fn wait_until<R>(&self, _: Instant, mut act: impl FnMut(&mut T) -> Option<R>) -> Option<R> {
        let mut value = self.lock();
        loop {
            match act(&mut value) {
                Some(result) => return Some(result),
                None if toss() => return None,
                None => value = self.changed.wait(value).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn notify(&self) {
        self.changed.notify_one();
    }

    fn notify_all(&self) {
        self.changed.notify_all();
    }
}

/// Lets go of the lock between looking and falling asleep.
pub struct Deaf<T>(Sound<T>);

impl<T> Monitor<T> for Deaf<T> {
    type Thread = Spawned;

    fn new(value: T) -> Self {
        Self(Sound::new(value))
    }

    fn with<R>(&self, act: impl FnOnce(&mut T) -> R) -> R {
        self.0.with(act)
    }

    fn wait_for<R>(&self, mut act: impl FnMut(&mut T) -> Option<R>) -> R {
        loop {
            if let Some(result) = self.0.with(&mut act) {
                return result;
            }
            drop(self.0.changed.wait(self.0.lock()).unwrap_or_else(PoisonError::into_inner));
        }
    }

    fn wait_until<R>(&self, _: Instant, mut act: impl FnMut(&mut T) -> Option<R>) -> Option<R> {
        loop {
            if let Some(result) = self.0.with(&mut act) {
                return Some(result);
            }
            if toss() {
                return None;
            }
            drop(self.0.changed.wait(self.0.lock()).unwrap_or_else(PoisonError::into_inner));
        }
    }

    fn notify(&self) {
        self.0.notify();
    }

    fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// Changes a copy and writes it back.
pub struct Torn<T>(Sound<T>);

impl<T: Clone> Monitor<T> for Torn<T> {
    type Thread = Spawned;

    fn new(value: T) -> Self {
        Self(Sound::new(value))
    }

    fn with<R>(&self, act: impl FnOnce(&mut T) -> R) -> R {
        let mut copy = self.0.with(|value| value.clone());
        let result = act(&mut copy);
        self.0.with(|value| *value = copy);
        result
    }

    fn wait_for<R>(&self, act: impl FnMut(&mut T) -> Option<R>) -> R {
        self.0.wait_for(act)
    }

    fn wait_until<R>(&self, deadline: Instant, act: impl FnMut(&mut T) -> Option<R>) -> Option<R> {
        self.0.wait_until(deadline, act)
    }

    fn notify(&self) {
        self.0.notify();
    }

    fn notify_all(&self) {
        self.0.notify_all();
    }
}
