//! Several devices in one process, through the C API that a HIP program links: whose memory, whose streams, who reaches whom.
//!
//! What is expected is HIP's own documentation (device, event, memory and peer-to-peer sections) and, where that says nothing, the
//! checks of its public runtime: a launch wants a stream of the calling thread's device, an event is recorded in streams of its own
//! device. Kernels that reach for a peer's memory are the shipped probe `reduce`; without kernels that test says so and does nothing.

use std::{
    ffi::{CStr, c_char, c_void},
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
};

// For its exported functions.
use amdhip64 as _;

unsafe extern "C" {
    fn hipGetDeviceCount(count: *mut i32) -> i32;
    fn hipSetDevice(device: i32) -> i32;
    fn hipGetDevice(device: *mut i32) -> i32;
    fn hipDeviceSynchronize() -> i32;
    fn hipDeviceReset() -> i32;
    fn hipMalloc(to: *mut usize, bytes: usize) -> i32;
    fn hipFree(address: usize) -> i32;
    fn hipMemGetInfo(free: *mut usize, total: *mut usize) -> i32;
    fn hipHostMalloc(to: *mut usize, bytes: usize, flags: u32) -> i32;
    fn hipHostFree(address: usize) -> i32;
    fn hipMemcpy(to: usize, from: usize, bytes: usize, kind: u32) -> i32;
    fn hipMemcpyAsync(to: usize, from: usize, bytes: usize, kind: u32, stream: usize) -> i32;
    fn hipMemcpyPeerAsync(to: usize, to_device: i32, from: usize, from_device: i32, bytes: usize, stream: usize)
    -> i32;
    fn hipMemset(to: usize, value: i32, bytes: usize) -> i32;
    fn hipStreamCreateWithFlags(stream: *mut usize, flags: u32) -> i32;
    fn hipStreamSynchronize(stream: usize) -> i32;
    fn hipStreamDestroy(stream: usize) -> i32;
    fn hipStreamWaitEvent(stream: usize, event: usize, flags: u32) -> i32;
    fn hipEventCreate(event: *mut usize) -> i32;
    fn hipEventRecord(event: usize, stream: usize) -> i32;
    fn hipEventQuery(event: usize) -> i32;
    fn hipEventSynchronize(event: usize) -> i32;
    fn hipEventElapsedTime(milliseconds: *mut f32, start: usize, end: usize) -> i32;
    fn hipEventDestroy(event: usize) -> i32;
    fn hipDeviceCanAccessPeer(can: *mut i32, device: i32, peer: i32) -> i32;
    fn hipDeviceEnablePeerAccess(peer: i32, flags: u32) -> i32;
    fn hipDeviceDisablePeerAccess(peer: i32) -> i32;
    fn hipModuleLoadData(module: *mut usize, image: *const c_void) -> i32;
    fn hipModuleUnload(module: usize) -> i32;
    fn hipModuleGetFunction(function: *mut usize, module: usize, name: *const c_char) -> i32;
    fn hipModuleLaunchKernel(
        function: usize,
        gx: u32,
        gy: u32,
        gz: u32,
        bx: u32,
        by: u32,
        bz: u32,
        lds: u32,
        stream: usize,
        params: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> i32;
    fn tokenspeedEmulatorReport(to: *mut c_char, bytes: usize) -> i32;
}

// Numbers of the public header.
const OK: i32 = 0;
const INVALID_VALUE: i32 = 1;
const OUT_OF_MEMORY: i32 = 2;
const INVALID_DEVICE: i32 = 101;
const INVALID_HANDLE: i32 = 400;
const ILLEGAL_ADDRESS: i32 = 700;
const ALREADY_ENABLED: i32 = 704;
const NOT_ENABLED: i32 = 705;
const NON_BLOCKING: u32 = 1;
const DEFAULT_KIND: u32 = 4;

/// Of each device.
const MEMORY: usize = 1 << 20;

/// Three devices, one test at a time, whatever runs the tests.
fn devices() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    for (name, value) in [("DEVICES", "3"), ("MEMORY", &MEMORY.to_string()), ("CHECKS", "1")] {
        // SAFETY: whoever else reads or writes the environment of this program waits for its turn.
        unsafe { std::env::set_var(format!("TOKENSPEED_EMULATOR_{name}"), value) };
    }
    for device in [2, 1, 0] {
        on(device);
        // SAFETY: takes nothing.
        assert_eq!(unsafe { hipDeviceReset() }, OK);
    }
    turn
}

