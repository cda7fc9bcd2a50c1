//! The prefix index: a tree of computed pages, found by hash chain, evicted oldest first and leaves first.
//!
//! Everything is allocated once: node arrays, token copies and the hash table are sized by the page pool, so a step never
//! allocates however the cache churns. Rejected: a radix tree over tokens (splits nodes, so blocks and nodes part ways)
//! and a standard hash map (rehashes when it pleases).
//!
//! Why eviction needs no tree walk: a request holds its whole path and releases it deepest page first, so in the list of
//! unheld nodes a page always comes before the page it continues. The oldest node is therefore a leaf.

use super::{
    events::{EventRing, Tier},
    hash::PageHasher,
    lru::{Ends, Link, NONE},
    memory::MemorySize,
    namespace::{Namespace, Namespaces},
    node::{Node, Parent},
    pool::{Handle, Page, StateSlot},
    snapshots::{SnapshotRef, Snapshots},
    table::HashTable,
    tally::Tally,
    tier::HostMemory,
};
pub use super::{holds::PathRef, node::NodeId, walk::FoundPath};
use crate::bug::seeded;

/// What became of a page offered to the index.
#[derive(Debug)]
pub enum Published {
    /// The index owns the page now.
    New,
    /// An equal page was there: the caller holds that one, and gets its own back to free.
    Duplicate {
        /// The caller's page.
        own: Handle<Page>,
        /// Number of the page in the index.
        shared: u32,
    },
}

/// What leaves the index with a page.
#[derive(Debug)]
#[must_use = "what was evicted goes back to its pools"]
pub struct Evicted {
    /// The page.
    pub page: Handle<Page>,
    /// The state stored at its end: worth nothing without it.
    pub snapshot: Option<Handle<StateSlot>>,
}

/// Copies to host memory under way at once, at most.
pub const STORES_MAX: usize = 32;

/// The index.
#[derive(Debug)]
pub struct PrefixIndex {
    secret: [u64; 2],
    pub(super) hasher: PageHasher,
    pub(super) page_tokens: usize,
    pub(super) nodes: Vec<Option<Node>>,
    /// `[node][page_tokens]`.
    tokens: Vec<u32>,
    free: Vec<u32>,
    pub(super) table: HashTable,
    /// On the device and held by nobody.
    pub(super) unpinned: Ends,
    /// Pages that ever came to the device.
    pub(super) n_puts: u64,
    pub(super) snapshots: Snapshots,
    namespaces: Namespaces,
    pub(super) host: HostMemory,
    pub(super) events: EventRing,
    /// Pages go without an event of their own: one says that all went.
    pub(super) is_clearing: bool,
    /// Copies to host memory whose page left the device meanwhile.
    pub(super) void_stores: Vec<u32>,
}

impl PrefixIndex {
    /// An empty index.
    pub fn new(size: &MemorySize) -> Self {
        let MemorySize { secret, page_tokens, host, .. } = *size;
        let max_pages = size.pages + host.0;
        Self {
            secret,
            hasher: PageHasher::new(secret, page_tokens as usize),
            page_tokens: page_tokens as usize,
            nodes: (0..max_pages).map(|_| None).collect(),
            tokens: vec![0; max_pages as usize * page_tokens as usize],
            free: (0..max_pages).rev().collect(),
            table: HashTable::new(max_pages),
            unpinned: Ends::new(),
            n_puts: 0,
            snapshots: Snapshots::new(if size.states.is_some() { max_pages } else { 0 }),
            namespaces: Namespaces::default(),
            host: HostMemory::new(max_pages, host.0, host.1),
            events: EventRing::new(page_tokens, size.events),
            is_clearing: false,
            void_stores: Vec::with_capacity(STORES_MAX),
        }
    }

    /// What became findable and what stopped being so.
    pub fn events(&self) -> &EventRing {
        &self.events
    }

