//! What callers ask of the engine thread, in order.

use std::sync::{Arc, mpsc::SyncSender};

use super::queue::Queue;
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

/// Messages on their way. Closed when the engine thread has ended: a command left there would be waited for in vain.
pub(super) type Inbox = Queue<Command>;