/// Makes a device the thread's.
fn on(device: i32) {
    // SAFETY: takes a number.
    assert_eq!(unsafe { hipSetDevice(device) }, OK);
}

/// What a function writes.
fn made(f: impl FnOnce(&mut usize) -> i32) -> usize {
    let mut value = 0;
    assert_eq!(f(&mut value), OK);
    value
}

/// Memory of a device, which stays current.
fn allocate(device: i32, bytes: usize) -> usize {
    on(device);
    // SAFETY: writes an address.
    made(|to| unsafe { hipMalloc(to, bytes) })
}

fn free(addresses: &[usize]) {
    for address in addresses {
        // SAFETY: allocated by `allocate`, freed once.
        assert_eq!(unsafe { hipFree(*address) }, OK);
    }
}

fn write(to: usize, bytes: &[u8]) {
    // SAFETY: `to` has as many bytes.
    assert_eq!(unsafe { hipMemcpy(to, bytes.as_ptr() as usize, bytes.len(), DEFAULT_KIND) }, OK);
}

fn read(from: usize, bytes: usize) -> Vec<u8> {
    let mut to = vec![0u8; bytes];
    // SAFETY: `from` has as many bytes.
    assert_eq!(unsafe { hipMemcpy(to.as_mut_ptr() as usize, from, bytes, DEFAULT_KIND) }, OK);
    to
}

/// A stream of a device that waits for nobody.
fn stream(device: i32) -> usize {
    on(device);
    // SAFETY: writes a handle.
    made(|to| unsafe { hipStreamCreateWithFlags(to, NON_BLOCKING) })
}

/// An event of a device.
fn event(device: i32) -> usize {
    on(device);
    // SAFETY: writes a handle.
    made(|to| unsafe { hipEventCreate(to) })
}

#[test]
fn each_device_has_memory_of_its_own() {
    let _turn = devices();
    let mut count = 0;
    // SAFETY: writes a number.
    assert_eq!((unsafe { hipGetDeviceCount(&mut count) }, count), (OK, 3));
    let free_bytes = |device| {
        on(device);
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two numbers.
        assert_eq!((unsafe { hipMemGetInfo(&mut free, &mut total) }, total), (OK, MEMORY));
        free
    };
    let half = allocate(1, MEMORY / 2);
    assert_eq!([0, 1, 2].map(free_bytes), [MEMORY, MEMORY / 2, MEMORY]);
    on(1);
    let mut none = 0;
    // SAFETY: writes an address.
    assert_eq!(unsafe { hipMalloc(&mut none, MEMORY / 2 + 1) }, OUT_OF_MEMORY);
    // The others have room for as much, and what failed took nothing.
    let others = [allocate(0, MEMORY), allocate(2, MEMORY / 2 + 1), allocate(1, MEMORY / 2)];
    // Whoever frees, it goes back to the device that it is of.
    on(2);
    free(&[half, others[2]]);
    assert_eq!([0, 1, 2].map(free_bytes), [0, MEMORY, MEMORY / 2 - 1]);
    free(&others[..2]);
    assert_eq!([0, 1, 2].map(free_bytes), [MEMORY; 3]);
}

#[test]
fn the_current_device_is_the_threads() {
    let _turn = devices();
    let current = || {
        let mut device = -1;
        // SAFETY: writes a number.
        assert_eq!(unsafe { hipGetDevice(&mut device) }, OK);
        device
    };
    on(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(current(), 0, "a new thread begins with the first device");
            on(1);
            assert_eq!(current(), 1);
        });
    });
    assert_eq!(current(), 2);
    for absent in [3, -1, i32::MAX] {
        // SAFETY: takes a number.
        assert_eq!(unsafe { hipSetDevice(absent) }, INVALID_DEVICE);
    }
    assert_eq!(current(), 2, "what was refused changes nothing");
}

