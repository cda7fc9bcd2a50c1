//! What one running request holds: a table row, a state slot where the model has one, and its pages in order.

use super::{
    index::{NodeId, PageRef, Published},
    memory::Memory,
    namespace::Namespace,
    pool::{Handle, Page, StateSlot, TableRow},
};

#[derive(Debug)]
enum Slot {
    /// Written by this request.
    Own(Handle<Page>),
    /// Cached, read-only.
    Shared(PageRef),
}

impl Slot {
    fn page(&self) -> u32 {
        match self {
            Self::Own(page) => page.index(),
            Self::Shared(page) => page.index(),
        }
    }

    fn shared(&self) -> Option<&PageRef> {
        match self {
            Self::Own(_) => None,
            Self::Shared(page) => Some(page),
        }
    }
}

/// Held memory; ended by [`Lease::release`] or [`Lease::discard`], which consume it.
///
/// ```compile_fail,E0382
/// fn twice(lease: tokenspeed_core::cache::lease::Lease, memory: &mut tokenspeed_core::cache::memory::Memory) {
///     lease.release(memory);
///     lease.release(memory);
/// }
/// ```
#[derive(Debug)]
#[must_use = "a lease that is dropped loses its pages"]
pub struct Lease {
    row: Handle<TableRow>,
    state: Option<Handle<StateSlot>>,
    slots: Vec<Slot>,
    /// Leading slots that are in the index.
    n_published: usize,
    /// Slots whose page changed since the device was told.
    renumbered: Vec<u32>,
}

impl Lease {
    /// Take a seat and hold the cached `path`; [`Memory::has_seat`] must be true. Reserves room for `max_pages`.
    pub fn open(memory: &mut Memory, path: &[NodeId], max_pages: usize) -> Self {
        let row = memory.rows.take().expect("asked has_seat");
        let state = memory.states.as_mut().map(|states| states.take().expect("asked has_seat"));
        let mut slots = Vec::with_capacity(max_pages.max(path.len()));
        slots.extend(path.iter().map(|&node| Slot::Shared(memory.index.pin(node))));
        let renumbered = Vec::with_capacity(slots.capacity());
        Self { row, state, n_published: slots.len(), slots, renumbered }
    }

    /// Row of the block tables.
    pub fn row(&self) -> u32 {
        self.row.index()
    }

    /// State slot.
    pub fn state(&self) -> Option<u32> {
        self.state.as_ref().map(Handle::index)
    }

    /// Pages held.
    pub fn n_pages(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Number of the page at `at`.
    pub fn page(&self, at: u32) -> u32 {
        self.slots[at as usize].page()
    }

    /// Add a page for writing; false if there is none.
    pub fn grow(&mut self, memory: &mut Memory) -> bool {
        match memory.take_page() {
            Some(page) => {
                self.slots.push(Slot::Own(page));
                true
            }
            None => false,
        }
    }

    /// A slot whose page changed since the device was told; each is reported once.
    pub fn next_renumbered(&mut self) -> Option<u32> {
        self.renumbered.pop()
    }

    /// Put the whole pages among the first `n_computed` tokens into the index. Idempotent; the partial tail stays
    /// private. `hashes` is extended as needed.
    ///
    /// If another request published an equal page first, that one is used from now on and the copy is free: requests
    /// that compute the same text at once end up sharing it, and none ever holds more pages than its tokens need.
    pub fn publish(
        &mut self,
        memory: &mut Memory,
        namespace: &Namespace,
        tokens: &[u32],
        n_computed: u32,
        hashes: &mut Vec<u64>,
    ) {
        let page_tokens = memory.page_tokens as usize;
        let n_whole = n_computed as usize / page_tokens;
        if !memory.reuses_prefixes || n_whole <= self.n_published {
            return;
        }
        memory.index.hash_pages(namespace, tokens, n_whole, hashes);
        for at in self.n_published..n_whole {
            // The last slot stands in while this one is moved out; it comes back below.
            let Slot::Own(own) = self.slots.swap_remove(at) else { unreachable!("unpublished pages are owned") };
            let parent = at.checked_sub(1).map(|before| self.slots[before].shared().expect("published in order"));
            let page_text = &tokens[at * page_tokens..][..page_tokens];
            let slot = match memory.index.publish(namespace, parent, hashes[at], page_text, own) {
                Published::New(page) => Slot::Shared(page),
                Published::Duplicate { own, shared } => {
                    memory.pages.give(own);
                    memory.releases += 1;
                    self.renumbered.push(at as u32);
                    Slot::Shared(shared)
                }
            };
            self.slots.push(slot);
            let last = self.slots.len() - 1;
            self.slots.swap(at, last);
        }
        self.n_published = n_whole;
    }

    /// Give everything back; published pages stay cached.
    pub fn release(self, memory: &mut Memory) {
        self.end(memory, false);
    }

    /// Give everything back and forget the published pages nobody else uses: their content is in doubt.
    pub fn discard(self, memory: &mut Memory) {
        self.end(memory, true);
    }

    fn end(self, memory: &mut Memory, forgets: bool) {
        memory.rows.give(self.row);
        if let (Some(pool), Some(state)) = (&mut memory.states, self.state) {
            pool.give(state);
        }
        // Deepest first: the index relies on it.
        for slot in self.slots.into_iter().rev() {
            match slot {
                Slot::Own(page) => memory.pages.give(page),
                Slot::Shared(page) if forgets => {
                    if let Some(page) = memory.index.unpin_and_forget(page) {
                        memory.pages.give(page);
                    }
                }
                Slot::Shared(page) => memory.index.unpin(page),
            }
        }
        memory.releases += 1;
    }

    /// Pages only this lease holds.
    pub fn own_pages(&self) -> impl Iterator<Item = u32> + '_ {
        self.slots.iter().filter_map(|slot| match slot {
            Slot::Own(own) => Some(own.index()),
            Slot::Shared(_) => None,
        })
    }

    /// Index nodes this lease pins.
    pub(super) fn pinned_nodes(&self) -> impl Iterator<Item = u32> + '_ {
        self.slots.iter().filter_map(|slot| slot.shared().map(PageRef::node))
    }
}
