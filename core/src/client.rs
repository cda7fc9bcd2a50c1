//! How the layers above talk to a running engine: submit a request, hear its events, drop it to abort.
//!
//! Events travel through one [`Mailbox`] per request, with capacity reserved at submission, so the engine thread never
//! allocates to deliver one. It is async-agnostic: a `Waker` and a condition variable. Rejected: a channel crate, whose
//! block allocations would land on the engine thread.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use crate::{
    driver::BlockEvents,
    mailbox::Letters,
    request::{Event, Request, RequestId},
    sampler::device::HostOnly,
    scheduler::trace::StepRecord,
    speculation::DRAFT_MAX,
};

/// Why a request was not taken.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SubmitError {
    /// The request itself is wrong; the message is for the user.
    #[error("{0}")]
    Invalid(String),
    /// Too much is waiting; come back later.
    #[error("the server is overloaded; retry in {retry_after_s} s")]
    Overloaded {
        /// Suggested wait.
        retry_after_s: u32,
    },
    /// Shutting down.
    #[error("the server is shutting down")]
    Draining,
    /// The engine died; the message says of what.
    #[error("the engine has stopped: {0}")]
    Dead(String),
}

/// Gauges and counters of an engine, all since start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics {
    /// Requests with tokens in flight.
    pub running: u64,
    /// Requests admitted but not yet running.
    pub waiting: u64,
    /// Of these, waiting for pages from host memory.
    pub loading: u64,
    /// Pages in host memory: used, and in total.
    pub host_pages: [u64; 2],
    /// Recurrent states in host memory: used, and in total.
    pub host_states: [u64; 2],
    /// Pages copied to host memory.
    pub host_stored: u64,
    /// Pages copied back from it.
    pub host_loaded: u64,
    /// Copies that failed or did not fit their checksum; each was a miss.
    pub host_failed: u64,
    /// Pages held by requests or the cache, and in total, of the first paged component.
    pub pages_used: u64,
    /// Pages held only by the prefix cache (can be evicted).
    pub pages_cached: u64,
    /// All pages.
    pub pages_total: u64,
    /// Recurrent states held by requests or the cache; 0 for models without.
    pub states_used: u64,
    /// Of these, stored in the prefix cache.
    pub states_cached: u64,
    /// All slots for recurrent states.
    pub states_total: u64,
    /// Tokens of the shortest prefix that the cache can give back; 0 = nothing is cached.
    pub cacheable_tokens: u64,
    /// Tokens whose pages were found in the prefix cache but computed again, because no state was stored there.
    pub cut_tokens: u64,
    /// Prompt tokens of all started requests.
    pub prompt_tokens: u64,
    /// Of these, taken from the prefix cache.
    pub cached_tokens: u64,
    /// Generated tokens.
    pub generation_tokens: u64,
    /// Finished by reason: stop, length, abort, failed.
    pub finished: [u64; 4],
    /// Requests that lost their pages and were queued again.
    pub preemptions: u64,
    /// Forward steps.
    pub steps: u64,
    /// Nanoseconds spent in steps.
    pub step_ns: u64,
    /// Guesses of a request in a step, at most; 0: none are made.
    pub draft_max: u32,
    /// Guessed tokens that were checked, by their place in the guess.
    pub drafts: [u64; DRAFT_MAX as usize],
    /// Of these, the right ones.
    pub accepted: [u64; DRAFT_MAX as usize],
    /// Side branches that were checked, and of these, the right ones.
    pub branches: [u64; 2],
    /// Steps planned while the one in front of them ran, and completed when it had been taken in.
    pub ahead_steps: u64,
    /// Steps that the device had before the step in front of them was taken in.
    pub relayed_steps: u64,
    /// Steps of a device that could sample in which the host had to, by reason ([`HostOnly::ALL`]).
    pub host_steps: [u64; HostOnly::COUNT],
}

/// Limits that admission checks need.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Prompt plus generated tokens of one request.
    pub max_model_len: u32,
    /// Ids at or above this do not exist.
    pub vocab_size: u32,
    /// Requests running at once.
    pub max_num_seqs: u32,
    /// Smallest prefix that can be reused, in tokens.
    pub prefix_granularity: u32,
}

/// A running engine, as the server sees it.
pub trait Engine: Send + Sync {
    /// Queue a request. Validates everything that does not need the scheduler.
    fn submit(&self, request: Request) -> Result<EventStream, SubmitError>;
    /// Current figures.
    fn metrics(&self) -> Metrics;
    /// Static limits.
    fn limits(&self) -> Limits;
    /// `Err` once the engine thread died or has not made progress for too long; says why.
    fn health(&self) -> Result<(), String>;
    /// Refuse new requests from now on; running ones go on.
    fn drain(&self);
    /// Drop every cached prefix. Errors when requests are running.
    fn flush_cache(&self) -> Result<(), String>;
    /// A reader of the prefix cache's block events, from the oldest kept; `None` if the engine makes none.
    fn block_events(&self) -> Option<BlockEvents> {
        None
    }
    /// Up to `most` steps numbered above `after` with all their decisions, oldest first, as far as they are kept.
    fn steps(&self, after: u64, most: usize) -> Vec<StepRecord> {
        let _ = (after, most);
        Vec::new()
    }
    /// The last `n` steps, oldest first.
    fn last_steps(&self, n: usize) -> Vec<StepRecord> {
        let _ = n;
        Vec::new()
    }
}

/// Where a request's events wait to be read.
pub struct Mailbox(Letters);

impl std::fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mailbox")
    }
}

impl Mailbox {
    /// A mailbox that holds `capacity` events without allocating.
    pub fn new(capacity: usize) -> Arc<Self> {
        Arc::new(Self(Letters::new(capacity)))
    }

    /// Deliver an event (engine side). `Finished` and `Failed` close the mailbox.
    pub fn push(&self, event: Event) {
        self.0.deliver(event);
    }

    /// True once the reader is gone: the request can be aborted.
    pub fn is_abandoned(&self) -> bool {
        self.0.is_abandoned()
    }
}

/// The reader's end. Dropping it before the end aborts the request.
pub struct EventStream {
    id: RequestId,
    mailbox: Arc<Mailbox>,
    on_abandon: Option<Box<dyn FnOnce(RequestId) + Send + Sync>>,
}

impl std::fmt::Debug for EventStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "EventStream({:?})", self.id)
    }
}

impl EventStream {
    /// Pair a mailbox with what to do if the reader leaves early.
    pub fn new(
        id: RequestId,
        mailbox: Arc<Mailbox>,
        on_abandon: impl FnOnce(RequestId) + Send + Sync + 'static,
    ) -> Self {
        Self { id, mailbox, on_abandon: Some(Box::new(on_abandon)) }
    }

    /// The engine's id of the request.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// Next event; `None` after `Finished` or `Failed` was read.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        self.mailbox.0.poll(context.waker())
    }

    /// Next event, asynchronously.
    pub async fn next(&mut self) -> Option<Event> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    /// Next event, blocking the thread.
    pub fn blocking_next(&mut self) -> Option<Event> {
        self.mailbox.0.wait()
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        if let (true, Some(abandon)) = (self.mailbox.0.leave(), self.on_abandon.take()) {
            abandon(self.id);
        }
    }
}
