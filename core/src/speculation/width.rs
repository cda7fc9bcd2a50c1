//! How many guesses to check: as many as pay for themselves.
//!
//! The cost of a step is measured by its number of decoded tokens, so it holds whatever makes wide steps dear (more
//! experts touched, more rows multiplied) on this machine and model. The gain is the expected number of accepted guesses,
//! from each request's own record. Guesses are added in order of falling chance as long as tokens per second rise; with
//! nothing to gain the answer is 0, and speculation costs a table look-up.
//!
//! Steps with guesses may be rare, and meanwhile all steps become dearer, as contexts grow: a wide step remembered from short
//! contexts would seem as cheap as today's narrow one. So costs are kept in multiples of a level, and steps without guesses
//! move the level.
//!
//! Where the backend forecasts what steps cost, its figures stand in for widths that were not measured. Only their ratios
//! count once anything was measured: what a measured width is dearer than forecast is taken as true of its neighbours too. A
//! forecast that is wrong must not lose more than tries would have: a step without guesses is measured before any is made, and widths far from any that was measured are taken on trust only
//! while three times their forecast is no more than may be lost ([`Ledger`](super::ledger::Ledger)); otherwise the cost of wide
//! steps is found out by doubling, as without a forecast. Rejected: believing it; on a machine that it does not know the first wide step
//! would cost what a hundred tries do.
//!
//! A request that stops guessing would never learn that its text has become predictable again; so now and then, ever
//! more rarely while it keeps failing, one guess is tried. Rejected: a fixed width (a public measurement lost 1.8x at
//! concurrency 1 on an 896-expert model).

use super::GUESSES_MAX;

/// Widest step, in decoded tokens, with a cost of its own; wider ones are extrapolated.
pub(crate) const COSTS: usize = 2 * GUESSES_MAX as usize;
/// Weight of the newest observation.
const NEWEST: f64 = 0.2;
/// Times the known cost that an observation may be.
const BELIEVED: f64 = 1.5;
/// Observations of which the least counts.
const FIRST: u8 = 4;
/// Steps between tries, after the first and after many.
const SHORTEST_REST: u32 = 8;
const LONGEST_REST: u32 = 256;

/// Times as many tokens per second that a step with guesses is to promise: it cannot be planned ahead, and costs are not known
/// to the percent.
const GAIN_MIN: f64 = 1.05;

/// Share of what a step without guesses was dearer than known that is true of that width alone, not of all.
const OWN: f64 = 0.05;

/// Times its forecast that a step may take.
const WRONG: f64 = 3.0;

/// Cost of decode-only steps by their number of tokens: measured, or forecast until then.
#[derive(Clone, Debug)]
pub struct StepCost {
    /// Nanoseconds by the backend, not falling; 1 each without a forecast.
    forecast: [f64; COSTS + 1],
    has_forecast: bool,
    /// In multiples of the level.
    cost: [f64; COSTS + 1],
    /// Observations, as far as they matter.
    seen: [u8; COSTS + 1],
    /// Nanoseconds.
    level: f64,
}

impl Default for StepCost {
    fn default() -> Self {
        Self {
            forecast: [1.0; COSTS + 1],
            has_forecast: false,
            cost: [0.0; COSTS + 1],
            seen: [0; COSTS + 1],
            level: 1.0,
        }
    }
}

impl StepCost {
    /// By the backend a step of 1, 2, 3, … tokens takes so many nanoseconds. Wider ones are expected to take what the last does, and
    /// none to take less than a narrower one. A forecast of no time at all is none.
    pub fn expect(&mut self, forecast: &[u64]) {
        let Some(&first) = forecast.first().filter(|first| **first > 0) else { return };
        let mut most = first as f64;
        for (at, expected) in self.forecast.iter_mut().enumerate() {
            most = forecast.get(at.max(1) - 1).map_or(most, |ns| most.max(*ns as f64));
            *expected = most;
        }
        self.has_forecast = true;
    }

