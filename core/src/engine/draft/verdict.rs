//! Whether anything is drafted before the next turn, and how far for whom.
//!
//! Judging changes nothing but the lanes' widths; what follows from a verdict for the next ones is a second step
//! ([`Drafting::conclude`]). So a verdict can be asked for while a turn is in flight, to be dropped if it says that guesses
//! pay: the texts they would follow are not known yet, and the same is judged again when they are. If it says that none do, the
//! next turn can be planned ahead as if there were no draft model, and deciding cost nothing that anybody waited for: a
//! draft that does not pay costs its tries, not 50 µs of every turn.

use super::*;
use crate::speculation::width;

/// Turns that are not drafted for, so that the cost of a turn without guesses becomes known.
const PATIENCE: u32 = 3;
/// Chance from which on a guess is made while costs are not known.
const LIKELY: f64 = 0.4;

/// What is to be done before the next turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The warm-up's next turn, with or without guesses.
    WarmUp,
    /// No guesses: what a turn without them costs is not known yet.
    Unknown,
    /// No guesses: what a turn without them costs is to be measured again.
    Measure,
    /// No guesses: too much has been lost to them.
    Barred,
    /// No guesses: none would pay.
    Rest,
    /// None would pay, but it is time to see whether one is right, where that can be afforded.
    Try,
    /// Some pay, unless their text lags too far behind.
    Guess,
}

impl Drafting {
    /// Make a lane, and an offer, of every request that `is_open`.
    pub(super) fn open_lanes(
        &mut self,
        queues: &mut Queues,
        memory: &Memory,
        limits: &StepLimits,
        is_open: impl Fn(&Running) -> bool,
    ) {
        self.lanes.clear();
        self.offers.clear();
        for (at, running) in queues.running.iter_mut().enumerate() {
            let Some(running) = running.as_mut().filter(|running| is_open(running)) else { continue };
            let len = Outlook::of(running).len;
            let (body, active) = running.parts_mut();
            active.recheck_drafted(memory);
            body.drafts.record.start_like(&self.record);
            let offered = limits.guesses_max(body, active, memory);
            self.offers.push(Offer { chance: body.drafts.record.chance(), offered, width: 0 });
            self.lanes.push(Lane { id: body.id, at, len, end: active.drafted, width: 0, logit_row: None });
        }
    }

    /// Decide, while a turn without guesses is in flight, that nothing is drafted behind it; false, and nothing is decided, if
    /// something may be.
    pub(super) fn rests(&mut self, queues: &mut Queues, memory: &Memory, limits: &StepLimits, cost: &StepCost) -> bool {
        assert!(!self.is_resting, "decided once a turn");
        self.open_lanes(queues, memory, limits, |running| Outlook::of(running).generates());
        if self.lanes.is_empty() {
            return true;
        }
        let verdict = self.judge(queues, limits, self.lanes.len() as u32, cost);
        self.is_resting = matches!(verdict, Verdict::Unknown | Verdict::Measure | Verdict::Barred | Verdict::Rest);
        if self.is_resting {
            self.conclude(verdict);
        }
        self.is_resting
    }

    /// Set the widths of the `n` lanes, from their offers.
    pub(super) fn judge(&mut self, queues: &Queues, limits: &StepLimits, n: u32, cost: &StepCost) -> Verdict {
        if let Some(turns) = self.warming {
            // Without guesses twice, with all, with one each.
            let most = [0, 0, DRAFT_MAX, 1][turns as usize % 4];
            self.offers.iter_mut().for_each(|offer| offer.width = offer.offered.min(most));
            self.take_widths(queues, n, None);
            return Verdict::WarmUp;
        }
        let total = limits.guesses_of_all(n);
        let Some(plain_ns) = self.plain.near(n) else {
            if self.n_unmeasured < PATIENCE {
                return Verdict::Unknown;
            }
            // Nothing but mixed turns: expectations have no ground, acceptance has.
            width::choose(&mut self.offers, total, cost, 0.0);
            self.offers.iter_mut().filter(|offer| offer.chance < LIKELY).for_each(|offer| offer.width = 0);
            return self.judge_widths(queues, n, cost, None);
        };
        self.n_unmeasured = 0;
        if self.n_drafted >= self.remeasure {
            return Verdict::Measure;
        }
        if !self.ledger.allows(plain_ns) {
            return Verdict::Barred;
        }
        let rate = self.choose(plain_ns, total, n, cost);
        self.judge_widths(queues, n, cost, Some((plain_ns, rate)))
    }

