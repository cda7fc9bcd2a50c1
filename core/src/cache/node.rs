//! A cached page as the prefix index knows it: one cache line for all that finding, holding, publishing and evicting it
//! need to know.
//!
//! What only the host tier needs lies elsewhere ([`super::tier::Side`]). Rejected: everything in one record; it spans two
//! lines, and with a million cached pages each line is a read from memory.

use super::{
    lru::Link,
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
    pub next_in_bucket: u32,
    pub first_child: u32,
    /// Siblings; [`super::lru::NONE`] at the ends.
    pub siblings: Link,
}

const _: () = assert!(size_of::<Option<Node>>() == 64);
