//! Whether a draft model has paid for itself lately.
//!
//! Widths follow expectations: measured costs, measured acceptance. This is the account of what came of them. A turn
//! that drafted or checked guesses is compared with what its tokens would have cost without; losses add up, gains work
//! them off, and while the losses exceed a small share of the time spent, nothing is drafted. So a wrong expectation
//! (costs that changed, a draft that is dear and useless, rests between tries that do not match the text) costs that share
//! and no more. Rejected: trusting the expectation alone; it has no bound.

/// Share of the time that may be lost to guesses that do not pay.
const LOSS_SHARE: f64 = 0.01;
/// Turns without guesses that may be lost beyond that, to find out at all: a draft has a prompt to catch up with.
const START_TURNS: f64 = 3.0;
/// Turns after which half of the past is forgotten, about.
const HALF_LIFE: f64 = 1024.0;

/// The account.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ledger {
    /// Time of all turns lately, in nanoseconds.
    spent_ns: f64,
    /// More than the same tokens would have taken without guesses; at least 0.
    lost_ns: f64,
}

impl Ledger {
    /// A turn took `ns`; `plain_ns` = what its tokens would have taken without guesses, `None` if it had none.
    pub fn turn(&mut self, ns: f64, plain_ns: Option<f64>) {
        let keep = 1.0 - std::f64::consts::LN_2 / HALF_LIFE;
        self.spent_ns = self.spent_ns * keep + ns;
        self.lost_ns = (self.lost_ns * keep + plain_ns.map_or(0.0, |plain| ns - plain)).max(0.0);
    }

    /// Whether guessing may go on; `plain_turn_ns` is a turn without guesses.
    pub fn allows(&self, plain_turn_ns: f64) -> bool {
        self.affords(0.0, plain_turn_ns)
    }

    /// Whether `loss_ns` more may be lost.
    pub fn affords(&self, loss_ns: f64, plain_turn_ns: f64) -> bool {
        self.lost_ns + loss_ns <= LOSS_SHARE * self.spent_ns + START_TURNS * plain_turn_ns
    }

    /// How much more may be lost.
    pub fn room_ns(&self, plain_turn_ns: f64) -> f64 {
        LOSS_SHARE * self.spent_ns + START_TURNS * plain_turn_ns - self.lost_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every turn that may guess does, and loses half a turn.
    #[test]
    fn a_useless_draft_costs_its_share_and_no_more() {
        let (mut ledger, mut ns) = (Ledger::default(), 0.0);
        for turns in 1..=4000 {
            let guesses = ledger.allows(100.0);
            let took = if guesses { 150.0 } else { 100.0 };
            ledger.turn(took, guesses.then_some(100.0));
            ns += took;
            if turns == 400 || turns == 4000 {
                let loss = ns / (f64::from(turns) * 100.0) - 1.0;
                assert!(loss > 0.005 && loss < 0.021, "{turns} turns: {loss}");
            }
        }
    }

    #[test]
    fn gains_work_losses_off() {
        let mut ledger = Ledger::default();
        ledger.turn(1000.0, Some(100.0));
        assert!(!ledger.allows(100.0));
        ledger.turn(100.0, Some(900.0));
        assert!(ledger.allows(100.0));
        (0..100).for_each(|_| ledger.turn(100.0, Some(300.0)));
        ledger.turn(1000.0, Some(100.0));
        assert!(!ledger.allows(100.0), "gains are not saved up");
    }

    #[test]
    fn a_try_has_to_fit_into_what_may_be_lost() {
        let mut ledger = Ledger::default();
        assert!(ledger.affords(300.0, 100.0) && !ledger.affords(301.0, 100.0));
        assert_eq!(ledger.room_ns(100.0), 300.0);
        (0..100).for_each(|_| ledger.turn(100.0, None));
        assert!(ledger.affords(390.0, 100.0) && !ledger.affords(410.0, 100.0));
    }
}
