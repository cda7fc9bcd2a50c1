//! Block events for readers on other threads.

use std::{sync::Arc, time::Duration};

use shuttle::thread;

use super::{
    breaks, finds, holds,
    locks::{Deaf, Sound},
};
use crate::{
    bug::Bug,
    cache::events::{BlockEvent, EventRing, Tier},
    driver::feed::{Feed, Reader, State},
    monitor::Monitor,
};

/// Events of a run, in a ring for two.
const N: u64 = 5;

/// An engine that announces and two that read: each hears every event once and in order, or that it missed some, and the end.
fn telling<M: Monitor<State> + Send + Sync + 'static>() {
    let feed = Feed::<M>::new(1, 2);
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let mut reader = Reader::new(Arc::clone(&feed));
            thread::spawn(move || {
                let mut next = 0;
                loop {
                    let batch = reader.next(Duration::ZERO);
                    next += batch.lost;
                    for event in batch.events {
                        assert_eq!(event, BlockEvent::Removed { hash: next, tier: Tier::Device });
                        next += 1;
                    }
                    if batch.has_ended {
                        return next;
                    }
                }
            })
        })
        .collect();
    let mut own = EventRing::new(1, 2);
    for number in 0..N {
        own.removed(number, Tier::Device);
        // A turn may announce several.
        if number % 2 == 1 {
            feed.follow(&own);
        }
    }
    feed.follow(&own);
    feed.end();
    for reader in readers {
        assert_eq!(reader.join().unwrap(), N, "read or known to be lost");
    }
}

/// An engine that announces something and two that wait for it: both hear of it, before anything else happens.
fn waking<M: Monitor<State> + Send + Sync + 'static>() {
    let feed = Feed::<M>::new(1, 2);
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let mut reader = Reader::new(Arc::clone(&feed));
            thread::spawn(move || while reader.next(Duration::ZERO).events.is_empty() {})
        })
        .collect();
    let mut own = EventRing::new(1, 2);
    own.cleared();
    feed.follow(&own);
    readers.into_iter().for_each(|reader| reader.join().unwrap());
}

#[test]
fn readers_of_block_events_hear_all_or_of_the_gap() {
    holds(telling::<Sound<_>>);
    holds(waking::<Sound<_>>);
    breaks(telling::<Deaf<_>>);
    breaks(waking::<Deaf<_>>);
    finds(Bug::GapIsNotTold, telling::<Sound<_>>);
    finds(Bug::OneReaderIsWoken, waking::<Sound<_>>);
    finds(Bug::EndOfEventsWakesNobody, telling::<Sound<_>>);
}
