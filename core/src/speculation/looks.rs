//! Whether prompt lookup pays: when to wait for the newest token to look, and what came of it.
//!
//! Guesses follow the newest token, so a step that may have some is planned only when the one before it has been taken in; one
//! that has none is planned ahead, or runs behind the other, which on a device that is done in a millisecond is worth more than a
//! few lucky guesses. To look costs next to nothing, to wait does. So while a step is in flight everybody's text is looked up
//! as far as it is known ([`Scheduler::rests`](crate::scheduler::plan::Scheduler::rests)): who finds nothing there, or nothing worth
//! its cost, is not waited for. A text that begins to repeat itself goes unguessed for one step. Rejected: looking only when
//! waiting, ever more rarely where nothing is found. On a machine whose steps take 5 ms a third of what could be guessed of a
//! program that is written anew passed while nobody looked.
//!
//! A new request's guesses are as good as others' were. An account holds what steps with guesses took against what their tokens
//! would have cost without ([`Ledger`]): while too much is lost, nobody guesses.

use super::{
    ledger::Ledger,
    width::{Record, StepCost},
};

/// Times its expected cost that a step may count: a machine that was busy with something else is nobody's loss.
const DISTURBED: f64 = 2.0;

/// What became of the guesses of one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Tokens generated.
    pub generated: u64,
    /// Guesses checked.
    pub guesses: u32,
    /// Those held against a sampled token: the others stood behind a wrong one.
    pub tried: u32,
    /// Those that were right.
    pub accepted: u32,
}

/// All requests together.
#[derive(Clone, Copy, Debug, Default)]
pub struct Looks {
    /// Where new requests start.
    pub record: Record,
    ledger: Ledger,
}

impl Looks {
    /// A step of `rows` decoding requests and nothing else, `tokens` in all, took `ns`.
    pub fn checked(&mut self, rows: u32, tokens: u32, checked: Checked, ns: u64, cost: &StepCost) {
        self.record.observe_many(checked.tried, checked.accepted);
        let most_ns = cost.ns(tokens).map_or(f64::INFINITY, |ns| DISTURBED * ns);
        let plain_ns = cost.ns(rows).filter(|_| tokens > rows);
        let without_ns = plain_ns.map(|plain_ns| plain_ns / f64::from(rows) * checked.generated as f64);
        self.ledger.turn((ns as f64).min(most_ns), without_ns);
    }

    /// Whether `rows` requests may guess: not too much was lost so far.
    pub fn may_guess(&self, rows: u32, cost: &StepCost) -> bool {
        self.ledger.allows(cost.ns(rows).unwrap_or(0.0))
    }

    /// Whether one more guess may be lost, to see whether it is right.
    pub fn may_try(&self, rows: u32, cost: &StepCost) -> bool {
        let ns = |n| cost.ns(n).unwrap_or(0.0);
        self.ledger.affords((ns(rows + 1) - ns(rows)).max(0.0), ns(rows))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guesses_that_are_never_right_end() {
        let (mut looks, mut cost) = (Looks::default(), StepCost::default());
        (1..=8).for_each(|n| (0..10).for_each(|_| cost.observe(n, 1_000 * u64::from(n))));
        let (mut n_guessed, mut ns) = (0u64, 0);
        for _ in 0..2_000 {
            let guesses = looks.may_guess(2, &cost);
            n_guessed += u64::from(guesses);
            let checked = Checked { generated: 2, guesses: 4 * u32::from(guesses), tried: 2, accepted: 0 };
            let took = if guesses { 6_000 } else { 2_000 };
            ns += took;
            looks.checked(2, 2 + checked.guesses, checked, took, &cost);
        }
        assert!(n_guessed > 0 && ns * 100 < 2_000 * 2_000 * 103, "{n_guessed} steps with guesses, {ns} ns");
        assert!(looks.record.chance() < 0.01, "a new request expects nothing");
        assert!(!looks.may_guess(2, &cost) || looks.may_try(2, &cost));
    }

    #[test]
    fn guesses_that_are_right_go_on() {
        let (mut looks, mut cost) = (Looks::default(), StepCost::default());
        (1..=8).for_each(|n| (0..10).for_each(|_| cost.observe(n, 1_000 + 500 * u64::from(n))));
        for _ in 0..200 {
            assert!(looks.may_guess(1, &cost) && looks.may_try(1, &cost));
            looks.checked(1, 5, Checked { generated: 4, guesses: 4, tried: 4, accepted: 3 }, 3_500, &cost);
        }
    }
}
