//! Host memory of one parameter block, lent to the device while a step is in flight.
//!
//! The ABI lets a device read the block until the step's event has its value, so the buffer remembers that event: it
//! can be written again only after it. Two buffers are enough to plan a step while another runs. Rejected: a copy into
//! library-owned staging memory per step; it is the copy the backend makes anyway.

use super::Event;

/// Alignment of the block: a cache line, above the 16 bytes that its arrays want.
const ALIGNMENT: usize = 64;

#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Line([u8; ALIGNMENT]);

/// A parameter block of fixed capacity.
pub struct StepBuffer {
    lines: Vec<Line>,
    used: usize,
    in_flight: Option<(Event, u64)>,
}

impl StepBuffer {
    /// Room for `bytes` bytes.
    pub fn with_capacity(bytes: usize) -> Self {
        Self { lines: vec![Line([0; ALIGNMENT]); bytes.div_ceil(ALIGNMENT)], used: bytes, in_flight: None }
    }

    /// The most bytes it can hold.
    pub fn capacity(&self) -> usize {
        self.lines.len() * ALIGNMENT
    }

    /// The whole buffer, to write the next block into; its address is a multiple of 64. `None` while the device may
    /// still read the last one: wait for its event.
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        if let Some((event, value)) = &self.in_flight {
            // A failed step reads nothing any more.
            if event.query().is_ok_and(|now| now < *value) {
                return None;
            }
            self.in_flight = None;
        }
        let n = self.capacity();
        // SAFETY: `Line` is plain bytes without padding.
        Some(unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), n) })
    }

    /// Says how many bytes of the buffer the block has, at most the capacity.
    pub fn set_len(&mut self, bytes: usize) {
        assert!(bytes <= self.capacity(), "a block of {bytes} bytes in a buffer of {}", self.capacity());
        self.used = bytes;
    }

    /// The block, for reading.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `Line` is plain bytes without padding, and `used` is within the capacity.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.used) }
    }

    pub(super) fn lend(&mut self, event: &Event, value: u64) -> &[u8] {
        self.in_flight = Some((event.clone(), value));
        self.bytes()
    }

    pub(super) fn returned(&mut self) {
        self.in_flight = None;
    }
}

impl Drop for StepBuffer {
    fn drop(&mut self) {
        if let Some((event, value)) = self.in_flight.take() {
            // The device may still read the memory. One that never answers keeps it.
            const PATIENCE_NS: u64 = 10_000_000_000;
            let timed_out = event.wait(value, PATIENCE_NS).is_err_and(|e| e.code == crate::abi::TS_ERR_TIMEOUT);
            if timed_out {
                std::mem::forget(std::mem::take(&mut self.lines));
            }
        }
    }
}

impl std::fmt::Debug for StepBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "parameter block of {} bytes (capacity {})", self.used, self.capacity())
    }
}
