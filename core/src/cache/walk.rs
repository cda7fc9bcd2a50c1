//! Finding the cached pages that a text starts with.
//!
//! Hashes lead to candidates; parents and tokens decide. What was found is remembered beside the text ([`FoundPath`]), so
//! that asking again costs what changed since: a page is still what it was if it has been on the device all the time, and
//! then so have all before it, because what a page continues outlives it there.

use super::{
    index::PrefixIndex,
    lru::NONE,
    namespace::Namespace,
    node::{Node, NodeId, Parent},
};
use crate::bug::seeded;

/// Pages looked up together.
const LOOK_AHEAD: usize = 16;

/// The cached pages that a text starts with, as found last. Belongs to one text in one namespace; holds nothing.
#[derive(Debug, Default)]
pub struct FoundPath {
    nodes: Vec<NodeId>,
    /// Pages that had come to the device by then: see [`Node::put`].
    n_puts: u64,
}

impl FoundPath {
    /// Nothing found yet; room for `max_pages`.
    pub fn with_capacity(max_pages: usize) -> Self {
        Self { nodes: Vec::with_capacity(max_pages), n_puts: 0 }
    }

    /// First page first; valid until the next change of the index.
    pub fn nodes(&self) -> &[NodeId] {
        &self.nodes
    }

    /// Forget what was found.
    pub fn clear(&mut self) {
        self.nodes.clear();
    }
}

impl PrefixIndex {
    /// Extend `hashes` to cover the first `n_pages` pages of `tokens`, hashing each page once.
    pub fn hash_pages(&self, namespace: &Namespace, tokens: &[u32], n_pages: usize, hashes: &mut Vec<u64>) {
        while hashes.len() < n_pages {
            let parent = hashes.last().copied().unwrap_or(namespace.root);
            let page = &tokens[hashes.len() * self.page_tokens..][..self.page_tokens];
            hashes.push(self.hasher.extend(parent, page));
        }
    }

    /// The longest path of pages on the device along `hashes` (at most `max_pages`) whose tokens are those of `tokens`.
    /// Changes nothing. O(pages found or lost since `path` was found last).
    pub fn find(&self, namespace: &Namespace, hashes: &[u64], tokens: &[u32], max_pages: usize, path: &mut FoundPath) {
        let max_pages = if seeded!(NothingIsEverFound) { 0 } else { max_pages };
        path.nodes.truncate(max_pages);
        while path.nodes.last().is_some_and(|&last| !self.is_as_found(last, path.n_puts)) {
            path.nodes.pop();
        }
        path.n_puts = self.n_puts;
        // Further pages may be in host memory.
        self.walk(namespace, hashes, tokens, max_pages, &mut path.nodes, |node| node.page.is_some());
    }

    /// Whether a page that was found when so many had come to the device has been there since.
    fn is_as_found(&self, NodeId(at): NodeId, n_puts: u64) -> bool {
        let node = self.nodes[at as usize].as_ref();
        node.is_some_and(|node| node.page.is_some() && (node.put <= n_puts || seeded!(FoundPathIsNotChecked)))
    }

    /// Extend `path` to the longest one of nodes along `hashes` that are `wanted`, and whose tokens are those of `tokens`.
    pub(super) fn walk(
        &self,
        namespace: &Namespace,
        hashes: &[u64],
        tokens: &[u32],
        max_pages: usize,
        path: &mut Vec<NodeId>,
        wanted: impl Fn(&Node) -> bool,
    ) {
        let mut parent = path.last().map_or(Parent::Root(namespace.index), |&NodeId(last)| Parent::Node(last));
        // Whoever asks again seldom finds more.
        let mut n_ahead = if path.is_empty() { LOOK_AHEAD } else { 1 };
        let max_pages = max_pages.min(hashes.len()).min(tokens.len() / self.page_tokens);
        while path.len() < max_pages {
            let from = path.len();
            let end = max_pages.min(from + n_ahead);
            let hashes = &hashes[from..end];
            // First all reads that do not depend on another page's: the memory answers them at once.
            let mut found = [NONE; LOOK_AHEAD];
            for (found, &hash) in found.iter_mut().zip(hashes) {
                *found = self.buckets[self.bucket(hash)];
            }
            for (found, &hash) in found.iter_mut().zip(hashes) {
                *found = self.skip_to(*found, hash);
            }
            let pages = tokens[from * self.page_tokens..].chunks_exact(self.page_tokens);
            for ((&found, &hash), page) in found.iter().zip(hashes).zip(pages) {
                let Some(node) = self.child_from(found, parent, hash, page) else { return };
                if !wanted(self.node(node)) {
                    return;
                }
                path.push(NodeId(node));
                parent = Parent::Node(node);
            }
            n_ahead = LOOK_AHEAD;
        }
    }

    pub(super) fn bucket(&self, hash: u64) -> usize {
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

    pub(super) fn child(&self, parent: Parent, hash: u64, tokens: &[u32]) -> Option<u32> {
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
}
