//! Memory of a device, as the ABI asks for it: device memory, but for staging, which is pinned host memory.

use std::sync::Arc;

use tokenspeed_backend_api::{abi::TS_ARENA_STAGING, sdk::Fault};

use crate::hip::{Buffer, Device, HostBuffer};

/// One arena.
#[derive(Debug)]
pub enum Arena {
    /// Memory of the device.
    Device(Buffer),
    /// Host memory that the device reaches too.
    Host(HostBuffer),
}

impl Arena {
    /// Memory of `TS_ARENA_*` kind. Device memory has unknown contents: kernels read no page, slot or row that was not written,
    /// which the emulator checks.
    pub fn new(device: &Arc<Device>, kind: u32, bytes: u64) -> Result<Self, Fault> {
        let len = usize::try_from(bytes).map_err(|_| Fault::out_of_memory(format!("{bytes} bytes")))?;
        if kind == TS_ARENA_STAGING {
            return Ok(Arena::Host(HostBuffer::new(device, len)?));
        }
        let buffer = Buffer::new(device, len).map_err(|error| {
            let fault = Fault::from(error);
            let free = device.free_bytes().unwrap_or(0);
            let what = "ask for less, or end what else uses the device";
            let message = format!("{bytes} bytes of device memory, {free} are free ({what}): {}", fault.message);
            Fault { message, ..fault }
        })?;
        Ok(Arena::Device(buffer))
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        match self {
            Arena::Device(b) => b.bytes as u64,
            Arena::Host(b) => b.bytes as u64,
        }
    }

    /// Address of a range, for kernels.
    pub fn range(&self, offset: u64, bytes: u64) -> Result<u64, Fault> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes() => Ok(self.address() + offset),
            _ => Err(Fault::invalid(format!("bytes {offset}+{bytes} of an arena of {}", self.bytes()))),
        }
    }

    fn address(&self) -> u64 {
        match self {
            Arena::Device(b) => b.address(),
            Arena::Host(b) => b.address() as u64,
        }
    }

    /// Host address, of host memory.
    pub fn host_address(&self) -> Result<*mut u8, Fault> {
        match self {
            Arena::Device(_) => Err(Fault::unsupported("mapping device memory")),
            Arena::Host(b) => Ok(b.address()),
        }
    }

    /// Copies from the caller; waits.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), Fault> {
        let address = self.range(offset, data.len() as u64)?;
        match self {
            Arena::Device(b) => Ok(b.write_at(offset as usize, data)?),
            Arena::Host(_) => {
                // SAFETY: the range was checked; a caller that writes from its own mapping may overlap.
                unsafe { std::ptr::copy(data.as_ptr(), address as *mut u8, data.len()) };
                Ok(())
            }
        }
    }

    /// Copies to the caller; waits.
    pub fn read(&self, offset: u64, data: &mut [u8]) -> Result<(), Fault> {
        let address = self.range(offset, data.len() as u64)?;
        match self {
            Arena::Device(b) => Ok(b.read_at(offset as usize, data)?),
            Arena::Host(_) => {
                // SAFETY: as above.
                unsafe { std::ptr::copy(address as *const u8, data.as_mut_ptr(), data.len()) };
                Ok(())
            }
        }
    }
}
