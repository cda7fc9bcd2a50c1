//! Weight memory in huge pages: decoding streams every weight once per step, and with 4 KiB pages half of that time can go
//! to address translation.
//!
//! Only weights: a cache page is small and scattered over one region per layer, so huge pages there would touch far more
//! memory than a first request needs.

use std::ptr::NonNull;

use tokenspeed_backend_api::sdk::{Fault, HostArena};

const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Zeroed memory aligned to a huge page, for which the system is asked (not forced) to use them.
pub(crate) fn alloc(bytes: u64) -> Result<HostArena, Fault> {
    let fail = || Fault::out_of_memory(format!("the system gave no {bytes} bytes of memory"));
    let wanted = usize::try_from(bytes).map_err(|_| fail())?.max(1);
    let mapped = wanted.checked_add(HUGE_PAGE_BYTES).ok_or_else(fail)?;
    // SAFETY: an anonymous private mapping at an address of the system's choice.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            mapped,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return Err(fail());
    }
    let start = start.cast::<u8>();
    let skip = start.align_offset(HUGE_PAGE_BYTES);
    // SAFETY: at most one huge page into a mapping with that much to spare.
    let data = unsafe { start.add(skip) };
    // SAFETY: advice about our own mapping; a refusal changes nothing but speed.
    unsafe { libc::madvise(data.cast(), wanted, libc::MADV_HUGEPAGE) };
    let data = NonNull::new(data).ok_or_else(fail)?;
    let release = move |data: NonNull<u8>, _| {
        // SAFETY: the mapping made above, `skip` bytes before the data.
        unsafe { libc::munmap(data.as_ptr().sub(skip).cast(), mapped) };
    };
    // SAFETY: mapped readable, writable and zeroed until `release`.
    Ok(unsafe { HostArena::from_raw(data, wanted, release) })
}
