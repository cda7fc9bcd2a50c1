//! What callers ask of the engine thread, in order.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc::SyncSender},
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

#[derive(Default)]
struct Queue {
    commands: VecDeque<Command>,
    /// Nobody reads any more: a command left here would be waited for in vain.
    closed: bool,
}

/// A queue with a condition variable; it keeps its capacity, so a steady state allocates nothing.
#[derive(Default)]
pub(super) struct Inbox {
    queue: Mutex<Queue>,
    filled: Condvar,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// False if the engine thread has ended: the command was dropped.
    #[must_use]
    pub(super) fn push(&self, command: Command) -> bool {
        let mut queue = self.lock();
        if queue.closed {
            return false;
        }
        queue.commands.push_back(command);
        drop(queue);
        self.filled.notify_one();
        true
    }

    pub(super) fn pop(&self) -> Option<Command> {
        self.lock().commands.pop_front()
    }

    /// Sleep until there is something to pop.
    pub(super) fn wait(&self) {
        let mut queue = self.lock();
        while queue.commands.is_empty() {
            queue = self.filled.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Take no more, and hand out what nobody has read.
    pub(super) fn close(&self) -> VecDeque<Command> {
        let mut queue = self.lock();
        queue.closed = true;
        std::mem::take(&mut queue.commands)
    }
}
