//! From the C table to the traits: one `extern "C"` function per entry, generic over the backend.
//!
//! Each function checks its pointers, turns a panic into `TS_ERR_INTERNAL`, and turns a [`Fault`] into a status and a
//! filled error record. Objects are boxes owned by their device: freeing one twice, or after the device, is ignored
//! instead of being undefined, and closing the device frees what is left.

use super::{
    bind::{Bindings, span},
    device::{BackendImpl, Bucket, DeviceImpl, Load, RunView, Span, checked_support},
    fault::Fault,
    op_view::OpView,
    services::HostServices,
    table::intern,
};
use crate::{abi::*, sized, support::Support};
use std::{
    collections::HashSet,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Mutex, MutexGuard},
};

/// Ops of one program; a guard against wild lengths.
const OPS_MAX: u32 = 1 << 24;

/// A plugin-side object: the device it belongs to, and the backend's own value.
pub(crate) struct Object<D: DeviceImpl, T> {
    device: *const Cell<D>,
    pub(crate) value: T,
}

/// An opened device and the addresses of its live objects.
struct Cell<D: DeviceImpl> {
    device: D,
    live: Mutex<Live>,
}

#[derive(Default)]
struct Live {
    arenas: HashSet<usize>,
    queues: HashSet<usize>,
    events: HashSet<usize>,
    programs: HashSet<usize>,
}

impl<D: DeviceImpl> Cell<D> {
    fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn create<T, H>(&self, value: T, out: *mut *mut H, set: impl FnOnce(&mut Live) -> &mut HashSet<usize>) {
        let object = Box::into_raw(Box::new(Object { device: self, value }));
        set(&mut self.live()).insert(object as usize);
        // SAFETY: `checked_out` has seen that `out` is not null.
        unsafe { out.write(object.cast()) };
    }
}

impl<D: DeviceImpl> Drop for Cell<D> {
    fn drop(&mut self) {
        let live = std::mem::take(self.live.get_mut().unwrap_or_else(|e| e.into_inner()));
        // SAFETY: the sets hold exactly the boxes made by `create` and not yet freed. Programs may refer to arenas
        // and queues to events, hence this order.
        unsafe {
            live.programs.into_iter().for_each(|p| drop(Box::from_raw(p as *mut Object<D, D::Program>)));
            live.queues.into_iter().for_each(|p| drop(Box::from_raw(p as *mut Object<D, D::Queue>)));
            live.events.into_iter().for_each(|p| drop(Box::from_raw(p as *mut Object<D, D::Event>)));
            live.arenas.into_iter().for_each(|p| drop(Box::from_raw(p as *mut Object<D, D::Arena>)));
        }
    }
}

/// Runs `body`; nothing unwinds out of it.
///
/// # Safety
/// `error` is null or a valid error record.
unsafe fn guard(error: *mut ts_error, body: impl FnOnce() -> Result<(), Fault>) -> ts_status {
    let fault = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return TS_OK,
        Ok(Err(fault)) => fault,
        Err(panic) => {
            let text = panic
                .downcast_ref::<&str>()
                .map(|s| (*s).to_owned())
                .or_else(|| panic.downcast_ref::<String>().cloned())
                .unwrap_or_else(|| "of unknown type".to_owned());
            // Dropping a foreign payload may panic again; a panic is rare enough to leak it.
            std::mem::forget(panic);
            Fault::internal(format!("panic: {text}"))
        }
    };
    // SAFETY: promised by the caller.
    unsafe { fault.report(error) }
}

fn null(what: &str) -> Fault {
    Fault::invalid(format!("{what} is null"))
}

/// # Safety
/// `p` is null or valid for `'a`.
unsafe fn get<'a, T, H>(p: *mut H, what: &str) -> Result<&'a T, Fault> {
    // SAFETY: promised by the caller.
    unsafe { p.cast::<T>().as_ref() }.ok_or_else(|| null(what))
}

/// # Safety
/// `p` is null or valid for `'a` and used by nobody else meanwhile (the device is externally synchronised).
unsafe fn get_mut<'a, T, H>(p: *mut H, what: &str) -> Result<&'a mut T, Fault> {
    // SAFETY: promised by the caller.
    unsafe { p.cast::<T>().as_mut() }.ok_or_else(|| null(what))
}

