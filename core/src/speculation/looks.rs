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
/// Plans that wait for a plain step to be measured. Under prompts without end there is none; then guesses begin without.
const PATIENCE: u32 = 8;

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
    /// Plans in a row without guesses so that a plain step can be measured.
    n_waited: u32,
}

impl Looks {
    /// A step of `rows` decoding requests and nothing else, `tokens` in all, took `ns`.
    pub fn checked(&mut self, rows: u32, tokens: u32, checked: Checked, ns: u64, cost: &StepCost) {
        self.record.observe_many(checked.tried, checked.accepted);
        let plain_ns = cost.ns(rows).filter(|_| tokens > rows);
        // Of a width that was never measured before, this step is all that is known.
        let first_ns = if plain_ns.is_some() { cost.most_ns(tokens) } else { f64::INFINITY };
        let most_ns = cost.ns(tokens).map_or(f64::INFINITY, |ns| DISTURBED * ns).min(first_ns);
        let without_ns = plain_ns.map(|plain_ns| plain_ns / f64::from(rows) * checked.generated as f64);
        self.ledger.turn((ns as f64).min(most_ns), without_ns);
    }

    /// Whether `rows` requests are to guess nothing in the next step, so that it shows what a step without guesses takes. Only where the
    /// backend forecasts costs, see [`StepCost::can_compare`].
    fn waits(&self, rows: u32, cost: &StepCost) -> bool {
        !cost.can_compare(rows) && self.n_waited < PATIENCE
    }

    /// It was decided whether `rows` requests guess.
    pub fn planned(&mut self, rows: u32, cost: &StepCost) {
        match rows {
            0 => {}
            _ if cost.can_compare(rows) => self.n_waited = 0,
            _ => self.n_waited = self.n_waited.saturating_add(1),
        }
    }

    /// Whether `rows` requests may guess: not too much was lost so far, and there is something to hold it against.
    pub fn may_guess(&self, rows: u32, cost: &StepCost) -> bool {
        !self.waits(rows, cost) && self.ledger.allows(cost.ns(rows).unwrap_or(0.0))
    }

    /// How much more may be lost to guesses of `rows` requests.
    pub fn room_ns(&self, rows: u32, cost: &StepCost) -> f64 {
        self.ledger.room_ns(cost.ns(rows).unwrap_or(0.0))
    }

