//! Log-probability, rank and best alternatives of a token in an unmodified row.

use super::{exp::sum_of_weights, select};
use crate::request::TokenLogprobs;

/// Log-softmax in f64, rounded once to f32. `max` is the row's largest logit and finite.
pub fn score(row: &[f32], max: f32, id: u32, k: u32, keys: &mut Vec<u64>) -> TokenLogprobs {
    let log_sum = f64::from(max) + sum_of_weights(row, max, 1.0).ln();
    let own = row[id as usize];
    let better = |(other, &logit): (usize, &f32)| logit > own || (logit == own && other < id as usize);
    let rank = 1 + row.iter().enumerate().filter(|&entry| better(entry)).count();
    select::best_of(row, k as usize, keys);
    let top =
        keys.iter().map(|&key| (select::id_of(key), (f64::from(select::logit_of(key)) - log_sum) as f32)).collect();
    TokenLogprobs {
        logprob: (f64::from(own) - log_sum) as f32,
        rank: u32::try_from(rank).expect("a vocabulary fits u32"),
        top,
    }
}
