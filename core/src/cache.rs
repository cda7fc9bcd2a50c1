//! Who owns which page, row and state slot, and which computed prefixes can be used again.
//!
//! Ownership is in the types: a [`pool::Handle`] is neither `Clone` nor `Copy`, is used up by giving it back, and a page
//! becomes shared by moving its handle into the prefix index, which hands out [`holds::PathRef`]s on whole paths, also
//! move-only. A page cannot be used after release or freed twice, and a shared page is never in a position to be written:
//! requests write only at positions after their cached prefix.
//!
//! All paged components advance in lock step, so one page number addresses a block in each of them, and there is one
//! page pool of the smallest component's size. Rejected for now: a pool per component, which only matters once
//! components differ in lifetime (sliding windows); they differ in *resumability* already, see [`component`].
#![forbid(unsafe_code)]

pub mod component;
pub mod copies;
pub mod events;
pub mod hash;
pub mod holds;
pub mod index;
pub mod lease;
mod lru;
pub mod memory;
pub mod namespace;
pub mod node;
pub mod pool;
pub mod recurrent;
pub mod snapshots;
mod table;
pub mod tally;
#[cfg(test)]
mod tests;
mod tier;
#[cfg(test)]
mod tier_tests;
pub mod walk;