fn checked_out<T>(out: *mut T, what: &str) -> Result<*mut T, Fault> {
    if out.is_null() { Err(null(what)) } else { Ok(out) }
}

/// # Safety
/// `data` has `bytes` readable bytes for `'a`, or is null.
unsafe fn bytes_of<'a>(data: *const u8, bytes: u64) -> Result<&'a [u8], Fault> {
    let n = usize::try_from(bytes).ok().filter(|&n| n <= isize::MAX as usize);
    let n = n.ok_or_else(|| Fault::invalid(format!("{bytes} bytes")))?;
    match n {
        0 => Ok(&[]),
        _ if data.is_null() => Err(null("data")),
        // SAFETY: promised by the caller.
        _ => Ok(unsafe { core::slice::from_raw_parts(data, n) }),
    }
}

/// # Safety
/// `b` is null or a binding of a live arena of this device type.
unsafe fn span_at<'a, D: DeviceImpl>(b: *const ts_binding, what: &str) -> Result<Span<'a, D::Arena>, Fault> {
    // SAFETY: promised by the caller.
    unsafe { b.as_ref().and_then(|b| span::<D>(b)) }.ok_or_else(|| null(what))
}

type Dev<B> = Cell<<B as BackendImpl>::Device>;
type Arena<B> = Object<<B as BackendImpl>::Device, <<B as BackendImpl>::Device as DeviceImpl>::Arena>;
type Queue<B> = Object<<B as BackendImpl>::Device, <<B as BackendImpl>::Device as DeviceImpl>::Queue>;
type Event<B> = Object<<B as BackendImpl>::Device, <<B as BackendImpl>::Device as DeviceImpl>::Event>;
type Program<B> = Object<<B as BackendImpl>::Device, <<B as BackendImpl>::Device as DeviceImpl>::Program>;

// SAFETY of every function below: the host keeps the rules of abi.rs (pointers valid or null, handles made by this
// backend and not yet freed, one thread per device at a time except where marked thread-safe). Pointers are checked
// for null, sizes by `sized`; handles are trusted, as in every C interface.

pub(super) unsafe extern "C" fn backend_info<B: BackendImpl>(info: *mut ts_backend_info) -> ts_status {
    // SAFETY: see above.
    unsafe {
        guard(core::ptr::null_mut(), || {
            let own = B::info();
            let mut out: ts_backend_info = sized::zeroed();
            out.tiers = own.tiers | if B::Device::PROGRAMS { TS_TIER_PROGRAMS } else { 0 };
            (out.profiles, out.score) = (own.profiles, own.score);
            out.name = sized::str_to(own.name);
            out.version = sized::str_to(own.version);
            out.description = sized::str_to(own.description);
            sized::write(info, &out).then_some(()).ok_or_else(|| null("info"))
        })
    }
}

pub(super) unsafe extern "C" fn device_count<B: BackendImpl>(count: *mut u32, error: *mut ts_error) -> ts_status {
    // SAFETY: see above.
    unsafe {
        guard(error, || {
            checked_out(count, "count")?.write(B::device_count()?);
            Ok(())
        })
    }
}

fn checked_index<B: BackendImpl>(index: u32) -> Result<(), Fault> {
    let count = B::device_count()?;
    if index < count {
        return Ok(());
    }
    Err(Fault::invalid(format!("device {index} does not exist: there are {count}")))
}

pub(super) unsafe extern "C" fn device_info<B: BackendImpl>(
    index: u32,
    info: *mut ts_device_info,
    error: *mut ts_error,
) -> ts_status {
    // SAFETY: see above.
    unsafe {
        guard(error, || {
            checked_index::<B>(index)?;
            let own = B::device_info(index)?;
            let mut out: ts_device_info = sized::zeroed();
            (out.alignment, out.memory_bytes) = (own.alignment, own.memory_bytes);
            out.page_tokens = own.page_tokens.unwrap_or(0);
            (out.host_mapped, out.exclusive) = (own.host_mapped.into(), own.exclusive.into());
            out.branch_rows = own.branch_rows.into();
            out.bucketed = own.bucketed.into();
            out.name = sized::str_to(intern(&own.name));
            sized::write(info, &out).then_some(()).ok_or_else(|| null("info"))
        })
    }
}

