//! An opened device.

use super::{
    Arena, BackendError, Bindings, DeviceInfo, Event, Loaded, OpRecord, Queue, Support, entry,
    object::{ArenaInner, EventInner, Keep},
};
use crate::{abi::*, sized};
use std::{
    cell::Cell,
    marker::PhantomData,
    ptr::null_mut,
    sync::{Arc, Mutex},
};

/// What an arena is for; the backend may place kinds differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum ArenaKind {
    /// Read often, written once.
    Weights = TS_ARENA_WEIGHTS,
    /// Pages and states.
    Cache = TS_ARENA_CACHE,
    /// Intermediate values and scratch.
    Activations = TS_ARENA_ACTIVATIONS,
    /// The parameter block.
    Step = TS_ARENA_STEP,
    /// Block tables.
    Tables = TS_ARENA_TABLES,
    /// Logits and sampled tokens.
    Output = TS_ARENA_OUTPUT,
    /// Host transfers.
    Staging = TS_ARENA_STAGING,
}

/// A handle whose owner is gone, to be freed on the device's thread.
pub(super) enum Corpse {
    Arena(*mut ts_arena, Option<Box<dyn Keep>>),
    Queue(*mut ts_queue),
    Event(*mut ts_event),
    Program(*mut ts_program),
}

/// The open device; closed when the last object is gone.
pub(super) struct Inner {
    pub(super) loaded: Arc<Loaded>,
    pub(super) raw: *mut ts_device,
    pub(super) index: u32,
    info: DeviceInfo,
    graveyard: Mutex<Vec<Corpse>>,
}

