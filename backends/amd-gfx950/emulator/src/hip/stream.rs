//! Streams: queues of work, run in order when somebody waits (checked mode) or at once.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard},
};

use super::{
    Status, api,
    graph::{self, Capture},
    put, runtime, work,
    work::Work,
};

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Work>,
    /// Pieces ever added, and done.
    added: u64,
    done: u64,
}

/// A stream.
#[derive(Debug)]
pub struct Stream {
    /// Its device.
    pub device: i32,
    /// Does not wait for the default stream, nor the default stream for it.
    pub non_blocking: bool,
    queue: Mutex<Queue>,
    /// Held while work runs, so that it runs in order.
    running: Mutex<()>,
    /// Capture under way.
    pub capture: Mutex<Option<Capture>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Stream {
    /// An empty stream.
    pub fn new(device: i32, non_blocking: bool) -> Self {
        Self { device, non_blocking, queue: Mutex::default(), running: Mutex::new(()), capture: Mutex::new(None) }
    }

    /// Adds work: to the graph under capture, or to the queue.
    pub fn add(self: &Arc<Self>, item: Work) -> Result<(), Status> {
        if let Some(capture) = &mut *lock(&self.capture) {
            return capture.add(item);
        }
        self.order_with_default()?;
        self.enqueue(item);
        if runtime().settings.check() { Ok(()) } else { self.finish() }
    }

    /// Adds work behind everything else.
    pub fn enqueue(&self, item: Work) {
        let mut queue = lock(&self.queue);
        queue.waiting.push_back(item);
        queue.added += 1;
    }

    /// The default stream and blocking streams wait for each other; running the other side now keeps that order.
    fn order_with_default(self: &Arc<Self>) -> Result<(), Status> {
        if self.non_blocking {
            return Ok(());
        }
        let default = &runtime().device(self.device)?.default_stream;
        if !Arc::ptr_eq(default, self) {
            return default.finish();
        }
        for other in runtime().streams.all() {
            if other.device == self.device && !other.non_blocking && lock(&other.capture).is_none() {
                other.finish()?;
            }
        }
        Ok(())
    }

    /// Position behind everything added so far.
    pub fn position(&self) -> u64 {
        lock(&self.queue).added
    }

    /// Everything up to a position is done.
    pub fn is_done(&self, position: u64) -> bool {
        lock(&self.queue).done >= position
    }

    /// Runs work up to a position.
    pub fn run_to(&self, position: u64) -> Result<(), Status> {
        while !self.is_done(position) {
            let _order = lock(&self.running);
            let item = {
                let mut queue = lock(&self.queue);
                if queue.done >= position {
                    break;
                }
                queue.waiting.pop_front()
            };
            let Some(item) = item else { break };
            let outcome = work::alive(self.device).and_then(|()| item.run(self.device));
            lock(&self.queue).done += 1;
            outcome?;
        }
        Ok(())
    }

    /// Runs everything.
    pub fn finish(&self) -> Result<(), Status> {
        self.run_to(self.position())
    }

    /// One more piece: what a host that polls sees happening.
    pub fn progress(&self) -> Result<bool, Status> {
        let done = lock(&self.queue).done;
        let added = self.position();
        if done < added {
            self.run_to(done + 1)?;
        }
        Ok(self.is_done(added))
    }
}

const NON_BLOCKING: u32 = 1;

fn create(to: *mut usize, flags: u32) -> Result<(), Status> {
    graph::permit_unsafe_call()?;
    if flags > NON_BLOCKING {
        return Err(Status::INVALID_VALUE);
    }
    let runtime = runtime();
    let stream = Arc::new(Stream::new(runtime.healthy()?, flags & NON_BLOCKING != 0));
    put(to, runtime.streams.add(stream))
}

api! {
    /// A blocking stream on the current device.
    fn hipStreamCreate(stream: *mut usize) { create(stream, 0) }
}
api! {
    /// A stream, blocking or not.
    fn hipStreamCreateWithFlags(stream: *mut usize, flags: u32) { create(stream, flags) }
}
api! {
    /// A stream; priorities make no difference here.
    fn hipStreamCreateWithPriority(stream: *mut usize, flags: u32, _priority: i32) { create(stream, flags) }
}
api! {
    /// Finishes and forgets a stream.
    fn hipStreamDestroy(stream: usize) {
        let found = runtime().streams.remove(stream)?;
        found.finish()
    }
}
api! {
    /// Waits for a stream.
    fn hipStreamSynchronize(stream: usize) {
        graph::permit_unsafe_call()?;
        runtime().stream(stream)?.finish()
    }
}
api! {
    /// Whether a stream is idle.
    fn hipStreamQuery(stream: usize) {
        graph::permit_unsafe_call()?;
        if runtime().stream(stream)?.progress()? { Ok(()) } else { Err(Status::NOT_READY) }
    }
}
api! {
    /// Makes later work of a stream wait for an event; inside a capture it joins the event's stream to it.
    fn hipStreamWaitEvent(stream: usize, event: usize, _flags: u32) {
        let (stream, event) = (runtime().stream(stream)?, runtime().events.get(event)?);
        if graph::join(&stream, &event)? {
            return Ok(());
        }
        match event.recorded() {
            Some((other, position)) => stream.add(Work::Wait(other, position)),
            None => Ok(()),
        }
    }
}
