//! How many tokens the next step may have, from a target time.
//!
//! `--step-time-target-ms` bounds how long a decoding request waits for others' prefill. What steps cost is measured as the
//! engine runs (see [`super::cost`]), because a measured figure includes what a backend's forecast cannot know (host time, noise
//! of this machine). With nobody decoding there is nobody to protect and the budget is open.
//! Otherwise it begins with one prefix unit and grows at most twofold from step to step, so that a wrong idea of what
//! prompt tokens cost is corrected before it costs much. Steps that are all alike do not tell what part of them is decoding;
//! now and then, under prompts without end, a step has one prefix unit only.
//!
//! A backend's forecast ([`super::forecast`]) says what a prompt token costs against a decode-only step, which is enough to begin
//! with: once one step has shown what decoding takes, half of the tokens that the forecast allows may be tried at once, before any
//! prompt was measured, and the growth begins there. As soon as prompt tokens were measured they decide, whatever the
//! forecast says. Half, because a forecast that is wrong by two must still keep the target. Refusals never go by it.

use super::cost::{Cost, CostFit};

/// What is known, and the target.
#[derive(Clone, Debug)]
pub struct StepBudget {
    /// Fixed target; `None` = twice the decode-only step.
    target_ns: Option<f64>,
    fit: CostFit,
    /// The backend's idea; its ratios count.
    forecast: Option<Cost>,
    /// Most prompt tokens beside decoding ones so far.
    widest: u32,
    /// Steps in which somebody decoded and little else was done.
    narrow: u32,
    /// Steps in which somebody decodes since the last of those.
    since_narrow: u32,
}

/// Prompt tokens that may be tried whatever was seen.
const FIRST: u32 = 64;
/// A step in so many shows what decoding alone takes.
const NARROW_EVERY: u32 = 32;
/// So many at first, before anything else is tried; with a forecast one will do.
const NARROW_FIRST: u32 = 4;
/// Share of the tokens that the forecast allows that are tried on trust.
const TRUSTED: f64 = 0.5;

impl StepBudget {
    /// Aim at steps of `target_ms`; `None`: twice a step that only decodes.
    pub fn new(target_ms: Option<f64>) -> Self {
        let target_ns = target_ms.map(|ms| ms * 1e6);
        Self { target_ns, fit: CostFit::default(), forecast: None, widest: 0, narrow: 0, since_narrow: 0 }
    }

    /// The backend's forecast; `None` if it has none.
    pub fn expect(&mut self, forecast: Option<Cost>) {
        self.forecast = forecast;
    }

    /// Learn from a step of `decode` decoding rows and `prefill` prompt tokens that took `ns`.
    pub fn observe(&mut self, decode: u32, prefill: u32, ns: u64) {
        self.fit.observe(decode, prefill, ns);
        if decode > 0 {
            self.widest = self.widest.max(prefill);
            if prefill <= FIRST {
                (self.narrow, self.since_narrow) = (self.narrow.saturating_add(1), 0);
            } else {
                self.since_narrow += 1;
            }
        }
    }

    /// Prompt tokens of so many nanoseconds each that reach the target beside `decoding` rows.
    fn prefill_tokens(&self, cost: &Cost, token_ns: f64, decoding: u32) -> f64 {
        let decode_ns = cost.ns(decoding, 0.0);
        let spare = self.target_ns.unwrap_or(2.0 * decode_ns) - decode_ns;
        spare.max(0.0) / token_ns.max(1.0)
    }

    /// Tokens of the next step, `decoding` rows included; `u32::MAX` while nobody decodes. The scheduler raises a small
    /// value to one prefix unit, so prefill always moves.
    pub fn tokens(&self, decoding: u32) -> u32 {
        if decoding == 0 {
            return u32::MAX;
        }
        let Some(cost) = self.fit.cost().filter(|_| self.narrow > 0) else { return decoding };
        let measured_ns = Some(cost.token_ns).filter(|_| self.fit.knows_prefill());
        // The forecast's ratio of a token to a decode-only step, and what that was measured to take.
        let trusted = self.forecast.map(|forecast| {
            let times = cost.ns(decoding, 0.0) / forecast.ns(decoding, 0.0).max(1.0);
            TRUSTED * self.prefill_tokens(&cost, forecast.token_ns * times, decoding)
        });
        let narrow_first = if trusted.is_some() { 1 } else { NARROW_FIRST };
        if self.narrow < narrow_first || self.since_narrow >= NARROW_EVERY {
            return decoding;
        }
        let most = f64::from(self.widest.saturating_mul(2).max(FIRST)).max(trusted.unwrap_or(0.0));
        let tokens = match (measured_ns, trusted) {
            (Some(token_ns), _) => self.prefill_tokens(&cost, token_ns, decoding),
            (None, Some(trusted)) => trusted,
            (None, None) => return decoding,
        };
        // A fit is not exact: 19.999 are 20. A float too large for u32 saturates.
        decoding.saturating_add((tokens.min(most) + 0.01) as u32)
    }

