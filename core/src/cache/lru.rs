//! A doubly linked list through an array of nodes: push, remove and pop in O(1), no allocation.
//!
//! The links lie in an array of their own, or in the nodes themselves where these are touched anyway.

/// No node.
pub const NONE: u32 = u32::MAX;

/// A node's neighbours; `NONE` at the ends and outside the list.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    pub previous: u32,
    pub next: u32,
}

impl Link {
    /// In no list.
    pub const OUTSIDE: Self = Self { previous: NONE, next: NONE };
}

/// Where the links of nodes are.
pub trait Links {
    fn link(&self, node: u32) -> Link;
    fn link_mut(&mut self, node: u32) -> &mut Link;
}

impl Links for Vec<Link> {
    fn link(&self, node: u32) -> Link {
        self[node as usize]
    }

    fn link_mut(&mut self, node: u32) -> &mut Link {
        &mut self[node as usize]
    }
}

/// A list, oldest first, through links that lie elsewhere: every call gets the same ones.
#[derive(Debug)]
pub struct Ends {
    oldest: u32,
    newest: u32,
    len: u32,
}

impl Ends {
    /// Of an empty list.
    pub fn new() -> Self {
        Self { oldest: NONE, newest: NONE, len: 0 }
    }

    pub fn len(&self) -> u32 {
        self.len
    }

    pub fn oldest(&self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    /// Add a node that is not in the list, as the newest.
    pub fn push(&mut self, links: &mut impl Links, node: u32) {
        *links.link_mut(node) = Link { previous: self.newest, next: NONE };
        match self.newest {
            NONE => self.oldest = node,
            newest => links.link_mut(newest).next = node,
        }
        self.newest = node;
        self.len += 1;
    }

    /// Remove a node that is in the list.
    pub fn remove(&mut self, links: &mut impl Links, node: u32) {
        let Link { previous, next } = links.link(node);
        match previous {
            NONE => self.oldest = next,
            previous => links.link_mut(previous).next = next,
        }
        match next {
            NONE => self.newest = previous,
            next => links.link_mut(next).previous = previous,
        }
        self.len -= 1;
    }

    /// Oldest to newest.
    pub fn iter(&self, links: &impl Links) -> impl Iterator<Item = u32> {
        std::iter::successors(self.oldest(), |&node| {
            let next = links.link(node).next;
            (next != NONE).then_some(next)
        })
    }
}

/// A list with links of its own.
#[derive(Debug)]
pub struct Lru {
    links: Vec<Link>,
    ends: Ends,
}

impl Lru {
    pub fn new(nodes: u32) -> Self {
        Self { links: vec![Link::OUTSIDE; nodes as usize], ends: Ends::new() }
    }

    pub fn len(&self) -> u32 {
        self.ends.len()
    }

    pub fn oldest(&self) -> Option<u32> {
        self.ends.oldest()
    }

    /// Add a node that is not in the list, as the newest.
    pub fn push(&mut self, node: u32) {
        self.ends.push(&mut self.links, node);
    }

    /// Remove a node that is in the list.
    pub fn remove(&mut self, node: u32) {
        self.ends.remove(&mut self.links, node);
    }

    /// Oldest to newest.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.ends.iter(&self.links)
    }
}
