//! What one running request holds: a table row, a recurrent state where the model has one, and its pages in order.

use super::{
    index::{NodeId, PageRef, Published},
    memory::Memory,
    namespace::Namespace,
    pool::{Handle, Page, TableRow},
    recurrent::RecurrentState,
};
use crate::bug::seeded;

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

/// Held memory; ended by [`Lease::retire`], [`Lease::release`] or [`Lease::discard`], which consume it.
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
    state: Option<RecurrentState>,
    /// Slots that the step being planned reads and writes.
    state_slots: (u32, u32),
    /// The step in flight counts as done for the state: the one behind it has been planned.
    is_state_ahead: bool,
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
        let computed = path.len() as u32 * memory.page_tokens;
        let state = memory.has_states().then(|| RecurrentState::open(memory, path.last().copied(), computed));
        let mut slots = Vec::with_capacity(max_pages.max(path.len()));
        slots.extend(path.iter().map(|&node| Slot::Shared(memory.index.pin(node))));
        let renumbered = Vec::with_capacity(slots.capacity());
        Self { row, state, state_slots: (0, 0), is_state_ahead: false, n_published: slots.len(), slots, renumbered }
    }

    /// Row of the block tables.
    pub fn row(&self) -> u32 {
        self.row.index()
    }

    /// Choose the state slots of a step that ends at `end` tokens.
    pub fn plan_state(&mut self, memory: &mut Memory, end: u32) {
        if let Some(state) = &mut self.state {
            self.state_slots = state.plan(memory, end.is_multiple_of(memory.page_tokens));
        }
    }

    /// Choose the state slots of the step behind the one in flight, which ends at `computed` tokens. The step behind may turn
    /// out to be for nothing, so a state on a page boundary is not written over by the one after it.
    pub fn plan_state_behind(&mut self, memory: &mut Memory, computed: u32) {
        if let Some(state) = &mut self.state {
            state.complete(memory, computed);
            self.is_state_ahead = true;
            self.state_slots = state.plan(memory, false);
        }
    }

    /// (read, written) slots of the step in flight; `None` for models without recurrent state.
    pub fn state_slots(&self) -> Option<(u32, u32)> {
        self.state.as_ref().map(|_| self.state_slots)
    }

    /// The step in flight has run; `computed` tokens are in the cache now.
    pub fn complete_step(&mut self, memory: &mut Memory, computed: u32) {
        if let Some(state) = &mut self.state
            && !std::mem::take(&mut self.is_state_ahead)
        {
            state.complete(memory, computed);
        }
    }

    /// Put the state at the last page boundary into the index, where it and its pages have been published, and go on
    /// from there. False if it was not stored: there is one already, or no slot to go on in (`may_evict`: another
    /// snapshot's would do).
    pub fn share_state(&mut self, memory: &mut Memory, may_evict: bool) -> bool {
        let Some(node) = self.kept_node(memory) else { return false };
        self.state.as_mut().is_some_and(|state| state.share(memory, node, may_evict))
    }

    /// The published page that the kept state ends.
    fn kept_node(&self, memory: &Memory) -> Option<NodeId> {
        let pages = self.state.as_ref()?.kept_tokens()? / memory.page_tokens;
        let last = pages.checked_sub(1).filter(|_| pages as usize <= self.n_published)?;
        self.slots[last as usize].shared().map(|page| NodeId(page.node()))
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

    /// The slots that [`Lease::next_renumbered`] will report.
    pub fn renumbered(&self) -> &[u32] {
        &self.renumbered
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
        let n_known = if seeded!(UncomputedPageIsPublished) { tokens.len() } else { n_computed as usize };
        let n_whole = (n_known / page_tokens).min(self.slots.len());
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
                    if !seeded!(DuplicatePageIsLost) {
                        memory.pages.give(own);
                    }
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

    /// Give everything back; published pages stay cached, and so does the state at the last page boundary, if that page
    /// is published. No step may be in flight: it could be writing that state.
    pub fn retire(self, memory: &mut Memory) {
        let node = self.kept_node(memory);
        self.end(memory, false, node);
    }

    /// Give everything back; published pages stay cached, the state does not.
    pub fn release(self, memory: &mut Memory) {
        self.end(memory, false, None);
    }

    /// Give everything back and forget the published pages nobody else uses, with all that continues them: their content is
    /// in doubt.
    pub fn discard(self, memory: &mut Memory) {
        self.end(memory, true, None);
    }

    fn end(self, memory: &mut Memory, mut forgets: bool, node: Option<NodeId>) {
        if let Some(state) = self.state {
            state.close(memory, node);
        }
        memory.rows.give(self.row);
        // Deepest first: the index relies on it.
        let mut slots = self.slots;
        if seeded!(ReleaseStartsAtTheFront) {
            slots.reverse();
        }
        for slot in slots.into_iter().rev() {
            match slot {
                Slot::Own(page) => memory.pages.give(page),
                Slot::Shared(page) if forgets => {
                    let forgotten = memory.index.unpin_and_forget(page);
                    // A page in use keeps all before it.
                    forgets = !forgotten.is_empty();
                    for evicted in forgotten {
                        let page = memory.without_snapshot(evicted);
                        memory.pages.give(page);
                    }
                }
                Slot::Shared(page) => memory.index.unpin(page),
            }
        }
        memory.releases += u64::from(!seeded!(ReleaseWakesNobody));
    }

    /// Pages only this lease holds.
    pub fn own_pages(&self) -> impl Iterator<Item = u32> + '_ {
        self.slots.iter().filter_map(|slot| match slot {
            Slot::Own(own) => Some(own.index()),
            Slot::Shared(_) => None,
        })
    }

    /// State slots this lease owns.
    pub fn states(&self) -> impl Iterator<Item = u32> + '_ {
        self.state.iter().flat_map(RecurrentState::slots)
    }

    /// Node of the snapshot it reads.
    pub(super) fn read_snapshot(&self) -> Option<u32> {
        self.state.as_ref()?.pinned_node()
    }

    /// Index nodes this lease pins.
    pub(super) fn pinned_nodes(&self) -> impl Iterator<Item = u32> + '_ {
        self.slots.iter().filter_map(|slot| slot.shared().map(PageRef::node))
    }
}
