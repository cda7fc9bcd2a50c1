//! A queue between threads that can be waited for and closed.
//!
//! All that threads hand each other in the driver goes through it: commands, turns, masks. It keeps its room, so a steady
//! state allocates nothing. Rejected: std's channels. A model checker of thread orders cannot look into them, and to take back
//! what nobody has begun, or to close one from either end, would need a lock beside them.

use std::collections::VecDeque;

use crate::{
    bug::seeded,
    monitor::{Monitor, StdMonitor},
};

/// What nobody has taken.
#[derive(Clone)]
pub(super) struct Items<T> {
    items: VecDeque<T>,
    /// No more will come in.
    is_closed: bool,
}

/// The queue.
pub(super) struct Queue<T, M = StdMonitor<Items<T>>> {
    items: M,
    of: std::marker::PhantomData<fn(T)>,
}

impl<T, M: Monitor<Items<T>>> Queue<T, M> {
    pub(super) fn new() -> Self {
        Self::with_room(0)
    }

    /// Holds so many without allocating.
    pub(super) fn with_room(n: usize) -> Self {
        let items = M::new(Items { items: VecDeque::with_capacity(n), is_closed: false });
        Self { items, of: std::marker::PhantomData }
    }

    /// False if the queue is closed: what was to be put there was dropped.
    #[must_use]
    pub(super) fn push(&self, item: T) -> bool {
        let is_open = self.items.with(|queue| {
            if !queue.is_closed {
                queue.items.push_back(item);
            }
            !queue.is_closed
        });
        if is_open {
            self.items.notify();
        }
        is_open
    }

    /// The first, if there is one.
    pub(super) fn pop(&self) -> Option<T> {
        self.items.with(|queue| queue.items.pop_front())
    }

    /// Sleep until there is something to pop.
    pub(super) fn wait(&self) {
        self.items.wait_for(|queue| (!queue.items.is_empty()).then_some(()));
    }

    /// The first, sleeping until there is one; `None` once the queue is closed.
    pub(super) fn take(&self) -> Option<T> {
        self.items.wait_for(|queue| {
            let item = if seeded!(NewestIsTakenFirst) { queue.items.pop_back() } else { queue.items.pop_front() };
            if item.is_some() || queue.is_closed { Some(item) } else { None }
        })
    }

    /// Let nothing more in, and hand out what nobody has taken. Whoever sleeps in [`Queue::take`] hears of it.
    pub(super) fn close(&self) -> VecDeque<T> {
        let rest = self.items.with(|queue| {
            queue.is_closed = true;
            std::mem::take(&mut queue.items)
        });
        if !seeded!(ClosingWakesNobody) {
            self.items.notify_all();
        }
        rest
    }
}
