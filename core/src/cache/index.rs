//! The prefix index: a tree of computed pages, found by hash chain, evicted oldest first and leaves first.
//!
//! Everything is allocated once: node arrays, token copies and hash buckets are sized by the page pool, so a step never
//! allocates however the cache churns. Rejected: a radix tree over tokens (splits nodes, so blocks and nodes part ways)
//! and a standard hash map (rehashes when it pleases).
//!
//! Why eviction needs no tree walk: a request pins its whole path and releases it deepest page first, so in the list of
//! unpinned nodes a page always comes before the page it continues. The oldest node is therefore a leaf.

use super::{
    events::{EventRing, Tier},
    hash::PageHasher,
    lru::{Lru, NONE},
    namespace::{Namespace, Namespaces},
    pool::{Handle, Page, StateSlot},
    snapshots::{SnapshotRef, Snapshots},
};
use crate::bug::seeded;

/// Pages looked up together.
const LOOK_AHEAD: usize = 16;

/// A cached page, as a number without rights: valid until the next change of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeId(pub(super) u32);

/// A shared, read-only hold on a cached page: it cannot be evicted. Move-only; given back with [`PrefixIndex::unpin`].
#[derive(Debug)]
#[must_use = "a pinned page stays in memory until it is unpinned"]
pub struct PageRef {
    node: u32,
    page: u32,
}

impl PageRef {
    /// The page's number.
    pub fn index(&self) -> u32 {
        self.page
    }

    pub(super) fn node(&self) -> u32 {
        self.node
    }
}

