//! What callers ask of the engine thread, in order.

use std::{
    collections::VecDeque,
    sync::{Arc, mpsc::SyncSender},
};

use crate::{
    client::Mailbox,
    monitor::{Monitor, StdMonitor},
    request::{Request, RequestId},
};

/// One message. Tickets are the handle's ids: the state machine gives its own.
pub(super) enum Command {
    Submit { ticket: RequestId, request: Box<Request>, mailbox: Arc<Mailbox> },
    Abort { ticket: RequestId },
    Flush { reply: SyncSender<Result<(), String>> },
    Stop,
}

/// Messages that nobody has read.
#[derive(Clone)]
pub(super) struct Queue<C> {
    commands: VecDeque<C>,
    /// Nobody reads any more: a command left here would be waited for in vain.
    closed: bool,
}

/// A queue that can be waited for; it keeps its capacity, so a steady state allocates nothing.
pub(super) struct Inbox<C = Command, M = StdMonitor<Queue<C>>> {
    queue: M,
    commands: std::marker::PhantomData<fn(C)>,
}

impl<C, M: Monitor<Queue<C>>> Inbox<C, M> {
    pub(super) fn new() -> Self {
        let queue = M::new(Queue { commands: VecDeque::new(), closed: false });
        Self { queue, commands: std::marker::PhantomData }
    }

    /// False if the engine thread has ended: the command was dropped.
    #[must_use]
    pub(super) fn push(&self, command: C) -> bool {
        let is_open = self.queue.with(|queue| {
            if !queue.closed {
                queue.commands.push_back(command);
            }
            !queue.closed
        });
        if is_open {
            self.queue.notify();
        }
        is_open
    }

    pub(super) fn pop(&self) -> Option<C> {
        self.queue.with(|queue| queue.commands.pop_front())
    }

    /// Sleep until there is something to pop.
    pub(super) fn wait(&self) {
        self.queue.wait_for(|queue| (!queue.commands.is_empty()).then_some(()));
    }

    /// Take no more, and hand out what nobody has read.
    pub(super) fn close(&self) -> VecDeque<C> {
        self.queue.with(|queue| {
            queue.closed = true;
            std::mem::take(&mut queue.commands)
        })
    }
}