    /// The cached pages as a reader of all events knows them: place, hash, hash of the page before.
    pub fn blocks(&self) -> impl Iterator<Item = (Tier, u64, Option<u64>)> + '_ {
        let used = self.nodes.iter().enumerate().filter_map(|(at, node)| Some((at, node.as_ref()?)));
        used.flat_map(|(at, node)| {
            let places = [(Tier::Device, node.page.is_some()), (Tier::Host, self.side(at as u32).unit.is_some())];
            let here = places.into_iter().filter(|(_, is_here)| *is_here);
            here.map(|(tier, _)| (tier, node.hash, self.parent_hash(node.parent)))
        })
    }

    fn parent_hash(&self, parent: Parent) -> Option<u64> {
        match parent {
            Parent::Root(_) => None,
            Parent::Node(node) => Some(self.node(node).hash),
        }
    }

    /// The page at a node can be found.
    pub(super) fn announce(&mut self, at: u32, tier: Tier) {
        if !self.events.is_kept() {
            return;
        }
        let (hash, parent) = (self.node(at).hash, self.node(at).parent);
        // Salts matter where texts begin: all that continues a page has its salt.
        let salt = match parent {
            Parent::Root(namespace) => self.namespaces.salt(namespace),
            Parent::Node(_) => None,
        };
        let parent = if seeded!(AnnouncedParentIsWrong) { None } else { self.parent_hash(parent) };
        let tokens = &self.tokens[at as usize * self.page_tokens..][..self.page_tokens];
        self.events.stored(hash, parent, tokens, tier, salt);
    }

    /// Join a namespace.
    pub fn open(&mut self, model_id: &str, salt: Option<&str>) -> Namespace {
        self.namespaces.open(self.secret, model_id, salt)
    }

    /// Leave a namespace.
    pub fn close(&mut self, namespace: Namespace) {
        self.namespaces.close(namespace);
    }

    pub(super) fn node(&self, at: u32) -> &Node {
        self.nodes[at as usize].as_ref().expect("the node is in use")
    }

    pub(super) fn node_mut(&mut self, at: u32) -> &mut Node {
        self.nodes[at as usize].as_mut().expect("the node is in use")
    }

    pub(super) fn tokens_of(&self, at: u32) -> &[u32] {
        &self.tokens[at as usize * self.page_tokens..][..self.page_tokens]
    }

    /// Pages with these hashes are about to be published.
    pub fn expect(&self, hashes: &[u64]) {
        self.table.warm_up(hashes.iter().copied());
    }

    /// So many pages are about to be evicted.
    pub fn expect_evictions(&self, n: usize) {
        self.table.warm_up(self.unpinned.iter(&self.nodes).take(n).map(|at| self.node(at).hash));
    }

    /// Offer a fully computed page that continues a held path (the namespace's start if `None`): the path goes on to it, or
    /// to an equal page that was there before.
    pub fn publish(
        &mut self,
        namespace: &Namespace,
        path: Option<PathRef>,
        hash: u64,
        tokens: &[u32],
        own: Handle<Page>,
    ) -> (Published, PathRef) {
        assert_eq!(tokens.len(), self.page_tokens, "only whole pages are cached");
        let parent = path.as_ref().map_or(Parent::Root(namespace.index), |path| Parent::Node(path.node));
        if let Some(at) = self.child(parent, hash, tokens) {
            return match self.node(at).page.as_ref().map(Handle::index) {
                Some(shared) => (Published::Duplicate { own, shared }, self.extend(path, NodeId(at))),
                None => (Published::New, self.put(path, at, own)),
            };
        }
        let at = self.free.pop().expect("there are as many nodes as pages");
        let mut siblings = Link { previous: NONE, next: NONE };
        match parent {
            Parent::Root(namespace) => self.namespaces.add_user(namespace),
            Parent::Node(node) => siblings.next = std::mem::replace(&mut self.node_mut(node).first_child, at),
        }
        if siblings.next != NONE {
            self.node_mut(siblings.next).siblings.previous = at;
        }
        self.table.insert(hash, at);
        let let_go = Link::OUTSIDE;
        self.nodes[at as usize] =
            Some(Node { hash, put: 0, parent, page: None, holds: 0, first_child: NONE, siblings, let_go });
        self.tokens[at as usize * self.page_tokens..][..self.page_tokens].copy_from_slice(tokens);
        (Published::New, self.put(path, at, own))
    }

    /// Put a page on the device that continues a held path, which goes on to it.
    pub(super) fn put(&mut self, path: Option<PathRef>, at: u32, own: Handle<Page>) -> PathRef {
        self.n_puts += 1;
        let n_puts = self.n_puts;
        let node = self.node_mut(at);
        assert_eq!((node.holds, node.page.is_none()), (0, true), "it was not on the device");
        (node.page, node.put) = (Some(own), n_puts);
        // The hold on the page before is this one's now.
        node.holds = 1;
        assert_eq!(path.map_or(NONE, |path| path.node), node.parent.node().unwrap_or(NONE), "it continues the path");
        self.announce(at, Tier::Device);
        PathRef { node: at }
    }

    /// Number of a page on the device.
    pub fn page(&self, NodeId(at): NodeId) -> u32 {
        self.node(at).page.as_ref().expect("it is on the device").index()
    }

    /// Forget the page unused for longest and return it; never one in use or with a cached continuation.
    pub fn evict(&mut self) -> Option<Evicted> {
        let newest = seeded!(NewestIsEvictedFirst).then(|| self.unpinned.iter(&self.nodes).last()).flatten();
        let at = newest.or(self.unpinned.oldest())?;
        self.unpinned.remove(&mut self.nodes, at);
        Some(self.drop_page(at))
    }

    /// Forget everything, none of which may be in use; `gone` gets each page.
    pub fn clear(&mut self, mut gone: impl FnMut(Evicted)) {
        self.is_clearing = true;
        while let Some(oldest) = self.host.units.oldest().filter(|_| !seeded!(FlushLeavesHostMemory)) {
            self.drop_unit(oldest);
        }
        while let Some(evicted) = self.evict() {
            gone(evicted);
        }
        self.is_clearing = false;
        self.events.cleared();
    }

    /// Take a page off the device. Where it has no copy, everything that continues it goes with it; nothing that does is on
    /// the device.
    pub(super) fn drop_page(&mut self, at: u32) -> Evicted {
        let snapshot = if seeded!(SnapshotOutlivesItsPages) { None } else { self.snapshots.take(at) };
        self.withdraw(at);
        let node = self.node_mut(at);
        assert!(node.holds == 0, "a page in use is never a victim");
        let page = node.page.take().expect("it is on the device");
        let hash = node.hash;
        self.void_store(at);
        if !seeded!(RemovalIsNotAnnounced) && !self.is_clearing {
            self.events.removed(hash, Tier::Device);
        }
        if self.side(at).unit.is_some() {
            // As if used now: what continues it has left the device before. One that is being read is on no list.
            if self.side(at).load == NONE {
                self.unlist_unit(at);
                self.list_unit(at);
            }
        } else {
            self.drop_continuations(at);
            self.unlink(at);
        }
        Evicted { page, snapshot }
    }

    /// Take a page that is nowhere out of the tree.
    pub(super) fn unlink(&mut self, at: u32) {
        let node = self.nodes[at as usize].take().expect("the node is in use");
        assert!(node.first_child == NONE, "a page with a continuation is never a victim");
        assert!(node.page.is_none(), "it is not on the device");
        self.leave_host(at);
        let Link { previous, next } = node.siblings;
        if next != NONE {
            self.node_mut(next).siblings.previous = previous;
        }
        match node.parent {
            Parent::Root(namespace) => self.namespaces.remove_user(namespace),
            Parent::Node(_) if previous != NONE => self.node_mut(previous).siblings.next = next,
            Parent::Node(parent) => self.node_mut(parent).first_child = next,
        }
        self.table.remove(node.hash, at);
        self.free.push(at);
    }

    /// Whether a state is stored at the end of a page.
    pub fn has_snapshot(&self, NodeId(at): NodeId) -> bool {
        self.snapshots.has(at)
    }

    /// Whether one is, and nobody reads it.
    pub fn is_unpinned_snapshot(&self, NodeId(at): NodeId) -> bool {
        self.snapshots.is_unpinned(at)
    }

    /// Store a state of so many tokens at the end of a page that has none.
    pub fn store_snapshot(&mut self, NodeId(at): NodeId, slot: Handle<StateSlot>, tokens: u32) {
        let mut saves = 1;
        let mut before = self.node(at).parent;
        while let Parent::Node(node) = before
            && !self.snapshots.has(node)
        {
            saves += 1;
            before = self.node(node).parent;
        }
        let tokens = if seeded!(SnapshotIsMislabelled) { tokens + self.page_tokens as u32 } else { tokens };
        self.snapshots.store(at, slot, tokens, saves);
    }

    /// Read a stored state.
    ///
    /// # Panics
    /// If it encodes another number of tokens than expected.
    pub fn pin_snapshot(&mut self, NodeId(at): NodeId, tokens: u32) -> SnapshotRef {
        self.snapshots.pin(at, tokens)
    }

    /// Stop reading it.
    pub fn unpin_snapshot(&mut self, snapshot: SnapshotRef) {
        self.snapshots.unpin(snapshot);
    }

    /// Count a stored state as used now.
    pub fn touch_snapshot(&mut self, NodeId(at): NodeId) {
        self.snapshots.touch(at);
    }

    /// Take a stored state out; nobody may be reading it.
    ///
    /// # Panics
    /// If it encodes another number of tokens than expected.
    pub fn take_snapshot(&mut self, NodeId(at): NodeId, tokens: u32) -> Option<Handle<StateSlot>> {
        self.snapshots.take_over(at, tokens)
    }

    /// Give up the least useful stored state that nobody reads.
    pub fn evict_snapshot(&mut self) -> Option<Handle<StateSlot>> {
        self.snapshots.evict()
    }

    /// (stored, of these evictable) states.
    pub fn snapshot_counts(&self) -> (u32, u32) {
        (self.snapshots.n_stored(), self.snapshots.n_unpinned())
    }

    /// Slots of all stored states.
    pub fn snapshot_slots(&self) -> impl Iterator<Item = u32> + '_ {
        self.snapshots.slots()
    }

    /// True if nobody holds the page.
    pub fn is_unpinned(&self, NodeId(at): NodeId) -> bool {
        self.node(at).holds == 0
    }

    /// Pages that [`PrefixIndex::evict`] can return.
    pub fn n_unpinned(&self) -> u32 {
        self.unpinned.len()
    }

    /// Namespaces with requests or cached pages.
    pub fn n_namespaces(&self) -> usize {
        self.namespaces.n_open()
    }

    /// Page numbers the index owns.
    pub fn pages(&self) -> impl Iterator<Item = u32> + '_ {
        self.nodes.iter().flatten().filter_map(|node| node.page.as_ref()).map(Handle::index)
    }

    /// Recompute every count from scratch; `held` lists the node of each [`PathRef`] outside, `read` of each
    /// [`SnapshotRef`].
    pub(super) fn check(
        &self,
        held: impl Iterator<Item = u32>,
        read: impl Iterator<Item = u32>,
        tally: &mut Tally,
    ) -> Result<(), String> {
        self.snapshots.check(read, |node| self.nodes[node as usize].is_some(), tally)?;
        let n = self.nodes.len();
        let [holds, children, position] = &mut tally.numbers;
        let (holds, children) = (holds.zeros(n), children.zeros(n));
        for at in held {
            holds[at as usize] += 1;
        }
        for node in self.nodes.iter().flatten() {
            if let Parent::Node(parent) = node.parent {
                children[parent as usize] += 1;
                holds[parent as usize] += u32::from(node.holds > 0);
            }
        }
        let position = position.places(n, self.unpinned.iter(&self.nodes));
        let is_listed = |at: usize| position[at] != NONE;
        for (at, node) in self.nodes.iter().enumerate() {
            let Some(node) = node else { continue };
            let mut n_linked = 0;
            let mut child = node.first_child;
            while child != NONE && n_linked <= n {
                (n_linked, child) = (n_linked + 1, self.node(child).siblings.next);
            }
            if node.holds != holds[at] || n_linked != children[at] as usize {
                return Err(format!(
                    "cached page {:?} counts {} holds and {n_linked} continuations, there are {} and {}",
                    node.page, node.holds, holds[at], children[at]
                ));
            }
            if is_listed(at) != (node.holds == 0 && node.page.is_some()) {
                return Err(format!("cached page {:?} is on the wrong side of the eviction list", node.page));
            }
            if let Parent::Node(parent) = node.parent
                && node.page.is_some()
            {
                // A parent out of the list is in use and goes last.
                let (own, theirs) = (position[at], position[parent as usize]);
                if theirs != NONE && (own == NONE || own > theirs) {
                    return Err(format!("cached page {:?} would outlive the page it continues", node.page));
                }
            }
            if self.child(node.parent, node.hash, self.tokens_of(at as u32)) != Some(at as u32) {
                return Err(format!("cached page {:?} cannot be found", node.page));
            }
        }
        let used = self.nodes.iter().flatten().count();
        if used + self.free.len() != n || self.unpinned.iter(&self.nodes).count() != self.unpinned.len() as usize {
            return Err(format!("{used} nodes used, {} free, of {n}", self.free.len()));
        }
        Ok(())
    }
}
