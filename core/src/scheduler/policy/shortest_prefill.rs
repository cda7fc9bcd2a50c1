//! Fewest prompt tokens left first: the order with the least mean time to first token.
//!
//! What remains counts, not the prompt: a long conversation that the cache knows is a short prefill. Long ones would
//! starve under a stream of short ones, so whoever was overtaken often enough goes first from then on. Rejected: ageing
//! that shrinks the remaining tokens a little per step. It bounds nothing that can be told to a user.

use super::{Policy, Prefill};
use crate::bug::seeded;

/// Fewest remaining tokens first, with a bound on being overtaken.
#[derive(Clone, Copy, Debug)]
pub struct ShortestPrefill {
    /// From so many steps of being overtaken on, order of arrival counts.
    pub overtaken_steps_max: u32,
}

impl Policy for ShortestPrefill {
    fn name(&self) -> &'static str {
        "shortest-prefill"
    }

    fn place(&self, prefill: &Prefill) -> u64 {
        let remaining = if seeded!(LongestPrefillGoesFirst) { !prefill.remaining } else { prefill.remaining };
        let is_aged = prefill.overtaken_steps >= self.overtaken_steps_max && !seeded!(OvertakenForEver);
        if is_aged { 0 } else { 1 + u64::from(remaining) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_goes_first_until_the_long_one_has_waited_enough() {
        let policy = ShortestPrefill { overtaken_steps_max: 3 };
        let place = |remaining, overtaken_steps| policy.place(&Prefill { remaining, overtaken_steps });
        assert!(place(10, 0) < place(11, 0));
        assert!(place(10, 0) < place(11, 2));
        assert!(place(1, 0) > place(100_000, 3));
        assert_eq!(place(5, 3), place(100_000, 4), "among those, order of arrival counts");
    }
}
