//! A cached page as the prefix index knows it: one cache line for all that finding, holding, publishing and evicting it
//! need to know.
//!
//! What only the host tier needs lies elsewhere ([`super::tier::Side`]). Rejected: everything in one record; it spans two
//! lines, and with a million cached pages each line is a read from memory.

use super::{
    lru::{Link, Links},
    pool::{Handle, Page},
};

/// A cached page, as a number without rights: valid until the next change of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeId(pub(super) u32);

/// What a page continues: the start of a namespace, or another page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parent {
    Root(u32),
    Node(u32),
}

impl Parent {
    pub fn node(self) -> Option<u32> {
        match self {
            Self::Root(_) => None,
            Self::Node(node) => Some(node),
        }
    }
}

/// See the module's header.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Node {
    pub hash: u64,
    /// How many pages had come to the device when this one did, itself included.
    pub put: u64,
    pub parent: Parent,
    /// On the device.
    pub page: Option<Handle<Page>>,
    /// Paths that end here and are held, and continuations that are held: as long as there are any, the page stays.
    pub holds: u32,
    pub first_child: u32,
    /// Siblings; [`super::lru::NONE`] at the ends.
    pub siblings: Link,
    /// In the list of pages that nobody holds.
    pub let_go: Link,
}

impl Links for Vec<Option<Node>> {
    fn link(&self, node: u32) -> Link {
        self[node as usize].as_ref().expect("only nodes in use are let go").let_go
    }

    fn link_mut(&mut self, node: u32) -> &mut Link {
        &mut self[node as usize].as_mut().expect("only nodes in use are let go").let_go
    }
}

const _: () = assert!(size_of::<Option<Node>>() == 64);