    /// Set the offers' widths to those that pay; returns the expected tokens per nanosecond.
    fn choose(&mut self, plain_ns: f64, total: u32, n: u32, cost: &StepCost) -> f64 {
        let lag = self.lanes.iter().map(|lane| lane.len - lane.end).filter(|lag| *lag <= BEHIND).max().unwrap_or(1);
        let mut depths = [0u32; DRAFT_MAX as usize + 1];
        let mut draft_ns = 0.0;
        let (first, next) = (&self.first, &self.next);
        width::choose_by(&mut self.offers, total, |guesses, depth| {
            if depth > 0 {
                let (costs, per) = if depth == 1 { (first, lag) } else { (next, 1) };
                let rows = &mut depths[depth as usize];
                let before = if *rows == 0 { 0.0 } else { costs.ns(*rows * per).unwrap_or(0.0) };
                *rows += 1;
                draft_ns += costs.ns(*rows * per).unwrap_or(0.0) - before;
            }
            let turn_ns = if guesses == 0 { plain_ns } else { cost.ns(n + guesses).unwrap_or(plain_ns).max(plain_ns) };
            turn_ns + draft_ns
        })
    }

    /// The verdict on offers whose widths are those that pay. `rates`: a turn without guesses in nanoseconds, and tokens per
    /// nanosecond with them, if known.
    fn judge_widths(&mut self, queues: &Queues, n: u32, cost: &StepCost, rates: Option<(f64, f64)>) -> Verdict {
        if self.offers.iter().any(|offer| offer.width > 0) {
            self.take_widths(queues, n, rates);
            return Verdict::Guess;
        }
        if !self.record.is_rested() {
            return Verdict::Rest;
        }
        // One guess where it costs least, if it is not too dear even there.
        let open = self.lanes.iter_mut().zip(&self.offers).filter(|(_, offer)| offer.offered > 0);
        if let Some((lane, _)) = open.min_by_key(|(lane, _)| lane.len - lane.end) {
            let (lag, plain_ns) = (lane.len - lane.end, rates.map_or(0.0, |(plain_ns, _)| plain_ns));
            let catch_up_ns = self.token_ns.filter(|_| lag > BEHIND).map(|token_ns| token_ns * f64::from(lag));
            let draft_ns = catch_up_ns.or(self.first.ns(lag)).unwrap_or(0.0);
            let more_ns = cost.ns(n + 1).map_or(0.0, |ns| ns - plain_ns).max(0.0);
            lane.width = u32::from(rates.is_none() || self.ledger.affords(draft_ns + more_ns, plain_ns));
        }
        Verdict::Try
    }

    /// From the offers, but nobody is caught up with in vain.
    fn take_widths(&mut self, queues: &Queues, n: u32, rates: Option<(f64, f64)>) {
        for (lane, offer) in self.lanes.iter_mut().zip(&self.offers) {
            lane.width = offer.width;
            let lag = lane.len - lane.end;
            if let (Some((plain_ns, rate)), Some(token_ns), true) = (rates, self.token_ns, lag > BEHIND) {
                let body = queues.running[lane.at].as_ref().expect("present").parts().0;
                // As many tokens are expected to come as came already.
                let to_come = (body.max_len - body.len()).min(BEHIND + body.n_generated());
                let saved_ns = plain_ns / f64::from(n) - 1.0 / rate;
                if f64::from(to_come) * saved_ns < f64::from(lag) * token_ns {
                    lane.width = 0;
                }
            }
        }
    }

    /// A verdict holds for the next turn.
    pub(super) fn conclude(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::WarmUp => self.warming = self.warming.map(|turns| turns + 1),
            Verdict::Unknown => self.n_unmeasured += 1,
            Verdict::Measure => (self.n_drafted, self.remeasure) = (0, (self.remeasure * 2).min(REMEASURE[1])),
            Verdict::Barred => {}
            Verdict::Rest => self.record.rest_on(),
            Verdict::Try => self.record.made(false),
            Verdict::Guess => self.record.made(true),
        }
    }
}
