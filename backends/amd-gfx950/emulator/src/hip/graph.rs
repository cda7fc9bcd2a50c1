//! Stream capture and graphs.
//!
//! A graph is the list of its work in the order of capture, which is an order that its dependencies allow: work of joined
//! streams enters the same list. Replaying the list in order is therefore a legal execution.

use std::{
    cell::Cell,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    thread::ThreadId,
};

use super::{Status, api, event::Event, put, runtime, stream::Stream, work::Work};

/// A captured graph, or an instance of one.
#[derive(Debug, Default)]
pub struct Graph(Vec<Work>);

/// Where an event was recorded in a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CaptureId {
    group: u64,
    member: usize,
    position: usize,
}

#[derive(Debug)]
struct Member {
    stream: Arc<Stream>,
    /// Length of the list behind this member's last work, and up to where others waited for it.
    last: usize,
    joined: usize,
}

#[derive(Debug)]
struct Group {
    id: u64,
    mode: u32,
    thread: ThreadId,
    work: Vec<Work>,
    members: Vec<Member>,
    invalid: bool,
}

/// A stream's part in a capture.
#[derive(Debug, Clone)]
pub struct Capture {
    group: Arc<Mutex<Group>>,
    member: usize,
}

const MODE_GLOBAL: u32 = 0;
const MODE_THREAD_LOCAL: u32 = 1;
const MODE_RELAXED: u32 = 2;

/// Captures in global mode, which forbid unsafe calls to all threads.
static GLOBAL_CAPTURES: AtomicU64 = AtomicU64::new(0);
static NEXT_GROUP: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// Captures of this thread that forbid unsafe calls to it.
    static OWN_CAPTURES: Cell<u32> = const { Cell::new(0) };
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Capture {
    /// Records work.
    pub fn add(&mut self, item: Work) -> Result<(), Status> {
        let mut group = lock(&self.group);
        if group.invalid {
            return Err(Status::CAPTURE_INVALIDATED);
        }
        group.work.push(item);
        let last = group.work.len();
        group.members[self.member].last = last;
        Ok(())
    }
}

/// Allocation, waiting and the like are not allowed while a capture is under way; trying invalidates the thread's captures.
pub fn permit_unsafe_call() -> Result<(), Status> {
    if OWN_CAPTURES.get() == 0 && GLOBAL_CAPTURES.load(Ordering::Relaxed) == 0 {
        return Ok(());
    }
    let me = std::thread::current().id();
    for stream in runtime().streams.all() {
        let capture = lock(&stream.capture).clone();
        if let Some(capture) = capture {
            let mut group = lock(&capture.group);
            if group.mode == MODE_GLOBAL || group.mode == MODE_THREAD_LOCAL && group.thread == me {
                group.invalid = true;
            }
        }
    }
    Err(Status::CAPTURE_UNSUPPORTED)
}

/// The position of a stream in its capture, if it is captured.
pub fn capture_of(stream: &Stream) -> Option<CaptureId> {
    let capture = lock(&stream.capture).clone()?;
    let group = lock(&capture.group);
    Some(CaptureId { group: group.id, member: capture.member, position: group.work.len() })
}

/// A stream waits for an event: if the event is of a capture, the stream joins it. False if no capture is concerned.
pub fn join(stream: &Arc<Stream>, event: &Event) -> Result<bool, Status> {
    let own = lock(&stream.capture).clone();
    let Some(id) = event.captured() else {
        // Waiting for what is outside the capture is not part of the graph.
        return if own.is_some() { Err(Status::CAPTURE_UNSUPPORTED) } else { Ok(false) };
    };
    if let Some(capture) = own {
        let mut group = lock(&capture.group);
        if group.id != id.group {
            return Err(Status::CAPTURE_UNSUPPORTED);
        }
        let member = &mut group.members[id.member];
        member.joined = member.joined.max(id.position);
        return Ok(true);
    }
    for other in runtime().streams.all() {
        let Some(capture) = lock(&other.capture).clone() else { continue };
        let mut group = lock(&capture.group);
        if group.id == id.group {
            let member = group.members.len();
            group.members.push(Member { stream: stream.clone(), last: 0, joined: 0 });
            drop(group);
            *lock(&stream.capture) = Some(Capture { group: capture.group.clone(), member });
            return Ok(true);
        }
    }
    Err(Status::CAPTURE_UNSUPPORTED)
}

