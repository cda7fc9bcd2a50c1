//! How many tokens the next step may have, from a target time.
//!
//! `--step-time-target-ms` bounds how long a decoding request waits for others' prefill. Two costs are measured as the
//! engine runs: a decode-only step, and each further token of a mixed step. Both are moving averages over steps; a
//! backend's `program_cost` is not asked, because a measured figure includes what it cannot know (host time, noise of
//! this machine). With nobody decoding there is nobody to protect and the budget is open.

/// Moving averages and the target.
#[derive(Clone, Debug)]
pub(super) struct StepBudget {
    /// Fixed target; `None` = twice the decode-only step.
    target_ns: Option<f64>,
    decode_ns: Option<f64>,
    prefill_token_ns: Option<f64>,
}

/// Weight of the newest observation.
const NEWEST: f64 = 0.1;

impl StepBudget {
    pub(super) fn new(target_ms: Option<f64>) -> Self {
        Self { target_ns: target_ms.map(|ms| ms * 1e6), decode_ns: None, prefill_token_ns: None }
    }

    /// Learn from a step of `decode` decoding rows and `prefill` prompt tokens that took `ns`.
    pub(super) fn observe(&mut self, decode: u32, prefill: u32, ns: u64) {
        let ns = ns as f64;
        let blend = |old: &mut Option<f64>, new: f64| *old = Some(old.map_or(new, |o| o + NEWEST * (new - o)));
        match (decode, prefill) {
            (_, 0) => blend(&mut self.decode_ns, ns),
            (0, n) => blend(&mut self.prefill_token_ns, ns / f64::from(n)),
            (_, n) => {
                let rest = ns - self.decode_ns.unwrap_or(0.0);
                blend(&mut self.prefill_token_ns, rest.max(0.0) / f64::from(n));
            }
        }
    }

    /// Tokens of the next step, `decoding` rows included; `u32::MAX` while nothing is known or nobody decodes. The
    /// scheduler raises a small value to one prefix unit, so prefill always moves.
    pub(super) fn tokens(&self, decoding: u32) -> u32 {
        let (Some(decode_ns), Some(token_ns)) = (self.decode_ns, self.prefill_token_ns) else { return u32::MAX };
        if decoding == 0 {
            return u32::MAX;
        }
        let spare = self.target_ns.unwrap_or(2.0 * decode_ns) - decode_ns;
        // A float too large for u32 saturates.
        decoding.saturating_add((spare.max(0.0) / token_ns.max(1.0)) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_fill_the_time_left_by_decoding() {
        let mut b = StepBudget::new(Some(30.0));
        assert_eq!(b.tokens(4), u32::MAX, "nothing measured");
        b.observe(4, 0, 10_000_000);
        b.observe(0, 100, 100_000_000);
        assert_eq!(b.tokens(4), 4 + 20);
        assert_eq!(b.tokens(0), u32::MAX, "nobody to protect");
        let mut b = StepBudget::new(None);
        b.observe(4, 0, 10_000_000);
        b.observe(4, 10, 15_000_000);
        assert_eq!(b.tokens(4), 4 + 20, "twice the decode step");
    }
}