    /// A decode-only step of `tokens` took `ns`. Of the first few the least counts, since first steps are dear for reasons that do
    /// not last; then it is an average, in which one observation counts for little more than what is known: a machine that was
    /// busy with something else says nothing of this one. Rejected: the least of all. Steps of a pipeline end by turns early
    /// and late, and the expected cost would be that of the early ones.
    pub fn observe(&mut self, tokens: u32, ns: u64) {
        self.adapt(tokens, ns, 1.0);
    }

    /// The same of a step without guesses: what it is dearer than known is taken as true of all widths.
    pub fn observe_plain(&mut self, tokens: u32, ns: u64) {
        self.adapt(tokens, ns, OWN);
    }

    /// `own`: share of what is new that is true of this width alone.
    fn adapt(&mut self, tokens: u32, ns: u64, own: f64) {
        let at = tokens as usize;
        let most = self.most(at);
        let (Some(known), Some(seen)) = (self.cost.get_mut(at), self.seen.get_mut(at)) else { return };
        let cost = ns as f64 / self.level;
        match *seen {
            1..FIRST => *known = known.min(cost),
            FIRST if *known > 0.0 => {
                let change = 1.0 + NEWEST * ((cost / *known).min(BELIEVED) - 1.0);
                let own = 1.0 + own * (change - 1.0);
                *known *= own;
                self.level *= change / own;
            }
            // The first, or those before took no time at all, by a clock that is coarse.
            _ => *known = cost.min(most),
        }
        *seen = (*seen + 1).min(FIRST);
    }

    /// Most that is believed of the first step of `at` tokens, in multiples of the level: each token as dear as one of the widest
    /// step below that is known, and a half more. A machine that was busy meanwhile would else be taken for a width that is too dear
    /// ever to be tried again.
    fn most(&self, at: usize) -> f64 {
        let below = self.cost.iter().enumerate().take(at).rev().find(|(_, cost)| **cost > 0.0);
        below.map_or(f64::INFINITY, |(n, cost)| BELIEVED * cost * at as f64 / n as f64)
    }

    /// The same in nanoseconds.
    pub(super) fn most_ns(&self, tokens: u32) -> f64 {
        self.level * self.most(tokens as usize)
    }

    /// Whether guesses beside `rows` tokens can be held against a step without any: with a forecast, that is measured first. Without
    /// one guesses begin at once, and of more rows than have costs nothing is ever measured.
    pub fn can_compare(&self, rows: u32) -> bool {
        !self.has_forecast || rows as usize > COSTS || self.near(rows).is_some()
    }

    /// Whether a step of `tokens` loses at most `room_ns` against one of `rows` even if its forecast is as wrong as they get. Never
    /// without a forecast.
    fn is_safe(&self, rows: u32, tokens: u32, room_ns: f64) -> bool {
        let ns = |n| self.ns(n).unwrap_or(f64::INFINITY);
        self.has_forecast && self.can_compare(rows) && WRONG * ns(tokens) - ns(rows) <= room_ns
    }

    /// As [`StepCost::ns`], but only if steps at most twice as narrow were measured: what a narrow step costs does not
    /// follow from wide ones.
    pub fn near(&self, tokens: u32) -> Option<f64> {
        let at = (tokens as usize).min(COSTS);
        let is_known = self.cost[at.div_ceil(2)..=at].iter().any(|cost| *cost > 0.0);
        if is_known { self.ns(tokens) } else { None }
    }

    /// Expected nanoseconds of a step of `tokens`; `None` before anything was measured, without a forecast.
    ///
    /// Between measured widths the cost is interpolated, beyond them it is assumed to be flat: an untried width is worth
    /// a try, and after that it is measured. With a forecast this is true of the multiples of it that were measured.
    pub fn ns(&self, tokens: u32) -> Option<f64> {
        let at = (tokens as usize).min(COSTS);
        let known = |i: usize| (self.cost[i] > 0.0).then(|| (i, self.cost[i] * self.level / self.forecast[i]));
        let below = (1..=at).rev().find_map(known);
        let above = (at..=COSTS).find_map(known);
        let times = match (below, above) {
            (Some((_, ns)), None) | (None, Some((_, ns))) => ns,
            (Some((a, low)), Some((b, high))) if a < b => low + (high - low) * (at - a) as f64 / (b - a) as f64,
            (Some((_, ns)), Some(_)) => ns,
            (None, None) if self.has_forecast => 1.0,
            (None, None) => return None,
        };
        Some(self.forecast[at] * times)
    }
}