pub(super) unsafe extern "C" fn device_open<B: BackendImpl>(
    index: u32,
    options: *const ts_option,
    n_options: u32,
    device: *mut *mut ts_device,
    error: *mut ts_error,
) -> ts_status {
    // SAFETY: see above.
    unsafe {
        guard(error, || {
            let out = checked_out(device, "device")?;
            checked_index::<B>(index)?;
            if options.is_null() && n_options > 0 {
                return Err(null("options"));
            }
            let mut list = Vec::with_capacity(n_options as usize);
            for i in 0..n_options as usize {
                let o = options.add(i).read();
                let pair = sized::str_from(o.key).zip(sized::str_from(o.value));
                list.push(pair.ok_or_else(|| Fault::invalid(format!("option {i} is not UTF-8")))?);
            }
            let device = B::open(index, &list, HostServices::get())?;
            out.write(Box::into_raw(Box::new(Cell { device, live: Mutex::default() })).cast());
            Ok(())
        })
    }
}

pub(super) unsafe extern "C" fn device_close<B: BackendImpl>(device: *mut ts_device) {
    // SAFETY: see above; the box was made by `device_open`.
    unsafe {
        guard(core::ptr::null_mut(), || {
            if !device.is_null() {
                drop(Box::from_raw(device.cast::<Dev<B>>()));
            }
            Ok(())
        });
    }
}

pub(super) unsafe extern "C" fn device_status<B: BackendImpl>(
    device: *mut ts_device,
    error: *mut ts_error,
) -> ts_status {
    // SAFETY: see above.
    unsafe { guard(error, || get::<Dev<B>, _>(device, "device")?.device.status()) }
}

pub(super) unsafe extern "C" fn device_counters<B: BackendImpl>(
    device: *mut ts_device,
    counters: *mut ts_counter,
    capacity: u32,
    count: *mut u32,
    error: *mut ts_error,
) -> ts_status {
    // SAFETY: see above; at most `capacity` counters are written.
    unsafe {
        guard(error, || {
            let out = checked_out(count, "count")?;
            let capacity = if counters.is_null() { 0 } else { capacity };
            let mut n = 0u32;
            get::<Dev<B>, _>(device, "device")?.device.counters(&mut |name, value| {
                if n < capacity {
                    counters.add(n as usize).write(ts_counter { name: sized::str_to(name), value });
                }
                n += 1;
            });
            out.write(n);
            Ok(())
        })
    }
}

pub(super) unsafe extern "C" fn arena_alloc<B: BackendImpl>(
    device: *mut ts_device,
    kind: u32,
    bytes: u64,
    arena: *mut *mut ts_arena,
    error: *mut ts_error,
) -> ts_status {
    // SAFETY: see above.
    unsafe {
        guard(error, || {
            let (cell, out) = (get::<Dev<B>, _>(device, "device")?, checked_out(arena, "arena")?);
            cell.create(cell.device.alloc(kind, bytes)?, out, |l| &mut l.arenas);
            Ok(())
        })
    }
}

pub(super) unsafe extern "C" fn arena_import<B: BackendImpl>(
    device: *mut ts_device,
    kind: u32,
    data: *const u8,
    bytes: u64,
    arena: *mut *mut ts_arena,
    error: *mut ts_error,
) -> ts_status {
    // SAFETY: see above.
    unsafe {
        guard(error, || {
            let (cell, out) = (get::<Dev<B>, _>(device, "device")?, checked_out(arena, "arena")?);
            bytes_of(data, bytes)?;
            cell.create(cell.device.import(kind, data, bytes)?, out, |l| &mut l.arenas);
            Ok(())
        })
    }
}

macro_rules! destroy {
    ($name:ident, $handle:ty, $object:ident, $set:ident) => {
        pub(super) unsafe extern "C" fn $name<B: BackendImpl>(device: *mut ts_device, object: *mut $handle) {
            // SAFETY: see above; only what is still in the set is freed.
            unsafe {
                guard(core::ptr::null_mut(), || {
                    let cell = get::<Dev<B>, _>(device, "device")?;
                    if cell.live().$set.remove(&(object as usize)) {
                        drop(Box::from_raw(object.cast::<$object<B>>()));
                    }
                    Ok(())
                });
            }
        }
    };
}
destroy!(arena_free, ts_arena, Arena, arenas);
destroy!(queue_destroy, ts_queue, Queue, queues);
destroy!(event_destroy, ts_event, Event, events);
destroy!(program_drop, ts_program, Program, programs);

