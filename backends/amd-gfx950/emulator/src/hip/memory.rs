//! Allocation and copies.

use std::{
    ffi::c_void,
    sync::{Arc, atomic::Ordering},
};

use super::{Status, api, graph::permit_unsafe_call, put, runtime, stream::Stream, work::Work};
use crate::machine::Owner;

fn allocate(to: *mut usize, bytes: usize) -> Result<(), Status> {
    permit_unsafe_call()?;
    let runtime = runtime();
    let ordinal = runtime.healthy()?;
    let device = runtime.device(ordinal)?;
    if bytes == 0 {
        return put(to, 0);
    }
    let used = device.used_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    let fits = used.checked_add(bytes as u64).is_some_and(|all| all <= runtime.settings.memory_bytes);
    let allocation =
        fits.then(|| runtime.memory.allocate(bytes, Owner::Device(ordinal), runtime.settings.check())).flatten();
    let Some(allocation) = allocation else {
        device.used_bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
        return Err(Status::OUT_OF_MEMORY);
    };
    put(to, allocation.base)
}

api! {
    /// Device memory.
    fn hipMalloc(to: *mut usize, bytes: usize) { allocate(to, bytes) }
}
api! {
    /// Device memory of a kind; all memory is fine-grained here.
    fn hipExtMallocWithFlags(to: *mut usize, bytes: usize, _flags: u32) { allocate(to, bytes) }
}
api! {
    /// Frees device memory, after everything that may use it is done.
    fn hipFree(address: usize) {
        permit_unsafe_call()?;
        if address == 0 {
            return Ok(());
        }
        let runtime = runtime();
        let allocation = runtime.memory.find(address, 1).filter(|a| a.base == address).ok_or(Status::INVALID_VALUE)?;
        let Owner::Device(ordinal) = allocation.owner else { return Err(Status::INVALID_VALUE) };
        let finished = super::device::finish(ordinal);
        runtime.memory.free(address);
        runtime.device(ordinal)?.used_bytes.fetch_sub(allocation.len as u64, Ordering::Relaxed);
        finished
    }
}
api! {
    /// Free and total bytes of the current device.
    fn hipMemGetInfo(free: *mut usize, total: *mut usize) {
        let runtime = runtime();
        let (all, device) = (runtime.settings.memory_bytes, runtime.device(runtime.healthy()?)?);
        put(free, all.saturating_sub(device.used_bytes.load(Ordering::Relaxed)) as usize)?;
        put(total, all as usize)
    }
}
api! {
    /// Pinned host memory, which kernels may use.
    fn hipHostMalloc(to: *mut usize, bytes: usize, _flags: u32) {
        permit_unsafe_call()?;
        runtime().healthy()?;
        let allocation = runtime().memory.allocate(bytes, Owner::Host, false).ok_or(Status::OUT_OF_MEMORY)?;
        put(to, allocation.base)
    }
}
api! {
    /// Frees pinned host memory.
    fn hipHostFree(address: usize) {
        permit_unsafe_call()?;
        if address == 0 {
            return Ok(());
        }
        let memory = &runtime().memory;
        let found = memory.find(address, 0).filter(|a| a.base == address && a.owner == Owner::Host);
        found.ok_or(Status::INVALID_VALUE)?;
        for ordinal in 0..runtime().settings.devices {
            // A failed device does nothing any more; its memory can go.
            let _failed = super::device::finish(ordinal);
        }
        memory.free(address);
        Ok(())
    }
}
api! {
    /// The device address of pinned host memory: the same.
    fn hipHostGetDevicePointer(to: *mut usize, address: usize, _flags: u32) {
        let found = runtime().memory.find(address, 1).filter(|a| a.owner == Owner::Host);
        found.ok_or(Status::INVALID_VALUE)?;
        put(to, address)
    }
}

/// Which sides of a copy must be device memory.
fn sides(kind: u32) -> Result<(bool, bool), Status> {
    match kind {
        0 => Ok((false, false)),
        1 => Ok((true, false)),
        2 => Ok((false, true)),
        3 => Ok((true, true)),
        4 => Ok((false, false)),
        _ => Err(Status::INVALID_VALUE),
    }
}