/// What became of one request's guesses.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// Chance that a guess is accepted if the one before it was.
    chance: f64,
    /// Steps until the next try while nothing pays.
    rest: u32,
    /// Length of that rest, doubled by each failed try.
    patience: u32,
    /// Nothing was observed yet.
    is_new: bool,
}

impl Default for Record {
    fn default() -> Self {
        // Optimistic: a look-up that finds something is usually right.
        Self { chance: 0.7, rest: 0, patience: SHORTEST_REST, is_new: true }
    }
}

impl Record {
    /// Of `n` guesses the first `accepted` were right.
    pub fn observe(&mut self, n: u32, accepted: u32) {
        // Each accepted guess is a success, the first rejected one a failure; those behind it were not tried.
        self.is_new = false;
        for _ in 0..accepted {
            self.chance += NEWEST * (1.0 - self.chance);
        }
        if accepted < n {
            self.chance -= NEWEST * self.chance;
        }
        self.rest_longer_unless(accepted > 0);
    }

    fn rest_longer_unless(&mut self, it_pays: bool) {
        self.patience = if it_pays { SHORTEST_REST } else { (self.patience * 2).min(LONGEST_REST) };
    }

    /// Nothing pays at the moment: whether to try one guess all the same. What cannot be afforded now stays due.
    pub fn is_due(&mut self, may_try: bool) -> bool {
        let is_due = self.is_rested() && may_try;
        self.rest = if is_due { self.patience } else { self.rest.saturating_sub(1) };
        is_due
    }

    /// The same, before it is decided.
    pub fn is_rested(&self) -> bool {
        self.rest == 0
    }

    /// Nothing pays, and nothing is tried.
    pub fn rest_on(&mut self) {
        self.rest -= 1;
    }

    /// Of many requests' guesses, `tried` were held against a sampled token and `accepted` of them were right.
    pub fn observe_many(&mut self, tried: u32, accepted: u32) {
        if tried == 0 {
            return;
        }
        let newest = 1.0 - (1.0 - NEWEST).powi(tried as i32);
        self.chance += newest * (f64::from(accepted) / f64::from(tried) - self.chance);
        self.is_new = false;
    }

    /// Guesses that cost before they are checked: they were made because they pay, or only to see whether they are right. A
    /// right one among the latter is no reason for more: it was too dear all the same.
    pub fn made(&mut self, because_they_pay: bool) {
        if !because_they_pay {
            self.rest = self.patience;
        }
        self.rest_longer_unless(because_they_pay);
    }

    /// Take over what is known of others, before anything of its own is.
    pub fn start_like(&mut self, others: &Record) {
        if self.is_new {
            self.chance = others.chance;
        }
    }

    /// Chance of the next guess.
    pub fn chance(&self) -> f64 {
        self.chance
    }
}

/// A decoding request before its width is chosen.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    /// Chance of the next guess, see [`Record::chance`].
    pub chance: f64,
    /// Guesses there are.
    pub offered: u32,
    /// Guesses to check.
    pub width: u32,
}

/// Set the widths of one step's `offers`, at most `total` guesses in all, of which `room_ns` may be lost.
///
/// A step is at most twice as wide as those whose cost is known: what a wide one costs is found out by doubling, unless a forecast
/// says that trying it cannot lose more than there is room for. Rejected: the widest at once. It took seven times as long as a plain one on a machine that is bound by arithmetic, and widths between the two
/// were thought dearer than they are.
pub fn choose(offers: &mut [Offer], total: u32, cost: &StepCost, room_ns: f64) {
    let rows = offers.len() as u32;
    let offered: u32 = offers.iter().map(|offer| offer.offered).sum();
    let is_near =
        |n: &u32| *n <= rows || cost.near(rows + n).is_some() || *n <= offered && cost.is_safe(rows, rows + n, room_ns);
    let total = (0..=total.min(GUESSES_MAX)).rev().find(is_near).unwrap_or(0);
    let margin = |n| if n > 0 { GAIN_MIN } else { 1.0 };
    choose_by(offers, total, |n, _| margin(n) * cost.ns(rows + n).unwrap_or(1.0));
}

