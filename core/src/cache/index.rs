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
    lru::{Link, Lru, NONE},
    namespace::{Namespace, Namespaces},
    pool::{Handle, Page, StateSlot},
    snapshots::{SnapshotRef, Snapshots},
    tier::{HostMemory, Unit},
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

/// What a page continues: the start of a namespace, or another page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parent {
    Root(u32),
    Node(u32),
}

#[derive(Debug)]
pub(super) struct Node {
    pub hash: u64,
    pub parent: Parent,
    /// On the device.
    pub page: Option<Handle<Page>>,
    /// In host memory.
    pub unit: Option<Unit>,
    pub pins: u32,
    next_in_bucket: u32,
    pub first_child: u32,
    /// Siblings; `NONE` at the ends.
    siblings: Link,
    /// The copy under way to host memory, or `NONE`.
    pub store: u32,
    /// The load that reads the unit, or `NONE`.
    pub load: u32,
    /// On the list of pages to copy.
    pub is_uncopied: bool,
    /// A copy did not work; not tried again.
    pub copy_failed: bool,
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
    hasher: PageHasher,
    pub(super) page_tokens: usize,
    pub(super) nodes: Vec<Option<Node>>,
    /// `[node][page_tokens]`.
    tokens: Vec<u32>,
    free: Vec<u32>,
    /// First node of each bucket; the number of buckets is a power of two.
    buckets: Vec<u32>,
    unpinned: Lru,
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
    /// An empty index for at most `max_pages` pages on the device and (pages, states) in host memory, which keeps its last
    /// `max_events` events.
    pub fn new(secret: [u64; 2], page_tokens: u32, max_pages: u32, host: (u32, u32), max_events: u32) -> Self {
        let max_pages = max_pages + host.0;
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
            host: HostMemory::new(max_pages, host.0, host.1),
            events: EventRing::new(page_tokens, max_events),
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
        self.nodes.iter().flatten().flat_map(|node| {
            let places = [(Tier::Device, node.page.is_some()), (Tier::Host, node.unit.is_some())];
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

    /// The longest path of pages on the device along `hashes` (at most `max_pages`) whose tokens are those of `tokens`.
    /// Changes nothing.
    pub fn find(
        &self,
        namespace: &Namespace,
        hashes: &[u64],
        tokens: &[u32],
        max_pages: usize,
        path: &mut Vec<NodeId>,
    ) {
        let max_pages = if seeded!(NothingIsEverFound) { 0 } else { max_pages };
        // Further pages may be in host memory.
        self.walk(namespace, hashes, tokens, max_pages, path, |node| node.page.is_some());
    }

    /// The longest path of nodes along `hashes` that are `wanted`, and whose tokens are those of `tokens`.
    pub(super) fn walk(
        &self,
        namespace: &Namespace,
        hashes: &[u64],
        tokens: &[u32],
        max_pages: usize,
        path: &mut Vec<NodeId>,
        wanted: impl Fn(&Node) -> bool,
    ) {
        path.clear();
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
                if !wanted(self.node(node)) {
                    return;
                }
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

    pub(super) fn node(&self, at: u32) -> &Node {
        self.nodes[at as usize].as_ref().expect("the node is in use")
    }

    pub(super) fn node_mut(&mut self, at: u32) -> &mut Node {
        self.nodes[at as usize].as_mut().expect("the node is in use")
    }

    fn tokens_of(&self, at: u32) -> &[u32] {
        &self.tokens[at as usize * self.page_tokens..][..self.page_tokens]
    }

    /// Hold a found page. The caller pins a whole path, first page first.
    pub fn pin(&mut self, NodeId(at): NodeId) -> PageRef {
        let node = self.node_mut(at);
        node.pins += 1;
        let (pins, page) = (node.pins, node.page.as_ref().expect("only pages on the device are held").index());
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
            self.offer(page.node);
        }
    }

    /// Stop holding a page that may hold wrong values: forget it and every page that continues it, which was computed from
    /// it, in both tiers. Empty, and nothing is forgotten, if somebody uses one of them; then the pages before it stay too.
    /// O(pages forgotten).
    pub fn unpin_and_forget(&mut self, page: PageRef) -> Vec<Evicted> {
        let at = page.node;
        self.unpin(page);
        let mut doubted = vec![at];
        let mut n_seen = 0;
        while let Some(&node) = doubted.get(n_seen) {
            n_seen += 1;
            let Node { pins, load, mut first_child, .. } = *self.node(node);
            if pins > 0 || load != NONE {
                return Vec::new();
            }
            while first_child != NONE {
                doubted.push(first_child);
                first_child = self.node(first_child).siblings.next;
            }
        }
        let mut forgotten = Vec::with_capacity(doubted.len());
        // What continues a page comes after it.
        for node in doubted.into_iter().rev() {
            let on_device = self.node(node).page.is_some();
            if self.node(node).unit.is_some() {
                self.drop_unit(node);
            }
            if on_device {
                self.unpinned.remove(node);
                forgotten.push(self.drop_page(node));
            }
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
            if self.node(at).page.is_some() {
                return Published::Duplicate { own, shared: self.pin(NodeId(at)) };
            }
            let page = self.put(at, own);
            return Published::New(page);
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
        let bucket = self.bucket(hash);
        let next_in_bucket = std::mem::replace(&mut self.buckets[bucket], at);
        self.nodes[at as usize] = Some(Node {
            hash,
            parent,
            page: None,
            unit: None,
            pins: 0,
            next_in_bucket,
            first_child: NONE,
            siblings,
            store: NONE,
            load: NONE,
            is_uncopied: false,
            copy_failed: false,
        });
        self.tokens[at as usize * self.page_tokens..][..self.page_tokens].copy_from_slice(tokens);
        Published::New(self.put(at, own))
    }

    /// Put a page on the device, held.
    pub(super) fn put(&mut self, at: u32, own: Handle<Page>) -> PageRef {
        let page = own.index();
        let node = self.node_mut(at);
        (node.page, node.pins) = (Some(own), 1);
        self.announce(at, Tier::Device);
        PageRef { node: at, page }
    }

    /// Forget the page unused for longest and return it; never one in use or with a cached continuation.
    pub fn evict(&mut self) -> Option<Evicted> {
        let newest = seeded!(NewestIsEvictedFirst).then(|| self.unpinned.iter().last()).flatten();
        let at = newest.or(self.unpinned.oldest())?;
        self.unpinned.remove(at);
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
    fn drop_page(&mut self, at: u32) -> Evicted {
        let snapshot = if seeded!(SnapshotOutlivesItsPages) { None } else { self.snapshots.take(at) };
        self.withdraw(at);
        let node = self.node_mut(at);
        assert!(node.pins == 0, "a page in use is never a victim");
        let page = node.page.take().expect("it is on the device");
        let (hash, store) = (node.hash, std::mem::replace(&mut node.store, NONE));
        if store != NONE {
            // What is being copied may be overwritten from now on.
            self.void_stores.push(store);
        }
        if !seeded!(RemovalIsNotAnnounced) && !self.is_clearing {
            self.events.removed(hash, Tier::Device);
        }
        if self.node(at).unit.is_some() {
            // As if used now: what continues it has left the device before. One that is being read is on no list.
            if self.node(at).load == NONE {
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
        assert!(node.page.is_none() && node.unit.is_none() && node.load == NONE && node.store == NONE);
        let Link { previous, next } = node.siblings;
        if next != NONE {
            self.node_mut(next).siblings.previous = previous;
        }
        match node.parent {
            Parent::Root(namespace) => self.namespaces.remove_user(namespace),
            Parent::Node(_) if previous != NONE => self.node_mut(previous).siblings.next = next,
            Parent::Node(parent) => self.node_mut(parent).first_child = next,
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
        self.nodes.iter().flatten().filter_map(|node| node.page.as_ref()).map(Handle::index)
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
            let mut n_linked = 0;
            let mut child = node.first_child;
            while child != NONE && n_linked <= n {
                (n_linked, child) = (n_linked + 1, self.node(child).siblings.next);
            }
            if node.pins != pinned[at] || n_linked != children[at] as usize {
                return Err(format!(
                    "cached page {:?} counts {} users and {n_linked} continuations, there are {} and {}",
                    node.page, node.pins, pinned[at], children[at]
                ));
            }
            if position[at].is_some() != (node.pins == 0 && node.page.is_some()) {
                return Err(format!("cached page {:?} is on the wrong side of the eviction list", node.page));
            }
            if let Parent::Node(parent) = node.parent
                && node.page.is_some()
            {
                // A parent out of the list is in use and goes last.
                if position[parent as usize].is_some_and(|p| position[at].is_none_or(|own| own > p)) {
                    return Err(format!("cached page {:?} would outlive the page it continues", node.page));
                }
            }
            if self.child(node.parent, node.hash, self.tokens_of(at as u32)) != Some(at as u32) {
                return Err(format!("cached page {:?} cannot be found", node.page));
            }
        }
        let used = self.nodes.iter().flatten().count();
        if used + self.free.len() != n || self.unpinned.iter().count() != self.unpinned.len() as usize {
            return Err(format!("{used} nodes used, {} free, of {n}", self.free.len()));
        }
        Ok(())
    }
}
