//! The engine's block events, for readers on other threads.
//!
//! One ring for all readers, each with its own place in it: the engine thread copies what a turn announced and never waits
//! for anybody, however many read and however slow. Rejected: a queue per reader, which the engine would have to fill.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    bug::seeded,
    cache::events::{BlockEvent, EventRing},
    monitor::{Monitor, StdMonitor},
};

/// What the engine thread and the readers share.
pub(super) struct State {
    ring: EventRing,
    /// No more will come.
    has_ended: bool,
}

/// Shared by the engine thread and the readers.
pub(super) struct Feed<M = StdMonitor<State>> {
    state: M,
}

impl<M: Monitor<State>> Feed<M> {
    pub(super) fn new(page_tokens: u32, capacity: u32) -> Arc<Self> {
        let state = State { ring: EventRing::new(page_tokens, capacity), has_ended: false };
        Arc::new(Self { state: M::new(state) })
    }

    /// Take over what is new in the engine's own ring.
    pub(super) fn follow(&self, events: &EventRing) {
        let has_grown = self.state.with(|state| {
            let is_new = events.next() > state.ring.next();
            if is_new {
                state.ring.follow(events);
            }
            is_new
        });
        if has_grown && seeded!(OneReaderIsWoken) {
            self.state.notify();
        } else if has_grown {
            self.state.notify_all();
        }
    }

    /// The engine has ended.
    pub(super) fn end(&self) {
        self.state.with(|state| state.has_ended = true);
        if !seeded!(EndOfEventsWakesNobody) {
            self.state.notify_all();
        }
    }
}

/// What a reader gets at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventBatch {
    /// Events before the first one here that the reader missed: its picture of the cache is no longer right, and it
    /// starts over from an empty one. 0 is usual.
    pub lost: u64,
    /// In order; empty if none came in time.
    pub events: Vec<BlockEvent>,
    /// The engine has ended and no more will come.
    pub has_ended: bool,
}

/// A reader of the block events of an engine, from the oldest that is still kept.
pub struct BlockEvents(Reader);

impl std::fmt::Debug for BlockEvents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BlockEvents(at {})", self.0.next)
    }
}

impl BlockEvents {
    pub(super) fn new(feed: Arc<Feed>) -> Self {
        Self(Reader::new(feed))
    }

    /// The next events; blocks until there are some, for at most `timeout`.
    pub fn next(&mut self, timeout: Duration) -> EventBatch {
        self.0.next(timeout)
    }
}

/// Events copied at once, so that the engine does not wait long for the lock.
const BATCH_MAX: u64 = 256;

/// A place in the feed.
pub(super) struct Reader<M = StdMonitor<State>> {
    feed: Arc<Feed<M>>,
    next: u64,
}

impl<M: Monitor<State>> Reader<M> {
    pub(super) fn new(feed: Arc<Feed<M>>) -> Self {
        Self { feed, next: 0 }
    }

    pub(super) fn next(&mut self, timeout: Duration) -> EventBatch {
        let next = &mut self.next;
        let batch = self.feed.state.wait_until(Instant::now() + timeout, |State { ring, has_ended }| {
            if *next >= ring.next() && !*has_ended {
                return None;
            }
            let lost = ring.oldest().saturating_sub(*next);
            let end = ring.next().min(*next + lost + BATCH_MAX);
            let events: Vec<BlockEvent> = (*next + lost..end).filter_map(|number| ring.get(number)).collect();
            *next = end;
            let lost = if seeded!(GapIsNotTold) { 0 } else { lost };
            Some(EventBatch { lost, events, has_ended: *has_ended && end == ring.next() })
        });
        batch.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::events::Tier;

    const SOON: Duration = Duration::from_millis(1);

    #[test]
    fn each_reader_has_its_own_place_and_hears_of_gaps() {
        let mut own = EventRing::new(1, 4);
        let feed = Feed::<StdMonitor<State>>::new(1, 4);
        let (mut quick, mut slow) = (BlockEvents::new(Arc::clone(&feed)), BlockEvents::new(Arc::clone(&feed)));
        assert_eq!(quick.next(SOON), EventBatch::default());
        for n in 0..6u64 {
            own.removed(n, Tier::Device);
            feed.follow(&own);
            assert_eq!(quick.next(SOON).events, [BlockEvent::Removed { hash: n, tier: Tier::Device }]);
        }
        let batch = slow.next(SOON);
        assert_eq!((batch.lost, batch.events.len(), batch.has_ended), (2, 4, false));
        feed.end();
        assert!(slow.next(SOON).has_ended && quick.next(SOON).has_ended);
    }

    #[test]
    fn a_reader_is_woken_from_another_thread() {
        let feed = Feed::<StdMonitor<State>>::new(1, 64);
        let mut reader = BlockEvents::new(Arc::clone(&feed));
        let writer = std::thread::spawn(move || {
            let mut own = EventRing::new(1, 8);
            for n in 0..1000 {
                own.removed(n, Tier::Device);
                feed.follow(&own);
            }
            feed.end();
        });
        let mut heard = 0;
        loop {
            let batch = reader.next(Duration::from_secs(60));
            heard += batch.lost + batch.events.len() as u64;
            if batch.has_ended {
                break;
            }
        }
        writer.join().unwrap();
        assert_eq!(heard, 1000, "read or counted as lost");
    }
}