/// The same for any cost: `cost(n, depth)` is that of a turn with `n` guesses, the newest of which stands `depth` places
/// behind its request's own token. It is called for n = 0, 1, 2, …; 0 has no newest. Returns the expected tokens per unit
/// of cost.
pub fn choose_by(offers: &mut [Offer], total: u32, mut cost: impl FnMut(u32, u32) -> f64) -> f64 {
    let rows = offers.len() as u32;
    let (mut expected, mut best_rate, mut best) = (f64::from(rows), 0.0, 0);
    let most = total.min(GUESSES_MAX);
    // The chance of the guess that a request would add next.
    let next = |o: &Offer| o.chance.powi(o.width as i32 + 1);
    let wider = |offers: &mut [Offer]| -> Option<(f64, u32)> {
        let open = offers.iter_mut().filter(|o| o.width < o.offered);
        let first = open.reduce(|a, b| if next(b) > next(a) { b } else { a })?;
        let gain = next(first);
        first.width += 1;
        Some((gain, first.width))
    };
    let mut depth = 0;
    offers.iter_mut().for_each(|o| o.width = 0);
    for n in 0..=most {
        let rate = expected / cost(n, depth);
        if rate > best_rate {
            (best_rate, best) = (rate, n);
        }
        match wider(offers) {
            Some((gain, at)) => (expected, depth) = (expected + gain, at),
            None => break,
        }
    }
    // Once more, up to the best: steps have costs in steps, so the first width that does not pay is not the last.
    offers.iter_mut().for_each(|o| o.width = 0);
    for _ in 0..best {
        wider(offers);
    }
    best_rate
}

/// Tokens that a step with these widths is expected to give.
pub fn expected(offers: &[Offer]) -> f64 {
    let of = |o: &Offer| (0..=o.width as i32).map(|depth| o.chance.powi(depth)).sum::<f64>();
    offers.iter().map(of).sum()
}

