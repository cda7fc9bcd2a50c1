//! Device memory: allocations at real host addresses, found by address, with a shadow of which bytes were written.
//!
//! Decision: a device pointer is a host pointer, so host-pinned memory, peer memory and copies need no translation, and a
//! kernel's access costs a bounds check only. Rejected: one arena per device with its own address space; the table of bases
//! would be consulted on every access, and pointers in structures that host and device share would need rewriting.
//!
//! Large allocations are mapped, so that the host gives memory only for what is touched: a cache of 200 GiB costs what its
//! used pages cost. They read as zeros where nobody wrote; the shadow knows all the same.
//!
//! SAFETY: every access goes through [`View::find`], which returns the allocation that holds the whole range; allocations
//! live as long as the view (`Arc`). Kernels on several threads may race on bytes as they may on a GPU; accesses therefore
//! go through raw pointers, never through references.

use std::{
    alloc::{Layout, alloc, dealloc},
    collections::BTreeMap,
    sync::{
        Arc, RwLock,
        atomic::{AtomicU8, Ordering},
    },
};

use memmap2::MmapMut;

/// Who owns an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// A device by ordinal.
    Device(i32),
    /// Host memory that devices may use.
    Host,
    /// Code and dispatch packets: kernels may read.
    System,
}

/// A range of memory.
#[derive(Debug)]
pub struct Allocation {
    /// First byte.
    pub base: usize,
    /// Bytes.
    pub len: usize,
    /// Owner.
    pub owner: Owner,
    backing: Backing,
    /// One bit per byte: written. `None` = all bytes count as written.
    shadow: Option<MmapMut>,
}

/// Where the bytes come from.
#[derive(Debug)]
enum Backing {
    Heap(Layout),
    /// Kept for its drop.
    Map(#[allow(dead_code)] MmapMut),
}

/// From here on memory is mapped.
const LARGE: usize = 1 << 20;

/// Byte of memory that nobody wrote; NaN in every float format wider than eight bits.
const POISON_BYTE: u8 = 0xff;
/// As the HIP runtime aligns.
const ALIGN: usize = 256;

impl Allocation {
    fn new(len: usize, owner: Owner, checked: bool) -> Option<Self> {
        let size = len.max(1).checked_next_multiple_of(ALIGN)?;
        let tracked = checked && matches!(owner, Owner::Device(_));
        let (base, backing) = if size >= LARGE {
            let map = MmapMut::map_anon(size).ok()?;
            (map.as_ptr() as usize, Backing::Map(map))
        } else {
            let layout = Layout::from_size_align(size, ALIGN).ok()?;
            // SAFETY: the layout's size is not zero.
            let pointer = unsafe { alloc(layout) };
            if pointer.is_null() {
                return None;
            }
            // SAFETY: as many bytes were just allocated.
            unsafe { pointer.write_bytes(if tracked { POISON_BYTE } else { 0 }, size) };
            (pointer as usize, Backing::Heap(layout))
        };
        let shadow = if tracked { Some(MmapMut::map_anon(size / 8).ok()?) } else { None };
        Some(Self { base, len, owner, backing, shadow })
    }

    /// The shadow's cells.
    fn shadow(&self) -> Option<&[AtomicU8]> {
        let map = self.shadow.as_ref()?;
        // SAFETY: the map's bytes, which nobody uses in any other way than through these atomics.
        Some(unsafe { std::slice::from_raw_parts(map.as_ptr().cast::<AtomicU8>(), map.len()) })
    }

    /// Keeps track of written bytes.
    pub fn tracked(&self) -> bool {
        self.shadow.is_some()
    }

    /// Marks bytes as written or not.
    pub fn mark(&self, address: usize, len: usize, written: bool) {
        let Some(shadow) = self.shadow() else { return };
        let (start, end) = (address - self.base, address - self.base + len);
        let mut at = start;
        while at < end {
            let take = (8 - at % 8).min(end - at);
            let bits = (((1u16 << take) - 1) << (at % 8)) as u8;
            let cell = &shadow[at / 8];
            if bits == 0xff {
                cell.store(if written { 0xff } else { 0 }, Ordering::Relaxed);
            } else if written {
                cell.fetch_or(bits, Ordering::Relaxed);
            } else {
                cell.fetch_and(!bits, Ordering::Relaxed);
            }
            at += take;
        }
    }

