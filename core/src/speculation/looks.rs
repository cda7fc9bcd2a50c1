//! When to look for guesses at all.
//!
//! A look-up needs the newest token, so a step in which requests may guess is planned only when the one before it has been taken
//! in: on a device that is done in a millisecond, what is planned ahead (or run behind) otherwise is worth more than a few lucky
//! guesses. So where looks find little, nobody looks for some steps, and these are planned as if there were no speculation. All
//! requests look again at once, for a step planned ahead is so for all; after eight steps at most, since a text may
//! begin to repeat itself at any time. Rejected: each request's rests for itself. With many of them some look is always due.

/// Weight of the newest look.
const NEWEST: f64 = 0.2;
/// Steps between two looks, at most: so many of a text that repeats itself may go unguessed.
const LONGEST_REST: u32 = 8;
/// A chance below this is none: costs are not known so well.
const SLIGHT: f64 = 0.05;

/// Share of one request's looks that found something; of none so far, what others' found.
#[derive(Clone, Copy, Debug, Default)]
pub struct Finds(Option<f64>);

impl Finds {
    /// A look found something, or nothing.
    pub fn observe(&mut self, has_found: bool) {
        let found = f64::from(u8::from(has_found));
        self.0 = Some(self.0.map_or(found, |known| known + NEWEST * (found - known)));
    }
}

/// All requests' looks.
#[derive(Clone, Copy, Debug)]
pub struct Looks {
    /// Share of the requests that found something.
    found: f64,
    /// Steps until the next look while none is expected to pay.
    rest: u32,
    /// Length of that rest, doubled by each look that gave nothing to check.
    patience: u32,
}

impl Default for Looks {
    fn default() -> Self {
        Self { found: 1.0, rest: 0, patience: 1 }
    }
}

impl Looks {
    /// Of `n` requests that looked, `found` found something, and there is something to check.
    pub fn looked(&mut self, n: u32, found: u32, checks: bool) {
        if n > 0 {
            self.found += NEWEST * (f64::from(found) / f64::from(n) - self.found);
            self.patience = if checks { 1 } else { (self.patience * 2).min(LONGEST_REST) };
            self.rest = self.patience;
        }
    }

    /// Chance that a request finds something and is right about it, if what it finds is right with `chance`.
    pub fn chance(&self, finds: &Finds, chance: f64) -> f64 {
        let chance = finds.0.unwrap_or(self.found) * chance;
        if chance < SLIGHT { 0.0 } else { chance }
    }

    /// No look is expected to pay: whether the next step does without all the same.
    pub fn rests(&mut self) -> bool {
        let rests = self.rest > 0;
        self.rest -= u32::from(rests);
        rests
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_in_vain_grow_rare() {
        let mut looks = Looks::default();
        let mut finds = Finds::default();
        assert_eq!(looks.chance(&finds, 0.7), 0.7, "hopeful at first");
        let mut n_looks = 0;
        for _ in 0..400 {
            if !looks.rests() {
                n_looks += 1;
                finds.observe(false);
                looks.looked(3, 0, false);
            }
        }
        assert!((44..=52).contains(&n_looks), "{n_looks} of 400");
        assert_eq!(looks.chance(&Finds::default(), 0.7), 0.0, "others' chances are a new one's");
        (0..10).for_each(|_| finds.observe(true));
        assert!(looks.chance(&finds, 0.7) > 0.5);
        looks.looked(3, 1, true);
        assert_eq!((looks.rests(), looks.rests()), (true, false), "soon again");
    }
}
