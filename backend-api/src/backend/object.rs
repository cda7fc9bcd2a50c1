//! Handles of memory, queues and events, and the bindings made of them.

use super::{
    BackendError,
    device::{Corpse, Inner},
    entry,
};
use crate::abi::*;
use std::sync::Arc;

/// Keeps imported memory alive.
pub(super) trait Keep: Send + Sync {}
impl<T: ?Sized + Send + Sync> Keep for Arc<T> {}

/// Memory of a device. Copies share it; the last one frees it.
#[derive(Clone)]
pub struct Arena(pub(super) Arc<ArenaInner>);

pub(super) struct ArenaInner {
    pub(super) device: Arc<Inner>,
    pub(super) raw: *mut ts_arena,
    pub(super) bytes: u64,
    pub(super) owner: Option<Box<dyn Keep>>,
}

// SAFETY: a handle. The plugin is called with it through `&Device` only.
unsafe impl Send for ArenaInner {}
// SAFETY: as above.
unsafe impl Sync for ArenaInner {}

impl Arena {
    /// Length.
    pub fn bytes(&self) -> u64 {
        self.0.bytes
    }
}

impl Drop for ArenaInner {
    fn drop(&mut self) {
        self.device.bury(Corpse::Arena(self.raw, self.owner.take()));
    }
}

impl std::fmt::Debug for Arena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "arena of {} bytes", self.0.bytes)
    }
}

/// A stream of work in order.
pub struct Queue {
    pub(super) device: Arc<Inner>,
    pub(super) raw: *mut ts_queue,
}

// SAFETY: as for `ArenaInner`.
unsafe impl Send for Queue {}
// SAFETY: as for `ArenaInner`.
unsafe impl Sync for Queue {}

impl Drop for Queue {
    fn drop(&mut self) {
        self.device.bury(Corpse::Queue(self.raw));
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "queue {:?}", self.raw)
    }
}

/// A timeline. Copies are the same timeline; any thread may ask and wait.
#[derive(Clone)]
pub struct Event(pub(super) Arc<EventInner>);

pub(super) struct EventInner {
    pub(super) device: Arc<Inner>,
    pub(super) raw: *mut ts_event,
}

// SAFETY: query and wait are thread-safe by the ABI; signalling goes through `&Device`.
unsafe impl Send for EventInner {}
// SAFETY: as above.
unsafe impl Sync for EventInner {}

impl Drop for EventInner {
    fn drop(&mut self) {
        self.device.bury(Corpse::Event(self.raw));
    }
}

impl Event {
    /// Its value now, or the error of the work behind it, which sticks.
    pub fn query(&self) -> Result<u64, BackendError> {
        let d = &self.0.device;
        let mut value = 0;
        // SAFETY: a live event; pointers ours for the call; thread-safe by the ABI.
        d.call("event_query", |t, e| unsafe { entry!(t, event_query)(self.0.raw, &raw mut value, e) })?;
        Ok(value)
    }

    /// Blocks until `value`; an error with code `TS_ERR_TIMEOUT` after `timeout_ns`.
    pub fn wait(&self, value: u64, timeout_ns: u64) -> Result<(), BackendError> {
        // SAFETY: as above.
        self.0.device.call("event_wait", |t, e| unsafe { entry!(t, event_wait)(self.0.raw, value, timeout_ns, e) })
    }
}

impl std::fmt::Debug for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "event {:?}", self.0.raw)
    }
}

/// Ranges of arenas bound to slots (`TS_BIND_*`). Keeps its arenas alive.
#[derive(Clone, Default)]
pub struct Bindings {
    raw: Vec<ts_binding>,
    arenas: Vec<Option<Arena>>,
}

// SAFETY: the raw handles are those of the arenas beside them.
unsafe impl Send for Bindings {}
// SAFETY: as above.
unsafe impl Sync for Bindings {}

impl Bindings {
    /// Nothing bound.
    pub fn new() -> Self {
        Self::default()
    }

    /// Binds `bytes` bytes at `offset` of `arena` to `slot`, replacing what was there. Panics if the range is outside
    /// of the arena, which is the planner's mistake.
    pub fn bind(&mut self, slot: u32, arena: &Arena, offset: u64, bytes: u64) -> &mut Self {
        assert!(
            offset.checked_add(bytes).is_some_and(|end| end <= arena.bytes()),
            "binding {slot}: {bytes} bytes at {offset} of an arena of {}",
            arena.bytes()
        );
        let slot = slot as usize;
        if slot >= self.raw.len() {
            self.raw.resize(slot + 1, ts_binding { arena: std::ptr::null_mut(), offset: 0, bytes: 0 });
            self.arenas.resize(slot + 1, None);
        }
        self.raw[slot] = ts_binding { arena: arena.0.raw, offset, bytes };
        self.arenas[slot] = Some(arena.clone());
        self
    }

    /// Binds a whole arena.
    pub fn bind_all(&mut self, slot: u32, arena: &Arena) -> &mut Self {
        self.bind(slot, arena, 0, arena.bytes())
    }

    /// The arena at `slot`.
    pub fn arena(&self, slot: u32) -> Option<&Arena> {
        self.arenas.get(slot as usize).and_then(Option::as_ref)
    }

    /// The range at `slot`: offset and bytes.
    pub fn range(&self, slot: u32) -> Option<(u64, u64)> {
        self.arena(slot)?;
        self.raw.get(slot as usize).map(|b| (b.offset, b.bytes))
    }

    /// As C records, valid while `self` is unchanged.
    pub fn raw(&self) -> &[ts_binding] {
        &self.raw
    }

    pub(super) fn assert_of(&self, device: &Arc<Inner>) {
        for arena in self.arenas.iter().flatten() {
            assert!(Arc::ptr_eq(&arena.0.device, device), "a binding names an arena of another device");
        }
    }
}

impl std::fmt::Debug for Bindings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.raw.iter().map(|b| (b.offset, b.bytes))).finish()
    }
}