/// A copy on one device, an event behind it, a copy on another device that waits for the event; and the same without waiting,
/// which may happen at any time: here as late as HIP allows.
#[test]
fn streams_wait_for_events_of_other_devices() {
    let _turn = devices();
    let (near, far) = (allocate(0, 256), allocate(1, 256));
    // SAFETY: writes an address.
    let pinned = made(|to| unsafe { hipHostMalloc(to, 256, 0) });
    let (first, second, done) = (stream(0), stream(1), event(0));
    for waits in [false, true] {
        write(near, &[1; 256]);
        // SAFETY: 256 bytes of pinned memory that no work uses now.
        unsafe { std::ptr::with_exposed_provenance_mut::<u8>(pinned).write_bytes(7, 256) };
        // Copies are queued in any device's stream, whichever is current.
        on(2);
        // SAFETY: buffers of 256 bytes that outlive the work.
        unsafe {
            assert_eq!(hipMemcpyAsync(near, pinned, 256, DEFAULT_KIND, first), OK);
            assert_eq!(hipEventRecord(done, first), OK);
            if waits {
                assert_eq!(hipStreamWaitEvent(second, done, 0), OK);
            }
            assert_eq!(hipMemcpyPeerAsync(far, 1, near, 0, 256, second), OK);
            assert_eq!(hipStreamSynchronize(second), OK);
        }
        assert_eq!(read(far, 256), [if waits { 7 } else { 1 }; 256], "waits: {waits}");
        // Asking and waiting is for everybody.
        // SAFETY: live handles.
        unsafe {
            assert_eq!(hipEventSynchronize(done), OK);
            assert_eq!(hipEventQuery(done), OK);
        }
        assert_eq!(read(near, 256), [7; 256]);
    }
    // SAFETY: live handles, destroyed once; memory that no work uses.
    unsafe {
        assert_eq!([hipStreamDestroy(first), hipStreamDestroy(second), hipEventDestroy(done)], [OK; 3]);
        assert_eq!(hipHostFree(pinned), OK);
    }
    free(&[near, far]);
}

#[test]
fn events_are_recorded_and_compared_on_their_own_device() {
    let _turn = devices();
    let (streams, events) = ([stream(0), stream(1)], [event(0), event(1)]);
    // SAFETY: live handles.
    unsafe {
        assert_eq!(hipEventRecord(events[0], streams[1]), INVALID_HANDLE);
        assert_eq!(hipEventRecord(events[1], streams[0]), INVALID_HANDLE);
        // The default stream is that of the current device.
        on(0);
        assert_eq!(hipEventRecord(events[1], 0), INVALID_HANDLE);
        on(1);
        assert_eq!(hipEventRecord(events[1], 0), OK);
        // Another's current device does not matter.
        assert_eq!(hipEventRecord(events[0], streams[0]), OK);
        for event in events {
            assert_eq!(hipEventSynchronize(event), OK);
        }
        let mut time = 0.0;
        assert_eq!(hipEventElapsedTime(&mut time, events[0], events[1]), INVALID_HANDLE);
        assert_eq!(hipEventElapsedTime(&mut time, events[0], events[0]), OK);
        for (stream, event) in streams.into_iter().zip(events) {
            assert_eq!([hipStreamDestroy(stream), hipEventDestroy(event)], [OK; 2]);
        }
    }
}

/// Waiting for a device is waiting for its streams alone.
#[test]
fn devices_are_waited_for_one_by_one() {
    let _turn = devices();
    // SAFETY: writes an address.
    let pinned = made(|to| unsafe { hipHostMalloc(to, 64, 0) });
    let byte = || {
        // SAFETY: 64 bytes of pinned memory; work that writes there runs when this thread waits.
        unsafe { std::ptr::with_exposed_provenance::<u8>(pinned).read() }
    };
    let (source, queue) = (allocate(0, 64), stream(0));
    write(source, &[9; 64]);
    // SAFETY: buffers of 64 bytes that outlive the work.
    unsafe {
        assert_eq!(hipMemcpyAsync(pinned, source, 64, DEFAULT_KIND, queue), OK);
        on(1);
        assert_eq!(hipDeviceSynchronize(), OK);
        assert_eq!(byte(), 0);
        on(0);
        assert_eq!(hipDeviceSynchronize(), OK);
        assert_eq!(byte(), 9);
        assert_eq!([hipStreamDestroy(queue), hipHostFree(pinned)], [OK; 2]);
    }
    free(&[source]);
}