pub(super) unsafe extern "C" fn arena_map<B: BackendImpl>(
    device: *mut ts_device,
    arena: *mut ts_arena,
    data: *mut *mut u8,
    error: *mut ts_error,
) -> ts_status {
    // SAFETY: see above.
    unsafe {
        guard(error, || {
            let (cell, arena) = (get::<Dev<B>, _>(device, "device")?, get::<Arena<B>, _>(arena, "arena")?);
            checked_out(data, "data")?.write(cell.device.map(&arena.value)?);
            Ok(())
        })
    }
}

pub(super) unsafe extern "C" fn arena_write<B: BackendImpl>(
    device: *mut ts_device,
    arena: *mut ts_arena,
    offset: u64,
    data: *const u8,
    bytes: u64,
    error: *mut ts_error,
) -> ts_status {
    // SAFETY: see above.
    unsafe {
        guard(error, || {
            let (cell, arena) = (get::<Dev<B>, _>(device, "device")?, get::<Arena<B>, _>(arena, "arena")?);
            cell.device.write(&arena.value, offset, bytes_of(data, bytes)?)
        })
    }
}

pub(super) unsafe extern "C" fn arena_read<B: BackendImpl>(
    device: *mut ts_device,
    arena: *mut ts_arena,
    offset: u64,
    data: *mut u8,
    bytes: u64,
    error: *mut ts_error,
) -> ts_status {
    // SAFETY: see above; the host owns `data` alone during the call.
    unsafe {
        guard(error, || {
            let (cell, arena) = (get::<Dev<B>, _>(device, "device")?, get::<Arena<B>, _>(arena, "arena")?);
            let n = bytes_of(data, bytes)?.len();
            let data: &mut [u8] = if n == 0 { &mut [] } else { core::slice::from_raw_parts_mut(data, n) };
            cell.device.read(&arena.value, offset, data)
        })
    }
}

pub(super) unsafe extern "C" fn queue_create<B: BackendImpl>(
    device: *mut ts_device,
    queue: *mut *mut ts_queue,
    error: *mut ts_error,
) -> ts_status {
    // SAFETY: see above.
    unsafe {
        guard(error, || {
            let (cell, out) = (get::<Dev<B>, _>(device, "device")?, checked_out(queue, "queue")?);
            cell.create(cell.device.queue()?, out, |l| &mut l.queues);
            Ok(())
        })
    }
}

pub(super) unsafe extern "C" fn queue_copy<B: BackendImpl>(
    queue: *mut ts_queue,
    destination: *const ts_binding,
    source: *const ts_binding,
    error: *mut ts_error,
) -> ts_status {
    // SAFETY: see above.
    unsafe {
        guard(error, || {
            let queue = get_mut::<Queue<B>, _>(queue, "queue")?;
            let to = span_at::<B::Device>(destination, "destination")?;
            let from = span_at::<B::Device>(source, "source")?;
            if to.bytes != from.bytes {
                return Err(Fault::invalid(format!("copy of {} bytes to {}", from.bytes, to.bytes)));
            }
            (*queue.device).device.copy(&mut queue.value, to, from)
        })
    }
}

pub(super) unsafe extern "C" fn queue_signal<B: BackendImpl>(
    queue: *mut ts_queue,
    event: *mut ts_event,
    value: u64,
    error: *mut ts_error,
) -> ts_status {
    // SAFETY: see above.
    unsafe {
        guard(error, || {
            let (queue, event) = (get_mut::<Queue<B>, _>(queue, "queue")?, get::<Event<B>, _>(event, "event")?);
            (*queue.device).device.signal(&mut queue.value, &event.value, value)
        })
    }
}

