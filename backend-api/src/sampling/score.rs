//! Log-probability, rank and best alternatives of a token in an unmodified row.

use super::{exp::sum_of_weights, select};

/// Of a token; the alternatives are left in the caller's keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// Logarithm of the sum of e^logit over the row.
    pub log_sum: f64,
    /// The token's log-probability.
    pub logprob: f32,
    /// 1 = most likely.
    pub rank: u32,
}

impl Score {
    /// Log-probability of another logit of the row: log-softmax in f64, rounded once to f32.
    pub fn logprob_of(&self, logit: f32) -> f32 {
        (f64::from(logit) - self.log_sum) as f32
    }
}

/// Score `id` and leave the `k` best of the row in `keys`. `max` is the row's largest logit and above -infinity.
pub fn score(row: &[f32], max: f32, id: u32, k: u32, keys: &mut Vec<u64>) -> Score {
    let log_sum = f64::from(max) + sum_of_weights(row, max, 1.0).ln();
    let own = row[id as usize];
    let better = |(other, &logit): (usize, &f32)| logit > own || (logit == own && other < id as usize);
    let rank = 1 + row.iter().enumerate().filter(|&entry| better(entry)).count();
    select::best_of(row, k as usize, keys);
    let rank = u32::try_from(rank).expect("a vocabulary fits u32");
    Score { log_sum, logprob: (f64::from(own) - log_sum) as f32, rank }
}
