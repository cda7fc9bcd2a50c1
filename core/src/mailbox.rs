//! Where one request's events wait to be read: what [`crate::client::Mailbox`] and its reader share.

use std::{
    collections::VecDeque,
    task::{Poll, Waker},
};

use crate::{
    monitor::{Monitor, StdMonitor},
    request::Event,
};

/// Events and the two ends' state.
#[derive(Clone, Default)]
pub(crate) struct Post {
    events: VecDeque<Event>,
    waker: Option<Waker>,
    /// The end has been delivered.
    closed: bool,
    /// The reader is gone.
    abandoned: bool,
}

impl std::fmt::Debug for Post {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Post({} events)", self.events.len())
    }
}

/// The shared queue of one request.
#[derive(Debug)]
pub(crate) struct Letters<M = StdMonitor<Post>> {
    post: M,
}

impl<M: Monitor<Post>> Letters<M> {
    /// Holds `capacity` events without allocating.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { post: M::new(Post { events: VecDeque::with_capacity(capacity), ..Post::default() }) }
    }

    /// Deliver an event; `Finished` and `Failed` are the end.
    pub(crate) fn deliver(&self, event: Event) {
        let waker = self.post.with(|post| {
            post.closed |= matches!(event, Event::Finished { .. } | Event::Failed { .. });
            post.events.push_back(event);
            post.waker.take()
        });
        self.post.notify();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Take the next event, or have `waker` called when there is one; `None` after the end.
    pub(crate) fn poll(&self, waker: &Waker) -> Poll<Option<Event>> {
        self.post.with(|post| match post.events.pop_front() {
            Some(event) => Poll::Ready(Some(event)),
            None if post.closed => Poll::Ready(None),
            None => {
                post.waker = Some(waker.clone());
                Poll::Pending
            }
        })
    }

    /// Take the next event, sleeping until there is one; `None` after the end.
    pub(crate) fn wait(&self) -> Option<Event> {
        self.post.wait_for(|post| match post.events.pop_front() {
            Some(event) => Some(Some(event)),
            None if post.closed => Some(None),
            None => None,
        })
    }

    /// The reader goes. True if the end has not been delivered: the request is to be aborted.
    pub(crate) fn leave(&self) -> bool {
        self.post.with(|post| {
            post.abandoned = true;
            !post.closed
        })
    }

    /// The reader is gone.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.post.with(|post| post.abandoned)
    }
}
