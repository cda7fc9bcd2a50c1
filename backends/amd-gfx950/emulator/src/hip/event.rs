//! Events: marks in streams.

use std::{
    sync::{Arc, Mutex},
    time::Instant,
};

use super::{
    Status, api,
    graph::{self, CaptureId},
    put, runtime,
    stream::Stream,
    work::Work,
};

#[derive(Debug, Default)]
struct State {
    recorded: Option<(Arc<Stream>, u64)>,
    captured: Option<CaptureId>,
    time: Option<Instant>,
}

/// An event of a device, in whose streams alone it can be recorded; any stream may wait for it.
#[derive(Debug)]
pub struct Event {
    device: i32,
    state: Mutex<State>,
}

impl Event {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Where it was recorded.
    pub fn recorded(&self) -> Option<(Arc<Stream>, u64)> {
        self.lock().recorded.clone()
    }

    /// The capture that it was recorded in.
    pub fn captured(&self) -> Option<CaptureId> {
        self.lock().captured
    }

    /// Its stream got there.
    pub fn reached(&self) {
        self.lock().time = Some(Instant::now());
    }
}

fn create(event: *mut usize) -> Result<(), Status> {
    let device = runtime().healthy()?;
    put(event, runtime().events.add(Arc::new(Event { device, state: Mutex::default() })))
}

api! {
    /// An event of the current device.
    fn hipEventCreate(event: *mut usize) { create(event) }
}
api! {
    /// An event of the current device; flags make no difference here.
    fn hipEventCreateWithFlags(event: *mut usize, _flags: u32) { create(event) }
}
api! {
    /// Forgets an event.
    fn hipEventDestroy(event: usize) { runtime().events.remove(event).map(|_| ()) }
}
api! {
    /// Marks the end of what a stream holds now.
    fn hipEventRecord(event: usize, stream: usize) {
        let (event, stream) = (runtime().events.get(event)?, runtime().stream(stream)?);
        if let Some(id) = graph::capture_of(&stream) {
            let mut state = event.lock();
            (state.captured, state.recorded) = (Some(id), None);
            return Ok(());
        }
        if event.device != stream.device {
            return Err(Status::INVALID_HANDLE);
        }
        stream.add(Work::Mark(event.clone()))?;
        let position = stream.position();
        let mut state = event.lock();
        (state.captured, state.recorded) = (None, Some((stream, position)));
        Ok(())
    }
}
api! {
    /// Waits for an event; one that was never recorded has happened.
    fn hipEventSynchronize(event: usize) {
        graph::permit_unsafe_call()?;
        match runtime().events.get(event)?.recorded() {
            Some((stream, position)) => {
                super::work::alive(stream.device)?;
                stream.run_to(position)
            }
            None => Ok(()),
        }
    }
}
api! {
    /// Whether an event has happened.
    fn hipEventQuery(event: usize) {
        graph::permit_unsafe_call()?;
        let Some((stream, position)) = runtime().events.get(event)?.recorded() else { return Ok(()) };
        super::work::alive(stream.device)?;
        if !stream.is_done(position) {
            stream.progress()?;
        }
        if stream.is_done(position) { Ok(()) } else { Err(Status::NOT_READY) }
    }
}
api! {
    /// Milliseconds of host time between two events of a device that have happened: how long emulation took, nothing more.
    fn hipEventElapsedTime(milliseconds: *mut f32, start: usize, end: usize) {
        let (start, end) = (runtime().events.get(start)?, runtime().events.get(end)?);
        if start.device != end.device {
            return Err(Status::INVALID_HANDLE);
        }
        for event in [&start, &end] {
            let Some((stream, position)) = event.recorded() else { return Err(Status::INVALID_HANDLE) };
            if !stream.is_done(position) {
                return Err(Status::NOT_READY);
            }
        }
        // One after the other: both may be the same event.
        let from = start.lock().time;
        let (Some(from), Some(to)) = (from, end.lock().time) else { return Err(Status::NOT_READY) };
        put(milliseconds, to.saturating_duration_since(from).as_secs_f32() * 1000.0)
    }
}
