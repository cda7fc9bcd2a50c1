//! Finding the cached pages that a text starts with.
//!
//! Parents and tokens decide. Where texts part, hashes lead to candidates; where they do not, the newest continuation of the
//! page before is tried first, and its hash need not be computed: tokens that follow an equal text and are equal have it. So
//! a prompt costs one comparison of what is cached, and hashing of the rest. What was found is remembered beside the text
//! ([`FoundPath`]), so that asking again costs what changed since: a page is still what it was if it has been on the device
//! all the time, and then so have all before it, because what a page continues outlives it there.
//!
//! Rejected: hashing the whole prompt first and looking up many pages at once. It reads memory in parallel, where the pages
//! of a text lie scattered; they seldom do, because texts are published and evicted in one go.

use super::{
    index::PrefixIndex,
    lru::NONE,
    namespace::Namespace,
    node::{Node, NodeId, Parent},
};
use crate::bug::seeded;

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

    /// The longest path of pages on the device that `tokens` start with, at most `max_pages`; their `hashes` are known then.
    /// Changes nothing else. O(pages found or lost since `path` was found last).
    pub fn find(
        &self,
        namespace: &Namespace,
        tokens: &[u32],
        max_pages: usize,
        hashes: &mut Vec<u64>,
        path: &mut FoundPath,
    ) {
        let max_pages = if seeded!(NothingIsEverFound) { 0 } else { max_pages };
        path.nodes.truncate(max_pages);
        while path.nodes.last().is_some_and(|&last| !self.is_as_found(last, path.n_puts)) {
            path.nodes.pop();
        }
        path.n_puts = self.n_puts;
        // Further pages may be in host memory.
        self.walk(namespace, tokens, max_pages, hashes, &mut path.nodes, |node| node.page.is_some());
    }

    /// Whether a page that was found when so many had come to the device has been there since.
    fn is_as_found(&self, NodeId(at): NodeId, n_puts: u64) -> bool {
        let node = self.nodes[at as usize].as_ref();
        node.is_some_and(|node| node.page.is_some() && (node.put <= n_puts || seeded!(FoundPathIsNotChecked)))
    }

    /// Extend `path` to the longest one of nodes that are `wanted` and hold what `tokens` start with.
    pub(super) fn walk(
        &self,
        namespace: &Namespace,
        tokens: &[u32],
        max_pages: usize,
        hashes: &mut Vec<u64>,
        path: &mut Vec<NodeId>,
        wanted: impl Fn(&Node) -> bool,
    ) {
        let pages = tokens.chunks_exact(self.page_tokens).take(max_pages).skip(path.len());
        let mut last = path.last().map(|&NodeId(last)| last);
        for page in pages {
            let newest = last.map_or(NONE, |last| self.node(last).first_child);
            let at = if newest != NONE && self.tokens_of(newest) == page {
                newest
            } else {
                self.hash_pages(namespace, tokens, path.len() + 1, hashes);
                let parent = last.map_or(Parent::Root(namespace.index), Parent::Node);
                let Some(at) = self.child(parent, hashes[path.len()], page) else { return };
                at
            };
            let node = self.node(at);
            if hashes.len() == path.len() {
                hashes.push(node.hash);
            }
            if !wanted(node) {
                return;
            }
            path.push(NodeId(at));
            last = Some(at);
        }
    }

    pub(super) fn child(&self, parent: Parent, hash: u64, tokens: &[u32]) -> Option<u32> {
        // The tokens and the parent decide; the hash only saves comparing them.
        let is_it = |&at: &u32| {
            let has_parent = self.node(at).parent == parent || seeded!(PageIsFoundWithoutItsHistory);
            has_parent && self.tokens_of(at) == tokens
        };
        self.table.candidates(hash).find(is_it)
    }
}
