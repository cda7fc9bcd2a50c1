//! A timeline event in host memory.

use super::fault::Fault;
use std::{
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// A value that only grows; an error sticks. Never allocates after it was made, unless it fails.
#[derive(Debug, Default)]
pub struct Timeline {
    value: AtomicU64,
    failed: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    fault: Option<Fault>,
    /// Threads inside `wait`: waking is a system call, and mostly nobody waits.
    waiting: u32,
}

impl Timeline {
    /// At 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reaches `value`. Going back is the host's mistake and refused.
    pub fn signal(&self, value: u64) -> Result<(), Fault> {
        let state = self.lock();
        let now = self.value.load(Ordering::Relaxed);
        if value < now {
            return Err(Fault::invalid(format!("event signalled with {value} after {now}: a timeline only grows")));
        }
        self.value.store(value, Ordering::Release);
        self.wake(state);
        Ok(())
    }

    /// The work behind the event failed; the first fault stays.
    pub fn fail(&self, fault: Fault) {
        let mut state = self.lock();
        state.fault.get_or_insert(fault);
        self.failed.store(true, Ordering::Release);
        self.wake(state);
    }

    fn wake(&self, state: MutexGuard<'_, State>) {
        // A waiter counts itself before it lets go of the lock, so none is missed.
        let wanted = state.waiting > 0;
        drop(state);
        if wanted {
            self.changed.notify_all();
        }
    }

    /// The value now, or the fault.
    pub fn query(&self) -> Result<u64, Fault> {
        if self.failed.load(Ordering::Acquire) {
            return Err(self.lock().fault.clone().expect("failed is set after the fault"));
        }
        Ok(self.value.load(Ordering::Acquire))
    }

    /// Blocks until `value` is reached, the event fails, or the time is over.
    pub fn wait(&self, value: u64, timeout_ns: u64) -> Result<(), Fault> {
        if self.query()? >= value {
            return Ok(());
        }
        // `None`: so far away that the clock cannot say it; then wait in slices of an hour for ever.
        let deadline = Instant::now().checked_add(Duration::from_nanos(timeout_ns));
        let mut state = self.lock();
        state.waiting += 1;
        let result = loop {
            if let Some(fault) = state.fault.as_ref() {
                break Err(fault.clone());
            }
            let now = self.value.load(Ordering::Acquire);
            if now >= value {
                break Ok(());
            }
            let left = deadline.map_or(Duration::from_secs(3600), |d| d.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                break Err(Fault::timeout(format!("event is at {now}, waited {timeout_ns} ns for {value}")));
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(|e| e.into_inner()).0;
        };
        state.waiting -= 1;
        result
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while the lock is held leaves a whole state behind: it stays usable.
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_and_wakes() {
        let t = std::sync::Arc::new(Timeline::new());
        let other = t.clone();
        let waiter = std::thread::spawn(move || other.wait(2, u64::MAX));
        t.signal(1).unwrap();
        t.signal(2).unwrap();
        waiter.join().unwrap().unwrap();
        assert_eq!(t.query(), Ok(2));
        assert!(t.signal(1).is_err());
        assert_eq!(t.wait(3, 1000).unwrap_err().code, crate::abi::TS_ERR_TIMEOUT);
    }

    #[test]
    fn the_first_fault_sticks() {
        let t = Timeline::new();
        t.fail(Fault::device_lost("gone"));
        t.fail(Fault::internal("later"));
        assert_eq!(t.query().unwrap_err().message, "gone");
        assert_eq!(t.wait(0, 0).unwrap_err().message, "gone");
    }
}
