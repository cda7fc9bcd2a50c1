//! Stored recurrent states: which cached pages have one at their end, and which is given up first.
//!
//! A snapshot is labelled with the tokens it encodes, as whoever computed it counted them; whoever reads it says how many it
//! expects, and a step's parameter block gets the label, not the request's own count: what does not agree is found before it is
//! believed, by us or by the backend.
//!
//! A snapshot belongs to the node of the page it ends; it goes with that page (the cascade rule: a state without its
//! pages resumes nothing). Without a request reading it, it may also go alone, and then recency does not decide alone:
//! of the eight unused for longest, the one that saves the fewest pages of recomputation goes (after Marconi: states all
//! cost the same memory, but one deep in a long prompt is worth more than one a page after another).
//!
//! Rejected: an exact priority order. Savings change whenever a neighbour comes or goes, and a heap would need all of
//! them up to date; eight candidates bound the cost of a choice and still never give up the newest.

use super::{
    lru::Lru,
    pool::{Handle, StateSlot},
    tally::Tally,
};
use crate::bug::seeded;

/// How many of the oldest are compared.
const CANDIDATES: usize = 8;

/// A shared, read-only hold on a stored state: its slot is neither given up nor written. Move-only; given back with
/// [`super::index::PrefixIndex::unpin_snapshot`].
#[derive(Debug)]
#[must_use = "a pinned snapshot stays in memory until it is unpinned"]
pub struct SnapshotRef {
    node: u32,
    slot: u32,
    tokens: u32,
}

impl SnapshotRef {
    /// The slot's number.
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// Tokens the state encodes, as it was stored.
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    pub(super) fn node(&self) -> u32 {
        self.node
    }
}

#[derive(Debug)]
struct Snapshot {
    slot: Handle<StateSlot>,
    /// Tokens it encodes.
    tokens: u32,
    pins: u32,
    /// Pages from the snapshot before it (or the start) to this one, when it was stored.
    saves: u32,
    /// Tells it from others at the same page and in the same slot.
    number: u64,
}

impl Snapshot {
    /// What it encodes is what its user takes it for.
    fn expect(&self, tokens: u32) {
        assert_eq!(
            self.tokens, tokens,
            "a stored state encodes another number of tokens than the pages it is read behind"
        );
    }
}

/// What a copy of a stored state goes by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stored {
    pub slot: u32,
    /// Tokens it encodes.
    pub tokens: u32,
    /// Tells it from others at the same page and in the same slot.
    pub number: u64,
}

/// All stored states, by node.
#[derive(Debug)]
pub(super) struct Snapshots {
    /// `[node]`; empty for models without recurrent state.
    stored: Vec<Option<Snapshot>>,
    unpinned: Lru,
    n_stored: u32,
    /// Stored since start.
    n_ever: u64,
}

impl Snapshots {
    pub fn new(max_nodes: u32) -> Self {
        Self { stored: (0..max_nodes).map(|_| None).collect(), unpinned: Lru::new(max_nodes), n_stored: 0, n_ever: 0 }
    }

    pub fn has(&self, node: u32) -> bool {
        self.at(node).is_some()
    }

    fn at(&self, node: u32) -> Option<&Snapshot> {
        self.stored.get(node as usize)?.as_ref()
    }

    /// The one at a page.
    pub fn get(&self, node: u32) -> Option<Stored> {
        self.at(node).map(|s| Stored { slot: s.slot.index(), tokens: s.tokens, number: s.number })
    }

    pub fn is_unpinned(&self, node: u32) -> bool {
        self.at(node).is_some_and(|s| s.pins == 0)
    }

    pub fn n_stored(&self) -> u32 {
        self.n_stored
    }

    /// Those that [`Snapshots::evict`] can return.
    pub fn n_unpinned(&self) -> u32 {
        self.unpinned.len()
    }

    pub fn store(&mut self, node: u32, slot: Handle<StateSlot>, tokens: u32, saves: u32) {
        let place = &mut self.stored[node as usize];
        assert!(place.is_none(), "a page has one state at its end");
        self.n_ever += 1;
        *place = Some(Snapshot { slot, tokens, pins: 0, saves, number: self.n_ever });
        self.n_stored += 1;
        self.unpinned.push(node);
    }

    /// Read the one at a page, whose user expects it to encode so many tokens.
    pub fn pin(&mut self, node: u32, tokens: u32) -> SnapshotRef {
        let snapshot = self.stored[node as usize].as_mut().expect("asked `has`");
        snapshot.expect(tokens);
        snapshot.pins += 1;
        if snapshot.pins == 1 && !seeded!(SnapshotIsEvictedWhileRead) {
            self.unpinned.remove(node);
        }
        SnapshotRef { node, slot: snapshot.slot.index(), tokens: snapshot.tokens }
    }

