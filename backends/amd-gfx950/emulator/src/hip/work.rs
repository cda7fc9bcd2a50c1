//! What a stream or a graph holds: copies, fills, kernels, event marks.

use std::sync::{Arc, atomic::Ordering};

use super::{Status, event::Event, launched, log, runtime, stream::Stream};
use crate::{
    code::Kernel,
    machine::{Counters, Dispatch, launch_behind},
};

/// One piece of work.
#[derive(Debug, Clone)]
pub enum Work {
    /// Bytes between two addresses.
    Copy {
        /// Destination.
        to: usize,
        /// Source.
        from: usize,
        /// Length.
        bytes: usize,
    },
    /// Bytes that were taken from pageable host memory when the copy was asked for.
    Upload {
        /// Destination.
        to: usize,
        /// Contents.
        data: Arc<[u8]>,
    },
    /// A pattern of 1, 2 or 4 bytes.
    Fill {
        /// Destination.
        to: usize,
        /// Pattern.
        value: u32,
        /// Bytes of the pattern.
        width: usize,
        /// Length in bytes.
        bytes: usize,
    },
    /// A kernel.
    Kernel {
        /// Code.
        kernel: Arc<Kernel>,
        /// Shape and arguments.
        dispatch: Arc<Dispatch>,
    },
    /// An event is reached.
    Mark(Arc<Event>),
    /// Work of another stream must be done up to a position.
    Wait(Arc<Stream>, u64),
}

impl Work {
    /// Does it, on behalf of a device.
    pub fn run(&self, device: i32) -> Result<(), Status> {
        match self {
            Self::Copy { to, from, bytes } => copy(*to, *from, *bytes),
            Self::Upload { to, data } => copy(*to, data.as_ptr() as usize, data.len()),
            Self::Fill { to, value, width, bytes } => fill(*to, *value, *width, *bytes),
            Self::Kernel { kernel, dispatch } => {
                let runtime = runtime();
                let visible = visible(device)?;
                let mode = runtime.settings.mode(&kernel.name);
                let cache = runtime.settings.cache();
                let counters =
                    launch_behind(cache.as_deref(), kernel, &runtime.memory, visible.as_deref(), dispatch, mode)
                        .map_err(|report| runtime.fail(device, report))?;
                launched::note(kernel);
                if mode.detail {
                    log::write(kernel, dispatch, mode, &counters);
                }
                runtime.count(Counters { detail: None, ..counters });
                Ok(())
            }
            Self::Mark(event) => {
                event.reached();
                Ok(())
            }
            Self::Wait(stream, position) => stream.run_to(*position),
        }
    }
}

/// Devices whose memory a device's kernels may touch; `None` if there is only one.
fn visible(device: i32) -> Result<Option<Vec<i32>>, Status> {
    let runtime = runtime();
    if runtime.devices.len() == 1 {
        return Ok(None);
    }
    let peers = runtime.device(device)?.peers.lock().unwrap_or_else(|e| e.into_inner());
    Ok(Some(peers.iter().copied().chain([device]).collect()))
}

/// Copies between any two of device, pinned and plain host memory, and moves the marks of written bytes along.
pub fn copy(to: usize, from: usize, bytes: usize) -> Result<(), Status> {
    let memory = &runtime().memory;
    let (source, destination) = (memory.find(from, bytes), memory.find(to, bytes));
    // SAFETY: a range is inside an allocation, or else host memory that is valid by contract of the copying function.
    unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
    let Some(destination) = destination.filter(|d| d.tracked()) else { return Ok(()) };
    match source.filter(|s| s.tracked()) {
        None => destination.mark(to, bytes, true),
        Some(source) => {
            for i in 0..bytes {
                destination.mark(to + i, 1, source.written(from + i, 1));
            }
        }
    }
    Ok(())
}

fn fill(to: usize, value: u32, width: usize, bytes: usize) -> Result<(), Status> {
    let allocation = runtime().memory.find(to, bytes).ok_or(Status::INVALID_VALUE)?;
    let pattern = value.to_le_bytes();
    for at in (0..bytes).step_by(width) {
        let len = width.min(bytes - at);
        // SAFETY: inside the allocation found above.
        unsafe { std::ptr::copy_nonoverlapping(pattern.as_ptr(), (to + at) as *mut u8, len) };
    }
    allocation.mark(to, bytes, true);
    Ok(())
}

/// A device whose kernels failed does no more work.
pub fn alive(device: i32) -> Result<(), Status> {
    match runtime().device(device)?.fault.load(Ordering::Relaxed) {
        0 => Ok(()),
        fault => Err(Status(fault)),
    }
}