/// A range that begins in an allocation must end in it; a device side must be one.
fn check_side(address: usize, bytes: usize, device: bool) -> Result<Option<Owner>, Status> {
    if address == 0 {
        return Err(Status::INVALID_VALUE);
    }
    let memory = &runtime().memory;
    match (memory.find(address, bytes), memory.find(address, 1)) {
        (Some(a), _) => Ok(Some(a.owner)),
        (None, Some(_)) => Err(Status::INVALID_VALUE),
        (None, None) if device => Err(Status::INVALID_VALUE),
        (None, None) => Ok(None),
    }
}

/// Queues a copy. Pageable host memory is read now and written at once, as the runtime does.
fn copy(to: usize, from: usize, bytes: usize, kind: u32, stream: &Arc<Stream>) -> Result<(), Status> {
    if bytes == 0 {
        return Ok(());
    }
    let (device_to, device_from) = sides(kind)?;
    let destination = check_side(to, bytes, device_to)?;
    let source = check_side(from, bytes, device_from)?;
    match (destination, source) {
        (Some(_), None) => {
            // SAFETY: host memory that is valid for reads by contract.
            let data: Arc<[u8]> = unsafe { std::slice::from_raw_parts(from as *const u8, bytes) }.into();
            stream.add(Work::Upload { to, data })
        }
        (None, _) => {
            stream.add(Work::Copy { to, from, bytes })?;
            if super::graph::capture_of(stream).is_some() { Ok(()) } else { stream.finish() }
        }
        _ => stream.add(Work::Copy { to, from, bytes }),
    }
}

api! {
    /// Copies and waits.
    fn hipMemcpy(to: *mut c_void, from: *const c_void, bytes: usize, kind: u32) {
        permit_unsafe_call()?;
        let stream = runtime().stream(0)?;
        copy(to as usize, from as usize, bytes, kind, &stream)?;
        stream.finish()
    }
}
api! {
    /// Copies in a stream.
    fn hipMemcpyAsync(to: *mut c_void, from: *const c_void, bytes: usize, kind: u32, stream: usize) {
        copy(to as usize, from as usize, bytes, kind, &runtime().stream(stream)?)
    }
}
api! {
    /// Copies between devices in a stream, whether or not either was given access to the other. Memory of another device than said is
    /// refused, which HIP does not check.
    fn hipMemcpyPeerAsync(to: *mut c_void, to_device: i32, from: *const c_void, from_device: i32, bytes: usize, stream: usize) {
        for (address, device) in [(to as usize, to_device), (from as usize, from_device)] {
            runtime().device(device)?;
            let owner = runtime().memory.find(address, bytes.min(1)).map(|a| a.owner);
            if bytes > 0 && owner != Some(Owner::Device(device)) {
                return Err(Status::INVALID_VALUE);
            }
        }
        copy(to as usize, from as usize, bytes, 3, &runtime().stream(stream)?)
    }
}

fn fill(to: *mut c_void, value: u32, width: usize, bytes: usize, stream: &Arc<Stream>) -> Result<(), Status> {
    if bytes == 0 {
        return Ok(());
    }
    check_side(to as usize, bytes, true)?;
    stream.add(Work::Fill { to: to as usize, value, width, bytes })
}

api! {
    /// Fills bytes and waits.
    fn hipMemset(to: *mut c_void, value: i32, bytes: usize) {
        permit_unsafe_call()?;
        let stream = runtime().stream(0)?;
        fill(to, value as u32, 1, bytes, &stream)?;
        stream.finish()
    }
}
api! {
    /// Fills bytes in a stream.
    fn hipMemsetAsync(to: *mut c_void, value: i32, bytes: usize, stream: usize) {
        fill(to, value as u32, 1, bytes, &runtime().stream(stream)?)
    }
}
api! {
    /// Fills dwords in a stream; the length counts dwords.
    fn hipMemsetD32Async(to: *mut c_void, value: i32, dwords: usize, stream: usize) {
        fill(to, value as u32, 4, 4 * dwords, &runtime().stream(stream)?)
    }
}