/// What became of a page offered to the index.
#[derive(Debug)]
pub enum Published {
    /// The index owns the page now; the caller holds it shared.
    New(PageRef),
    /// An equal page was there: the caller holds that one shared, and gets its own back to free.
    Duplicate {
        /// The caller's page.
        own: Handle<Page>,
        /// The page in the index.
        shared: PageRef,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parent {
    Root(u32),
    Node(u32),
}

#[derive(Debug)]
struct Node {
    hash: u64,
    parent: Parent,
    page: Handle<Page>,
    pins: u32,
    children: u32,
    next_in_bucket: u32,
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

/// The index.
#[derive(Debug)]
pub struct PrefixIndex {
    secret: [u64; 2],
    hasher: PageHasher,
    page_tokens: usize,
    nodes: Vec<Option<Node>>,
    /// `[node][page_tokens]`.
    tokens: Vec<u32>,
    free: Vec<u32>,
    /// First node of each bucket; the number of buckets is a power of two.
    buckets: Vec<u32>,
    unpinned: Lru,
    snapshots: Snapshots,
    namespaces: Namespaces,
    events: EventRing,
    /// Pages go without an event of their own: one says that all went.
    is_clearing: bool,
}

impl PrefixIndex {
    /// An empty index for at most `max_pages` pages, which keeps its last `max_events` events.
    pub fn new(secret: [u64; 2], page_tokens: u32, max_pages: u32, max_events: u32) -> Self {
        Self {
            secret,
            hasher: PageHasher::new(secret, page_tokens as usize),
            page_tokens: page_tokens as usize,
            nodes: (0..max_pages).map(|_| None).collect(),
            tokens: vec![0; max_pages as usize * page_tokens as usize],
            free: (0..max_pages).rev().collect(),
            buckets: vec![NONE; (max_pages as usize * 2).next_power_of_two()],
            unpinned: Lru::new(max_pages),
            snapshots: Snapshots::new(max_pages),
            namespaces: Namespaces::default(),
            events: EventRing::new(page_tokens, max_events),
            is_clearing: false,
        }
    }

    /// What became findable and what stopped being so.
    pub fn events(&self) -> &EventRing {
        &self.events
    }

    /// The cached pages as a reader of all events knows them: place, hash, hash of the page before.
    pub fn blocks(&self) -> impl Iterator<Item = (Tier, u64, Option<u64>)> + '_ {
        self.nodes.iter().flatten().map(|node| (Tier::Device, node.hash, self.parent_hash(node.parent)))
    }

    fn parent_hash(&self, parent: Parent) -> Option<u64> {
        match parent {
            Parent::Root(_) => None,
            Parent::Node(node) => Some(self.node(node).hash),
        }
    }

    /// The page at a node can be found.
    fn announce(&mut self, at: u32, tier: Tier) {
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

    /// Extend `hashes` to cover the first `n_pages` pages of `tokens`, hashing each page once.
    pub fn hash_pages(&self, namespace: &Namespace, tokens: &[u32], n_pages: usize, hashes: &mut Vec<u64>) {
        while hashes.len() < n_pages {
            let parent = hashes.last().copied().unwrap_or(namespace.root);
            let page = &tokens[hashes.len() * self.page_tokens..][..self.page_tokens];
            hashes.push(self.hasher.extend(parent, page));
        }
    }

    /// The longest cached path along `hashes` (at most `max_pages`) whose tokens are those of `tokens`. Changes nothing.
    pub fn find(
        &self,
        namespace: &Namespace,
        hashes: &[u64],
        tokens: &[u32],
        max_pages: usize,
        path: &mut Vec<NodeId>,
    ) {
        path.clear();
        let max_pages = if seeded!(NothingIsEverFound) { 0 } else { max_pages };
        let mut parent = Parent::Root(namespace.index);
        let mut pages = tokens.chunks_exact(self.page_tokens).take(max_pages);
        for hashes in hashes.chunks(LOOK_AHEAD) {
            // First all reads that do not depend on another page's: the memory answers them at once.
            let mut found = [NONE; LOOK_AHEAD];
            for (found, &hash) in found.iter_mut().zip(hashes) {
                *found = self.buckets[self.bucket(hash)];
            }
            for (found, &hash) in found.iter_mut().zip(hashes) {
                *found = self.skip_to(*found, hash);
            }
            for (&found, &hash) in found.iter().zip(hashes) {
                let Some(page) = pages.next() else { return };
                let Some(node) = self.child_from(found, parent, hash, page) else { return };
                path.push(NodeId(node));
                parent = Parent::Node(node);
            }
        }
    }

    fn bucket(&self, hash: u64) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }

    /// The first node of this hash in a bucket, from `at` on.
    fn skip_to(&self, mut at: u32, hash: u64) -> u32 {
        while at != NONE {
            let node = self.node(at);
            if node.hash == hash {
                break;
            }
            at = node.next_in_bucket;
        }
        at
    }

    fn child(&self, parent: Parent, hash: u64, tokens: &[u32]) -> Option<u32> {
        self.child_from(self.skip_to(self.buckets[self.bucket(hash)], hash), parent, hash, tokens)
    }

    /// The child among the nodes of this hash from `at` on.
    fn child_from(&self, mut at: u32, parent: Parent, hash: u64, tokens: &[u32]) -> Option<u32> {
        while at != NONE {
            let node = self.node(at);
            // The tokens and the parent decide; the hash only saves comparing them.
            let has_parent = node.parent == parent || seeded!(PageIsFoundWithoutItsHistory);
            if has_parent && self.tokens_of(at) == tokens {
                return Some(at);
            }
            at = self.skip_to(node.next_in_bucket, hash);
        }
        None
    }

    fn node(&self, at: u32) -> &Node {
        self.nodes[at as usize].as_ref().expect("the node is in use")
    }

    fn node_mut(&mut self, at: u32) -> &mut Node {
        self.nodes[at as usize].as_mut().expect("the node is in use")
    }

    fn tokens_of(&self, at: u32) -> &[u32] {
        &self.tokens[at as usize * self.page_tokens..][..self.page_tokens]
    }

    /// Hold a found page. The caller pins a whole path, first page first.
    pub fn pin(&mut self, NodeId(at): NodeId) -> PageRef {
        let node = self.node_mut(at);
        node.pins += 1;
        let (pins, page) = (node.pins, node.page.index());
        if pins == 1 && !seeded!(HeldPageIsEvicted) {
            self.unpinned.remove(at);
        }
        PageRef { node: at, page }
    }

    /// Stop holding a page; it stays cached until its memory is needed. A path is released deepest page first.
    pub fn unpin(&mut self, page: PageRef) {
        let node = self.node_mut(page.node);
        node.pins -= 1;
        if node.pins == 0 {
            self.unpinned.push(page.node);
        }
    }

    /// Stop holding a page that may hold wrong values: forget it and every page that continues it, which was computed from
    /// it. Empty, and nothing is forgotten, if somebody uses one of them; then the pages before it stay too. O(1) for a page
    /// that nothing continues, else O(all pages): for failures.
    pub fn unpin_and_forget(&mut self, page: PageRef) -> Vec<Evicted> {
        let at = page.node;
        self.unpin(page);
        let node = self.node(at);
        if node.pins > 0 {
            return Vec::new();
        }
        if node.children == 0 {
            self.unpinned.remove(at);
            return vec![self.remove(at)];
        }
        let continues = |index: &Self, mut node: u32| -> bool {
            while node != at {
                match index.node(node).parent {
                    Parent::Node(before) => node = before,
                    Parent::Root(_) => return false,
                }
            }
            true
        };
        let used = (0..self.nodes.len() as u32).filter(|&node| self.nodes[node as usize].is_some());
        let mut doubted: Vec<u32> = used.filter(|&node| continues(self, node)).collect();
        if doubted.iter().any(|&node| self.node(node).pins > 0) {
            return Vec::new();
        }
        let mut forgotten = Vec::with_capacity(doubted.len());
        // Deepest first: a page goes when nothing continues it any more.
        while let Some(last) = doubted.iter().position(|&node| self.node(node).children == 0) {
            let node = doubted.swap_remove(last);
            self.unpinned.remove(node);
            forgotten.push(self.remove(node));
        }
        forgotten
    }

    /// Offer a fully computed page that continues `parent` (the namespace's start if `None`), which the caller holds.
    pub fn publish(
        &mut self,
        namespace: &Namespace,
        parent: Option<&PageRef>,
        hash: u64,
        tokens: &[u32],
        own: Handle<Page>,
    ) -> Published {
        assert_eq!(tokens.len(), self.page_tokens, "only whole pages are cached");
        let parent = parent.map_or(Parent::Root(namespace.index), |page| Parent::Node(page.node));
        if let Some(at) = self.child(parent, hash, tokens) {
            return Published::Duplicate { own, shared: self.pin(NodeId(at)) };
        }
        let at = self.free.pop().expect("there are as many nodes as pages");
        match parent {
            Parent::Root(namespace) => self.namespaces.add_user(namespace),
            Parent::Node(node) => self.node_mut(node).children += 1,
        }
        let bucket = self.bucket(hash);
        let page = own.index();
        let next_in_bucket = std::mem::replace(&mut self.buckets[bucket], at);
        self.nodes[at as usize] = Some(Node { hash, parent, page: own, pins: 1, children: 0, next_in_bucket });
        self.tokens[at as usize * self.page_tokens..][..self.page_tokens].copy_from_slice(tokens);
        self.announce(at, Tier::Device);
        Published::New(PageRef { node: at, page })
    }

    /// Forget the page unused for longest and return it; never one in use or with a cached continuation.
    pub fn evict(&mut self) -> Option<Evicted> {
        let newest = seeded!(NewestIsEvictedFirst).then(|| self.unpinned.iter().last()).flatten();
        let at = newest.or(self.unpinned.oldest())?;
        self.unpinned.remove(at);
        Some(self.remove(at))
    }

    /// Forget everything, none of which may be in use; `gone` gets each page.
    pub fn clear(&mut self, mut gone: impl FnMut(Evicted)) {
        self.is_clearing = true;
        while let Some(evicted) = self.evict() {
            gone(evicted);
        }
        self.is_clearing = false;
        self.events.cleared();
    }

    fn remove(&mut self, at: u32) -> Evicted {
        let snapshot = if seeded!(SnapshotOutlivesItsPages) { None } else { self.snapshots.take(at) };
        let node = self.nodes[at as usize].take().expect("the node is in use");
        assert!(node.pins == 0 && node.children == 0, "a page in use or with a continuation is never a victim");
        match node.parent {
            Parent::Root(namespace) => self.namespaces.remove_user(namespace),
            Parent::Node(parent) => self.node_mut(parent).children -= 1,
        }
        let bucket = self.bucket(node.hash);
        if self.buckets[bucket] == at {
            self.buckets[bucket] = node.next_in_bucket;
        } else {
            let mut before = self.buckets[bucket];
            while self.node(before).next_in_bucket != at {
                before = self.node(before).next_in_bucket;
            }
            self.node_mut(before).next_in_bucket = node.next_in_bucket;
        }
        self.free.push(at);
        if !seeded!(RemovalIsNotAnnounced) && !self.is_clearing {
            self.events.removed(node.hash, Tier::Device);
        }
        Evicted { page: node.page, snapshot }
    }

    /// Whether a state is stored at the end of a page.
    pub fn has_snapshot(&self, NodeId(at): NodeId) -> bool {
        self.snapshots.has(at)
    }

    /// Whether one is, and nobody reads it.
    pub fn is_unpinned_snapshot(&self, NodeId(at): NodeId) -> bool {
        self.snapshots.is_unpinned(at)
    }

    /// Store a state at the end of a page that has none.
    pub fn store_snapshot(&mut self, NodeId(at): NodeId, slot: Handle<StateSlot>) {
        let mut saves = 1;
        let mut before = self.node(at).parent;
        while let Parent::Node(node) = before
            && !self.snapshots.has(node)
        {
            saves += 1;
            before = self.node(node).parent;
        }
        self.snapshots.store(at, slot, saves);
    }

    /// Read a stored state.
    pub fn pin_snapshot(&mut self, NodeId(at): NodeId) -> SnapshotRef {
        self.snapshots.pin(at)
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
    pub fn take_snapshot(&mut self, NodeId(at): NodeId) -> Option<Handle<StateSlot>> {
        self.snapshots.take(at)
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
        self.node(at).pins == 0
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
        self.nodes.iter().flatten().map(|node| node.page.index())
    }

    /// Recompute every count from scratch; `pins` lists the node of each [`PageRef`] outside, `read` of each
    /// [`SnapshotRef`].
    pub(super) fn check(&self, pins: impl Iterator<Item = u32>, read: impl Iterator<Item = u32>) -> Result<(), String> {
        self.snapshots.check(read, |node| self.nodes[node as usize].is_some())?;
        let n = self.nodes.len();
        let (mut pinned, mut children) = (vec![0u32; n], vec![0u32; n]);
        for at in pins {
            pinned[at as usize] += 1;
        }
        for node in self.nodes.iter().flatten() {
            if let Parent::Node(parent) = node.parent {
                children[parent as usize] += 1;
            }
        }
        let mut position = vec![None; n];
        for (i, at) in self.unpinned.iter().enumerate() {
            position[at as usize] = Some(i);
        }
        for (at, node) in self.nodes.iter().enumerate() {
            let Some(node) = node else { continue };
            if node.pins != pinned[at] || node.children != children[at] {
                return Err(format!(
                    "cached page {} counts {} users and {} continuations, there are {} and {}",
                    node.page.index(),
                    node.pins,
                    node.children,
                    pinned[at],
                    children[at]
                ));
            }
            if position[at].is_some() != (node.pins == 0) {
                return Err(format!("cached page {} is on the wrong side of the eviction list", node.page.index()));
            }
            if let Parent::Node(parent) = node.parent {
                // A parent out of the list is in use and goes last.
                if position[parent as usize].is_some_and(|p| position[at].is_none_or(|own| own > p)) {
                    return Err(format!("cached page {} would outlive the page it continues", node.page.index()));
                }
            }
            if self.child(node.parent, node.hash, self.tokens_of(at as u32)) != Some(at as u32) {
                return Err(format!("cached page {} cannot be found", node.page.index()));
            }
        }
        let used = self.nodes.iter().flatten().count();
        if used + self.free.len() != n || self.unpinned.iter().count() != self.unpinned.len() as usize {
            return Err(format!("{used} nodes used, {} free, of {n}", self.free.len()));
        }
        Ok(())
    }
}