    /// Whether all bytes were written. `len` at most 4, not crossing an aligned dword.
    pub fn written(&self, address: usize, len: usize) -> bool {
        let Some(shadow) = self.shadow() else { return true };
        let at = address - self.base;
        let bits = (((1u16 << len) - 1) as u8) << (at % 8);
        // A dword that is not aligned may straddle two cells.
        if at % 8 + len > 8 {
            return (at..at + len).all(|b| shadow[b / 8].load(Ordering::Relaxed) >> (b % 8) & 1 != 0);
        }
        shadow[at / 8].load(Ordering::Relaxed) & bits == bits
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if let Backing::Heap(layout) = self.backing {
            // SAFETY: allocated with this layout in `new`, freed once.
            unsafe { dealloc(self.base as *mut u8, layout) };
        }
    }
}

/// All allocations of the process.
#[derive(Debug, Default)]
pub struct Memory {
    map: RwLock<Arc<Map>>,
}

impl Memory {
    /// A new allocation, poisoned and tracked if `checked`; `None` if the host has no memory left.
    pub fn allocate(&self, len: usize, owner: Owner, checked: bool) -> Option<Arc<Allocation>> {
        let allocation = Arc::new(Allocation::new(len, owner, checked)?);
        let mut map = self.map.write().unwrap_or_else(|e| e.into_inner());
        Arc::make_mut(&mut map).insert(allocation.base, allocation.clone());
        Some(allocation)
    }

    /// Removes the allocation that starts here.
    pub fn free(&self, base: usize) -> Option<Arc<Allocation>> {
        let mut map = self.map.write().unwrap_or_else(|e| e.into_inner());
        Arc::make_mut(&mut map).remove(&base)
    }

    /// The allocation that holds this range.
    pub fn find(&self, address: usize, len: usize) -> Option<Arc<Allocation>> {
        self.view().find(address, len).cloned()
    }

    /// What kernels see from now on.
    pub fn view(&self) -> View {
        View { seen: self.map.read().unwrap_or_else(|e| e.into_inner()).clone(), hidden: Arc::default() }
    }
}

/// Allocations by their first byte.
type Map = BTreeMap<usize, Arc<Allocation>>;

/// A consistent set of allocations.
#[derive(Debug, Clone)]
pub struct View {
    seen: Arc<Map>,
    /// What is there and may not be touched: for reports.
    hidden: Arc<Map>,
}

fn found_in(map: &Map, address: usize, len: usize) -> Option<&Arc<Allocation>> {
    let (_, found) = map.range(..=address).next_back()?;
    (address.checked_add(len)? <= found.base + found.len).then_some(found)
}

impl View {
    /// The allocation that holds `len` bytes at `address`.
    pub fn find(&self, address: usize, len: usize) -> Option<&Arc<Allocation>> {
        found_in(&self.seen, address, len)
    }

    /// The same without the memory of devices that are not listed.
    pub fn of_devices(&self, devices: &[i32]) -> Self {
        let is_hidden = |a: &Allocation| matches!(a.owner, Owner::Device(d) if !devices.contains(&d));
        let (hidden, seen): (Map, Map) =
            self.seen.iter().map(|(k, a)| (*k, a.clone())).partition(|(_, a)| is_hidden(a));
        Self { seen: Arc::new(seen), hidden: Arc::new(hidden) }
    }

    /// Where an address that is in no allocation lies, in words.
    pub fn describe(&self, address: usize) -> String {
        if let Some(Owner::Device(peer)) = found_in(&self.hidden, address, 1).map(|a| a.owner) {
            return format!("memory of device {peer}, access to which was not enabled (hipDeviceEnablePeerAccess)");
        }
        let below = self.seen.range(..=address).next_back().map(|(_, a)| a);
        match below {
            Some(a) if address < a.base + a.len + (1 << 20) => {
                format!(
                    "{} bytes past the end of a {}-byte allocation",
                    address.wrapping_sub(a.base + a.len) as isize,
                    a.len
                )
            }
            _ => "no allocation nearby".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_bytes_are_tracked_one_by_one() {
        let memory = Memory::default();
        let a = memory.allocate(64, Owner::Device(0), true).unwrap();
        assert!(!a.written(a.base + 4, 4));
        a.mark(a.base + 5, 2, true);
        assert!(a.written(a.base + 5, 2) && !a.written(a.base + 4, 4) && !a.written(a.base + 7, 1));
        a.mark(a.base, 64, true);
        assert!(a.written(a.base + 6, 4));
        a.mark(a.base + 8, 8, false);
        assert!(a.written(a.base + 4, 4) && !a.written(a.base + 8, 1) && a.written(a.base + 16, 4));
    }

    #[test]
    fn ranges_are_found_whole_or_not_at_all() {
        let memory = Memory::default();
        let a = memory.allocate(100, Owner::Device(1), false).unwrap();
        assert!(memory.find(a.base + 96, 4).is_some() && memory.find(a.base + 97, 4).is_none());
        assert!(memory.view().describe(a.base + 100).contains("0 bytes past"));
        memory.free(a.base).unwrap();
        assert!(memory.find(a.base, 1).is_none());
    }
}
