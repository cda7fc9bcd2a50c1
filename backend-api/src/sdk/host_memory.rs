//! Arenas in host memory.

use super::fault::Fault;
use core::ptr::NonNull;
use std::alloc::{Layout, alloc_zeroed, dealloc};

/// A block of host memory: allocated (aligned, zeroed), imported (read-only, somebody else's), or made by the backend
/// itself (huge pages, NUMA placement).
pub struct HostArena {
    data: NonNull<u8>,
    bytes: usize,
    writable: bool,
    release: Option<Release>,
}

/// Gives memory back: its address and length.
type Release = Box<dyn FnOnce(NonNull<u8>, usize) + Send + Sync>;

// SAFETY: plain memory. Access goes through raw copies and the ops of a program, which the host orders.
unsafe impl Send for HostArena {}
// SAFETY: as above.
unsafe impl Sync for HostArena {}

impl HostArena {
    /// Zeroed memory; pages are touched on first use only, so an arena larger than what is used costs nothing.
    ///
    /// The alignment is made by hand: asked for more than 16 bytes of it, the system allocator clears memory itself and
    /// so touches every page.
    pub fn zeroed(bytes: u64, alignment: usize) -> Result<Self, Fault> {
        const NATURAL: usize = 16;
        let n = usize::try_from(bytes).ok().and_then(|n| n.max(1).checked_add(alignment));
        let layout = n.and_then(|n| Layout::from_size_align(n, NATURAL).ok());
        let layout = layout.ok_or_else(|| Fault::out_of_memory(format!("{bytes} bytes cannot be addressed")))?;
        // SAFETY: the layout has a size above 0.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })
            .ok_or_else(|| Fault::out_of_memory(format!("the system gave no {bytes} bytes of memory")))?;
        let skip = start.as_ptr().align_offset(alignment);
        assert!(skip <= alignment, "bytes can be aligned to a power of two");
        // SAFETY: at most `alignment` bytes into an allocation with that much to spare.
        let data = unsafe { start.add(skip) };
        let release = move |data: NonNull<u8>, _| {
            // SAFETY: `skip` bytes before the data is the allocation made above, with the same layout.
            unsafe { dealloc(data.as_ptr().sub(skip), layout) }
        };
        Ok(Self { data, bytes: bytes as usize, writable: true, release: Some(Box::new(release)) })
    }

    /// Memory of somebody else, read in place.
    ///
    /// # Safety
    /// `bytes` bytes at `data` are readable and unchanged until the arena is gone.
    pub unsafe fn imported(data: *const u8, bytes: u64) -> Result<Self, Fault> {
        let data = NonNull::new(data.cast_mut()).unwrap_or(NonNull::<u64>::dangling().cast());
        Ok(Self { data, bytes: bytes as usize, writable: false, release: None })
    }

    /// Writable memory that the backend allocated its own way; `release` gets it back.
    ///
    /// # Safety
    /// `bytes` bytes at `data` are initialised, and readable and writable until `release` is called.
    pub unsafe fn from_raw(
        data: NonNull<u8>,
        bytes: usize,
        release: impl FnOnce(NonNull<u8>, usize) + Send + Sync + 'static,
    ) -> Self {
        Self { data, bytes, writable: true, release: Some(Box::new(release)) }
    }

    /// Length.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether ops may write it.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Address of `bytes` bytes at `offset`, checked.
    pub fn range(&self, offset: u64, bytes: u64) -> Result<*mut u8, Fault> {
        match offset.checked_add(bytes) {
            // SAFETY: inside the allocation.
            Some(end) if end <= self.bytes as u64 => Ok(unsafe { self.data.as_ptr().add(offset as usize) }),
            _ => Err(Fault::invalid(format!("{bytes} bytes at {offset} pass the end of an arena of {}", self.bytes))),
        }
    }

    /// As [`HostArena::range`], for writing.
    pub fn range_mut(&self, offset: u64, bytes: u64) -> Result<*mut u8, Fault> {
        if !self.writable {
            return Err(Fault::invalid("imported memory is read-only"));
        }
        self.range(offset, bytes)
    }
}

impl Drop for HostArena {
    fn drop(&mut self) {
        if let Some(release) = self.release.take() {
            release(self.data, self.bytes);
        }
    }
}

impl std::fmt::Debug for HostArena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes at {:?}", self.bytes, self.data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_checked() {
        let a = HostArena::zeroed(100, 64).unwrap();
        assert_eq!(a.range(0, 100).unwrap() as usize % 64, 0);
        assert!(a.range(1, 100).is_err());
        assert!(a.range(u64::MAX, 2).is_err());
        assert_eq!(HostArena::zeroed(u64::MAX, 64).unwrap_err().code, crate::abi::TS_ERR_OUT_OF_MEMORY);
        let bytes = [1u8, 2];
        // SAFETY: the array outlives the arena.
        let imported = unsafe { HostArena::imported(bytes.as_ptr(), 2) }.unwrap();
        assert!(imported.range(0, 2).is_ok() && imported.range_mut(0, 2).is_err());
    }
}