api! {
    /// Starts recording a stream's work instead of doing it.
    fn hipStreamBeginCapture(stream: usize, mode: u32) {
        if stream == 0 || mode > MODE_RELAXED {
            // The default stream cannot be captured.
            return Err(if stream == 0 { Status::CAPTURE_UNSUPPORTED } else { Status::INVALID_VALUE });
        }
        let stream = runtime().stream(stream)?;
        let mut capture = lock(&stream.capture);
        if capture.is_some() {
            return Err(Status::CAPTURE_UNSUPPORTED);
        }
        let group = Group {
            id: NEXT_GROUP.fetch_add(1, Ordering::Relaxed),
            mode,
            thread: std::thread::current().id(),
            work: Vec::new(),
            members: vec![Member { stream: stream.clone(), last: 0, joined: usize::MAX }],
            invalid: false,
        };
        *capture = Some(Capture { group: Arc::new(Mutex::new(group)), member: 0 });
        match mode {
            MODE_GLOBAL => {
                GLOBAL_CAPTURES.fetch_add(1, Ordering::Relaxed);
            }
            MODE_THREAD_LOCAL => OWN_CAPTURES.set(OWN_CAPTURES.get() + 1),
            _ => {}
        }
        Ok(())
    }
}

api! {
    /// Ends a capture on the stream that began it.
    fn hipStreamEndCapture(stream: usize, graph: *mut usize) {
        let stream = runtime().stream(stream)?;
        let Some(capture) = lock(&stream.capture).clone() else { return Err(Status::CAPTURE_UNMATCHED) };
        if capture.member != 0 {
            return Err(Status::CAPTURE_UNMATCHED);
        }
        // Taken out under the group's lock; streams are touched after it, as everywhere a stream is locked before its group.
        let (mode, invalid, unjoined, work, members) = {
            let mut group = lock(&capture.group);
            if group.mode == MODE_THREAD_LOCAL && group.thread != std::thread::current().id() {
                return Err(Status::CAPTURE_WRONG_THREAD);
            }
            let unjoined = group.members.iter().any(|m| m.last > m.joined);
            let members: Vec<Arc<Stream>> = group.members.iter().map(|m| m.stream.clone()).collect();
            (group.mode, group.invalid, unjoined, std::mem::take(&mut group.work), members)
        };
        match mode {
            MODE_GLOBAL => {
                GLOBAL_CAPTURES.fetch_sub(1, Ordering::Relaxed);
            }
            MODE_THREAD_LOCAL => OWN_CAPTURES.set(OWN_CAPTURES.get().saturating_sub(1)),
            _ => {}
        }
        for member in members {
            *lock(&member.capture) = None;
        }
        put(graph, 0)?;
        if invalid {
            return Err(Status::CAPTURE_INVALIDATED);
        }
        if unjoined {
            return Err(Status::CAPTURE_UNJOINED);
        }
        put(graph, runtime().graphs.add(Arc::new(Graph(work))))
    }
}

api! {
    /// 0 not capturing, 1 capturing, 2 invalidated.
    fn hipStreamIsCapturing(stream: usize, status: *mut i32) {
        let stream = runtime().stream(stream)?;
        let state = lock(&stream.capture).as_ref().map_or(0, |c| if lock(&c.group).invalid { 2 } else { 1 });
        put(status, state)
    }
}

api! {
    /// How many pieces of work a graph has; with a null list only the count is written, and lists are not supported.
    fn hipGraphGetNodes(graph: usize, nodes: *mut usize, count: *mut usize) {
        let graph = runtime().graphs.get(graph)?;
        if !nodes.is_null() {
            return Err(Status::NOT_SUPPORTED);
        }
        put(count, graph.0.len())
    }
}

fn instantiate(executable: *mut usize, graph: usize) -> Result<(), Status> {
    let graph = runtime().graphs.get(graph)?;
    put(executable, runtime().executables.add(Arc::new(Graph(graph.0.clone()))))
}

api! {
    /// An instance of a graph.
    fn hipGraphInstantiate(executable: *mut usize, graph: usize, _error_node: *mut usize, _log: *mut u8, _bytes: usize) {
        instantiate(executable, graph)
    }
}
api! {
    /// An instance of a graph; flags make no difference here.
    fn hipGraphInstantiateWithFlags(executable: *mut usize, graph: usize, _flags: u64) { instantiate(executable, graph) }
}
api! {
    /// Adds a graph's work to a stream.
    fn hipGraphLaunch(executable: usize, stream: usize) {
        let (executable, stream) = (runtime().executables.get(executable)?, runtime().stream(stream)?);
        executable.0.iter().try_for_each(|item| stream.add(item.clone()))
    }
}
api! {
    /// Forgets an instance.
    fn hipGraphExecDestroy(executable: usize) { runtime().executables.remove(executable).map(|_| ()) }
}
api! {
    /// Forgets a graph; its instances stay.
    fn hipGraphDestroy(graph: usize) { runtime().graphs.remove(graph).map(|_| ()) }
}