pub(super) unsafe extern "C" fn queue_wait<B: BackendImpl>(
    queue: *mut ts_queue,
    event: *mut ts_event,
    value: u64,
    error: *mut ts_error,
) -> ts_status {
    // SAFETY: see above.
    unsafe {
        guard(error, || {
            let (queue, event) = (get_mut::<Queue<B>, _>(queue, "queue")?, get::<Event<B>, _>(event, "event")?);
            (*queue.device).device.wait(&mut queue.value, &event.value, value)
        })
    }
}

pub(super) unsafe extern "C" fn event_create<B: BackendImpl>(
    device: *mut ts_device,
    event: *mut *mut ts_event,
    error: *mut ts_error,
) -> ts_status {
    // SAFETY: see above.
    unsafe {
        guard(error, || {
            let (cell, out) = (get::<Dev<B>, _>(device, "device")?, checked_out(event, "event")?);
            cell.create(cell.device.event()?, out, |l| &mut l.events);
            Ok(())
        })
    }
}

pub(super) unsafe extern "C" fn event_query<B: BackendImpl>(
    event: *mut ts_event,
    value: *mut u64,
    error: *mut ts_error,
) -> ts_status {
    // SAFETY: see above.
    unsafe {
        guard(error, || {
            let event = get::<Event<B>, _>(event, "event")?;
            checked_out(value, "value")?.write(B::Device::event_query(&event.value)?);
            Ok(())
        })
    }
}

pub(super) unsafe extern "C" fn event_wait<B: BackendImpl>(
    event: *mut ts_event,
    value: u64,
    timeout_ns: u64,
    error: *mut ts_error,
) -> ts_status {
    // SAFETY: see above.
    unsafe { guard(error, || B::Device::event_wait(&get::<Event<B>, _>(event, "event")?.value, value, timeout_ns)) }
}

pub(super) unsafe extern "C" fn op_support<B: BackendImpl>(
    device: *mut ts_device,
    op: *const ts_op,
    support: *mut ts_support,
    error: *mut ts_error,
) -> ts_status {
    // SAFETY: see above.
    unsafe {
        guard(error, || {
            let cell = get::<Dev<B>, _>(device, "device")?;
            // What this version does not know is refused, not an error: the host then expands it.
            let room = if support.is_null() { 0 } else { (*support).struct_size };
            let answer = match OpView::from_abi(op) {
                Ok(op) => match checked_support(&cell.device, &op)? {
                    answer if answer.fits(room) => answer,
                    // An older host would pack the first operand alone.
                    _ => Support::no("wants several operands packed, of which this host knows nothing"),
                },
                Err(fault) if fault.code == TS_ERR_UNSUPPORTED => Support::no(fault.message),
                Err(fault) => return Err(fault),
            };
            sized::write(support, &answer.to_abi()).then_some(()).ok_or_else(|| null("support"))
        })
    }
}

pub(super) unsafe extern "C" fn op_launch<B: BackendImpl>(
    queue: *mut ts_queue,
    op: *const ts_op,
    bindings: *const ts_binding,
    n_bindings: u32,
    error: *mut ts_error,
) -> ts_status {
    // SAFETY: see above.
    unsafe {
        guard(error, || {
            let queue = get_mut::<Queue<B>, _>(queue, "queue")?;
            let op = OpView::from_abi(op)?;
            let bindings = Bindings::from_abi(bindings, n_bindings)?;
            (*queue.device).device.launch(&mut queue.value, &op, &bindings)
        })
    }
}

pub(super) unsafe extern "C" fn op_pack<B: BackendImpl>(
    device: *mut ts_device,
    op: *const ts_op,
    operand: u32,
    source: *const u8,
    source_bytes: u64,
    destination: *const ts_binding,
    error: *mut ts_error,
) -> ts_status {
    // SAFETY: see above.
    unsafe {
        guard(error, || {
            let (cell, op) = (get::<Dev<B>, _>(device, "device")?, OpView::from_abi(op)?);
            let (source, to) = (bytes_of(source, source_bytes)?, span_at::<B::Device>(destination, "destination")?);
            op.operand(operand as usize)?;
            cell.device.pack(&op, operand as usize, source, to)
        })
    }
}

