//! Side branches: other continuations than the likeliest one, each leaving it at some depth.
//!
//! A branch is checked as a row of its own, which repeats the guesses it shares with the chain: no masks, and recurrent
//! layers need nothing. That makes it dear where it leaves late, so it has to pay for every token of its row.

use super::BRANCHES_MAX;

/// A continuation that leaves the chain of guesses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Branch {
    /// Guesses of the chain before it.
    pub fork: u32,
    /// What follows them; the first differs from the chain's.
    pub ids: Vec<u32>,
    /// Cache rows of other branches before its own, in the step being planned or in flight.
    pub offset: u32,
    /// Its first row of logits: what follows its first token.
    pub first_logit_row: u32,
}

impl Branch {
    /// Guesses, those it shares with the chain included.
    pub fn depth(&self) -> u32 {
        self.fork + self.ids.len() as u32
    }
}

/// The side branches of one request.
#[derive(Debug, Default)]
pub struct Branches {
    /// Reused from step to step; the first `len` count.
    list: Vec<Branch>,
    len: usize,
    /// Chance that a branch is right where the chain is wrong at its fork.
    chance: f64,
}

/// Before anything was tried.
const CHANCE: f64 = 0.3;
/// Weight of the newest observation.
const NEWEST: f64 = 0.1;

impl Branches {
    /// Room for `n` branches of `depth` guesses.
    pub fn new(n: u32, depth: u32) -> Self {
        let empty = || Branch { ids: Vec::with_capacity(depth as usize), ..Branch::default() };
        Self { list: (0..n.min(BRANCHES_MAX)).map(|_| empty()).collect(), len: 0, chance: CHANCE }
    }

    /// Forget all.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Those of this step.
    pub fn open(&self) -> &[Branch] {
        &self.list[..self.len]
    }

    /// To fill in places.
    pub fn open_mut(&mut self) -> &mut [Branch] {
        &mut self.list[..self.len]
    }

    /// Add one, if there is room and none like it. It may be no longer than the chain.
    pub fn push(&mut self, chain: &[u32], fork: u32, ids: impl Iterator<Item = u32>) {
        let at = fork as usize;
        let Some(branch) = self.list.get_mut(self.len) else { return };
        if at >= chain.len() {
            return;
        }
        branch.ids.clear();
        branch.ids.extend(ids.take(chain.len() - at));
        branch.fork = fork;
        let Some(&first) = branch.ids.first() else { return };
        let is_known = self.open().iter().any(|other| other.fork == fork && other.ids[0] == first);
        if first != chain[at] && !is_known {
            self.len += 1;
        }
    }

    /// Keep the first `n`.
    pub fn truncate(&mut self, n: usize) {
        self.len = self.len.min(n);
    }

    /// A chain of `len` guesses was cut to this length: what leaves it later is gone, what is longer is cut.
    pub fn cut(&mut self, len: u32) {
        let mut kept = 0;
        for at in 0..self.len {
            if self.list[at].fork < len {
                self.list.swap(kept, at);
                let branch = &mut self.list[kept];
                branch.ids.truncate((len - branch.fork) as usize);
                kept += 1;
            }
        }
        self.len = kept;
    }

    /// Chance that the `at`th is right as far as its first token, if each guess of the chain is with `chance`.
    pub fn gain(&self, at: usize, chance: f64) -> f64 {
        // Where rows cost nothing, even a poor branch is tried.
        chance.powi(self.open()[at].fork as i32) * (1.0 - chance) * self.chance.max(0.02)
    }

    /// The chain was right for `accepted` guesses and then wrong; `won`: a branch there was right.
    pub fn observe(&mut self, accepted: u32, won: bool) {
        if self.open().iter().any(|branch| branch.fork == accepted) || won {
            self.chance += NEWEST * (f64::from(u8::from(won)) - self.chance);
        }
    }

    /// Chance of a branch where the chain is wrong.
    pub fn chance(&self) -> f64 {
        self.chance
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn branches_leave_the_chain_and_are_no_longer_than_it() {
        let mut branches = Branches::new(2, 4);
        branches.push(&[1, 2, 3], 1, [7, 8, 9, 9].into_iter());
        assert_eq!((branches.open()[0].ids.as_slice(), branches.open()[0].depth()), (&[7, 8][..], 3));
        branches.push(&[1, 2, 3], 1, [7, 9].into_iter());
        branches.push(&[1, 2, 3], 0, [1].into_iter());
        branches.push(&[1, 2, 3], 3, [4].into_iter());
        assert_eq!(branches.open().len(), 1, "known, the chain itself, behind its end");
        branches.push(&[1, 2, 3], 0, [5].into_iter());
        branches.push(&[1, 2, 3], 2, [5].into_iter());
        assert_eq!(branches.open().len(), 2, "no more room");
        branches.cut(2);
        assert_eq!(branches.open()[0].ids, [7]);
        branches.cut(1);
        assert_eq!((branches.open().len(), branches.open()[0].fork), (1, 0));
        branches.clear();
        assert!(branches.open().is_empty());
    }

    #[test]
    fn what_is_seldom_right_is_worth_little() {
        let mut branches = Branches::new(1, 2);
        branches.push(&[1, 2], 0, [3].into_iter());
        let before = branches.gain(0, 0.5);
        (0..50).for_each(|_| branches.observe(0, false));
        assert!(branches.gain(0, 0.5) < before / 10.0);
        (0..50).for_each(|_| branches.observe(0, true));
        assert!(branches.gain(0, 0.5) > 0.45);
        let known = branches.chance();
        branches.observe(1, false);
        assert_eq!(branches.chance(), known, "there was no branch at that depth");
    }
}