    /// Whether one more guess may be lost, to see whether it is right.
    pub fn may_try(&self, rows: u32, cost: &StepCost) -> bool {
        let ns = |n| cost.ns(n).unwrap_or(0.0);
        !self.waits(rows, cost) && self.ledger.affords((ns(rows + 1) - ns(rows)).max(0.0), ns(rows))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::speculation::width::{Offer, choose};

    /// One request is answered for `turns`, planned as the scheduler plans: time with guesses, and what its tokens take
    /// without. Of its guesses every `right`th is wrong and all behind it; 1 = none is ever right.
    fn answer(true_ns: impl Fn(u32) -> u64, forecast: Option<&[u64]>, right: u32, turns: u32) -> (f64, f64) {
        let (mut looks, mut record, mut cost) = (Looks::default(), Record::default(), StepCost::default());
        if let Some(forecast) = forecast {
            cost.expect(forecast);
        }
        let (mut with_ns, mut without_ns, mut n_right) = (0u64, 0u64, 0);
        for _ in 0..turns {
            let mut offers = [Offer { chance: record.chance(), offered: 12, width: 0 }];
            choose(&mut offers, 64, &cost, looks.room_ns(1, &cost));
            let may_try = looks.may_try(1, &cost);
            let mut guesses = offers[0].width * u32::from(looks.may_guess(1, &cost));
            looks.planned(1, &cost);
            if guesses == 0 && record.is_due(may_try) {
                guesses = 1;
            }
            let mut accepted = 0;
            while accepted < guesses && (n_right + 1) % right != 0 {
                (n_right, accepted) = (n_right + 1, accepted + 1);
            }
            n_right += u32::from(accepted < guesses);
            let ns = true_ns(1 + guesses);
            match guesses {
                0 => cost.observe_plain(1, ns),
                _ => cost.observe(1 + guesses, ns),
            }
            if guesses > 0 {
                record.observe(guesses, accepted);
            }
            let checked =
                Checked { generated: u64::from(accepted) + 1, guesses, tried: (accepted + 1).min(guesses), accepted };
            looks.checked(1, 1 + guesses, checked, ns, &cost);
            with_ns += ns;
            without_ns += checked.generated * true_ns(1);
        }
        (with_ns as f64, without_ns as f64)
    }

    /// Steps of a machine: rows are free, every row costs as much as a step, or something between.
    const MACHINES: [fn(u32) -> u64; 3] = [|_| 10_000, |n| 10_000 * n as u64, |n| 10_000 + 1_500 * (n as u64 - 1)];

    #[test]
    fn a_wrong_forecast_loses_no_more_than_the_account_allows() {
        for (machine, true_ns) in MACHINES.into_iter().enumerate() {
            // Thrice too much or too little for wide steps, or for narrow ones, or for every other width.
            let wrong: [fn(u32) -> f64; 5] = [
                |n| if n > 1 { 3.0 } else { 1.0 },
                |n| if n > 1 { 1.0 / 3.0 } else { 1.0 },
                |n| 3f64.powf(1.0 - 2.0 * f64::from(n.min(13)) / 13.0),
                |n| 3f64.powf(2.0 * f64::from(n.min(13)) / 13.0 - 1.0),
                |n| if n % 2 == 0 { 3.0 } else { 1.0 / 3.0 },
            ];
            for (which, wrong) in wrong.into_iter().enumerate() {
                let forecast: Vec<u64> = (1..=128).map(|n| (true_ns(n) as f64 * wrong(n)) as u64).collect();
                for turns in [20, 200, 4_000] {
                    let (with, without) = answer(true_ns, Some(&forecast), 1, turns);
                    // As `ledger.rs` states it: three turns, a hundredth of the time, and the last try's own cost.
                    let allowed = 3.0 * 10_000.0 + 0.011 * with + 10_000.0;
                    assert!(with - without <= allowed, "{machine} {which} {turns}: {with} against {without}");
                }
            }
        }
    }

    #[test]
    fn nobody_waits_for_a_plain_step_that_does_not_come() {
        let (mut looks, mut cost) = (Looks::default(), StepCost::default());
        assert!(!looks.waits(1, &cost) && looks.may_try(1, &cost), "without a forecast guesses begin at once");
        cost.expect(&[10_000, 10_000]);
        for _ in 0..PATIENCE {
            assert!(!looks.may_guess(1, &cost) && !looks.may_try(1, &cost));
            looks.planned(1, &cost);
            looks.planned(0, &cost);
        }
        assert!(!looks.waits(1, &cost) && looks.may_try(1, &cost), "nothing but mixed steps");
        cost.observe_plain(1, 5_000);
        looks.planned(1, &cost);
        assert!(!looks.waits(1, &cost) && looks.waits(4, &cost), "of four rows nothing is known again");
    }

    #[test]
    fn a_wrong_forecast_keeps_nobody_from_gaining_for_long() {
        for (machine, times) in [(0, 3.0), (0, 1.0 / 3.0), (2, 3.0), (2, 1.0 / 3.0)] {
            let true_ns = MACHINES[machine];
            let wrong = |n| true_ns(n) as f64 * if n > 1 { times } else { 1.0 };
            let forecast: Vec<u64> = (1..=128).map(|n| wrong(n) as u64).collect();
            let gain = |forecast| {
                let (with, without) = answer(true_ns, forecast, 50, 500);
                without / with
            };
            let (tried, told) = (gain(None), gain(Some(&forecast[..])));
            assert!(tried > 1.5 && told > 0.9 * tried, "{machine} {times}: {told}, {tried} without a forecast");
        }
    }

    #[test]
    fn a_good_forecast_needs_no_doubling() {
        let flat: Vec<u64> = (1..=128).map(MACHINES[0]).collect();
        let [tried, told] = [None, Some(&flat[..])].map(|forecast| {
            let (with, without) = answer(MACHINES[0], forecast, u32::MAX, 3);
            without / with
        });
        assert!(told > 1.5 * tried, "three turns: {told} tokens a turn, {tried} found out by doubling");
        let dear: Vec<u64> = (1..=128).map(MACHINES[1]).collect();
        let [tried, told] = [None, Some(&dear[..])].map(|forecast| {
            let (with, without) = answer(MACHINES[1], forecast, 1, 20);
            with - without
        });
        assert!(told < tried, "{told} ns lost to guesses that are known to be dear, {tried} when it was found out");
    }

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
    fn one_disturbed_try_does_not_end_guessing() {
        let (mut looks, mut cost) = (Looks::default(), StepCost::default());
        (0..10).for_each(|_| cost.observe_plain(1, 1_000));
        // The machine did something else for fifty turns.
        cost.observe(2, 50_000);
        looks.checked(1, 2, Checked { generated: 1, guesses: 1, tried: 1, accepted: 0 }, 50_000, &cost);
        let plain = Checked { generated: 1, ..Checked::default() };
        let turns = (0..1_000).take_while(|_| {
            looks.checked(1, 1, plain, 1_000, &cost);
            !looks.may_try(1, &cost)
        });
        assert!(turns.count() < 200);
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