// SAFETY: calls that are not thread-safe go through `&Device`, of which there is one and which is not Sync.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Inner {
    #[inline]
    pub(super) fn call(
        &self,
        call: &'static str,
        body: impl FnOnce(&ts_backend_table, *mut ts_error) -> ts_status,
    ) -> Result<(), BackendError> {
        self.loaded.call(call, Some(self.index), |e| body(&self.loaded.table, e))
    }

    fn status(&self) -> Result<(), BackendError> {
        // SAFETY: thread-safe by the ABI; the device is open.
        self.call("device_status", |t, e| unsafe { entry!(t, device_status)(self.raw, e) })
    }

    pub(super) fn unsupported(&self, call: &'static str) -> BackendError {
        let what = "the backend does not have this entry".to_owned();
        self.loaded.error(call, TS_ERR_UNSUPPORTED, Some(self.index), what)
    }

    pub(super) fn bury(&self, corpse: Corpse) {
        self.graveyard.lock().unwrap_or_else(|e| e.into_inner()).push(corpse);
    }

    /// Frees what was dropped, in that order. Call it on the device's thread only. A corpse never holds a handle of
    /// the device, which would keep it open for ever.
    fn reap(&self) {
        loop {
            let dead = std::mem::take(&mut *self.graveyard.lock().unwrap_or_else(|e| e.into_inner()));
            if dead.is_empty() {
                return;
            }
            let t = &self.loaded.table;
            for corpse in dead {
                // SAFETY: handles of this device, each buried once, by its last owner.
                unsafe {
                    match corpse {
                        Corpse::Arena(raw, owner) => {
                            entry!(t, arena_free)(self.raw, raw);
                            drop(owner);
                        }
                        Corpse::Queue(raw) => entry!(t, queue_destroy)(self.raw, raw),
                        Corpse::Event(raw) => entry!(t, event_destroy)(self.raw, raw),
                        Corpse::Program(raw) => t.program_drop.expect("there is a program")(self.raw, raw),
                    }
                }
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.reap();
        // SAFETY: the last reference: no handle and no other thread is left.
        unsafe { entry!(self.loaded.table, device_close)(self.raw) }
    }
}

/// An opened device, used from one thread at a time.
///
/// ```compile_fail
/// fn shared<T: Sync>() {}
/// shared::<tokenspeed_backend_api::backend::Device>();
/// ```
pub struct Device {
    pub(super) inner: Arc<Inner>,
    not_sync: PhantomData<Cell<()>>,
}

impl Device {
    pub(super) fn open(
        loaded: Arc<Loaded>,
        info: DeviceInfo,
        index: u32,
        options: &[(&str, &str)],
    ) -> Result<Self, BackendError> {
        let list: Vec<ts_option> =
            options.iter().map(|(k, v)| ts_option { key: sized::str_to(k), value: sized::str_to(v) }).collect();
        let mut raw = null_mut();
        // SAFETY: pointers are ours for the call.
        loaded.call("device_open", Some(index), |e| unsafe {
            entry!(loaded.table, device_open)(index, list.as_ptr(), list.len() as u32, &raw mut raw, e)
        })?;
        checked(raw, "device_open", &loaded, index)?;
        let inner = Inner { loaded, raw, index, info, graveyard: Mutex::default() };
        Ok(Self { inner: Arc::new(inner), not_sync: PhantomData })
    }

    /// Which of the backend's devices this is.
    pub fn index(&self) -> u32 {
        self.inner.index
    }

    /// What the device says about itself.
    pub fn info(&self) -> &DeviceInfo {
        &self.inner.info
    }

    /// Name of the backend.
    pub fn backend_name(&self) -> &str {
        &self.inner.loaded.info.name
    }

    /// Alignment in bytes of every operand offset.
    pub fn alignment(&self) -> u64 {
        u64::from(self.inner.info.alignment)
    }

    /// Whether arenas can be mapped and share the host's memory.
    pub fn host_mapped(&self) -> bool {
        self.inner.info.host_mapped
    }

    /// Whether rows of a step may be branches of one request.
    pub fn branch_rows(&self) -> bool {
        self.inner.info.branch_rows
    }

    /// Whether programs are worth preparing for several buckets.
    pub fn bucketed(&self) -> bool {
        self.inner.info.bucketed
    }

    /// Preferred tokens per page.
    pub fn page_tokens(&self) -> Option<u32> {
        self.inner.info.page_tokens
    }

    /// Asks about the device from other threads.
    pub fn monitor(&self) -> DeviceMonitor {
        DeviceMonitor(self.inner.clone())
    }

    /// Ok, or the sticky error.
    pub fn status(&self) -> Result<(), BackendError> {
        self.inner.status()
    }

    /// See [`DeviceMonitor::counters`].
    pub fn counters(&self) -> Result<Vec<(String, u64)>, BackendError> {
        self.monitor().counters()
    }

    /// Memory, contents undefined.
    pub fn arena_alloc(&self, kind: ArenaKind, bytes: u64) -> Result<Arena, BackendError> {
        self.inner.reap();
        let mut raw = null_mut();
        // SAFETY: pointers are ours for the call.
        self.inner.call("arena_alloc", |t, e| unsafe {
            entry!(t, arena_alloc)(self.inner.raw, kind as u32, bytes, &raw mut raw, e)
        })?;
        self.arena(raw, bytes, None, "arena_alloc")
    }

    /// Whether [`Device::arena_import`] exists.
    pub fn can_import(&self) -> bool {
        self.inner.loaded.table.arena_import.is_some()
    }

    /// Uses memory of `owner` in place, read-only; `view` shows which part. The arena keeps the owner alive.
    pub fn arena_import<T: ?Sized + Send + Sync + 'static>(
        &self,
        kind: ArenaKind,
        owner: Arc<T>,
        view: impl for<'a> FnOnce(&'a T) -> &'a [u8],
    ) -> Result<Arena, BackendError> {
        self.inner.reap();
        let import = self.inner.loaded.table.arena_import.ok_or_else(|| self.inner.unsupported("arena_import"))?;
        let data = view(&owner);
        let (data, bytes) = (data.as_ptr(), data.len() as u64);
        let mut raw = null_mut();
        // SAFETY: the slice is borrowed from behind the `Arc`, which neither moves nor dies while the arena lives.
        self.inner.call("arena_import", |_, e| unsafe {
            import(self.inner.raw, kind as u32, data, bytes, &raw mut raw, e)
        })?;
        self.arena(raw, bytes, Some(Box::new(owner)), "arena_import")
    }

    fn arena(
        &self,
        raw: *mut ts_arena,
        bytes: u64,
        owner: Option<Box<dyn Keep>>,
        call: &'static str,
    ) -> Result<Arena, BackendError> {
        checked(raw, call, &self.inner.loaded, self.inner.index)?;
        Ok(Arena(Arc::new(ArenaInner { device: self.inner.clone(), raw, bytes, owner })))
    }

    /// Host address of an arena, valid until it is freed.
    pub fn arena_map(&self, arena: &Arena) -> Result<*mut u8, BackendError> {
        self.assert_own(&arena.0.device);
        let map = self.inner.loaded.table.arena_map.ok_or_else(|| self.inner.unsupported("arena_map"))?;
        let mut data = null_mut();
        // SAFETY: a live arena of this device.
        self.inner.call("arena_map", |_, e| unsafe { map(self.inner.raw, arena.0.raw, &raw mut data, e) })?;
        checked(data, "arena_map", &self.inner.loaded, self.inner.index)
    }

    /// Copies to the device and returns when that is done.
    pub fn write(&self, arena: &Arena, offset: u64, data: &[u8]) -> Result<(), BackendError> {
        self.assert_own(&arena.0.device);
        self.check_range("arena_write", arena, offset, data.len())?;
        // SAFETY: a live arena of this device, and a range inside of it.
        self.inner.call("arena_write", |t, e| unsafe {
            entry!(t, arena_write)(self.inner.raw, arena.0.raw, offset, data.as_ptr(), data.len() as u64, e)
        })
    }

    /// Copies from the device and returns when that is done.
    pub fn read(&self, arena: &Arena, offset: u64, data: &mut [u8]) -> Result<(), BackendError> {
        self.assert_own(&arena.0.device);
        self.check_range("arena_read", arena, offset, data.len())?;
        // SAFETY: as above.
        self.inner.call("arena_read", |t, e| unsafe {
            entry!(t, arena_read)(self.inner.raw, arena.0.raw, offset, data.as_mut_ptr(), data.len() as u64, e)
        })
    }

    fn check_range(&self, call: &'static str, arena: &Arena, offset: u64, n: usize) -> Result<(), BackendError> {
        if offset.checked_add(n as u64).is_some_and(|end| end <= arena.bytes()) {
            return Ok(());
        }
        let what = format!("{n} bytes at {offset} pass the end of an arena of {}", arena.bytes());
        Err(self.inner.loaded.error(call, TS_ERR_INVALID, Some(self.inner.index), what))
    }

    /// A new queue.
    pub fn queue_create(&self) -> Result<Queue, BackendError> {
        self.inner.reap();
        let mut raw = null_mut();
        // SAFETY: pointers are ours for the call.
        self.inner.call("queue_create", |t, e| unsafe { entry!(t, queue_create)(self.inner.raw, &raw mut raw, e) })?;
        checked(raw, "queue_create", &self.inner.loaded, self.inner.index)?;
        Ok(Queue { device: self.inner.clone(), raw })
    }

    /// A new event at 0.
    pub fn event_create(&self) -> Result<Event, BackendError> {
        self.inner.reap();
        let mut raw = null_mut();
        // SAFETY: pointers are ours for the call.
        self.inner.call("event_create", |t, e| unsafe { entry!(t, event_create)(self.inner.raw, &raw mut raw, e) })?;
        checked(raw, "event_create", &self.inner.loaded, self.inner.index)?;
        Ok(Event(Arc::new(EventInner { device: self.inner.clone(), raw })))
    }

    /// Copies `bytes` bytes between arenas in queue order.
    pub fn queue_copy(
        &self,
        queue: &Queue,
        destination: (&Arena, u64),
        source: (&Arena, u64),
        bytes: u64,
    ) -> Result<(), BackendError> {
        let side = |(arena, offset): (&Arena, u64)| {
            self.assert_own(&arena.0.device);
            self.check_range("queue_copy", arena, offset, bytes as usize)?;
            Ok(ts_binding { arena: arena.0.raw, offset, bytes })
        };
        let (to, from) = (side(destination)?, side(source)?);
        self.assert_own(&queue.device);
        // SAFETY: live objects of this device, ranges checked.
        self.inner
            .call("queue_copy", |t, e| unsafe { entry!(t, queue_copy)(queue.raw, &raw const to, &raw const from, e) })
    }

    /// The event reaches `value` after all earlier work of the queue.
    pub fn queue_signal(&self, queue: &Queue, event: &Event, value: u64) -> Result<(), BackendError> {
        self.assert_own(&queue.device);
        self.assert_own(&event.0.device);
        // SAFETY: live objects of this device.
        self.inner.call("queue_signal", |t, e| unsafe { entry!(t, queue_signal)(queue.raw, event.0.raw, value, e) })
    }

    /// Later work of the queue waits until the event has reached `value`.
    pub fn queue_wait(&self, queue: &Queue, event: &Event, value: u64) -> Result<(), BackendError> {
        self.assert_own(&queue.device);
        self.assert_own(&event.0.device);
        // SAFETY: live objects of this device.
        self.inner.call("queue_wait", |t, e| unsafe { entry!(t, queue_wait)(queue.raw, event.0.raw, value, e) })
    }

    /// Whether the device runs `op`; bindings and offsets of the operands are not looked at.
    pub fn op_support(&self, op: &OpRecord) -> Result<Support, BackendError> {
        self.monitor().op_support(op)
    }

    /// Enqueues one op; the parameter block is in the arena bound to `TS_BIND_STEP`.
    pub fn op_launch(&self, queue: &Queue, op: &OpRecord, bindings: &Bindings) -> Result<(), BackendError> {
        self.assert_own(&queue.device);
        bindings.assert_of(&self.inner);
        let (op, raw) = (op.as_abi(), bindings.raw());
        // SAFETY: live objects of this device; the record and its operands live for the call.
        self.inner.call("op_launch", |t, e| unsafe {
            entry!(t, op_launch)(queue.raw, &raw const op, raw.as_ptr(), raw.len() as u32, e)
        })
    }

    /// Writes the packed form of `source`, the canonical bytes of `operand`, to `bytes` bytes at `offset` of `arena`.
    pub fn op_pack(
        &self,
        op: &OpRecord,
        operand: u32,
        source: &[u8],
        arena: &Arena,
        offset: u64,
        bytes: u64,
    ) -> Result<(), BackendError> {
        self.assert_own(&arena.0.device);
        self.check_range("op_pack", arena, offset, bytes as usize)?;
        let pack = self.inner.loaded.table.op_pack.ok_or_else(|| self.inner.unsupported("op_pack"))?;
        let (op, to) = (op.as_abi(), ts_binding { arena: arena.0.raw, offset, bytes });
        // SAFETY: as above, with the range checked.
        self.inner.call("op_pack", |_, e| unsafe {
            pack(self.inner.raw, &raw const op, operand, source.as_ptr(), source.len() as u64, &raw const to, e)
        })
    }

    pub(super) fn assert_own(&self, device: &Arc<Inner>) {
        assert!(Arc::ptr_eq(device, &self.inner), "an object of another device was passed");
    }

    pub(super) fn reap(&self) {
        self.inner.reap();
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} device {}", self.backend_name(), self.inner.index)
    }
}

