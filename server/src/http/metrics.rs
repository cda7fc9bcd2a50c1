//! Counters of the server and the text of `/metrics` (Prometheus format, written by hand: it is a page of lines).
//!
//! Requests, tokens and endings are counted here, where every one of them is seen exactly once, aborted ones included;
//! queue and memory gauges are read from the engine when scraped, so they can never stick.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokenspeed_core::{client::Metrics, sampler::device::HostOnly};

use crate::generation::answer::Ending;

/// Upper bounds in seconds, shared by all histograms.
const BOUNDS: [f64; 16] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

/// How a choice ended, as counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Ended by itself.
    Ended(Ending),
    /// The client went away.
    Abort,
    /// Failed.
    Error,
}

const OUTCOMES: [&str; 5] = ["stop", "length", "tool_calls", "abort", "error"];

impl Outcome {
    fn index(self) -> usize {
        match self {
            Self::Ended(Ending::Stop) => 0,
            Self::Ended(Ending::Length) => 1,
            Self::Ended(Ending::ToolCalls) => 2,
            Self::Abort => 3,
            Self::Error => 4,
        }
    }
}

#[derive(Debug, Default)]
struct Histogram {
    buckets: [AtomicU64; BOUNDS.len()],
    count: AtomicU64,
    sum_us: AtomicU64,
}

impl Histogram {
    fn observe(&self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        if let Some(bucket) = BOUNDS.iter().position(|bound| seconds <= *bound) {
            self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(duration.as_micros() as u64, Ordering::Relaxed);
    }

    fn write(&self, out: &mut String, name: &str, help: &str) {
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} histogram");
        let mut total = 0;
        for (bound, bucket) in BOUNDS.iter().zip(&self.buckets) {
            total += bucket.load(Ordering::Relaxed);
            let _ = writeln!(out, "{name}_bucket{{le=\"{bound}\"}} {total}");
        }
        // Read once, so that +Inf and the count agree even while requests end.
        let count = self.count.load(Ordering::Relaxed).max(total);
        let sum = self.sum_us.load(Ordering::Relaxed) as f64 / 1e6;
        let _ = writeln!(out, "{name}_bucket{{le=\"+Inf\"}} {count}\n{name}_sum {sum}\n{name}_count {count}");
    }
}

/// All counters since start.
#[derive(Debug, Default)]
pub struct ServerMetrics {
    responses: Mutex<BTreeMap<(&'static str, u16), u64>>,
    outcomes: [AtomicU64; OUTCOMES.len()],
    prompt_tokens: AtomicU64,
    cached_tokens: AtomicU64,
    generation_tokens: AtomicU64,
    first_token: Histogram,
    per_token: Histogram,
    whole: Histogram,
}

impl ServerMetrics {
    /// A response head was decided on.
    pub fn response(&self, route: &'static str, status: u16) {
        let mut responses = self.responses.lock().unwrap_or_else(PoisonError::into_inner);
        *responses.entry((route, status)).or_insert(0) += 1;
    }

    /// Prompt tokens of one prompt (not per choice), as in `usage`.
    pub fn prompt(&self, prompt_tokens: u32, cached_tokens: u32) {
        self.prompt_tokens.fetch_add(prompt_tokens.into(), Ordering::Relaxed);
        self.cached_tokens.fetch_add(cached_tokens.into(), Ordering::Relaxed);
    }

    /// The whole page. `engine` is absent while loading.
    pub fn render(&self, engine: Option<&Metrics>, active: usize) -> String {
        let mut out = String::with_capacity(8192);
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        header(&mut out, "tokenspeed_http_responses_total", "HTTP responses by route and status.", "counter");
        for ((route, status), count) in self.responses.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let _ = writeln!(out, "tokenspeed_http_responses_total{{route=\"{route}\",status=\"{status}\"}} {count}");
        }
        single(&mut out, "tokenspeed_http_requests_active", "Requests being answered.", "gauge", active as f64);
        header(&mut out, "tokenspeed_choices_finished_total", "Answers by finish reason.", "counter");
        for (name, count) in OUTCOMES.iter().zip(&self.outcomes) {
            let _ = writeln!(out, "tokenspeed_choices_finished_total{{reason=\"{name}\"}} {}", load(count));
        }
        let counter = "counter";
        let tokens = load(&self.prompt_tokens) as f64;
        single(&mut out, "tokenspeed_prompt_tokens_total", "Prompt tokens of finished requests.", counter, tokens);
        let tokens = load(&self.cached_tokens) as f64;
        single(&mut out, "tokenspeed_cached_tokens_total", "Of these, from the prefix cache.", counter, tokens);
        let tokens = load(&self.generation_tokens) as f64;
        single(&mut out, "tokenspeed_generation_tokens_total", "Generated tokens.", counter, tokens);
        self.first_token.write(&mut out, "tokenspeed_time_to_first_token_seconds", "From request to first token.");
        self.per_token.write(&mut out, "tokenspeed_time_per_output_token_seconds", "Mean after the first, per answer.");
        self.whole.write(&mut out, "tokenspeed_request_seconds", "From request to end, per answer.");
        if let Some(engine) = engine {
            write_engine(&mut out, engine);
        }
        out
    }
}

