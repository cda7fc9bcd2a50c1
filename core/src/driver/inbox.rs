//! What callers ask of the engine thread, in order.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, PoisonError, mpsc::SyncSender},
};

use crate::{
    client::Mailbox,
    request::{Request, RequestId},
};

/// One message. Tickets are the handle's ids: the state machine gives its own.
pub(super) enum Command {
    Submit { ticket: RequestId, request: Box<Request>, mailbox: Arc<Mailbox> },
    Abort { ticket: RequestId },
    Flush { reply: SyncSender<Result<(), String>> },
    Stop,
}

/// A queue with a condition variable; it keeps its capacity, so a steady state allocates nothing.
#[derive(Default)]
pub(super) struct Inbox {
    queue: Mutex<VecDeque<Command>>,
    filled: Condvar,
}

impl Inbox {
    pub(super) fn push(&self, command: Command) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).push_back(command);
        self.filled.notify_one();
    }

    pub(super) fn pop(&self) -> Option<Command> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    /// Sleep until there is something to pop.
    pub(super) fn wait(&self) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        while queue.is_empty() {
            queue = self.filled.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
