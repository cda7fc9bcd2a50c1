//! What callers and the engine thread share: the inbox, the mailbox, the count of outstanding requests.

use std::{collections::VecDeque, sync::Arc, task::Poll};

use shuttle::{sync::atomic, thread};

use super::{
    breaks, holds,
    locks::{Deaf, Sound, Torn},
};
use crate::{
    driver::{
        outstanding::{Count, Outstanding},
        queue::{Items, Queue},
    },
    mailbox::{Letters, Post},
    monitor::Monitor,
    request::{Event, FinishReason, Usage},
};

/// A number in one step.
struct Whole(atomic::AtomicU64);

impl Count for Arc<Whole> {
    fn add(&self, n: u64) -> u64 {
        self.0.fetch_add(n, atomic::Ordering::SeqCst)
    }

    fn take(&self, n: u64) {
        self.0.fetch_sub(n, atomic::Ordering::SeqCst);
    }
}

/// A number in two.
struct Halves(atomic::AtomicU64);

impl Count for Arc<Halves> {
    fn add(&self, n: u64) -> u64 {
        let before = self.0.load(atomic::Ordering::SeqCst);
        self.0.store(before + n, atomic::Ordering::SeqCst);
        before
    }

    fn take(&self, n: u64) {
        self.0.fetch_sub(n, atomic::Ordering::SeqCst);
    }
}

fn finished() -> Event {
    Event::Finished { reason: FinishReason::Stop, usage: Usage::default() }
}

fn token(id: u32) -> Event {
    Event::Token { id, logprobs: None }
}

/// Two that ask, one that says stop, one that obeys: what was taken is obeyed or handed out at the end, in order.
fn inbox<M: Monitor<Items<u32>> + Send + Sync + 'static>() {
    const STOP: u32 = u32::MAX;
    let inbox = Arc::new(Queue::<u32, M>::new());
    let engine = {
        let inbox = Arc::clone(&inbox);
        thread::spawn(move || {
            let mut read = Vec::new();
            loop {
                match inbox.pop() {
                    Some(STOP) => break,
                    Some(command) => read.push(command),
                    None => inbox.wait(),
                }
            }
            let rest: VecDeque<u32> = inbox.close();
            read.extend(rest);
            read
        })
    };
    let askers: Vec<_> = [10, 20]
        .map(|first| {
            let inbox = Arc::clone(&inbox);
            thread::spawn(move || (first..first + 2).filter(|command| inbox.push(*command)).collect::<Vec<u32>>())
        })
        .into();
    assert!(inbox.push(STOP), "nobody else ends the engine");
    let read = engine.join().unwrap();
    for (nth, asker) in askers.into_iter().enumerate() {
        let taken = asker.join().unwrap();
        let heard: Vec<u32> = read.iter().copied().filter(|command| *command / 10 == nth as u32 + 1).collect();
        assert_eq!(heard, taken, "of asker {nth}");
    }
    assert!(!inbox.push(1), "nobody reads any more");
}

/// One that speaks and one that listens, asleep or as a future: all is heard, in order, and then the end.
fn mailbox<M: Monitor<Post> + Send + Sync + 'static>(sleeps: bool) {
    let letters = Arc::new(Letters::<M>::new(4));
    let speaker = Arc::clone(&letters);
    let speaker = thread::spawn(move || [token(1), token(2), finished()].into_iter().for_each(|e| speaker.deliver(e)));
    let next = || match sleeps {
        true => letters.wait(),
        false => shuttle::future::block_on(std::future::poll_fn(|context| letters.poll(context.waker()))),
    };
    let heard: Vec<Event> = std::iter::from_fn(next).collect();
    assert_eq!(heard, [token(1), token(2), finished()]);
    assert_eq!(next(), None, "and stays at its end");
    speaker.join().unwrap();
}

/// The reader leaves while the end comes: either it was delivered, or the engine is told to abort.
fn leaving<M: Monitor<Post> + Send + Sync + 'static>() {
    let letters = Arc::new(Letters::<M>::new(4));
    let aborts = Arc::new(Queue::<u32, Sound<Items<u32>>>::new());
    let engine = {
        let (letters, aborts) = (Arc::clone(&letters), Arc::clone(&aborts));
        thread::spawn(move || {
            letters.deliver(token(1));
            // An engine that has seen an abort delivers no more.
            let is_aborted = aborts.pop().is_some();
            if !is_aborted {
                letters.deliver(finished());
            }
            is_aborted
        })
    };
    let heard = letters.wait();
    assert_eq!(heard, Some(token(1)));
    let must_abort = letters.leave();
    if must_abort {
        assert!(aborts.push(7));
    }
    let was_aborted = engine.join().unwrap();
    let is_pending = aborts.pop().is_some();
    assert_eq!(was_aborted || is_pending, must_abort, "an abort is told exactly when the end was not delivered");
    assert!(letters.is_abandoned(), "the engine can see that nobody reads");
    if !must_abort {
        assert_eq!(letters.poll(std::task::Waker::noop()), Poll::Ready(Some(finished())), "it was delivered");
    }
}

