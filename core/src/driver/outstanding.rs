//! How many requests are with the engine: a limit that is kept without a lock, before anything is queued.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that threads add to and take from.
pub(super) trait Count {
    /// Add, and return what was before.
    fn add(&self, n: u64) -> u64;
    /// Take away.
    fn take(&self, n: u64);
}

impl Count for AtomicU64 {
    fn add(&self, n: u64) -> u64 {
        self.fetch_add(n, Ordering::AcqRel)
    }

    fn take(&self, n: u64) {
        self.fetch_sub(n, Ordering::AcqRel);
    }
}

/// Requests submitted and not yet ended.
#[derive(Debug, Default)]
pub(super) struct Outstanding<N = AtomicU64>(N);

impl<N: Count> Outstanding<N> {
    #[cfg(test)]
    pub(super) fn of(count: N) -> Self {
        Self(count)
    }

    /// One more, unless there are `most`. Several that come at the very limit may turn each other away; too many never get
    /// in.
    #[must_use]
    pub(super) fn enter(&self, most: u64) -> bool {
        let is_in = self.0.add(1) < most;
        if !is_in {
            self.0.take(1);
        }
        is_in
    }

    /// So many have ended.
    pub(super) fn leave(&self, n: u64) {
        self.0.take(n);
    }
}