fn header(out: &mut String, name: &str, help: &str, kind: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn single(out: &mut String, name: &str, help: &str, kind: &str, value: f64) {
    header(out, name, help, kind);
    let _ = writeln!(out, "{name} {value}");
}

fn write_engine(out: &mut String, engine: &Metrics) {
    let gauge = |out: &mut String, name: &str, help: &str, value: u64| single(out, name, help, "gauge", value as f64);
    gauge(out, "tokenspeed_requests_running", "Sequences with tokens in flight.", engine.running);
    gauge(out, "tokenspeed_requests_waiting", "Sequences waiting to run.", engine.waiting);
    gauge(out, "tokenspeed_kv_pages_used", "Pages held by requests or the prefix cache.", engine.pages_used);
    gauge(out, "tokenspeed_kv_pages_cached", "Pages held only by the prefix cache.", engine.pages_cached);
    gauge(out, "tokenspeed_kv_pages_total", "All pages.", engine.pages_total);
    gauge(out, "tokenspeed_states_used", "Recurrent states held by requests or the cache.", engine.states_used);
    gauge(out, "tokenspeed_states_cached", "Recurrent states stored in the prefix cache.", engine.states_cached);
    gauge(out, "tokenspeed_states_total", "All slots for recurrent states.", engine.states_total);
    gauge(out, "tokenspeed_requests_loading", "Sequences waiting for pages from host memory.", engine.loading);
    gauge(out, "tokenspeed_host_pages_used", "Pages in host memory.", engine.host_pages[0]);
    gauge(out, "tokenspeed_host_pages_total", "Pages that host memory has room for.", engine.host_pages[1]);
    gauge(out, "tokenspeed_host_states_used", "Recurrent states in host memory.", engine.host_states[0]);
    gauge(
        out,
        "tokenspeed_host_states_total",
        "Recurrent states that host memory has room for.",
        engine.host_states[1],
    );
    gauge(
        out,
        "tokenspeed_prefix_cache_least_tokens",
        "Tokens of the shortest prefix that can be reused; 0: none is.",
        engine.cacheable_tokens,
    );
    let counter = |out: &mut String, name: &str, help: &str, value: f64| single(out, name, help, "counter", value);
    let cut = engine.cut_tokens as f64;
    counter(
        out,
        "tokenspeed_cut_tokens_total",
        "Prompt tokens whose pages were cached and which were computed again for want of a recurrent state.",
        cut,
    );
    counter(out, "tokenspeed_host_stored_pages_total", "Pages copied to host memory.", engine.host_stored as f64);
    counter(out, "tokenspeed_host_loaded_pages_total", "Pages copied back.", engine.host_loaded as f64);
    counter(
        out,
        "tokenspeed_host_failed_copies_total",
        "Copies that failed or did not fit their checksum; each was a miss.",
        engine.host_failed as f64,
    );
    let [checked, right] = engine.branches.map(|n| n as f64);
    counter(out, "tokenspeed_draft_branches_total", "Side branches of guesses that were checked.", checked);
    counter(out, "tokenspeed_accepted_branches_total", "Of these, the right ones.", right);
    let ahead = engine.ahead_steps as f64;
    counter(out, "tokenspeed_planned_ahead_steps_total", "Steps planned while the one in front ran.", ahead);
    let relayed = engine.relayed_steps as f64;
    counter(
        out,
        "tokenspeed_relayed_steps_total",
        "Steps given to the device before the one in front had ended.",
        relayed,
    );
    let help = "Steps that the host sampled, by what asked for it; `device`: the device does not sample.";
    header(out, "tokenspeed_host_sampled_steps_total", help, "counter");
    for (reason, count) in HostOnly::ALL.iter().zip(engine.host_steps) {
        let _ = writeln!(out, "tokenspeed_host_sampled_steps_total{{reason=\"{}\"}} {count}", reason.name());
    }
    counter(out, "tokenspeed_preemptions_total", "Sequences that were queued again.", engine.preemptions as f64);
    counter(out, "tokenspeed_engine_steps_total", "Forward steps.", engine.steps as f64);
    counter(out, "tokenspeed_engine_step_seconds_total", "Time in steps.", engine.step_ns as f64 / 1e9);
    header(
        out,
        "tokenspeed_engine_sequences_total",
        "Sequences by how they left the engine (a stop string is an abort).",
        "counter",
    );
    for (name, count) in ["stop", "length", "abort", "failed"].iter().zip(engine.finished) {
        let _ = writeln!(out, "tokenspeed_engine_sequences_total{{reason=\"{name}\"}} {count}");
    }
    for (name, help, counts) in [
        (
            "tokenspeed_draft_tokens_total",
            "Guessed tokens that were checked, by their place in the guess.",
            engine.drafts,
        ),
        ("tokenspeed_accepted_tokens_total", "Of these, the right ones.", engine.accepted),
    ] {
        header(out, name, help, "counter");
        for (position, count) in (1..).zip(counts.iter().take(engine.draft_max as usize)) {
            let _ = writeln!(out, "{name}{{position=\"{position}\"}} {count}");
        }
    }
}

/// Times one answer; an answer dropped before its end counts as aborted.
#[derive(Debug)]
pub struct Record {
    start: Instant,
    first: Option<Instant>,
    tokens: u32,
    outcome: Outcome,
}

impl Record {
    /// Starts now unless the request began earlier.
    pub fn new(start: Instant) -> Self {
        Self { start, first: None, tokens: 0, outcome: Outcome::Abort }
    }

    /// `tokens` have been generated so far.
    pub fn tokens(&mut self, tokens: u32) {
        if tokens > 0 && self.first.is_none() {
            self.first = Some(Instant::now());
        }
        self.tokens = tokens;
    }

    /// How it ended.
    pub fn end(&mut self, outcome: Outcome) {
        self.outcome = outcome;
    }

    /// Count it.
    pub fn count(&self, metrics: &ServerMetrics) {
        metrics.outcomes[self.outcome.index()].fetch_add(1, Ordering::Relaxed);
        metrics.generation_tokens.fetch_add(self.tokens.into(), Ordering::Relaxed);
        metrics.whole.observe(self.start.elapsed());
        if let Some(first) = self.first {
            metrics.first_token.observe(first - self.start);
            if self.tokens > 1 {
                metrics.per_token.observe(first.elapsed() / (self.tokens - 1));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Names of metrics, without labels.
    fn names(text: &str) -> BTreeSet<&str> {
        let ends = |c: char| !(c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        text.match_indices("tokenspeed_").map(|(at, _)| text[at..].split(ends).next().expect("a name")).collect()
    }

    #[test]
    fn guesses_are_counted_at_every_place_there_is() {
        let of = |engine: &Metrics| -> Vec<String> {
            let page = ServerMetrics::default().render(Some(engine), 0);
            let is_sample = |line: &&str| line.starts_with("tokenspeed_") && line.contains("{position=");
            page.lines().filter(is_sample).map(|line| line.trim_start_matches("tokenspeed_").to_owned()).collect()
        };
        let mut engine = Metrics { draft_max: 3, ..Metrics::default() };
        // The first guess was always wrong; the third was never made.
        (engine.drafts[0], engine.drafts[1]) = (5, 2);
        let expected = [("draft", [5, 2, 0]), ("accepted", [0, 0, 0])].map(|(name, counts)| {
            (1..).zip(counts).map(move |(n, count)| format!("{name}_tokens_total{{position=\"{n}\"}} {count}"))
        });
        assert_eq!(of(&engine), expected.into_iter().flatten().collect::<Vec<_>>());
        assert_eq!(of(&Metrics::default()), [""; 0], "nobody guesses");
    }

    #[test]
    fn the_document_lists_what_the_page_has() {
        let metrics = ServerMetrics::default();
        // Series without a sample have a header, and so a name.
        let mut engine = Metrics { draft_max: 1, ..Metrics::default() };
        (engine.drafts[0], engine.accepted[0]) = (2, 1);
        let page = metrics.render(Some(&engine), 0);
        let headers = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let exported: BTreeSet<&str> = headers.map(|line| line.split(' ').next().expect("a name")).collect();
        let document = include_str!("../../../docs/api.md");
        let section = document.split("\n## ").find(|section| section.starts_with("Metrics\n")).expect("it has one");
        assert_eq!(names(section), exported, "`docs/api.md` (left) and `/metrics` (right)");
        assert!(exported.len() > 35, "{} names", exported.len());
    }
}