/// Requests come while the engine is told to stop: whoever was let in hears one end.
fn stopping<M: Monitor<Post> + Send + Sync + 'static>() {
    type Ask<M> = Option<Arc<Letters<M>>>;
    let inbox = Arc::new(Queue::<Ask<M>, Sound<Items<Ask<M>>>>::new());
    let outstanding = Arc::new(Outstanding::of(Arc::new(Whole(atomic::AtomicU64::new(0)))));
    let engine = {
        let (inbox, outstanding) = (Arc::clone(&inbox), Arc::clone(&outstanding));
        thread::spawn(move || {
            loop {
                match inbox.pop() {
                    Some(Some(letters)) => {
                        letters.deliver(token(1));
                        letters.deliver(finished());
                        outstanding.leave(1);
                    }
                    Some(None) => break,
                    None => inbox.wait(),
                }
            }
            for letters in inbox.close().into_iter().flatten() {
                letters.deliver(Event::Failed { message: "stopped".into() });
            }
        })
    };
    let callers: Vec<_> = (0..2)
        .map(|_| {
            let (inbox, outstanding) = (Arc::clone(&inbox), Arc::clone(&outstanding));
            thread::spawn(move || {
                let letters = Arc::new(Letters::<M>::new(4));
                if !outstanding.enter(1) || !inbox.push(Some(Arc::clone(&letters))) {
                    return;
                }
                let heard: Vec<Event> = std::iter::from_fn(|| letters.wait()).collect();
                let ends = heard.iter().filter(|e| matches!(e, Event::Finished { .. } | Event::Failed { .. })).count();
                assert_eq!(ends, 1, "{heard:?}");
            })
        })
        .collect();
    assert!(inbox.push(None));
    callers.into_iter().for_each(|caller| caller.join().unwrap());
    engine.join().unwrap();
}

/// More come than may be in at once.
fn counting<N: Send + Sync + 'static>(count: fn() -> Arc<N>)
where
    Arc<N>: Count,
{
    let count = count();
    let outstanding = Arc::new(Outstanding::of(Arc::clone(&count)));
    let inside = Arc::new(atomic::AtomicU64::new(0));
    let visitors: Vec<_> = (0..3)
        .map(|_| {
            let (outstanding, inside) = (Arc::clone(&outstanding), Arc::clone(&inside));
            thread::spawn(move || {
                if outstanding.enter(2) {
                    let n = inside.fetch_add(1, atomic::Ordering::SeqCst) + 1;
                    assert!(n <= 2, "{n} are in, 2 may be");
                    inside.fetch_sub(1, atomic::Ordering::SeqCst);
                    outstanding.leave(1);
                }
            })
        })
        .collect();
    visitors.into_iter().for_each(|visitor| visitor.join().unwrap());
    assert_eq!(count.add(0), 0, "all have left");
}

#[test]
fn the_inbox_loses_nothing_and_wakes_its_reader() {
    holds(inbox::<Sound<_>>);
    breaks(inbox::<Deaf<_>>);
    breaks(inbox::<Torn<_>>);
}

#[test]
fn the_mailbox_is_read_to_its_end() {
    holds(|| mailbox::<Sound<_>>(true));
    holds(|| mailbox::<Sound<_>>(false));
    breaks(|| mailbox::<Deaf<_>>(true));
    breaks(|| mailbox::<Torn<_>>(false));
}

#[test]
fn who_leaves_before_the_end_aborts() {
    holds(leaving::<Sound<_>>);
    breaks(leaving::<Torn<_>>);
}

#[test]
fn who_is_let_in_hears_one_end() {
    holds(stopping::<Sound<_>>);
    breaks(stopping::<Deaf<_>>);
}

#[test]
fn never_more_are_in_than_may_be() {
    holds(|| counting(|| Arc::new(Whole(atomic::AtomicU64::new(0)))));
    breaks(|| counting(|| Arc::new(Halves(atomic::AtomicU64::new(0)))));
}
