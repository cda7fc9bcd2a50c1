//! The last steps with all their decisions, in a ring of fixed size.
//!
//! The engine's thread writes it, readers copy from it under a lock that is held for a few steps at a time. Old steps make
//! room for new ones; a reader that comes too late sees a gap in the numbers. Rejected: asking the engine's thread to
//! answer. It answers between steps only, and what one wants to know is often why it does not.

use std::collections::VecDeque;

use super::decision::{Decision, Decisions};

/// Steps kept.
pub const STEPS_MAX: usize = 4096;
/// Decisions kept, over all steps.
pub const DECISIONS_MAX: usize = 1 << 16;

/// A step as it was decided, and how long it took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepRecord {
    /// What was decided. Its list is empty if the ring had to give it up.
    pub decisions: Decisions,
    /// When its results had been taken in; `None` while it runs, or if it failed.
    pub ended_ns: Option<u64>,
}

#[derive(Clone, Debug)]
struct Kept {
    /// Without its list.
    head: Decisions,
    ended_ns: Option<u64>,
    /// Number of its first decision, counted since start.
    first: u64,
    n: u32,
}

/// The ring.
#[derive(Clone, Debug)]
pub struct StepTrace {
    steps: VecDeque<Kept>,
    decisions: Vec<Decision>,
    n_decisions: u64,
    /// Steps and decisions that there is room for.
    room: (usize, usize),
}

impl Default for StepTrace {
    fn default() -> Self {
        Self::new(STEPS_MAX, DECISIONS_MAX)
    }
}

impl StepTrace {
    /// With room for so many steps and decisions.
    pub fn new(n_steps: usize, n_decisions: usize) -> Self {
        let (steps, decisions) = (VecDeque::with_capacity(n_steps), Vec::with_capacity(n_decisions));
        Self { steps, decisions, n_decisions: 0, room: (n_steps, n_decisions) }
    }

    /// A step has been planned. Allocates nothing.
    pub fn planned(&mut self, step: &Decisions) {
        if self.steps.len() == self.room.0 {
            self.steps.pop_front();
        }
        let first = self.n_decisions;
        for decision in &step.list {
            let at = (self.n_decisions % self.room.1 as u64) as usize;
            match self.decisions.get_mut(at) {
                Some(slot) => *slot = *decision,
                None => self.decisions.push(*decision),
            }
            self.n_decisions += 1;
        }
        let head = Decisions { list: Vec::new(), ..*step };
        self.steps.push_back(Kept { head, ended_ns: None, first, n: step.list.len() as u32 });
    }

    /// Its results have been taken in.
    pub fn ended(&mut self, sequence: u64, now_ns: u64) {
        if let Some(kept) = self.steps.iter_mut().rev().find(|kept| kept.head.sequence == sequence) {
            kept.ended_ns = Some(now_ns);
        }
    }

    /// Copy up to `most` steps with numbers above `after`, oldest first.
    pub fn copy(&self, after: u64, most: usize, out: &mut Vec<StepRecord>) {
        let from = self.steps.partition_point(|kept| kept.head.sequence <= after);
        out.extend(self.steps.iter().skip(from).take(most).map(|kept| self.record(kept)));
    }

    /// The number after which exactly `n` steps follow, as far as there are so many.
    pub fn before_last(&self, n: usize) -> u64 {
        let at = self.steps.len().saturating_sub(n);
        self.steps.get(at).map_or(u64::MAX, |kept| kept.head.sequence - 1)
    }

    fn record(&self, kept: &Kept) -> StepRecord {
        let is_kept = kept.first + self.room.1 as u64 >= self.n_decisions;
        let numbers = kept.first..kept.first + if is_kept { u64::from(kept.n) } else { 0 };
        let list = numbers.map(|number| self.decisions[(number % self.room.1 as u64) as usize]).collect();
        StepRecord { decisions: Decisions { list, ..kept.head }, ended_ns: kept.ended_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{request::RequestId, scheduler::decision::What};

    fn step(sequence: u64, n: u32) -> Decisions {
        let decision = |i| Decision {
            id: RequestId(sequence * 1000 + u64::from(i)),
            what: What::Waits(super::super::decision::Why::NoSeat),
        };
        Decisions { sequence, list: (0..n).map(decision).collect(), ..Decisions::default() }
    }

    #[test]
    fn old_steps_make_room_and_lists_stay_right() {
        let mut trace = StepTrace::default();
        assert_eq!(trace.before_last(5), u64::MAX);
        let n_steps = STEPS_MAX as u64 + 100;
        for sequence in 1..=n_steps {
            trace.planned(&step(sequence, (sequence % 50) as u32));
            trace.ended(sequence, sequence * 10);
        }
        let mut copied = Vec::new();
        trace.copy(0, usize::MAX, &mut copied);
        assert_eq!(copied.len(), STEPS_MAX);
        assert_eq!(copied[0].decisions.sequence, 101);
        let mut whole = 0;
        for record in &copied {
            let n = record.decisions.sequence;
            assert_eq!(record.ended_ns, Some(n * 10));
            if !record.decisions.list.is_empty() {
                assert_eq!(record.decisions, step(n, (n % 50) as u32));
                whole += record.decisions.list.len();
            }
        }
        assert!(whole > DECISIONS_MAX - 50 && whole <= DECISIONS_MAX, "{whole} decisions are kept");
        copied.clear();
        trace.copy(trace.before_last(3), 2, &mut copied);
        let numbers: Vec<_> = copied.iter().map(|record| record.decisions.sequence).collect();
        assert_eq!(numbers, [n_steps - 2, n_steps - 1]);
    }
}