/// Whether `tokens` more, which give `gain` more, pay in a step of `n` tokens that is expected to give `expected`.
pub fn pays(gain: f64, tokens: u32, n: u32, expected: f64, cost: &StepCost) -> bool {
    let ns = |n| cost.ns(n).unwrap_or(1.0);
    (expected + gain) / ns(n + tokens) > expected / ns(n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_branch_pays_for_all_tokens_of_its_row() {
        let mut linear = StepCost::default();
        (1..20).for_each(|n| linear.observe(n, 10_000 + 1_000 * u64::from(n)));
        let offers = [Offer { chance: 0.5, offered: 2, width: 2 }];
        assert_eq!(expected(&offers), 1.75);
        assert!(pays(0.2, 1, 3, 1.75, &linear) && !pays(0.2, 2, 3, 1.75, &linear));
    }

    fn offers(chances: &[f64]) -> Vec<Offer> {
        chances.iter().map(|&chance| Offer { chance, offered: 5, width: 9 }).collect()
    }

    fn widths(chances: &[f64], total: u32, cost: &StepCost) -> Vec<u32> {
        let mut offers = offers(chances);
        choose(&mut offers, total, cost, 0.0);
        offers.iter().map(|o| o.width).collect()
    }

    #[test]
    fn as_many_guesses_as_pay() {
        let mut linear = StepCost::default();
        (1..20).for_each(|n| linear.observe(n, 1_000 * u64::from(n)));
        assert_eq!(widths(&[0.9, 0.99], 100, &linear), [0, 0], "a row costs more than any guess gains");
        let mut flat = StepCost::default();
        (1..30).for_each(|n| flat.observe(n, 10_000));
        assert_eq!(widths(&[0.5, 0.9, 0.0], 100, &flat), [5, 5, 0], "rows are free, hopeless ones still not asked for");
        assert_eq!(widths(&[0.5, 0.9], 3, &flat), [0, 3], "the likeliest first: 0.9, 0.81, 0.73 before 0.5");
        // Two rows are as good as one, the third is dear.
        let mut steps = StepCost::default();
        (1..20).for_each(|n| steps.observe(n, 10_000 * u64::from(n.div_ceil(2))));
        assert_eq!(widths(&[0.6], 100, &steps), [1]);
        assert_eq!(widths(&[0.99], 100, &steps), [1]);
        assert_eq!(widths(&[0.9], 100, &StepCost::default()), [1], "nothing is known: try twice as wide");
        let mut narrow = StepCost::default();
        [1, 2, 3].into_iter().for_each(|n| narrow.observe(n, 1_000));
        assert_eq!(widths(&[0.9], 100, &narrow), [5], "known up to 3: up to 6");
        narrow.observe(6, 4_000);
        assert_eq!(widths(&[0.9], 100, &narrow), [2]);
        let mut slight = StepCost::default();
        [(1, 1_000), (2, 1_480), (3, 2_500)].into_iter().for_each(|(n, ns)| slight.observe(n, ns));
        assert_eq!(widths(&[0.5], 100, &slight), [0], "1% is not worth it");
    }

    #[test]
    fn of_the_first_the_least_counts_and_then_the_average() {
        let mut cost = StepCost::default();
        [9_000, 1_000, 2_000, 1_500].into_iter().for_each(|ns| cost.observe(1, ns));
        assert_eq!(cost.ns(1), Some(1_000.0), "the first was cold");
        cost.observe(1, 900_000);
        assert_eq!(cost.ns(1), Some(1_100.0), "one surprise is no rule");
        (0..100).for_each(|_| cost.observe(1, 2_000));
        assert!((1_990.0..=2_000.0).contains(&cost.ns(1).unwrap()), "many are");
        (0..100).for_each(|n| cost.observe(1, 600 + n % 2 * 800));
        assert!((900.0..=1_100.0).contains(&cost.ns(1).unwrap()), "half of the early and half of the late");
    }

    #[test]
    fn a_first_wide_step_that_was_disturbed_is_tried_again() {
        let mut cost = StepCost::default();
        (0..10).for_each(|_| cost.observe_plain(1, 1_000));
        cost.observe(2, 50_000);
        assert_eq!(cost.ns(2), Some(3_000.0), "two tokens, and a half more");
        cost.observe(2, 1_100);
        assert_eq!(cost.ns(2), Some(1_100.0));
    }

    #[test]
    fn costs_of_wide_steps_follow_those_of_plain_ones() {
        let mut cost = StepCost::default();
        (0..10).for_each(|_| cost.observe_plain(16, 1_000));
        (0..10).for_each(|_| cost.observe(32, 2_000));
        assert_eq!([16, 24, 32].map(|n| cost.ns(n).unwrap().round()), [1_000.0, 1_500.0, 2_000.0]);
        // Contexts grow, and nobody guesses.
        (0..500).for_each(|i| cost.observe_plain(16, 1_000 + 2 * i));
        let [plain, wide] = [16, 32].map(|n| cost.ns(n).unwrap());
        assert!(plain > 1_950.0 && (1.9..2.0).contains(&(wide / plain)), "{plain} {wide}");
        // Wide steps say what they cost themselves.
        (0..50).for_each(|_| cost.observe(32, 3_000));
        let [plain_now, wide] = [16, 32].map(|n| cost.ns(n).unwrap());
        assert!(plain_now == plain && (2_990.0..3_010.0).contains(&wide), "{plain_now} {wide}");
        // A ratio that was measured wrong at first is put right.
        let mut cost = StepCost::default();
        cost.observe(32, 1_000);
        (0..2_000).for_each(|_| cost.observe_plain(16, 1_000));
        (0..50).for_each(|_| cost.observe(32, 2_000));
        assert!((1_950.0..2_050.0).contains(&cost.ns(32).unwrap()));
        assert!((990.0..1_010.0).contains(&cost.ns(16).unwrap()));
    }

    #[test]
    fn costs_between_measured_widths_are_interpolated() {
        let mut cost = StepCost::default();
        assert_eq!(cost.ns(3), None);
        cost.observe(2, 100);
        cost.observe(6, 300);
        assert_eq!([1, 2, 4, 6, 9, 1000].map(|n| cost.ns(n)), [100.0, 100.0, 200.0, 300.0, 300.0, 300.0].map(Some));
    }

    #[test]
    fn a_forecast_stands_in_until_widths_are_measured() {
        let mut cost = StepCost::default();
        cost.expect(&[0, 100]);
        assert_eq!(cost.ns(1), None, "no time is no forecast");
        cost.expect(&[100, 110, 105, 130]);
        assert_eq!([1, 2, 3, 4, 99].map(|n| cost.ns(n)), [100.0, 110.0, 110.0, 130.0, 130.0].map(Some));
        assert_eq!(cost.near(4), None, "it is not known for that");
        // Only ratios count: this machine takes ten times as long.
        cost.observe(1, 1_000);
        assert_eq!([1, 2, 3, 4].map(|n| cost.ns(n).unwrap().round()), [1_000.0, 1_100.0, 1_100.0, 1_300.0]);
        // A measured width replaces it, and says something about those nearby.
        cost.observe(4, 2_600);
        assert_eq!([1, 4, 99].map(|n| cost.ns(n).unwrap().round()), [1_000.0, 2_600.0, 2_600.0]);
        let between = cost.ns(2).unwrap();
        assert!((between - 110.0 * (10.0 + 10.0 / 3.0)).abs() < 1e-6, "{between}");
        // The level moves all of them.
        (0..3).for_each(|_| cost.observe_plain(1, 1_000));
        (0..500).for_each(|i| cost.observe_plain(1, 1_000 + 2 * i));
        assert!((1.8..2.0).contains(&(cost.ns(2).unwrap() / between)));
    }

    #[test]
    fn forecast_widths_are_taken_at_once_where_that_cannot_lose_much() {
        let width = |forecast: &[u64], measured: &[(u32, u64)], room_ns| {
            let mut cost = StepCost::default();
            cost.expect(forecast);
            measured.iter().for_each(|(n, ns)| cost.observe(*n, *ns));
            let mut offers = offers(&[0.9]);
            choose(&mut offers, 100, &cost, room_ns);
            offers[0].width
        };
        let memory_bound: Vec<u64> = (0..64).map(|n| 10_000 + 20 * n).collect();
        assert_eq!(width(&memory_bound, &[(1, 5_000)], 15_000.0), 5, "rows are nearly free: no need to double");
        assert_eq!(width(&memory_bound, &[(1, 5_000)], 9_000.0), 1, "thrice a step is more than may be lost");
        assert_eq!(width(&memory_bound, &[(1, 5_000), (2, 5_010), (3, 5_020)], 0.0), 5, "measured close enough");
        let arithmetic: Vec<u64> = (1..=64).map(|n| 10_000 * n).collect();
        assert_eq!(width(&arithmetic, &[(1, 5_000)], 1e9), 0, "each row costs as much as a step: nothing to try");
        assert_eq!(width(&memory_bound, &[], 1e9), 1, "nothing is taken on trust before a plain step was measured");
        let until_two: Vec<u64> = (1..=64u64).map(|n| 10_000 * n.div_ceil(2)).collect();
        assert_eq!(width(&until_two, &[(1, 5_000)], 1e9), 1);
    }

    #[test]
    fn failures_lower_the_chance_and_lengthen_the_rest() {
        let mut record = Record::default();
        for _ in 0..20 {
            record.observe(5, 0);
        }
        assert!(record.chance() < 0.02);
        let tries = (0..2000).filter(|_| record.is_due(true)).count();
        assert!((7..=9).contains(&tries), "every 256 steps or so, not {tries} times in 2000");
        assert!((0..300).all(|_| !record.is_due(false)) && record.is_due(true), "not afforded, not forgotten");
        for _ in 0..20 {
            record.observe(5, 5);
        }
        assert!(record.chance() > 0.99 && record.patience == SHORTEST_REST);
    }
}
