//! Figures of a load test: percentiles of latencies, sums over the whole.

use std::time::Duration;

use serde_json::{Map, Value, json};

/// What one request saw.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// From sending to the first token.
    pub first_token: Option<Duration>,
    /// From sending to the end.
    pub whole: Duration,
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Of these, cached.
    pub cached_tokens: u64,
    /// Generated tokens.
    pub completion_tokens: u64,
}

/// A load test.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Requests that were answered.
    pub samples: Vec<Sample>,
    /// Messages of those that were not.
    pub failures: Vec<String>,
    /// From the first request to the last answer.
    pub wall: Duration,
}

/// The value below which `percent` of the sorted values lie, by the nearest-rank rule.
pub fn percentile(sorted: &[f64], percent: f64) -> Option<f64> {
    let rank = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

impl Report {
    fn series(&self, value: impl Fn(&Sample) -> Option<f64>) -> Vec<f64> {
        let mut values: Vec<f64> = self.samples.iter().filter_map(value).collect();
        values.sort_by(f64::total_cmp);
        values
    }

    /// Everything as JSON; times in milliseconds.
    pub fn to_json(&self) -> Value {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let ttft = self.series(|sample| sample.first_token.map(ms));
        let tpot = self.series(|sample| {
            let decoding = sample.whole.checked_sub(sample.first_token?)?;
            (sample.completion_tokens > 1).then(|| ms(decoding) / (sample.completion_tokens - 1) as f64)
        });
        let whole = self.series(|sample| Some(ms(sample.whole)));
        let spread = |values: &[f64]| {
            let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
            let mut map = Map::new();
            map.insert("mean".into(), (!values.is_empty()).then_some(mean).into());
            for percent in [50.0, 90.0, 99.0] {
                map.insert(format!("p{percent}"), percentile(values, percent).into());
            }
            Value::Object(map)
        };
        let seconds = self.wall.as_secs_f64().max(1e-9);
        let sum = |value: fn(&Sample) -> u64| self.samples.iter().map(value).sum::<u64>();
        let (prompt, completion) = (sum(|s| s.prompt_tokens), sum(|s| s.completion_tokens));
        json!({
            "requests": self.samples.len(),
            "failures": self.failures.len(),
            "wall_s": seconds,
            "prompt_tokens": prompt,
            "cached_tokens": sum(|s| s.cached_tokens),
            "completion_tokens": completion,
            "requests_per_s": self.samples.len() as f64 / seconds,
            "prompt_tokens_per_s": prompt as f64 / seconds,
            "completion_tokens_per_s": completion as f64 / seconds,
            "time_to_first_token_ms": spread(&ttft),
            "time_per_output_token_ms": spread(&tpot),
            "request_ms": spread(&whole),
        })
    }

    /// The same for a person.
    pub fn render(&self) -> String {
        let value = self.to_json();
        let mut text = String::new();
        for (key, value) in value.as_object().into_iter().flatten() {
            let shown = match value {
                Value::Object(spread) => {
                    let parts: Vec<String> = spread
                        .iter()
                        .map(|(name, value)| {
                            format!("{name} {}", value.as_f64().map_or("-".into(), |v| format!("{v:.2}")))
                        })
                        .collect();
                    parts.join("  ")
                }
                value if value.is_u64() => value.to_string(),
                value => value.as_f64().map_or("-".into(), |v| format!("{v:.2}")),
            };
            text.push_str(&format!("  {key:<26}{shown}\n"));
        }
        if let Some(first) = self.failures.first() {
            text.push_str(&format!("  first failure: {first}\n"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_by_nearest_rank() {
        let values = [1.0, 2.0, 3.0, 4.0];
        assert_eq!(percentile(&values, 50.0), Some(2.0));
        assert_eq!(percentile(&values, 51.0), Some(3.0));
        assert_eq!(percentile(&values, 99.0), Some(4.0));
        assert_eq!(percentile(&[], 50.0), None);
    }

    #[test]
    fn time_per_token_leaves_out_the_first() {
        let second = Duration::from_secs(1);
        let sample = Sample { first_token: Some(second), whole: 3 * second, completion_tokens: 5, ..Sample::default() };
        let report = Report { samples: vec![sample], failures: vec![], wall: 4 * second };
        let json = report.to_json();
        assert_eq!(json["time_per_output_token_ms"]["p50"], 500.0);
        assert_eq!(json["completion_tokens_per_s"], 1.25);
    }
}