pub(super) unsafe extern "C" fn program_prepare<B: BackendImpl>(
    device: *mut ts_device,
    desc: *const ts_program_desc,
    program: *mut *mut ts_program,
    error: *mut ts_error,
) -> ts_status {
    // SAFETY: see above.
    unsafe {
        guard(error, || {
            let (cell, out) = (get::<Dev<B>, _>(device, "device")?, checked_out(program, "program")?);
            let desc = sized::read(desc).ok_or_else(|| null("program description"))?;
            if desc.n_ops > OPS_MAX || (desc.n_ops > 0 && desc.ops.is_null()) {
                return Err(Fault::invalid(format!("{} ops at {:?}", desc.n_ops, desc.ops)));
            }
            // A newer host's records are longer: their own size is the stride of the array.
            let stride = if desc.n_ops == 0 { 0 } else { desc.ops.cast::<u32>().read() as usize };
            if !stride.is_multiple_of(align_of::<ts_op>()) {
                return Err(Fault::invalid(format!("op records of {stride} bytes")));
            }
            let ops = (0..desc.n_ops as usize)
                .map(|i| OpView::from_abi(desc.ops.byte_add(i * stride)).map_err(|f| f.at(i)))
                .collect::<Result<Vec<_>, _>>()
                .map_err(|f| Fault { message: format!("op {}: {}", f.op.unwrap_or(0), f.message), ..f })?;
            let bindings = Bindings::from_abi(desc.bindings, desc.n_bindings)?;
            let bucket = Bucket {
                max_tokens: desc.bucket.max_tokens,
                max_rows: desc.bucket.max_rows,
                max_logit_rows: desc.bucket.max_logit_rows,
            };
            cell.create(cell.device.prepare(&ops, &bindings, bucket)?, out, |l| &mut l.programs);
            Ok(())
        })
    }
}

pub(super) unsafe extern "C" fn program_run<B: BackendImpl>(
    program: *mut ts_program,
    queue: *mut ts_queue,
    run: *const ts_run,
    error: *mut ts_error,
) -> ts_status {
    // SAFETY: see above.
    unsafe {
        guard(error, || {
            let program = get_mut::<Program<B>, _>(program, "program")?;
            let queue = get_mut::<Queue<B>, _>(queue, "queue")?;
            let run = sized::read(run).ok_or_else(|| null("run"))?;
            let bindings = match run.bindings.is_null() {
                true => None,
                false => Some(Bindings::from_abi(run.bindings, run.n_bindings)?),
            };
            let event = run.event.cast::<Event<B>>().as_ref();
            let view = RunView {
                bindings,
                step: bytes_of(run.step, run.step_bytes)?,
                signal: event.map(|e| (&e.value, run.signal_value)),
            };
            (*queue.device).device.run(&mut program.value, &mut queue.value, &view)
        })
    }
}

pub(super) unsafe extern "C" fn program_describe<B: BackendImpl>(
    program: *mut ts_program,
    segments: *mut ts_segment,
    capacity: u32,
    count: *mut u32,
    error: *mut ts_error,
) -> ts_status {
    // SAFETY: see above; at most `capacity` segments are written.
    unsafe {
        guard(error, || {
            let program = get::<Program<B>, _>(program, "program")?;
            let out = checked_out(count, "count")?;
            let capacity = if segments.is_null() { 0 } else { capacity };
            let mut n = 0u32;
            (*program.device).device.describe(&program.value, &mut |segment| {
                if n < capacity {
                    segments.add(n as usize).write(segment);
                }
                n += 1;
            })?;
            out.write(n);
            Ok(())
        })
    }
}

pub(super) unsafe extern "C" fn program_cost<B: BackendImpl>(
    program: *mut ts_program,
    load: *const ts_load,
    nanoseconds: *mut u64,
    error: *mut ts_error,
) -> ts_status {
    // SAFETY: see above.
    unsafe {
        guard(error, || {
            let program = get::<Program<B>, _>(program, "program")?;
            let out = checked_out(nanoseconds, "nanoseconds")?;
            let load = sized::read(load).ok_or_else(|| null("load"))?;
            let load = Load {
                n_tokens: load.n_tokens,
                n_rows: load.n_rows,
                n_logit_rows: load.n_logit_rows,
                attention_pairs: load.attention_pairs,
            };
            let cost = (*program.device).device.cost(&program.value, &load);
            out.write(cost.ok_or_else(|| Fault::unsupported("this program has no cost model"))?);
            Ok(())
        })
    }
}
