//! What a step costs, learned from the steps that ran: `ns = fixed + row · decoding tokens + token · prompt tokens`.
//!
//! Least squares, weighted so that relative errors count, over three kinds of steps (decoding only, prefill only, mixed),
//! each with a memory of its own: hours of one kind teach nothing new and must not erase what another kind taught.
//! No coefficient is negative: of all subsets of the three the best fit without a negative one is taken. Rejected:
//! a moving average of decode-only steps, and of what a mixed step takes beyond that. Under a saturating stream of prompts
//! there are no decode-only steps, so nothing was ever known.

/// Coefficients, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Of any step.
    pub fixed_ns: f64,
    /// Of each decoding token.
    pub row_ns: f64,
    /// Of each prompt token.
    pub token_ns: f64,
}

impl Cost {
    /// Expected nanoseconds of a step.
    pub fn ns(&self, decode: u32, prefill: f64) -> f64 {
        self.fixed_ns + self.row_ns * f64::from(decode) + self.token_ns * prefill
    }
}

/// What is left of older steps of the same kind at each new one.
const MEMORY: f64 = 0.97;
/// One step that took this many times what was expected teaches no more than that: something else held it up.
const SURPRISE_MAX: f64 = 2.0;
/// Steps of a kind before surprises are cut.
const WARM_UP: u32 = 4;

/// Sums over the steps of one kind: of products of the features, and with the time.
#[derive(Clone, Copy, Debug, Default)]
struct Moments {
    xx: [[f64; 3]; 3],
    xy: [f64; 3],
    yy: f64,
}

impl Moments {
    fn add(&mut self, x: [f64; 3], y: f64, weight: f64) {
        for i in 0..3 {
            for j in 0..3 {
                self.xx[i][j] = self.xx[i][j] * MEMORY + weight * x[i] * x[j];
            }
            self.xy[i] = self.xy[i] * MEMORY + weight * x[i] * y;
        }
        self.yy = self.yy * MEMORY + weight * y * y;
    }

    fn plus(mut self, other: &Self) -> Self {
        for i in 0..3 {
            (0..3).for_each(|j| self.xx[i][j] += other.xx[i][j]);
            self.xy[i] += other.xy[i];
        }
        self.yy += other.yy;
        self
    }

    /// Coefficients with zeros outside of `subset` that fit best, and their squared error; `None` if they are not determined.
    fn solve(&self, subset: u32) -> Option<([f64; 3], f64)> {
        let at: Vec<usize> = (0..3).filter(|i| subset >> i & 1 == 1).collect();
        let mut rows = [[0.0; 4]; 3];
        for (r, &i) in at.iter().enumerate() {
            for (c, &j) in at.iter().enumerate() {
                rows[r][c] = self.xx[i][j];
            }
            rows[r][3] = self.xy[i];
        }
        let n = at.len();
        for pivot in 0..n {
            // Symmetric and positive: the diagonal pivots. Next to nothing left means that the features go together.
            if rows[pivot][pivot] <= 1e-6 * self.xx[at[pivot]][at[pivot]] {
                return None;
            }
            let taken = rows[pivot];
            for (_, row) in rows.iter_mut().enumerate().filter(|(r, _)| *r != pivot) {
                let factor = row[pivot] / taken[pivot];
                row.iter_mut().zip(taken).skip(pivot).for_each(|(value, other)| *value -= factor * other);
            }
        }
        let mut x = [0.0; 3];
        (0..n).for_each(|r| x[at[r]] = rows[r][3] / rows[r][r]);
        let explained: f64 = (0..3).map(|i| x[i] * self.xy[i]).sum();
        Some((x, self.yy - explained))
    }
}

/// The fit.
#[derive(Clone, Debug, Default)]
pub struct CostFit {
    kinds: [Moments; 3],
    seen: [u32; 3],
    cost: Option<Cost>,
}

