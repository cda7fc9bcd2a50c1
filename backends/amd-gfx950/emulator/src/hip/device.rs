//! Devices: how many, which one, waiting for one.

use std::ffi::c_char;

use super::{Status, api, graph::permit_unsafe_call, peer, properties, put, runtime};

/// Runs everything that a device still has to do.
pub fn finish(ordinal: i32) -> Result<(), Status> {
    let runtime = runtime();
    runtime.device(ordinal)?.default_stream.finish()?;
    for stream in runtime.streams.all() {
        if stream.device == ordinal {
            stream.finish()?;
        }
    }
    Ok(())
}

api! {
    /// Nothing to do, but to say whether there is a device.
    fn hipInit(flags: u32) {
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        runtime().current().map(|_| ())
    }
}
api! {
    /// Version of the driver.
    fn hipDriverGetVersion(version: *mut i32) { put(version, runtime().settings.version) }
}
api! {
    /// Version of the runtime.
    fn hipRuntimeGetVersion(version: *mut i32) { put(version, runtime().settings.version) }
}
api! {
    /// Number of devices; none is an error.
    fn hipGetDeviceCount(count: *mut i32) {
        let devices = runtime().settings.devices;
        put(count, devices)?;
        if devices == 0 { Err(Status::NO_DEVICE) } else { Ok(()) }
    }
}
api! {
    /// Chooses the calling thread's device.
    fn hipSetDevice(ordinal: i32) { runtime().set_current(ordinal) }
}
api! {
    /// The calling thread's device.
    fn hipGetDevice(ordinal: *mut i32) { put(ordinal, runtime().current()?) }
}
api! {
    /// Waits for the current device.
    fn hipDeviceSynchronize() {
        permit_unsafe_call()?;
        finish(runtime().healthy()?)
    }
}
api! {
    /// Forgets a fault of the current device, so that tests can go on, and its access to peers. Memory and handles stay.
    fn hipDeviceReset() {
        let own = runtime().current()?;
        runtime().heal(own);
        peer::forget(own)
    }
}
api! {
    /// Properties in the layout of HIP 6 and 7.
    fn hipGetDevicePropertiesR0600(to: *mut u8, ordinal: i32) {
        runtime().device(ordinal)?;
        if to.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        let settings = &runtime().settings;
        let bytes = properties::bytes(ordinal, settings.memory_bytes, &settings.architecture);
        // SAFETY: `to` is valid for a properties structure by contract, which is this long.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }
}
api! {
    /// One property by its number in the header.
    fn hipDeviceGetAttribute(value: *mut i32, attribute: u32, ordinal: i32) {
        runtime().device(ordinal)?;
        put(value, properties::attribute(attribute).ok_or(Status::INVALID_VALUE)?)
    }
}
api! {
    /// A PCI address that no other device of the process has.
    fn hipDeviceGetPCIBusId(to: *mut c_char, bytes: i32, ordinal: i32) {
        runtime().device(ordinal)?;
        let text = format!("0000:{:02x}:00.0\0", ordinal + 1);
        if to.is_null() || (bytes as usize) < text.len() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: `to` is valid for `bytes` bytes by contract.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), to.cast(), text.len()) };
        Ok(())
    }
}