/// A success without an object is the backend's mistake, and would be a null pointer later.
pub(super) fn checked<T>(raw: *mut T, call: &'static str, loaded: &Loaded, index: u32) -> Result<*mut T, BackendError> {
    if !raw.is_null() {
        return Ok(raw);
    }
    Err(loaded.error(call, TS_ERR_INTERNAL, Some(index), "succeeded without giving an object".to_owned()))
}

/// More counters than this are not asked for.
const COUNTERS_MAX: usize = 64;

/// The calls that any thread may make at any time.
#[derive(Clone)]
pub struct DeviceMonitor(Arc<Inner>);

impl DeviceMonitor {
    /// Ok, or the sticky error.
    pub fn status(&self) -> Result<(), BackendError> {
        self.0.status()
    }

    /// What the device counted since it was opened, by name; empty for a backend that counts nothing.
    pub fn counters(&self) -> Result<Vec<(String, u64)>, BackendError> {
        let Some(counters) = self.0.loaded.table.device_counters else { return Ok(Vec::new()) };
        let ask = |list: &mut [ts_counter]| {
            let mut count = 0;
            // SAFETY: thread-safe by the ABI; the slice has the capacity stated.
            self.0.call("device_counters", |_, e| unsafe {
                counters(self.0.raw, list.as_mut_ptr(), list.len() as u32, &raw mut count, e)
            })?;
            Ok(count as usize)
        };
        let none = ts_counter { name: sized::str_to(""), value: 0 };
        let mut list = vec![none; ask(&mut [])?.min(COUNTERS_MAX)];
        let count = ask(&mut list)?.min(list.len());
        // SAFETY: names live as long as the process, by the ABI.
        Ok(list[..count]
            .iter()
            .map(|c| (unsafe { sized::str_from(c.name) }.unwrap_or("?").to_owned(), c.value))
            .collect())
    }