impl CostFit {
    /// A step took `ns`.
    pub fn observe(&mut self, decode: u32, prefill: u32, ns: u64) {
        let kind = match (decode, prefill) {
            (0, 0) => return,
            (_, 0) => 0,
            (0, _) => 1,
            _ => 2,
        };
        let mut y = (ns as f64).max(1.0);
        if self.seen[kind] >= WARM_UP
            && let Some(cost) = &self.cost
        {
            y = y.min(SURPRISE_MAX * cost.ns(decode, f64::from(prefill)).max(1.0));
        }
        self.seen[kind] = self.seen[kind].saturating_add(1);
        self.kinds[kind].add([1.0, f64::from(decode), f64::from(prefill)], y, 1.0 / (y * y));
        let all = self.kinds[0].plus(&self.kinds[1]).plus(&self.kinds[2]);
        let good = |subset| all.solve(subset).filter(|(x, _)| x.iter().all(|x| *x >= 0.0));
        let least = (1..8).filter_map(good).map(|(_, error)| error).fold(f64::INFINITY, f64::min);
        // Of fits that differ by rounding only the first is taken, so that the choice does not waver.
        let best = (1..8).filter_map(good).find(|(_, error)| *error <= least + 1e-9 * all.yy);
        self.cost = best.map(|([fixed_ns, row_ns, token_ns], _)| Cost { fixed_ns, row_ns, token_ns });
    }

    /// Coefficients, once there was a step.
    pub fn cost(&self) -> Option<Cost> {
        self.cost
    }

    /// Prompt tokens were among what was seen.
    pub fn knows_prefill(&self) -> bool {
        self.seen[1] > 0 || self.seen[2] > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRUE: Cost = Cost { fixed_ns: 8e6, row_ns: 5e4, token_ns: 2e4 };

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() <= 0.02 * b
    }

    #[test]
    fn a_linear_cost_is_found_and_not_forgotten() {
        let mut fit = CostFit::default();
        for i in 0..60u32 {
            let (decode, prefill) =
                [(i % 7 + 1, 0), (0, 64 + i * 31 % 500), (i % 5 + 1, 32 + i * 17 % 300)][i as usize % 3];
            fit.observe(decode, prefill, TRUE.ns(decode, f64::from(prefill)) as u64);
        }
        for _ in 0..10_000 {
            fit.observe(4, 0, TRUE.ns(4, 0.0) as u64);
        }
        let cost = fit.cost().unwrap();
        for (decode, prefill) in [(1, 0.0), (4, 0.0), (4, 500.0), (0, 1000.0), (64, 64.0)] {
            let (found, wanted) = (cost.ns(decode, prefill), TRUE.ns(decode, prefill));
            assert!(close(found, wanted), "{decode} {prefill}: {found} {wanted}");
        }
    }

    #[test]
    fn mixed_steps_alone_suffice() {
        let mut fit = CostFit::default();
        for i in 0..100u32 {
            let prefill = 64 + i * 37 % 900;
            fit.observe(16, prefill, TRUE.ns(16, f64::from(prefill)) as u64);
        }
        let cost = fit.cost().unwrap();
        assert!(close(cost.ns(16, 0.0), TRUE.ns(16, 0.0)), "{cost:?}");
        assert!(close(cost.token_ns, TRUE.token_ns), "{cost:?}");
    }

    #[test]
    fn one_held_up_step_changes_little() {
        let mut fit = CostFit::default();
        for i in 0..50 {
            fit.observe(4, 0, 10_000_000);
            fit.observe(4, 64 + i, 12_000_000 + u64::from(i) * 20_000);
        }
        let before = fit.cost().unwrap().ns(4, 0.0);
        fit.observe(4, 0, 1_000_000_000);
        let after = fit.cost().unwrap().ns(4, 0.0);
        assert!(after < 1.1 * before, "{before} {after}");
    }

    #[test]
    fn nothing_is_negative_and_equal_steps_do_no_harm() {
        let mut fit = CostFit::default();
        assert_eq!(fit.cost(), None);
        for _ in 0..1000 {
            fit.observe(8, 256, 20_000_000);
        }
        let cost = fit.cost().unwrap();
        assert!(cost.fixed_ns >= 0.0 && cost.row_ns >= 0.0 && cost.token_ns >= 0.0);
        assert!(close(cost.ns(8, 256.0), 2e7), "{cost:?}");
    }
}
