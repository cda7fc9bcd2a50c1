//! All that requests compete for: pages, table rows, state slots, and the index of reusable pages.

use super::{
    component::{PagedRows, Resume, StateWithoutSnapshots, joint_match},
    index::{NodeId, PrefixIndex},
    lease::Lease,
    pool::{Handle, Page, Pool, StateSlot, TableRow},
};

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
            states: size.states.map(|n| Pool::new(1, n.max(1))),
            reuses_prefixes: size.prefix_cache,
            releases: 0,
            index: PrefixIndex::new(size.secret, size.page_tokens, size.pages),
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
        self.pages.take().or_else(|| self.index.evict())
    }

    /// Pages that [`Memory::take_page`] can return.
    pub fn n_available(&self) -> u32 {
        self.pages.n_free() + self.index.n_unpinned()
    }

    /// The same, once `path` is in use.
    pub fn n_available_beside(&self, path: &[NodeId]) -> u32 {
        let claimed = path.iter().filter(|&&node| self.index.is_unpinned(node)).count();
        self.n_available() - claimed as u32
    }

    /// True if a row, and a state slot where the model needs one, is free.
    pub fn has_seat(&self) -> bool {
        self.rows.n_free() > 0 && self.states.as_ref().is_none_or(|states| states.n_free() > 0)
    }

    /// Cut a found path to where every component can resume.
    pub fn cut_to_resumable(&self, path: &mut Vec<NodeId>) {
        let components: [&dyn Resume; 2] = [&PagedRows, &StateWithoutSnapshots];
        let n_components = if self.states.is_some() { 2 } else { 1 };
        path.truncate(joint_match(&components[..n_components], path));
    }

    /// True if computed prefixes are kept and looked up.
    pub fn reuses_prefixes(&self) -> bool {
        self.reuses_prefixes
    }

    /// Grows whenever something became available.
    pub fn releases(&self) -> u64 {
        self.releases
    }

    /// Free every page that is cached and not in use; returns how many.
    pub fn flush(&mut self) -> u32 {
        let mut n = 0;
        while let Some(page) = self.index.evict() {
            self.pages.give(page);
            n += 1;
        }
        self.releases += 1;
        n
    }

    /// (used by requests or the cache, only cached, all) pages.
    pub fn page_counts(&self) -> (u32, u32, u32) {
        (self.pages.n_total() - self.pages.n_free(), self.index.n_unpinned(), self.pages.n_total())
    }

    /// Check that free + held by `leases` + cached is everything, each once, and that all counts are right. O(pool).
    pub fn check<'a>(&self, leases: impl Iterator<Item = &'a Lease> + Clone) -> Result<(), String> {
        let own = leases.clone().flat_map(Lease::own_pages);
        self.pages.check(own.chain(self.index.pages()))?;
        self.rows.check(leases.clone().map(Lease::row))?;
        if let Some(states) = &self.states {
            states.check(leases.clone().filter_map(Lease::state))?;
        }
        self.index.check(leases.flat_map(Lease::pinned_nodes))
    }
}
