//! Whether all memory is accounted for, looked at again and again while the engine serves.
//!
//! A page that is lost or held twice shows long after it went wrong, as a request that waits for ever or as another's text. So
//! the engine's thread adds up pages, rows, state slots and reference counts (`EngineState::check_conservation`) when nothing
//! runs or waits, and every thousand steps. A violation ends the engine, by a panic with the figures in its message: every
//! request hears it, `health` says it, and a supervisor starts afresh. Going on would mean answering from memory of which
//! nobody knows whose it is.
//!
//! The check is O(pool). While requests run it is made only if the one before took no longer than [`BESIDE_STEPS_NS`], a
//! fraction of a step; a larger pool is checked when idle, where it delays whoever comes in just then, and so takes at
//! most a thousandth of the time. `docs/performance.md` has what it costs. After the first check, at start, nothing is allocated.

use crate::{cache::tally::Tally, engine::EngineState};

/// Steps from one check to the next.
const STEPS: u64 = 1000;
/// Longest check that may be made while requests run.
const BESIDE_STEPS_NS: u64 = 1_000_000;
/// Time from one check to the next when idle, at least.
const IDLE_NS: u64 = 1_000_000_000;
/// And this many times what the last one took.
const IDLE_TIMES: u64 = 1000;

/// When the account was made last, and what that took.
#[derive(Debug, Default)]
pub(super) struct Audit {
    tally: Tally,
    last: Option<Last>,
}

#[derive(Clone, Copy, Debug)]
struct Last {
    steps: u64,
    ended_ns: u64,
    took_ns: u64,
}

impl Last {
    /// Whether it is time for another one.
    fn is_over(self, is_idle: bool, steps: u64, now_ns: u64) -> bool {
        let n_steps = steps.saturating_sub(self.steps);
        if is_idle {
            let rest_ns = self.took_ns.saturating_mul(IDLE_TIMES).max(IDLE_NS);
            return n_steps > 0 && now_ns.saturating_sub(self.ended_ns) >= rest_ns;
        }
        n_steps >= STEPS && self.took_ns <= BESIDE_STEPS_NS
    }
}

impl Audit {
    /// Check if it is time, after so many steps.
    ///
    /// # Panics
    /// If something is not accounted for.
    pub(super) fn look(&mut self, state: &EngineState, steps: u64, now_ns: impl Fn() -> u64) {
        let began_ns = now_ns();
        if self.last.is_some_and(|last| !last.is_over(state.is_idle(), steps, began_ns)) {
            return;
        }
        if let Err(why) = state.check_conservation_in(&mut self.tally) {
            panic!("memory is not accounted for, so nothing more is answered: {why} (after {steps} steps)");
        }
        let ended_ns = now_ns();
        self.last = Some(Last { steps, ended_ns, took_ns: ended_ns - began_ns });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_often_beside_steps_seldom_and_never_for_long() {
        const MS: u64 = 1_000_000;
        let last = |took_ns| Last { steps: 5000, ended_ns: 7000 * MS, took_ns };
        let idle = |took_ns, steps, ms: u64| last(took_ns).is_over(true, steps, ms * MS);
        let busy = |took_ns, steps| last(took_ns).is_over(false, steps, 7001 * MS);
        assert_eq!([idle(MS, 5001, 7999), idle(MS, 5001, 8000), idle(MS, 5000, 9000)], [false, true, false]);
        assert_eq!(
            [idle(20 * MS, 9000, 26_999), idle(20 * MS, 9000, 27_000)],
            [false, true],
            "a thousandth of the time"
        );
        assert_eq!([busy(MS, 5999), busy(MS, 6000), busy(MS + 1, 60_000)], [false, true, false]);
    }
}