/// Copies between devices need no access, but devices and memory that are there and belong together.
#[test]
fn copies_between_devices() {
    let _turn = devices();
    let (near, far) = (allocate(0, 1000), allocate(2, 1000));
    let bytes: Vec<u8> = (0..1000).map(|i| (i % 251) as u8).collect();
    write(near, &bytes);
    let queue = stream(2);
    // SAFETY: what is copied is inside the buffers, and the rest is refused.
    let copy = |to, to_device, from, from_device, bytes| unsafe {
        hipMemcpyPeerAsync(to, to_device, from, from_device, bytes, queue)
    };
    assert_eq!(copy(far, 2, near, 0, 1000), OK);
    // SAFETY: a live handle.
    assert_eq!(unsafe { hipStreamSynchronize(queue) }, OK);
    assert_eq!(read(far, 1000), bytes);
    assert_eq!(copy(far, 3, near, 0, 1000), INVALID_DEVICE);
    assert_eq!(copy(far, 2, near, -1, 1000), INVALID_DEVICE);
    assert_eq!(copy(far, 1, near, 0, 1000), INVALID_VALUE, "memory of device 2");
    assert_eq!(copy(far, 2, near, 1, 1000), INVALID_VALUE, "memory of device 0");
    assert_eq!(copy(far, 2, near, 0, 1001), INVALID_VALUE, "past the end");
    // SAFETY: a live handle.
    assert_eq!(unsafe { hipStreamDestroy(queue) }, OK);
    free(&[near, far]);
}

#[test]
fn access_is_asked_for_enabled_and_taken_back() {
    let _turn = devices();
    let can = |device, peer| {
        let mut can = -1;
        // SAFETY: writes a number.
        (unsafe { hipDeviceCanAccessPeer(&mut can, device, peer) }, can)
    };
    assert_eq!([can(0, 1), can(2, 0), can(1, 1)], [(OK, 1), (OK, 1), (OK, 0)], "a device is no peer of itself");
    assert_eq!([can(0, 3).0, can(-1, 0).0], [INVALID_DEVICE; 2]);
    on(1);
    // SAFETY: all take numbers.
    unsafe {
        assert_eq!(hipDeviceDisablePeerAccess(0), NOT_ENABLED);
        assert_eq!([hipDeviceEnablePeerAccess(1, 0), hipDeviceEnablePeerAccess(3, 0)], [INVALID_DEVICE; 2]);
        assert_eq!(hipDeviceEnablePeerAccess(0, 1), INVALID_VALUE, "flags are reserved");
        assert_eq!([hipDeviceEnablePeerAccess(0, 0), hipDeviceEnablePeerAccess(0, 0)], [OK, ALREADY_ENABLED]);
        // One way: the other device did not enable anything.
        on(0);
        assert_eq!(hipDeviceDisablePeerAccess(1), NOT_ENABLED);
        on(1);
        assert_eq!([hipDeviceDisablePeerAccess(0), hipDeviceDisablePeerAccess(0)], [OK, NOT_ENABLED]);
        assert_eq!(
            [hipDeviceEnablePeerAccess(0, 0), hipDeviceReset(), hipDeviceDisablePeerAccess(0)],
            [OK, OK, NOT_ENABLED]
        );
    }
}

/// The probe `reduce`: the sum of one row of x comes first in `out`.
struct Reduce {
    module: usize,
    function: usize,
}

impl Reduce {
    /// Loaded on a device; `None` without kernels.
    fn load(device: i32) -> Option<Self> {
        let Some(folder) = std::env::var_os("TOKENSPEED_KERNELS").map(PathBuf::from) else {
            eprintln!("not run: TOKENSPEED_KERNELS is not set; `cargo xtask test` sets it");
            return None;
        };
        let image = std::fs::read(folder.join("amd-gfx950/reduce.hsaco")).unwrap();
        on(device);
        // SAFETY: a whole code object; writes a handle.
        let module = made(|to| unsafe { hipModuleLoadData(to, image.as_ptr().cast()) });
        // SAFETY: a live module, a zero-terminated name; writes a handle.
        let function = made(|to| unsafe { hipModuleGetFunction(to, module, c"reduce".as_ptr()) });
        Some(Self { module, function })
    }

