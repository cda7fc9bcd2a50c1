//! What a later turn's first token should cost: a cold request of only the new tokens, plus attention over the context
//! that was cached.
//!
//! Both are measured with cold requests alone, in the same run, so a slow path through the cache cannot hide in them:
//!
//! * cold requests of as many tokens as the turns' new ones (their quartiles), between which times are interpolated;
//! * cold requests of a quarter, half and all of a typical context, and of twice that where the target takes it and it is
//!   quick. Their times grow as `a + b L + q L²`: every token pays `b`, every pair of tokens of which one sees the other
//!   pays `2 q`. So `n` new tokens that see `c` cached ones pay `2 q n c` on top. The fit weighs errors relative to the
//!   time. Attention thus costs per pair what it costs in a long prompt, whatever it costs in a short step.
//!
//! All lengths are asked for in turn, round by round, so that a machine that slows down slows all of them.
//!
//! *New* is counted from the maximum hit, not from what the cache gave: recomputed tokens are not excused. Rejected: short
//! requests in the fit. A weight that is unpacked for 60 tokens costs each of them more than one unpacked for 600, and a fit
//! takes this for negative curvature: it found a third of what the attention kernels alone take. Rejected: the
//! difference of two long cold requests, which is smaller than its noise; and the growth of decode time, which is bound by
//! memory where prefill is not.

use std::time::{Duration, Instant};

use super::{
    figures::{Spread, ttft_ms},
    random::Random,
    replay::{Judged, Pass},
    session::words,
    target::{Ask, Prompt, Target},
    trace::Kind,
};

/// Cold requests per length; the time is the median.
const ROUNDS: usize = 7;
/// The same where a round takes long.
const ROUNDS_LONG: usize = 3;
/// That long.
const LONG: Duration = Duration::from_secs(10);

/// What later turns were measured against. Times in milliseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Reference {
    /// (tokens, time to first token) of cold requests as long as new parts, ascending.
    pub cold: Vec<(f64, f64)>,
    /// The same of long ones.
    pub long: Vec<(f64, f64)>,
    /// Time per new token and cached token.
    pub attention: f64,
}

/// Later turns beside it.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// Measured.
    pub reference: Reference,
    /// Second turns compared.
    pub n_second: usize,
    /// Median of their new tokens.
    pub new_tokens: f64,
    /// Median of their cached tokens, at the maximum.
    pub cached_tokens: f64,
    /// Median time to first token of second turns.
    pub second_ms: f64,
    /// Median of what it should be.
    pub expected_ms: f64,
    /// Of it, attention over the cached tokens.
    pub attention_ms: f64,
    /// Median of measured over expected, second turns.
    pub ratio_second: f64,
    /// The same, all later turns.
    pub ratio_later: f64,
}

impl Reference {
    /// Expected time of `new` tokens behind `cached` ones.
    pub fn expected_ms(&self, new: f64, cached: f64) -> f64 {
        interpolate(&self.cold, new) + self.attention_ms(new, cached)
    }

    /// Of it, attention over the cached tokens.
    pub fn attention_ms(&self, new: f64, cached: f64) -> f64 {
        self.attention * new * cached
    }
}

/// Measure the reference for a pass at concurrency 1 and compare its later turns; `None` if it has none.
pub fn compare(target: &dyn Target, pass: &Pass, judged: &Judged, salt: &str) -> Result<Option<Compared>, String> {
    let page_tokens = f64::from(target.page_tokens());
    // (turn, new, cached, measured)
    let turns: Vec<(usize, f64, f64, f64)> = pass
        .served
        .iter()
        .zip(&judged.maxima)
        .filter(|(served, _)| served.kind == Kind::Next)
        .map(|(served, maximum)| {
            let cached = maximum.finished as f64 * page_tokens;
            (served.turn, served.answer.prompt_tokens as f64 - cached, cached, ttft_ms(served))
        })
        .collect();
    let second: Vec<_> = turns.iter().filter(|turn| turn.0 == 1).copied().collect();
    if second.is_empty() {
        return Ok(None);
    }
    let reference = measure(target, &turns, salt)?;
    let median = |values: &mut dyn Iterator<Item = f64>| Spread::of(values).map_or(f64::NAN, |spread| spread.p50);
    let ratio = |&(_, new, cached, ms): &(usize, f64, f64, f64)| ms / reference.expected_ms(new, cached).max(1e-6);
    Ok(Some(Compared {
        n_second: second.len(),
        new_tokens: median(&mut second.iter().map(|turn| turn.1)),
        cached_tokens: median(&mut second.iter().map(|turn| turn.2)),
        second_ms: median(&mut second.iter().map(|turn| turn.3)),
        expected_ms: median(&mut second.iter().map(|turn| reference.expected_ms(turn.1, turn.2))),
        attention_ms: median(&mut second.iter().map(|turn| reference.attention_ms(turn.1, turn.2))),
        ratio_second: median(&mut second.iter().map(ratio)),
        ratio_later: median(&mut turns.iter().map(ratio)),
        reference,
    }))
}

