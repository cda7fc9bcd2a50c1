//! The SDK's promises to a host: nothing unwinds, nothing is freed twice, old and new hosts are both served.

use std::{
    ptr::{null, null_mut},
    sync::atomic::{AtomicI64, Ordering},
};
use tokenspeed_backend_api::{
    abi::*,
    backend::{ArenaKind, Backend, Bindings, Bucket, OpRecord, StepBuffer},
    embed_backend,
    loader::{self, LoadError, SearchPaths},
    op::{Attrs, OpKind},
    sdk::{
        self, BackendImpl, BoundOp, DeviceInfo, Fault, HostArena, HostBacked, HostDevice, HostServices, Info, OpView,
        StepView, Support,
    },
    sized,
};

/// Arenas, scratches and prepared ops alive, counted by the backend itself.
static ALIVE: AtomicI64 = AtomicI64::new(0);

struct Counted;
impl Counted {
    fn new() -> Self {
        ALIVE.fetch_add(1, Ordering::Relaxed);
        Self
    }
}
impl Drop for Counted {
    fn drop(&mut self) {
        ALIVE.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Fails as its attributes ask for: 1 panics with text, 2 panics with a number, 3 returns a fault.
struct Odd;
struct OddDevice;

impl BackendImpl for Odd {
    type Device = HostBacked<OddDevice>;
    fn info() -> Info {
        Info { name: "odd", version: "1", description: "", tiers: 0, profiles: 0, score: 0 }
    }
    fn device_count() -> Result<u32, Fault> {
        Ok(1)
    }
    fn device_info(_: u32) -> Result<DeviceInfo, Fault> {
        Ok(DeviceInfo {
            name: "odd".to_owned(),
            alignment: 64,
            memory_bytes: 1 << 20,
            page_tokens: Some(16),
            host_mapped: true,
            exclusive: false,
            branch_rows: true,
            bucketed: false,
        })
    }
    fn open(_: u32, options: &[(&str, &str)], _: HostServices) -> Result<Self::Device, Fault> {
        assert!(options.is_empty(), "options are a panic here");
        Ok(HostBacked(OddDevice))
    }
}

fn misbehave(how: i64) -> Result<(), Fault> {
    match how {
        1 => panic!("kernel table is empty"),
        2 => std::panic::panic_any(17),
        3 => Err(Fault::unsupported("no kernel").at(0)),
        _ => Ok(()),
    }
}

impl HostDevice for OddDevice {
    type Scratch = Counted;
    type Prepared = (i64, Counted);
    fn alloc(&self, _: u32, bytes: u64) -> Result<HostArena, Fault> {
        let counted = Counted::new();
        let memory = vec![0u64; bytes.div_ceil(8) as usize].leak();
        let data = std::ptr::NonNull::from(&mut memory[0]).cast();
        let n = memory.len();
        // SAFETY: the leaked vector, taken back in the same shape.
        Ok(unsafe {
            HostArena::from_raw(data, bytes as usize, move |p, _| {
                drop(Vec::from_raw_parts(p.as_ptr().cast::<u64>(), n, n));
                drop(counted);
            })
        })
    }
    fn scratch(&self) -> Result<Counted, Fault> {
        Ok(Counted::new())
    }
    fn support(&self, op: &OpView<'_>) -> Support {
        misbehave(op.attrs().i[0]).map_or_else(|f| Support::no(f.message), |()| Support::yes("odd"))
    }
    fn prepare(&self, op: &BoundOp<'_>) -> Result<Self::Prepared, Fault> {
        misbehave(op.op.attrs().i[1])?;
        Ok((op.op.attrs().i[2], Counted::new()))
    }
    fn run(&self, _: &mut Counted, ops: &[Self::Prepared], _: &StepView<'_>) -> Result<(), Fault> {
        ops.iter().try_for_each(|op| misbehave(op.0))
    }
}

embed_backend!(Odd);

/// A second one in the same binary, of the same name, to be refused as ambiguous.
mod twins {
    use super::*;

    macro_rules! twin {
        ($name:ident) => {
            struct $name;
            impl BackendImpl for $name {
                type Device = HostBacked<OddDevice>;
                fn info() -> Info {
                    Info { name: "twin", ..Odd::info() }
                }
                fn device_count() -> Result<u32, Fault> {
                    Ok(0)
                }
                fn device_info(index: u32) -> Result<DeviceInfo, Fault> {
                    Odd::device_info(index)
                }
                fn open(_: u32, _: &[(&str, &str)], _: HostServices) -> Result<Self::Device, Fault> {
                    Ok(HostBacked(OddDevice))
                }
            }
            embed_backend!($name);
        };
    }
    twin!(Left);
    twin!(Right);
}

fn op(attrs: [i64; 3]) -> OpRecord {
    let mut a = Attrs::default();
    a.i[..3].copy_from_slice(&attrs);
    OpRecord::new(OpKind::TableUpdate, vec![], a, "layers.0.odd")
}

fn empty_step() -> StepBuffer {
    let mut step = StepBuffer::with_capacity(64);
    let header = ts_step { struct_size: 64, bytes: 64, ..Default::default() };
    // SAFETY: the buffer is aligned and as long as the header.
    unsafe { step.bytes_mut().unwrap().as_mut_ptr().cast::<ts_step>().write(header) };
    step
}

/// The tests that count what is alive may not overlap.
static COUNTING: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[test]
fn panics_become_internal_errors() {
    let _guard = COUNTING.lock().unwrap_or_else(|e| e.into_inner());
    let backend = loader::load("odd", &SearchPaths::default()).unwrap();
    let error = backend.open(0, &[("a", "b")]).unwrap_err();
    assert_eq!((error.code, error.message.as_str()), (TS_ERR_INTERNAL, "panic: options are a panic here"));
    let device = backend.open(0, &[]).unwrap();
    let (queue, event) = (device.queue_create().unwrap(), device.event_create().unwrap());
    let mut bindings = Bindings::new();
    bindings.bind_all(TS_BIND_STEP, &device.arena_alloc(ArenaKind::Step, 64).unwrap());
    assert_eq!(device.op_support(&op([1, 0, 0])).unwrap_err().message, "panic: kernel table is empty");
    assert_eq!(device.op_support(&op([3, 0, 0])).unwrap().reason, "no kernel");
    let bucket = Bucket::default();
    let error = device.program_prepare(&[op([0, 2, 0])], &bindings, bucket).unwrap_err();
    assert_eq!((error.code, error.message.as_str()), (TS_ERR_INTERNAL, "panic: of unknown type"));
    let program = device.program_prepare(&[op([0, 0, 1])], &bindings, bucket).unwrap();
    let mut step = empty_step();
    let error = device.program_run(&program, &queue, &mut step, &event, 1).unwrap_err();
    assert_eq!(error.message, "panic: kernel table is empty");
    // The device goes on; a fault names the op it is about.
    let program = device.program_prepare(&[op([0, 0, 3])], &bindings, bucket).unwrap();
    let error = device.program_run(&program, &queue, &mut step, &event, 1).unwrap_err();
    assert_eq!(error.to_string(), "odd: program_run: unsupported: table_update layers.0.odd: no kernel (device 0)");
    let fresh = device.event_create().unwrap();
    let program = device.program_prepare(&[op([0, 0, 0])], &bindings, bucket).unwrap();
    device.program_run(&program, &queue, &mut step, &fresh, 1).unwrap();
    assert_eq!(fresh.query().unwrap(), 1);
}

#[test]
fn objects_are_freed_exactly_once() {
    let _guard = COUNTING.lock().unwrap_or_else(|e| e.into_inner());
    let before = ALIVE.load(Ordering::Relaxed);
    let table = sdk::table::<Odd>();
    let (mut device, mut arena, mut queue) = (null_mut(), null_mut(), null_mut());
    // SAFETY: pointers are valid; freeing twice and after close is what is tested, and defined by the SDK.
    unsafe {
        assert_eq!(table.device_open.unwrap()(0, null(), 0, &raw mut device, null_mut()), TS_OK);
        assert_eq!(table.arena_alloc.unwrap()(device, 0, 64, &raw mut arena, null_mut()), TS_OK);
        assert_eq!(table.queue_create.unwrap()(device, &raw mut queue, null_mut()), TS_OK);
        assert_eq!(ALIVE.load(Ordering::Relaxed) - before, 2);
        table.arena_free.unwrap()(device, arena);
        table.arena_free.unwrap()(device, arena);
        table.queue_destroy.unwrap()(device, arena.cast());
        assert_eq!(ALIVE.load(Ordering::Relaxed) - before, 1, "the arena once, the queue not at all");
        table.device_close.unwrap()(device);
    }
    assert_eq!(ALIVE.load(Ordering::Relaxed), before, "closing frees what is left");
}

#[test]
fn the_host_frees_everything_in_any_order() {
    let _guard = COUNTING.lock().unwrap_or_else(|e| e.into_inner());
    let before = ALIVE.load(Ordering::Relaxed);
    let device = loader::load("odd", &SearchPaths::default()).unwrap().open(0, &[]).unwrap();
    let queue = device.queue_create().unwrap();
    let arena = device.arena_alloc(ArenaKind::Step, 64).unwrap();
    let mut bindings = Bindings::new();
    bindings.bind_all(TS_BIND_STEP, &arena);
    let program = device.program_prepare(&[op([0; 3])], &bindings, Bucket::default()).unwrap();
    drop((arena, bindings));
    // The program alone keeps its memory alive, and goes last, on another thread.
    drop((device, queue));
    assert!(ALIVE.load(Ordering::Relaxed) > before);
    std::thread::spawn(move || drop(program)).join().unwrap();
    assert_eq!(ALIVE.load(Ordering::Relaxed), before);
}

/// What a host of another age sees of the entry.
fn enter(abi: (u32, u32), table_bytes: usize) -> (ts_status, ts_backend_table, String) {
    // The plugin keeps the host record, so it must live as long as the process.
    let host: &'static mut ts_host = Box::leak(Box::new(sized::zeroed()));
    (host.abi_min, host.abi_max) = abi;
    let mut table: ts_backend_table = sized::zeroed();
    table.struct_size = table_bytes as u32;
    let mut error: ts_error = sized::zeroed();
    // SAFETY: the records are valid and as long as they say.
    let status = unsafe { sdk::entry::<Odd>(host, &raw mut table, &raw mut error) };
    (status, table, sized::text_from(&error.text))
}

#[test]
fn old_and_new_hosts_are_served_or_refused() {
    let whole = size_of::<ts_backend_table>();
    let (status, table, _) = enter((0x1_0000, 0x1_0005), whole);
    assert_eq!((status, table.abi_version), (TS_OK, 0x1_0000), "a newer minor of the host");
    // A host whose table ends earlier gets no byte more.
    let end = std::mem::offset_of!(ts_backend_table, op_pack);
    let (status, table, _) = enter((0x1_0000, 0x1_0000), end);
    assert_eq!((status, table.struct_size as usize), (TS_OK, end));
    assert!(table.op_launch.is_some() && table.program_run.is_none());
    for abi in [(0x2_0000, 0x2_0001), (1, 9)] {
        let (status, table, text) = enter(abi, whole);
        assert_eq!(status, TS_ERR_INCOMPATIBLE);
        assert!(text.starts_with("this plugin speaks ABI 1.0..1.0, the host"), "{text}");
        assert!(table.backend_info.is_none(), "a refused host gets no functions");
    }
}

#[test]
fn linked_backends_are_told_apart() {
    let error = loader::load("twin", &SearchPaths::default()).unwrap_err();
    assert!(matches!(error, LoadError::Ambiguous { .. }), "{error}");
    // SAFETY: the SDK's own entry.
    let direct = unsafe { Backend::from_entry(sdk::entry::<Odd>, "here") }.unwrap();
    assert_eq!((direct.name(), direct.origin()), ("odd", "here"));
    assert_eq!(direct.device_info(0).unwrap().page_tokens, Some(16));
}
