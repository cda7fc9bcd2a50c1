//! What a pass amounts to: latencies, throughput, and what the cache gave of what it could have given.

use serde_json::{Value, json};

use super::{
    replay::{Judged, Pass, Served},
    trace::Kind,
};
use crate::cli::bench::report::percentile;

/// Mean and percentiles of a series.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    /// Arithmetic mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 95th percentile, by the nearest-rank rule.
    pub p95: f64,
}

impl Spread {
    /// Of these values; `None` if there are none.
    pub fn of(values: impl Iterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        Some(Self { mean, p50: percentile(&values, 50.0)?, p95: percentile(&values, 95.0)? })
    }

    fn to_json(self) -> Value {
        json!({"mean": self.mean, "p50": self.p50, "p95": self.p95})
    }
}

/// What was and could have been taken from the cache, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hits {
    /// Upper bound over requests that had finished; see [`super::maximum`].
    pub maximum: u64,
    /// The same over all that had been sent.
    pub maximum_sent: u64,
    /// Of `maximum`, what was taken: a surplus of one request does not make up for a shortfall of another.
    pub reached: u64,
    /// Requests that fell short of their maximum.
    pub n_short: usize,
    /// Answers whose ids are unknown.
    pub n_unknown: usize,
    /// Distinct pages of the whole pass.
    pub pages: usize,
}

impl Hits {
    /// 1 when every request found all it could.
    pub fn share(&self) -> f64 {
        if self.maximum == 0 { 1.0 } else { self.reached as f64 / self.maximum as f64 }
    }
}

/// A pass in figures. Times in milliseconds, rates per second.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Sessions at once.
    pub concurrency: u32,
    /// Answered requests.
    pub requests: usize,
    /// Messages of the others.
    pub failures: Vec<String>,
    /// Seconds in all.
    pub wall_s: f64,
    /// To the first token, first turns.
    pub ttft_first: Option<Spread>,
    /// To the first token, later turns.
    pub ttft_later: Option<Spread>,
    /// To the first token, all turns.
    pub ttft: Option<Spread>,
    /// Median to the first token by turn, from the first.
    pub ttft_by_turn: Vec<f64>,
    /// Per token after the first.
    pub tpot: Option<Spread>,
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Of these, from the cache; `None` if the server does not say.
    pub cached_tokens: Option<u64>,
    /// Generated tokens.
    pub answer_tokens: u64,
    /// Against the bounds; `None` if ids are unknown.
    pub hits: Option<Hits>,
    /// Requests that lost their memory; `None` for servers.
    pub preemptions: Option<u64>,
    /// Tokens found and computed again for want of a state; `None` for servers.
    pub cut_tokens: Option<u64>,
    /// Steps of the engine in this process.
    pub steps: Option<u64>,
    /// Pages of the engine; `None` for servers.
    pub pages: Option<u64>,
}

