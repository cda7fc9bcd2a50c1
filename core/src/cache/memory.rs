//! All that requests compete for: pages, table rows, state slots, and the index of reusable pages.

use super::{
    component::{PagedRows, Resume, StateSnapshots, joint_match},
    copies::Copies,
    index::{Evicted, PrefixIndex},
    lease::Lease,
    node::NodeId,
    pool::{Handle, Page, Pool, StateSlot, TableRow},
    tally::Tally,
};
use crate::bug::seeded;

/// Sizes of a [`Memory`]; scratch slot 0 is included in the counts and never handed out.
#[derive(Clone, Copy, Debug)]
pub struct MemorySize {
    /// Tokens per page.
    pub page_tokens: u32,
    /// Pages of the smallest paged component.
    pub pages: u32,
    /// Rows of the block tables.
    pub table_rows: u32,
    /// State slots; `None` for models without recurrent state.
    pub states: Option<u32>,
    /// Reuse computed prefixes.
    pub prefix_cache: bool,
    /// Keys the prefix hash.
    pub secret: [u64; 2],
    /// Block events kept; 0 = none are made.
    pub events: u32,
    /// Pages and states kept in host memory; 0 pages = no host tier.
    pub host: (u32, u32),
}

/// The pools and the prefix index.
#[derive(Debug)]
pub struct Memory {
    pub(super) page_tokens: u32,
    pub(super) pages: Pool<Page>,
    pub(super) rows: Pool<TableRow>,
    pub(super) states: Option<Pool<StateSlot>>,
    pub(super) reuses_prefixes: bool,
    /// Grows whenever something became available; lets a blocked admission wait for a change.
    pub(super) releases: u64,
    /// By page: whether all its rows in the draft's component are written.
    drafted: Vec<bool>,
    /// Between the device and host memory.
    pub(super) copies: Copies,
    /// The reusable pages.
    pub index: PrefixIndex,
}

impl Memory {
    /// Everything free.
    pub fn new(size: MemorySize) -> Self {
        Self {
            page_tokens: size.page_tokens,
            pages: Pool::new(1, size.pages.max(1)),
            rows: Pool::new(0, size.table_rows),
            states: size.states.map(|n| Pool::new(u32::from(!seeded!(ScratchSlotIsHandedOut)), n.max(1))),
            reuses_prefixes: size.prefix_cache,
            releases: 0,
            drafted: vec![false; size.pages.max(1) as usize],
            copies: Copies::new(size.host.0 > 0),
            index: PrefixIndex::new(&size),
        }
    }

    /// Tokens per page.
    pub fn page_tokens(&self) -> u32 {
        self.page_tokens
    }

