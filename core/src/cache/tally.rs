//! Room to add up who holds what.
//!
//! A check of conservation counts everything anew, beside what is kept. Whoever checks again and again keeps this room, so that
//! only the first check allocates, and the engine's thread can check while requests run.

use super::lru::NONE;

/// See above; one for as many checks as wanted, of any memory.
#[derive(Debug, Default)]
pub struct Tally {
    pub(super) marks: Marks,
    pub(super) numbers: [Numbers; 3],
}

/// Something that was seen, or not, per slot.
#[derive(Debug, Default)]
pub(super) struct Marks(Vec<bool>);

impl Marks {
    /// `n` that were not seen.
    pub(super) fn none(&mut self, n: usize) -> &mut [bool] {
        self.0.clear();
        self.0.resize(n, false);
        &mut self.0
    }
}

/// A number per slot.
#[derive(Debug, Default)]
pub(super) struct Numbers(Vec<u32>);

impl Numbers {
    fn all(&mut self, n: usize, value: u32) -> &mut [u32] {
        self.0.clear();
        self.0.resize(n, value);
        &mut self.0
    }

    /// `n` zeros.
    pub(super) fn zeros(&mut self, n: usize) -> &mut [u32] {
        self.all(n, 0)
    }

    /// The places of nodes in a list, [`NONE`] for those that are not in it.
    pub(super) fn places(&mut self, n: usize, list: impl Iterator<Item = u32>) -> &[u32] {
        let places = self.all(n, NONE);
        (0..).zip(list).for_each(|(i, at)| places[at as usize] = i);
        places
    }
}