fn ms(time: std::time::Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Milliseconds to the first token.
pub fn ttft_ms(served: &Served) -> f64 {
    ms(served.answer.first)
}

impl Figures {
    /// Of a pass.
    pub fn of(concurrency: u32, pass: &Pass, judged: Option<&Judged>, page_tokens: u32) -> Self {
        let served = &pass.served;
        let spread = |wanted: &dyn Fn(&Served) -> bool| Spread::of(served.iter().filter(|s| wanted(s)).map(ttft_ms));
        let tpot = served.iter().filter(|s| s.answer.answer_tokens > 1).map(|s| {
            let decoding = s.answer.whole.saturating_sub(s.answer.first);
            ms(decoding) / (s.answer.answer_tokens - 1) as f64
        });
        let n_turns = served.iter().map(|s| s.turn + 1).max().unwrap_or(0);
        let by_turn = (0..n_turns).map(|turn| spread(&|s| s.turn == turn).map_or(f64::NAN, |spread| spread.p50));
        Self {
            concurrency,
            requests: served.len(),
            failures: pass.failures.clone(),
            wall_s: pass.wall.as_secs_f64(),
            ttft_first: spread(&|s| s.kind == Kind::First),
            ttft_later: spread(&|s| s.kind != Kind::First),
            ttft: spread(&|_| true),
            ttft_by_turn: by_turn.collect(),
            tpot: Spread::of(tpot),
            prompt_tokens: served.iter().map(|s| s.answer.prompt_tokens).sum(),
            cached_tokens: served.iter().map(|s| s.answer.cached_tokens).sum(),
            answer_tokens: served.iter().map(|s| s.answer.answer_tokens).sum(),
            hits: judged.map(|judged| hits(pass, judged, page_tokens)),
            preemptions: pass.counted.map(|counted| counted.preemptions),
            cut_tokens: pass.counted.map(|counted| counted.cut_tokens),
            steps: pass.counted.map(|counted| counted.steps),
            pages: pass.counted.map(|counted| counted.pages),
        }
    }

    /// Tokens per second that one user sees.
    pub fn tokens_per_s_per_user(&self) -> Option<f64> {
        self.tpot.map(|tpot| 1000.0 / tpot.mean.max(1e-9))
    }

    /// Generated tokens per second of all users.
    pub fn answer_tokens_per_s(&self) -> f64 {
        self.answer_tokens as f64 / self.wall_s.max(1e-9)
    }

    /// Prompt and generated tokens per second.
    pub fn tokens_per_s(&self) -> f64 {
        (self.prompt_tokens + self.answer_tokens) as f64 / self.wall_s.max(1e-9)
    }

    /// Share of prompt tokens that came from the cache.
    pub fn hit_rate(&self) -> Option<f64> {
        Some(self.cached_tokens? as f64 / self.prompt_tokens.max(1) as f64)
    }

    /// The same at the maximum.
    pub fn hit_rate_maximum(&self) -> Option<f64> {
        Some(self.hits?.maximum as f64 / self.prompt_tokens.max(1) as f64)
    }

    /// Everything.
    pub fn to_json(&self) -> Value {
        let spread = |spread: Option<Spread>| spread.map(Spread::to_json);
        let hits = self.hits.map(|hits| {
            json!({
                "maximum_tokens": hits.maximum,
                "maximum_sent_tokens": hits.maximum_sent,
                "reached_tokens": hits.reached,
                "share_of_maximum": hits.share(),
                "requests_short_of_maximum": hits.n_short,
                "answers_of_unknown_ids": hits.n_unknown,
                "distinct_pages": hits.pages,
            })
        });
        json!({
            "concurrency": self.concurrency,
            "requests": self.requests,
            "failures": self.failures,
            "wall_s": self.wall_s,
            "ttft_ms": spread(self.ttft),
            "ttft_first_turn_ms": spread(self.ttft_first),
            "ttft_later_turns_ms": spread(self.ttft_later),
            "ttft_p50_by_turn_ms": self.ttft_by_turn,
            "tpot_ms": spread(self.tpot),
            "tokens_per_s_per_user": self.tokens_per_s_per_user(),
            "output_tokens_per_s": self.answer_tokens_per_s(),
            "total_tokens_per_s": self.tokens_per_s(),
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "output_tokens": self.answer_tokens,
            "hit_rate": self.hit_rate(),
            "hit_rate_maximum": self.hit_rate_maximum(),
            "cache": hits,
            "preemptions": self.preemptions,
            "cut_tokens": self.cut_tokens,
            "steps": self.steps,
            "engine_pages": self.pages,
        })
    }
}

fn hits(pass: &Pass, judged: &Judged, page_tokens: u32) -> Hits {
    let mut hits = Hits { n_unknown: judged.n_unknown, ..Hits::default() };
    let pages = judged.paths.iter().flat_map(|path| &path.pages).max();
    hits.pages = pages.map_or(0, |&most| most as usize + 1);
    for (served, maximum) in pass.served.iter().zip(&judged.maxima) {
        let tokens = |pages: usize| pages as u64 * u64::from(page_tokens);
        let (most, cached) = (tokens(maximum.finished), served.answer.cached_tokens.unwrap_or(0));
        hits.maximum += most;
        hits.maximum_sent += tokens(maximum.sent);
        hits.reached += cached.min(most);
        hits.n_short += usize::from(cached < most);
    }
    hits
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{
        super::{
            maximum::Maximum,
            pages::Path,
            target::{Answer, Prompt},
        },
        *,
    };

    fn served(kind: Kind, turn: usize, first_ms: u64, cached: u64) -> Served {
        let answer = Answer {
            first: Duration::from_millis(first_ms),
            whole: Duration::from_millis(first_ms + 40),
            prompt_tokens: 100,
            cached_tokens: Some(cached),
            answer_tokens: 5,
            ..Answer::default()
        };
        Served { kind, turn, sent: 0, done: 1, prompt: Prompt::Ids(vec![]), answer }
    }

    #[test]
    fn a_surplus_does_not_hide_a_shortfall() {
        let pass = Pass {
            served: vec![served(Kind::First, 0, 100, 64), served(Kind::Next, 1, 10, 32), served(Kind::Next, 2, 20, 64)],
            wall: Duration::from_secs(3),
            ..Pass::default()
        };
        let maximum = |finished| Maximum { finished, sent: finished };
        let path = Path { pages: vec![0, 6], n_usable: 2, has_tail: false };
        let judged = Judged { paths: vec![path], maxima: [0, 4, 4].map(maximum).into(), n_unknown: 0 };
        let figures = Figures::of(2, &pass, Some(&judged), 16);
        let hits = figures.hits.expect("judged");
        assert_eq!((hits.maximum, hits.reached, hits.n_short, hits.pages), (128, 96, 1, 7));
        assert_eq!(
            (hits.share(), figures.hit_rate(), figures.hit_rate_maximum()),
            (0.75, Some(160.0 / 300.0), Some(128.0 / 300.0))
        );
        assert_eq!(figures.ttft_later.map(|s| (s.mean, s.p50, s.p95)), Some((15.0, 10.0, 20.0)));
        assert_eq!(figures.ttft_by_turn, [100.0, 10.0, 20.0]);
        assert_eq!((figures.tpot.map(|s| s.mean), figures.tokens_per_s_per_user()), (Some(10.0), Some(100.0)));
        assert_eq!((figures.answer_tokens_per_s(), figures.tokens_per_s()), (5.0, 105.0));
    }

    #[test]
    fn a_server_that_does_not_say_is_not_counted_as_zero() {
        let mut one = served(Kind::First, 0, 1, 0);
        one.answer.cached_tokens = None;
        let pass = Pass { served: vec![one], ..Pass::default() };
        let figures = Figures::of(1, &pass, None, 16);
        assert_eq!((figures.cached_tokens, figures.hit_rate(), figures.hits), (None, None, None));
        assert!(figures.to_json()["hit_rate"].is_null());
    }
}
