//! Per-worker scratch memory: one aligned buffer, reserved before the first step and never grown after.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};

/// Cache line, and the width of the widest vector, in bytes.
pub const ALIGN_BYTES: usize = 64;

/// Size of a huge page, and from where on buffers ask for them.
const HUGE_BYTES: usize = 2 << 20;

/// Ask the system to back `bytes` at `data` with huge pages; a hint that may do nothing.
///
/// Decoding streams all weights once per step: with small pages, address translation alone costs a quarter of the
/// bandwidth. Call it before the memory is first written.
pub fn advise_huge_pages(data: *mut u8, bytes: usize) {
    #[cfg(target_os = "linux")]
    {
        let first = (data as usize).next_multiple_of(HUGE_BYTES);
        let end = (data as usize + bytes) / HUGE_BYTES * HUGE_BYTES;
        if first < end {
            // SAFETY: the range is inside the caller's memory, and the advice changes no contents. Errors are ignored:
            // a kernel without huge pages is only slower.
            unsafe { libc::madvise(first as *mut libc::c_void, end - first, libc::MADV_HUGEPAGE) };
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (data, bytes);
}

/// An owned buffer aligned to [`ALIGN_BYTES`].
#[derive(Debug)]
pub struct Scratch {
    data: *mut u8,
    bytes: usize,
}

// SAFETY: the buffer is owned and has no thread affinity.
unsafe impl Send for Scratch {}

impl Scratch {
    /// A zeroed buffer of `bytes`.
    pub fn new(bytes: usize) -> Self {
        if bytes == 0 {
            return Self { data: std::ptr::null_mut(), bytes };
        }
        let layout = Self::layout(bytes);
        // SAFETY: the layout has non-zero size.
        let data = unsafe { alloc(layout) };
        if data.is_null() {
            handle_alloc_error(layout);
        }
        advise_huge_pages(data, bytes);
        // SAFETY: just allocated with this size.
        unsafe { data.write_bytes(0, bytes) };
        Self { data, bytes }
    }

    /// At least `bytes`; allocates (and forgets the contents) only when it has to grow.
    pub fn reserve(&mut self, bytes: usize) {
        if bytes > self.bytes {
            *self = Self::new(bytes);
        }
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Start carving regions from the front.
    pub fn carve(&mut self) -> Carver {
        Carver { next: self.data, left: self.bytes }
    }

    fn layout(bytes: usize) -> Layout {
        let align = if bytes >= HUGE_BYTES { HUGE_BYTES } else { ALIGN_BYTES };
        Layout::from_size_align(bytes, align).expect("scratch size overflows the address space")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: allocated in `new` with this layout.
            unsafe { dealloc(self.data, Self::layout(self.bytes)) };
        }
    }
}

/// Hands out consecutive aligned regions of a [`Scratch`].
#[derive(Debug)]
pub struct Carver {
    next: *mut u8,
    left: usize,
}

/// Bytes a region of `n` items of `T` takes from a [`Carver`].
pub const fn region_bytes<T>(n: usize) -> usize {
    (n * size_of::<T>()).next_multiple_of(ALIGN_BYTES)
}

impl Carver {
    /// The next `n` items of `T`, aligned; contents are whatever was left there.
    pub fn take<T: Copy>(&mut self, n: usize) -> *mut T {
        let bytes = region_bytes::<T>(n);
        assert!(bytes <= self.left, "scratch too small: {bytes} bytes wanted, {} left; reserve more", self.left);
        let p = self.next;
        self.next = p.wrapping_add(bytes);
        self.left -= bytes;
        p.cast()
    }

    /// A second carver over what is left; the two hand out the same memory, so one must be done before the other.
    pub fn again(&self) -> Carver {
        Carver { next: self.next, left: self.left }
    }

    /// What is not yet taken.
    pub fn left(&self) -> usize {
        self.left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_aligned_and_disjoint() {
        let mut s = Scratch::new(1000);
        let mut c = s.carve();
        let a = c.take::<f32>(3) as usize;
        let b = c.take::<u8>(65) as usize;
        assert_eq!((a % ALIGN_BYTES, b - a), (0, 64));
        assert_eq!(c.left(), 1000 - 64 - 128);
    }

    #[test]
    #[should_panic(expected = "scratch too small")]
    fn overdraw_is_caught() {
        Scratch::new(64).carve().take::<f32>(17);
    }
}