    /// Prompt tokens per second while `decoding` requests decode; `None` before any was computed. `unit`: the least that
    /// a step computes, `cap`: the most.
    pub fn prefill_rate(&self, decoding: u32, unit: u32, cap: u32) -> Option<f64> {
        let cost = self.fit.cost().filter(|_| self.fit.knows_prefill())?;
        let (unit, cap) = (f64::from(unit.max(1)), f64::from(cap.max(unit).max(1)));
        let tokens =
            if decoding == 0 { cap } else { self.prefill_tokens(&cost, cost.token_ns, decoding).clamp(unit, cap) };
        Some(tokens / cost.ns(decoding, tokens).max(1.0) * 1e9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_fill_the_time_left_by_decoding() {
        let mut b = StepBudget::new(Some(30.0));
        assert_eq!(b.tokens(4), 4, "nothing measured: one prefix unit");
        assert_eq!(b.tokens(0), u32::MAX, "nobody to protect");
        b.observe(4, 0, 10_000_000);
        assert_eq!(b.tokens(4), 4);
        (0..3).for_each(|_| b.observe(4, 10, 20_000_000));
        assert_eq!(b.tokens(4), 4 + 20);
        let mut b = StepBudget::new(None);
        b.observe(4, 0, 10_000_000);
        (0..3).for_each(|_| b.observe(4, 10, 15_000_000));
        assert_eq!(b.tokens(4), 4 + 20, "twice the decode step");
    }

    #[test]
    fn the_budget_grows_step_by_step() {
        let mut b = StepBudget::new(Some(1000.0));
        b.observe(1, 0, 1_000_000);
        (0..3).for_each(|_| b.observe(1, 16, 1_001_000));
        assert_eq!(b.tokens(1), 1 + 64, "not the million tokens that the figures so far allow");
        b.observe(1, 64, 1_004_000);
        assert_eq!(b.tokens(1), 1 + 128);
    }

    #[test]
    fn a_forecast_says_where_growth_begins() {
        let forecast = Cost { fixed_ns: 1e6, row_ns: 1e4, token_ns: 1e3 };
        let told = |times: f64| {
            let mut b = StepBudget::new(None);
            b.expect(Some(Cost { token_ns: times * forecast.token_ns, ..forecast }));
            b
        };
        let mut b = told(1.0);
        assert_eq!(b.tokens(4), 4, "what decoding takes here is not known yet: one prefix unit");
        assert_eq!(b.tokens(0), u32::MAX);
        // This machine takes ten times as long as the forecast says, for whatever it does.
        b.observe(4, 0, 10_400_000);
        assert_eq!(b.tokens(4), 4 + 520, "half of the 1,040 tokens that take as long as decoding");
        b.observe(4, 520, 10_400_000 + 520 * 10_000);
        assert_eq!(b.tokens(4), 4 + 1040);
        assert_eq!(told(1.0).prefill_rate(4, 64, 8192), None, "nobody is refused on a forecast");
        // Wrong by three: one step too long, or one too short, and what is measured decides.
        let mut b = told(1.0 / 3.0);
        b.observe(4, 0, 10_400_000);
        assert_eq!(b.tokens(4), 4 + 1560);
        b.observe(4, 1560, 10_400_000 + 1560 * 10_000);
        assert!((4 + 1030..4 + 1050).contains(&b.tokens(4)), "{}", b.tokens(4));
        let mut b = told(3.0);
        b.observe(4, 0, 10_400_000);
        assert_eq!(b.tokens(4), 4 + 173);
        b.observe(4, 173, 10_400_000 + 173 * 10_000);
        assert_eq!(b.tokens(4), 4 + 346, "twice as many from step to step");
    }

    #[test]
    fn prompts_without_end_do_not_hide_what_decoding_takes() {
        let mut b = StepBudget::new(None);
        let mut longest = 0;
        for i in 0..2000u64 {
            let prefill = b.tokens(16).min(16 + 8192) - 16;
            let prefill = prefill.max(64);
            let ns = 12_000_000 + 16 * 100_000 + u64::from(prefill) * 20_000;
            let noise = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54;
            b.observe(16, prefill, ns + ns / 30 * noise / 1024);
            longest = longest.max(ns);
        }
        assert!(longest < 2 * 13_600_000 * 12 / 10, "{longest} ns, twice the decode step is 27.2 ms");
    }

    #[test]
    fn rate_counts_what_decoding_takes() {
        let mut b = StepBudget::new(Some(20.0));
        assert_eq!(b.prefill_rate(0, 64, 8192), None);
        b.observe(4, 0, 10_000_000);
        b.observe(4, 1000, 20_000_000);
        let rate = b.prefill_rate(4, 64, 8192).unwrap();
        assert!((rate - 50_000.0).abs() < 10.0, "1000 tokens in 20 ms: {rate}");
        assert!(b.prefill_rate(0, 64, 8192).unwrap() > 80_000.0, "nobody else to wait for");
    }
}