    fn launch(&self, queue: usize, x: usize, out: usize, n: i32) -> i32 {
        let (x, out, n, none) = (x as u64, out as u64, n, 0u64);
        let pointer = |value: *const u64| value.cast_mut().cast::<c_void>();
        let mut arguments =
            [pointer(&x), pointer(&out), pointer((&raw const n).cast()), pointer(&none), pointer(&none)];
        let arguments = arguments.as_mut_ptr();
        // SAFETY: a pointer per argument (three, and two of scratch), each valid for its size.
        unsafe {
            hipModuleLaunchKernel(self.function, 1, 1, 1, 256, 1, 1, 4096, queue, arguments, std::ptr::null_mut())
        }
    }
}

fn report() -> String {
    let mut text = [0u8; 1024];
    // SAFETY: writes at most so many bytes, zero-terminated.
    assert_eq!(unsafe { tokenspeedEmulatorReport(text.as_mut_ptr().cast(), text.len()) }, OK);
    CStr::from_bytes_until_nul(&text).unwrap().to_str().unwrap().to_string()
}

#[test]
fn kernels_touch_a_peers_memory_once_that_is_enabled() {
    let _turn = devices();
    let (Some(kernel), Some(peers)) = (Reduce::load(0), Reduce::load(1)) else { return };
    let values: Vec<u8> = (0..100).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let (x, out) = (allocate(1, values.len()), allocate(0, 20));
    write(x, &values);
    let (queue, peers_queue) = (stream(0), stream(1));
    let sum = || f32::from_le_bytes(read(out, 4).try_into().unwrap());
    // SAFETY: live handles, numbers, and memory that outlives the work.
    unsafe {
        on(0);
        assert_eq!(hipMemset(out, 0, 20), OK);
        assert_eq!(kernel.launch(queue, x, out, 100), OK);
        assert_eq!(hipStreamSynchronize(queue), ILLEGAL_ADDRESS);
        let line = report();
        for word in ["kernel reduce", "load", "out of bounds", "memory of device 1", "hipDeviceEnablePeerAccess"] {
            assert!(line.contains(word) && !line.contains('\n'), "no {word:?} in {line}");
        }
        // The device is gone until it is reset; its peer is not.
        assert_eq!(kernel.launch(queue, x, out, 100), ILLEGAL_ADDRESS);
        on(1);
        let own = allocate(1, 20);
        assert_eq!(peers.launch(peers_queue, x, own, 100), OK);
        assert_eq!(hipStreamSynchronize(peers_queue), OK);
        assert_eq!(read(own, 4), 4950f32.to_le_bytes());
        on(0);
        assert_eq!(hipDeviceReset(), OK);
        assert_eq!(hipDeviceEnablePeerAccess(1, 0), OK);
        // Memory of before and memory of later.
        let later = allocate(1, values.len());
        write(later, &values);
        on(0);
        for from in [x, later] {
            assert_eq!(hipMemset(out, 0, 20), OK);
            assert_eq!(kernel.launch(queue, from, out, 100), OK);
            assert_eq!(hipStreamSynchronize(queue), OK);
            assert_eq!(sum(), 4950.0);
        }
        // Not the other way round, stores neither.
        on(1);
        assert_eq!(peers.launch(peers_queue, x, out, 100), OK);
        assert_eq!(hipStreamSynchronize(peers_queue), ILLEGAL_ADDRESS);
        let line = report();
        assert!(line.contains("store") && line.contains("memory of device 0"), "{line}");
        assert_eq!(hipDeviceReset(), OK);
        on(0);
        assert_eq!(hipDeviceDisablePeerAccess(1), OK);
        assert_eq!(kernel.launch(queue, x, out, 100), OK);
        assert_eq!(hipStreamSynchronize(queue), ILLEGAL_ADDRESS);
        assert_eq!(hipDeviceReset(), OK);
        // Launches: in a stream of the current device, of a kernel that was loaded there.
        on(1);
        assert_eq!(kernel.launch(queue, out, out, 1), INVALID_HANDLE);
        assert_eq!(kernel.launch(peers_queue, x, own, 1), INVALID_DEVICE);
        assert_eq!(peers.launch(peers_queue, x, own, 1), OK);
        assert_eq!(hipStreamSynchronize(peers_queue), OK);
        assert_eq!([hipStreamDestroy(queue), hipStreamDestroy(peers_queue)], [OK; 2]);
        assert_eq!([hipModuleUnload(kernel.module), hipModuleUnload(peers.module)], [OK; 2]);
        free(&[x, out, own, later]);
    }
}