    /// See [`Device::op_support`].
    pub fn op_support(&self, op: &OpRecord) -> Result<Support, BackendError> {
        let raw = op.as_abi();
        let mut answer: ts_support = sized::zeroed();
        answer.pack_operand = TS_NO_OPERAND;
        // SAFETY: thread-safe by the ABI; the record lives for the call.
        self.0.call("op_support", |t, e| unsafe {
            entry!(t, op_support)(self.0.raw, &raw const raw, &raw mut answer, e)
        })?;
        let support = Support::from_abi(&answer);
        for (i, pack) in support.packs.iter().enumerate().filter(|_| support.is_supported()) {
            let bad = if self.0.loaded.table.op_pack.is_none() {
                Some("there is no op_pack entry".to_owned())
            } else if pack.operand as usize >= op.operands.len() {
                Some(format!("the op has {} operands", op.operands.len()))
            } else if pack.layout == 0 {
                Some("its layout is 0".to_owned())
            } else if support.packs[..i].iter().any(|p| p.operand == pack.operand) {
                Some("did so before".to_owned())
            } else {
                None
            };
            if let Some(why) = bad {
                let what = format!("asks to pack operand {} of {} but {why}", pack.operand, op.kind);
                return Err(self.0.loaded.error("op_support", TS_ERR_INTERNAL, Some(self.0.index), what));
            }
        }
        Ok(support)
    }
}

impl std::fmt::Debug for DeviceMonitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "monitor of {} device {}", self.0.loaded.info.name, self.0.index)
    }
}