    pub fn unpin(&mut self, reference: SnapshotRef) {
        let snapshot = self.stored[reference.node as usize].as_mut().expect("pinned, so stored");
        snapshot.pins -= 1;
        if snapshot.pins == 0 {
            self.unpinned.push(reference.node);
        }
    }

    /// Somebody would have stored the same state again: it is in use.
    pub fn touch(&mut self, node: u32) {
        if self.is_unpinned(node) {
            self.unpinned.remove(node);
            self.unpinned.push(node);
        }
    }

    /// Give up the least useful one that nobody reads.
    pub fn evict(&mut self) -> Option<Handle<StateSlot>> {
        let saves = |node: u32| self.stored[node as usize].as_ref().expect("listed, so stored").saves;
        let node = self.unpinned.iter().take(CANDIDATES).min_by_key(|&node| saves(node))?;
        self.take(node)
    }

    /// Give up the state at the end of a page, if there is one. Nobody may be reading it.
    pub fn take(&mut self, node: u32) -> Option<Handle<StateSlot>> {
        let snapshot = self.stored.get_mut(node as usize)?.take()?;
        assert_eq!(snapshot.pins, 0, "a state being read is never given up");
        self.unpinned.remove(node);
        self.n_stored -= 1;
        Some(snapshot.slot)
    }

    /// Take out the state at the end of a page, to go on in it; its user expects it to encode so many tokens.
    pub fn take_over(&mut self, node: u32, tokens: u32) -> Option<Handle<StateSlot>> {
        self.at(node)?.expect(tokens);
        self.take(node)
    }

    /// Slot numbers held.
    pub fn slots(&self) -> impl Iterator<Item = u32> + '_ {
        self.stored.iter().flatten().map(|s| s.slot.index())
    }

    /// Recompute counts from scratch; `pins` lists the node of each [`SnapshotRef`] outside, `is_node` tells nodes in use.
    pub fn check(
        &self,
        pins: impl Iterator<Item = u32>,
        is_node: impl Fn(u32) -> bool,
        tally: &mut Tally,
    ) -> Result<(), String> {
        let pinned = tally.numbers[0].zeros(self.stored.len());
        pins.for_each(|node| pinned[node as usize] += 1);
        let listed = tally.marks.none(self.stored.len());
        self.unpinned.iter().for_each(|node| listed[node as usize] = true);
        for (node, snapshot) in self.stored.iter().enumerate() {
            let (pins, held) = (snapshot.as_ref().map_or(0, |s| s.pins), snapshot.is_some());
            if pins != pinned[node] || listed[node] != (held && pins == 0) || held && !is_node(node as u32) {
                return Err(format!(
                    "the snapshot of node {node} counts {pins} readers, there are {}; held {held}, listed {}",
                    pinned[node], listed[node]
                ));
            }
        }
        match self.stored.iter().flatten().count() {
            n if n == self.n_stored as usize => Ok(()),
            n => Err(format!("{n} snapshots are stored, {} counted", self.n_stored)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::pool::Pool;

    #[test]
    #[should_panic(expected = "encodes another number of tokens")]
    fn a_state_of_other_tokens_is_not_read() {
        let mut pool = Pool::<StateSlot>::new(1, 3);
        let mut snapshots = Snapshots::new(1);
        snapshots.store(0, pool.take().expect("free"), 64, 1);
        let _ = snapshots.pin(0, 128);
    }

    #[test]
    #[should_panic(expected = "encodes another number of tokens")]
    fn a_state_of_other_tokens_is_not_taken_over() {
        let mut pool = Pool::<StateSlot>::new(1, 3);
        let mut snapshots = Snapshots::new(1);
        snapshots.store(0, pool.take().expect("free"), 64, 1);
        let _ = snapshots.take_over(0, 63);
    }

    #[test]
    fn the_cheapest_of_the_oldest_goes_and_the_newest_stays() {
        let mut pool = Pool::<StateSlot>::new(1, 20);
        let mut snapshots = Snapshots::new(32);
        for (node, saves) in [(0, 9), (1, 5), (2, 7), (3, 1)] {
            snapshots.store(node, pool.take().expect("free"), 10 * node, saves);
        }
        let reader = snapshots.pin(3, 30);
        assert_eq!(reader.tokens(), 30);
        let gone = snapshots.evict().expect("three are unused");
        assert!(!snapshots.has(1), "5 pages are the cheapest that nobody reads");
        pool.give(gone);
        snapshots.unpin(reader);
        // Behind eight older ones it is not even looked at.
        for node in 10..16 {
            snapshots.store(node, pool.take().expect("free"), 10 * node, 3);
        }
        assert_eq!(snapshots.unpinned.iter().nth(2), Some(3), "let go after 0 and 2, before the new ones");
        snapshots.touch(3);
        pool.give(snapshots.evict().expect("some"));
        assert!(snapshots.has(3) && snapshots.has(0) && snapshots.has(2) && !snapshots.has(10));
        snapshots.check(std::iter::empty(), |_| true, &mut Tally::default()).expect("sound");
    }
}
