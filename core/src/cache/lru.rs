//! A doubly linked list through a node array: push, remove and pop in O(1), no allocation.

/// No node.
pub const NONE: u32 = u32::MAX;

/// A node's neighbours; `NONE` at the ends and outside the list.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    pub previous: u32,
    pub next: u32,
}

/// Oldest first.
#[derive(Debug)]
pub struct Lru {
    links: Vec<Link>,
    oldest: u32,
    newest: u32,
    len: u32,
}

impl Lru {
    pub fn new(nodes: u32) -> Self {
        let links = vec![Link { previous: NONE, next: NONE }; nodes as usize];
        Self { links, oldest: NONE, newest: NONE, len: 0 }
    }

    pub fn len(&self) -> u32 {
        self.len
    }

    pub fn oldest(&self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    /// Add a node that is not in the list, as the newest.
    pub fn push(&mut self, node: u32) {
        self.links[node as usize] = Link { previous: self.newest, next: NONE };
        match self.newest {
            NONE => self.oldest = node,
            newest => self.links[newest as usize].next = node,
        }
        self.newest = node;
        self.len += 1;
    }

    /// Remove a node that is in the list.
    pub fn remove(&mut self, node: u32) {
        let Link { previous, next } = self.links[node as usize];
        match previous {
            NONE => self.oldest = next,
            previous => self.links[previous as usize].next = next,
        }
        match next {
            NONE => self.newest = previous,
            next => self.links[next as usize].previous = previous,
        }
        self.len -= 1;
    }

    /// Oldest to newest.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        std::iter::successors(self.oldest(), |&node| {
            let next = self.links[node as usize].next;
            (next != NONE).then_some(next)
        })
    }
}
