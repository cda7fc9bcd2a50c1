//! What one running request holds: a table row, a recurrent state where the model has one, and its pages in order.

use std::collections::VecDeque;

use super::{
    index::{PathRef, Published},
    memory::Memory,
    namespace::Namespace,
    node::NodeId,
    pool::{Handle, Page, TableRow},
    recurrent::{RecurrentState, StateSlots},
};
use crate::bug::seeded;

/// Held memory; ended by [`Lease::retire`], [`Lease::release`] or [`Lease::discard`], which consume it.
#[derive(Debug)]
#[must_use = "a lease that is dropped loses its pages"]
pub struct Lease {
    row: Handle<TableRow>,
    state: Option<RecurrentState>,
    /// Slots that the step being planned reads and writes.
    state_slots: StateSlots,
    /// The step in flight counts as done for the state: the one behind it has been planned.
    is_state_ahead: bool,
    /// The last of the pages that are in the index, where they are held, cached and read-only.
    path: Option<PathRef>,
    /// Numbers of these pages.
    published: Vec<u32>,
    /// The pages behind them, written by this request.
    own: VecDeque<Handle<Page>>,
    /// Positions whose page changed since the device was told.
    renumbered: Vec<u32>,
}

impl Lease {
    /// Take a seat and hold the cached `path`; [`Memory::has_seat`] must be true. Reserves room for `max_pages`.
    pub fn open(memory: &mut Memory, path: &[NodeId], max_pages: usize) -> Self {
        let row = memory.rows.take().expect("asked has_seat");
        let computed = path.len() as u32 * memory.page_tokens;
        let state = memory.has_states().then(|| RecurrentState::open(memory, path.last().copied(), computed));
        let room = max_pages.max(path.len());
        let mut published = Vec::with_capacity(room);
        published.extend(path.iter().map(|&node| memory.index.page(node)));
        let path = path.last().map(|&deepest| memory.index.hold(deepest));
        let own = VecDeque::with_capacity(room - published.len());
        let renumbered = Vec::with_capacity(own.capacity());
        Self { row, state, state_slots: StateSlots::default(), is_state_ahead: false, path, published, own, renumbered }
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

    /// State slots of the step in flight; `None` for models without recurrent state.
    pub fn state_slots(&self) -> Option<StateSlots> {
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
        let pages = (self.state.as_ref()?.kept_tokens()? / memory.page_tokens) as usize;
        let n_behind = self.published.len().checked_sub(pages).filter(|_| pages > 0)?;
        Some(memory.index.before(self.path.as_ref()?, n_behind))
    }

    /// Pages held.
    pub fn n_pages(&self) -> u32 {
        (self.published.len() + self.own.len()) as u32
    }

    /// Number of the page at `at`.
    pub fn page(&self, at: u32) -> u32 {
        let at = at as usize;
        self.published.get(at).copied().unwrap_or_else(|| self.own[at - self.published.len()].index())
    }

    /// Numbers of the pages from `at` on.
    pub fn pages_from(&self, at: u32) -> impl Iterator<Item = u32> + '_ {
        let at = at as usize;
        let published = self.published.get(at..).unwrap_or_default();
        let own = self.own.range(at.saturating_sub(self.published.len())..);
        published.iter().copied().chain(own.map(Handle::index))
    }

    /// Add a page for writing; false if there is none.
    pub fn grow(&mut self, memory: &mut Memory) -> bool {
        match memory.take_page() {
            Some(page) => {
                self.own.push_back(page);
                true
            }
            None => false,
        }
    }

    /// Add pages up to `n_pages`, which are available.
    pub fn grow_to(&mut self, memory: &mut Memory, n_pages: u32) {
        let n = n_pages.saturating_sub(self.n_pages());
        memory.expect_takes(n);
        for _ in 0..n {
            assert!(self.grow(memory), "counted as available");
        }
    }

    /// The positions that [`Lease::next_renumbered`] will report.
    pub fn renumbered(&self) -> &[u32] {
        &self.renumbered
    }

    /// A position whose page changed since the device was told; each is reported once.
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
        let n_whole = (n_known / page_tokens).min(self.n_pages() as usize);
        let first = self.published.len();
        if !memory.reuses_prefixes || n_whole <= first {
            return;
        }
        memory.index.hash_pages(namespace, tokens, n_whole, hashes);
        memory.index.expect(&hashes[first..n_whole]);
        let texts = tokens[first * page_tokens..].chunks_exact(page_tokens);
        for ((own, &hash), text) in self.own.drain(..n_whole - first).zip(&hashes[first..]).zip(texts) {
            let number = own.index();
            let (published, path) = memory.index.publish(namespace, self.path.take(), hash, text, own);
            self.path = Some(path);
            self.published.push(match published {
                Published::New => number,
                Published::Duplicate { own, shared } => {
                    if !seeded!(DuplicatePageIsLost) {
                        memory.pages.give(own);
                    }
                    memory.releases += 1;
                    self.renumbered.push(self.published.len() as u32);
                    shared
                }
            });
        }
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
        for page in self.own.into_iter().rev() {
            memory.pages.give(page);
        }
        let mut path = self.path;
        while forgets && let Some(deepest) = path {
            let (forgotten, rest) = memory.index.forget_deepest(deepest);
            // A page in use keeps all before it.
            forgets = !forgotten.is_empty();
            for evicted in forgotten {
                let page = memory.without_snapshot(evicted);
                memory.pages.give(page);
            }
            path = rest;
        }
        if let Some(path) = path {
            memory.index.release(path);
        }
        memory.releases += u64::from(!seeded!(ReleaseWakesNobody));
    }

    /// Pages only this lease holds.
    pub fn own_pages(&self) -> impl Iterator<Item = u32> + '_ {
        self.own.iter().map(Handle::index)
    }

    /// State slots this lease owns.
    pub fn states(&self) -> impl Iterator<Item = u32> + '_ {
        self.state.iter().flat_map(RecurrentState::slots)
    }

    /// Node of the snapshot it reads.
    pub(super) fn read_snapshot(&self) -> Option<u32> {
        self.state.as_ref()?.pinned_node()
    }

    /// Node of the deepest page it holds in the index.
    pub(super) fn held_node(&self) -> Option<u32> {
        self.path.as_ref().map(|path| path.node)
    }
}
