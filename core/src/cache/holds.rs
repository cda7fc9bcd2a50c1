//! Holding cached paths: what is held stays on the device.
//!
//! A hold is on the deepest page of a path and covers all before it: a page knows how many paths end at it and how many of
//! its continuations are held, and as long as there is one of either it is on no eviction list. So whoever joins a path that
//! others hold, or leaves it to them, touches one page, however long the path is. Rejected: a count of users in every page,
//! which each request raises and lowers along its whole path.

use super::{
    index::{Evicted, PrefixIndex},
    lru::NONE,
    node::{NodeId, Parent},
};
use crate::bug::seeded;

/// A shared, read-only hold on a cached page and all pages before it: they cannot be evicted. Move-only; given back with
/// [`PrefixIndex::release`].
#[derive(Debug)]
#[must_use = "a held path stays in memory until it is released"]
pub struct PathRef {
    pub(super) node: u32,
}

impl PrefixIndex {
    /// Hold a found page and all before it. O(pages that nobody held).
    pub fn hold(&mut self, NodeId(deepest): NodeId) -> PathRef {
        let mut at = deepest;
        loop {
            let node = self.node_mut(at);
            assert!(node.page.is_some(), "only pages on the device are held");
            node.holds += 1;
            if node.holds > 1 {
                break;
            }
            let before = node.parent;
            self.take_off_list(at);
            let Parent::Node(before) = before else { break };
            at = before;
        }
        PathRef { node: deepest }
    }

    /// A page that somebody holds from now on.
    fn take_off_list(&mut self, at: u32) {
        if !seeded!(HeldPageIsEvicted) {
            self.unpinned.remove(&mut self.nodes, at);
        }
    }

    /// Go on to a page on the device that continues a held path; `None` holds nothing and is continued by the first page of
    /// a text.
    pub(super) fn extend(&mut self, path: Option<PathRef>, NodeId(at): NodeId) -> PathRef {
        let Some(PathRef { node: before }) = path else { return self.hold(NodeId(at)) };
        let node = self.node_mut(at);
        assert!(node.parent == Parent::Node(before) && node.page.is_some(), "it continues the path on the device");
        node.holds += 1;
        if node.holds == 1 {
            // The hold on the page before is the continuation's now.
            self.take_off_list(at);
        } else {
            self.node_mut(before).holds -= 1;
        }
        PathRef { node: at }
    }

    /// Go back to the page before; `None` if there is none. The deepest page stays cached until its memory is needed.
    fn shorten(&mut self, path: PathRef) -> Option<PathRef> {
        let at = path.node;
        let node = self.node_mut(at);
        node.holds -= 1;
        let (parent, is_let_go) = (node.parent, node.holds == 0);
        if is_let_go {
            self.let_go(at);
        }
        let Parent::Node(before) = parent else { return None };
        // What a continuation held is the path's own now.
        self.node_mut(before).holds += u32::from(!is_let_go);
        Some(PathRef { node: before })
    }

    /// Stop holding a path; its pages stay cached until their memory is needed. O(pages that nobody holds any more).
    pub fn release(&mut self, path: PathRef) {
        if seeded!(ReleaseStartsAtTheFront) {
            return self.release_front_first(path.node);
        }
        let mut at = path.node;
        let mut touched = 0;
        loop {
            let node = self.node_mut(at);
            node.holds -= 1;
            if node.holds > 0 {
                break;
            }
            let before = node.parent;
            // Deepest first: eviction relies on it.
            self.let_go(at);
            let Parent::Node(before) = before else { break };
            // Nodes of a text often lie in a row: read where the ones after next should be, without waiting for it.
            let ahead = before.wrapping_add(before.wrapping_sub(at).wrapping_mul(8));
            touched ^= self.nodes.get(ahead as usize).and_then(Option::as_ref).map_or(0, |node| node.holds);
            at = before;
        }
        std::hint::black_box(touched);
    }

    fn release_front_first(&mut self, at: u32) {
        let node = self.node_mut(at);
        node.holds -= 1;
        if node.holds == 0 {
            if let Parent::Node(before) = node.parent {
                self.release_front_first(before);
            }
            self.let_go(at);
        }
    }

    fn let_go(&mut self, at: u32) {
        self.unpinned.push(&mut self.nodes, at);
        self.offer(at);
    }

    /// The page so many before the deepest of a held path.
    pub(super) fn before(&self, path: &PathRef, n: usize) -> NodeId {
        let step = |at: u32| match self.node(at).parent {
            Parent::Node(before) => before,
            Parent::Root(_) => panic!("a path is as long as its tokens"),
        };
        NodeId((0..n).fold(path.node, |at, _| step(at)))
    }

    /// Stop holding the deepest page of a path, which may hold wrong values: forget it and every page that continues it, which
    /// was computed from it, in both tiers. Nothing is forgotten if somebody uses one of them; then the pages before it are
    /// to stay too. Also returns the rest of the path, still held. O(pages forgotten).
    pub fn forget_deepest(&mut self, path: PathRef) -> (Vec<Evicted>, Option<PathRef>) {
        let at = path.node;
        let rest = self.shorten(path);
        (self.forget(at), rest)
    }

    fn forget(&mut self, at: u32) -> Vec<Evicted> {
        let mut doubted = vec![at];
        let mut n_seen = 0;
        while let Some(&at) = doubted.get(n_seen) {
            n_seen += 1;
            if self.node(at).holds > 0 || self.side(at).load != NONE {
                return Vec::new();
            }
            let mut child = self.node(at).first_child;
            while child != NONE {
                doubted.push(child);
                child = self.node(child).siblings.next;
            }
        }
        let mut forgotten = Vec::with_capacity(doubted.len());
        // What continues a page comes after it.
        for at in doubted.into_iter().rev() {
            let on_device = self.node(at).page.is_some();
            if self.side(at).unit.is_some() {
                self.drop_unit(at);
            }
            if on_device {
                self.unpinned.remove(&mut self.nodes, at);
                forgotten.push(self.drop_page(at));
            }
        }
        forgotten
    }
}