fn measure(target: &dyn Target, turns: &[(usize, f64, f64, f64)], salt: &str) -> Result<Reference, String> {
    let mut new: Vec<f64> = turns.iter().map(|turn| turn.1).collect();
    new.sort_by(f64::total_cmp);
    let mut short: Vec<f64> = (0..=4).map(|quarter| new[(new.len() - 1) * quarter / 4]).collect();
    short.dedup();
    let context = Spread::of(turns.iter().map(|turn| turn.2)).map_or(0.0, |spread| spread.p50);
    let longest = new[new.len() - 1];
    let mut long = vec![context / 4.0, context / 2.0, context];
    long.retain(|&length| length > longest);
    let mut stream = 0;
    let mut times: Vec<Vec<(f64, f64)>> = vec![Vec::new(); short.len() + long.len() + 1];
    let mut ask = |times: &mut Vec<(f64, f64)>, length: f64| {
        stream += 1;
        cold(target, length, stream, salt).map(|one| times.push(one))
    };
    let mut rounds = ROUNDS;
    let mut round = 0;
    while round < rounds {
        let began = Instant::now();
        for (at, &length) in short.iter().chain(&long).enumerate() {
            ask(&mut times[at], length)?;
        }
        if round == 0 {
            // One answer, which the answered prompt leaves room for.
            let most = target.max_tokens().map_or(0.0, |most| f64::from(most) - 1.0).min(2.0 * context);
            if began.elapsed() > LONG {
                rounds = ROUNDS_LONG;
            } else if most > 1.25 * context && long.len() == 3 {
                long.push(most);
                ask(&mut times[short.len() + 3], most)?;
            }
        }
        round += 1;
    }
    // A chat's template and words make it another length than was asked for.
    let median = |of: &Vec<(f64, f64)>| {
        let spread = |values: &mut dyn Iterator<Item = f64>| Spread::of(values).map_or(f64::NAN, |spread| spread.p50);
        (spread(&mut of.iter().map(|one| one.0)), spread(&mut of.iter().map(|one| one.1)))
    };
    let mut cold: Vec<(f64, f64)> = times[..short.len() + long.len()].iter().map(median).collect();
    let long = cold.split_off(short.len());
    let attention = if long.len() >= 3 { 2.0 * quadratic(&long).max(0.0) } else { 0.0 };
    Ok(Reference { cold, long, attention })
}

/// Tokens and milliseconds to the first token of a request that shares nothing with any other.
fn cold(target: &dyn Target, length: f64, stream: u64, salt: &str) -> Result<(f64, f64), String> {
    let mut random = Random::new(0x636F_6C64, stream);
    let numbers: Vec<u32> = (0..length as usize).map(|_| random.bits() as u32).collect();
    let prompt = match target.pool() {
        Some(pool) => Prompt::Ids(numbers.iter().map(|&n| pool[n as usize % pool.len()]).collect()),
        None => {
            let message = serde_json::json!({"role": "user", "content": words(&numbers)});
            Prompt::Chat { messages: vec![message], tools: Vec::new() }
        }
    };
    let answer =
        target.ask(Ask { prompt, shared: None, max_tokens: 1, seed: None, salt: format!("{salt}-cold-{stream}") })?;
    Ok((answer.prompt_tokens as f64, answer.first.as_secs_f64() * 1e3))
}

/// Between the neighbours of `x`; before the first and after the last their values, in proportion beyond the last.
fn interpolate(points: &[(f64, f64)], x: f64) -> f64 {
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return f64::NAN };
    if x <= first.0 {
        return first.1;
    }
    for two in points.windows(2) {
        let ((x0, y0), (x1, y1)) = (two[0], two[1]);
        if x <= x1 {
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0);
        }
    }
    last.1 * x / last.0
}

/// `q` of `a + b x + q x²` through the points, errors weighed by 1/y; 0 if they do not determine it.
fn quadratic(points: &[(f64, f64)]) -> f64 {
    // Normal equations; x in units of the largest one, so that the sums are of one size.
    let unit = points.iter().map(|point| point.0).fold(1.0, f64::max);
    let mut m = [[0.0f64; 4]; 3];
    for &(x, y) in points {
        let (x, weight) = (x / unit, 1.0 / (y * y).max(1e-12));
        let powers = [1.0, x, x * x];
        for row in 0..3 {
            for column in 0..3 {
                m[row][column] += weight * powers[row] * powers[column];
            }
            m[row][3] += weight * powers[row] * y;
        }
    }
    for at in 0..3 {
        let pivot = (at..3).max_by(|&a, &b| m[a][at].abs().total_cmp(&m[b][at].abs())).unwrap_or(at);
        m.swap(at, pivot);
        if m[at][at].abs() < 1e-12 * m[0][0].abs() {
            return 0.0;
        }
        for row in 0..3 {
            if row != at {
                let factor = m[row][at] / m[at][at];
                let lead = m[at];
                m[row].iter_mut().zip(lead).for_each(|(value, lead)| *value -= factor * lead);
            }
        }
    }
    m[2][3] / m[2][2] / (unit * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quadratic_part_is_found() {
        let time = |x: f64| 3.0 + 0.2 * x + 4e-5 * x * x;
        let points: Vec<(f64, f64)> = [20.0, 60.0, 90.0, 600.0, 1200.0, 2400.0].map(|x| (x, time(x))).into();
        for points in [&points[..], &points[3..]] {
            assert!((quadratic(points) - 4e-5).abs() < 1e-9, "{}", quadratic(points));
        }
        assert_eq!(quadratic(&points[..1]), 0.0);
        let reference = Reference { cold: points[..3].to_vec(), long: points[3..].to_vec(), attention: 8e-5 };
        // 60 tokens at the end of 2,400 + 60: the difference of the two prefills, less the fixed part.
        let tail = time(2460.0) - time(2400.0) + 3.0;
        assert!((reference.expected_ms(60.0, 2400.0) / tail - 1.0).abs() < 0.01);
    }

    #[test]
    fn between_the_measured_lengths() {
        let points = [(10.0, 1.0), (20.0, 3.0)];
        let at = |x| interpolate(&points, x);
        assert_eq!((at(5.0), at(10.0), at(15.0), at(20.0), at(40.0)), (1.0, 1.0, 2.0, 3.0, 6.0));
    }
}