    /// Pages that hold `tokens` tokens.
    pub fn pages_of(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.page_tokens)
    }

    /// A page for writing: a free one, else the one cached and unused for longest.
    pub fn take_page(&mut self) -> Option<Handle<Page>> {
        let page = match self.pages.take() {
            Some(page) => page,
            None => {
                let evicted = self.index.evict()?;
                self.without_snapshot(evicted)
            }
        };
        self.drafted[page.index() as usize] &= seeded!(DraftRowsOutliveTheirPage);
        Some(page)
    }

    /// So many calls of [`Memory::take_page`] are about to come.
    pub(super) fn expect_takes(&self, n: u32) {
        let n_free = self.pages.n_free();
        if n > n_free {
            self.index.expect_evictions((n - n_free) as usize);
        }
    }

    /// All rows of a page are written in the draft's component. They depend on the page's tokens and those before, as all
    /// its rows do, so this holds for everybody who finds the page, until it is taken for writing again.
    pub fn mark_drafted(&mut self, page: u32) {
        self.drafted[page as usize] = true;
    }

    /// Whether a draft model can go on behind this page without computing it.
    pub fn is_drafted(&self, page: u32) -> bool {
        self.drafted[page as usize]
    }

    /// The page of what left the index; a state that went with it becomes free.
    pub(super) fn without_snapshot(&mut self, evicted: Evicted) -> Handle<Page> {
        if let Some(slot) = evicted.snapshot {
            self.give_state(slot);
        }
        evicted.page
    }

    /// A state slot for writing: a free one, else the least useful snapshot's.
    pub fn take_state(&mut self) -> Option<Handle<StateSlot>> {
        self.take_free_state().or_else(|| self.index.evict_snapshot())
    }

    /// A state slot for writing, if one is free.
    pub fn take_free_state(&mut self) -> Option<Handle<StateSlot>> {
        self.states.as_mut()?.take()
    }

    /// Back to the pool.
    pub(super) fn give_state(&mut self, slot: Handle<StateSlot>) {
        self.states.as_mut().expect("a slot came from a pool").give(slot);
    }

    /// State slots that [`Memory::take_state`] can return.
    pub fn n_states_available(&self) -> u32 {
        self.states.as_ref().map_or(0, Pool::n_free) + self.index.snapshot_counts().1
    }

    pub(super) fn no_state_is_free(&self) -> bool {
        self.states.as_ref().is_none_or(|states| states.n_free() == 0)
    }

    /// Pages that [`Memory::take_page`] can return.
    pub fn n_available(&self) -> u32 {
        self.pages.n_free() + self.index.n_unpinned()
    }

    /// Pages that can still be had once `path` is in use. O(pages of it that nobody uses).
    pub fn n_available_beside(&self, path: &[NodeId]) -> u32 {
        // Who uses a page uses all before it.
        let unheld = path.iter().rev().take_while(|&&node| self.index.is_unpinned(node));
        self.n_available() - unheld.count() as u32
    }

    /// Whether `n` pages can still be had once `path` is in use.
    pub fn has_available_beside(&self, path: &[NodeId], n: u32) -> bool {
        // Usually there are enough even if nobody uses any of the path now: then nothing has to be counted.
        n.saturating_add(path.len() as u32) <= self.n_available() || n <= self.n_available_beside(path)
    }

    /// True if a row, and a state slot where the model needs one, can be had.
    pub fn has_seat(&self) -> bool {
        self.rows.n_free() > 0 && (self.states.is_none() || self.n_states_available() > 0)
    }

    /// True if the model has recurrent states.
    pub fn has_states(&self) -> bool {
        self.states.is_some()
    }

    /// How many pages of a found path every component can resume behind.
    pub fn n_resumable(&self, path: &[NodeId]) -> usize {
        let components: [&dyn Resume; 2] = [&PagedRows, &StateSnapshots(&self.index)];
        let n_components = if self.states.is_some() && !seeded!(JointMatchTakesPagesOnly) { 2 } else { 1 };
        joint_match(&components[..n_components], path)
    }

    /// True if computed prefixes are kept and looked up.
    pub fn reuses_prefixes(&self) -> bool {
        self.reuses_prefixes
    }

    /// Grows whenever something became available.
    pub fn releases(&self) -> u64 {
        self.releases
    }

    /// Free every page that is cached and not in use, in both tiers; returns how many of the device. No copy may be under
    /// way.
    pub fn flush(&mut self) -> u32 {
        let free = self.pages.n_free();
        let Self { index, pages, states, .. } = self;
        index.clear(|evicted| {
            pages.give(evicted.page);
            if let (Some(slot), Some(states)) = (evicted.snapshot, states.as_mut()) {
                states.give(slot);
            }
        });
        self.releases += 1;
        self.pages.n_free() - free
    }

    /// (used by requests or the cache, only cached, all) pages.
    pub fn page_counts(&self) -> (u32, u32, u32) {
        (self.pages.n_total() - self.pages.n_free(), self.index.n_unpinned(), self.pages.n_total())
    }

    /// (used by requests or the cache, of these stored, all) state slots.
    pub fn state_counts(&self) -> (u32, u32, u32) {
        let total = self.states.as_ref().map_or(0, Pool::n_total);
        let free = self.states.as_ref().map_or(0, Pool::n_free);
        (total - free, self.index.snapshot_counts().0, total)
    }

    /// Check that free + held by `leases` + cached is everything, each once, and that all counts are right. O(pool).
    pub fn check<'a>(&self, leases: impl Iterator<Item = &'a Lease> + Clone, tally: &mut Tally) -> Result<(), String> {
        let own = leases.clone().flat_map(Lease::own_pages).chain(self.copies.pages());
        self.pages.check(own.chain(self.index.pages()), &mut tally.marks)?;
        self.rows.check(leases.clone().map(Lease::row), &mut tally.marks)?;
        if let Some(states) = &self.states {
            let held = leases.clone().flat_map(Lease::states).chain(self.copies.states());
            states.check(held.chain(self.index.snapshot_slots()), &mut tally.marks)?;
        }
        self.index.check_host(self.copies.units(), tally)?;
        let held = leases.clone().filter_map(Lease::held_node).chain(self.copies.held_nodes());
        self.index.check(held, leases.filter_map(Lease::read_snapshot), tally)
    }
}
