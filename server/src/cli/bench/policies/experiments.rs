//! What is measured: latency of decoding beside a stream of prompts, overload, and policies on an agentic mix.

use serde::Serialize;
use tokenspeed_core::scheduler::policy::{Order, SchedulingConfig};

use super::lab::{Arrival, Lab, Rng, Served, Setup};
use crate::cli::bench::report::percentile;

/// Mean, median and tail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// Arithmetic mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 95 of 100 are not above.
    pub p95: f64,
    /// 99 of 100 are not above.
    pub p99: f64,
}

impl Spread {
    /// Of these values; zeros if there are none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let at = |percent| percentile(&sorted, percent).unwrap_or(0.0);
        let mean = sorted.iter().sum::<f64>() / sorted.len().max(1) as f64;
        Self { mean, p50: at(50.0), p95: at(95.0), p99: at(99.0) }
    }
}

/// Decoding beside prompts without end.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Stream {
    /// `--step-time-target-ms`; `None` = its default.
    pub target_ms: Option<f64>,
    /// Times between two tokens of a decoding request, in milliseconds.
    pub gap_ms: Spread,
    /// Prompt tokens per second meanwhile.
    pub prefill_per_s: f64,
}

const DECODERS: u32 = 16;
const STREAM: u32 = 1000;

/// 16 requests generate while prompts of 16,384 tokens never run out.
pub fn stream(target_ms: Option<f64>, seed: u64) -> Stream {
    let mut lab = Lab::new(Setup { step_time_target_ms: target_ms, pages: 4000, ..Setup::default() });
    let mut rng = Rng(seed);
    let mut prompt = |at_ns| Arrival { at_ns, label: STREAM, prompt: rng.text(16_384), max_tokens: 1 };
    let mut texts = Rng(seed + 1);
    for label in 0..DECODERS {
        lab.arrive(Arrival { at_ns: 0, label, prompt: texts.text(256), max_tokens: 400 });
    }
    for _ in 0..4 {
        let first = prompt(1);
        lab.arrive(first);
    }
    let mut left = DECODERS;
    let mut follow = |served: &Served| {
        left -= u32::from(served.label < DECODERS);
        (served.label == STREAM && left > 0).then(|| prompt(served.token_ns[0]))
    };
    // The stream ends with the last decoding request; what it leaves in the queue is not waited for.
    let served = lab.run(&mut follow, |lab| {
        lab.now_ns > 0
            && lab.engine.metrics().generation_tokens > 0
            && lab.engine.decisions().decode_tokens == 0
            && lab.engine.metrics().finished[1] > u64::from(DECODERS)
    });
    let decoders = served.iter().filter(|served| served.label < DECODERS);
    let gaps = decoders.flat_map(|served| served.token_ns.windows(2).map(|pair| (pair[1] - pair[0]) as f64 / 1e6));
    let gap_ms = Spread::of(gaps);
    Stream { target_ms, gap_ms, prefill_per_s: lab.prefill_tokens as f64 / (lab.now_ns as f64 / 1e9) }
}

/// More asked than can be done.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Overload {
    /// Requests asked per second.
    pub asked_per_s: f64,
    /// Requests per second that had their first token in time.
    pub good_per_s: f64,
    /// Part of the requests that was refused.
    pub refused: f64,
    /// Of those taken, time to first token in milliseconds.
    pub ttft_ms: Spread,
}

/// A first token later than this is worth nothing.
pub const GOOD_TTFT_MS: f64 = 10_000.0;
/// Queueing that is allowed where requests are refused at all.
pub const QUEUE_DELAY_MS: u64 = 5_000;

/// Requests of 500 to 6,000 tokens and answers of 20 to 200, at random times for `seconds`.
pub fn overload(asked_per_s: f64, refuses: bool, seconds: u32, seed: u64) -> Overload {
    let queue_delay_ns_max = refuses.then_some(QUEUE_DELAY_MS * 1_000_000);
    let mut lab = Lab::new(Setup { queue_delay_ns_max, ..Setup::default() });
    let mut rng = Rng(seed);
    let mut at_ns = 0;
    let end_ns = u64::from(seconds) * 1_000_000_000;
    let mut n = 0;
    loop {
        at_ns += rng.gap_ns(asked_per_s);
        if at_ns >= end_ns {
            break;
        }
        let (prompt, max_tokens) = (rng.between(500, 6000), rng.between(20, 200));
        lab.arrive(Arrival { at_ns, label: n, prompt: rng.text(prompt), max_tokens });
        n += 1;
    }
    let served = lab.run(&mut |_| None, |lab| lab.now_ns >= end_ns);
    let in_time = |served: &&Served| served.is_over && served.ttft_ms().is_some_and(|ms| ms <= GOOD_TTFT_MS);
    Overload {
        asked_per_s,
        good_per_s: served.iter().filter(in_time).count() as f64 / f64::from(seconds),
        refused: served.iter().filter(|served| served.is_refused).count() as f64 / f64::from(n.max(1)),
        ttft_ms: Spread::of(served.iter().filter_map(Served::ttft_ms)),
    }
}

/// Short questions with coalescing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Chat {
    /// `--prefill-coalescing-ms`.
    pub coalescing_ms: u64,
    /// Time to first token.
    pub ttft_ms: Spread,
    /// Time per token after it.
    pub tpot_ms: Spread,
}

/// Twenty questions of 20 to 120 tokens a second for half a minute, answers of 100, where any prompt in a step costs 10 ms
/// more; steps may take 60 ms.
pub fn chat(coalescing_ms: u64, seed: u64) -> Chat {
    let scheduling = SchedulingConfig { coalescing_ns: coalescing_ms * 1_000_000, ..SchedulingConfig::default() };
    let mut lab = Lab::new(Setup { scheduling, mixed_ns: 10e6, step_time_target_ms: Some(60.0), ..Setup::default() });
    let mut rng = Rng(seed);
    let mut at_ns = 0;
    for label in 0..600 {
        at_ns += rng.gap_ns(20.0);
        let n = rng.between(20, 120);
        lab.arrive(Arrival { at_ns, label, prompt: rng.text(n), max_tokens: 100 });
    }
    let served = lab.run(&mut |_| None, |_| false);
    Chat {
        coalescing_ms,
        ttft_ms: Spread::of(served.iter().filter_map(Served::ttft_ms)),
        tpot_ms: Spread::of(served.iter().filter_map(Served::tpot_ms)),
    }
}

/// Policies to compare on coding sessions.
pub const POLICIES: [(&str, Order); 2] = [("fcfs", Order::FirstCome), ("shortest-prefill", Order::ShortestPrefill)];

/// What a policy did to the agentic mix.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mix {
    /// As in [`POLICIES`].
    pub policy: &'static str,
    /// Of all requests, in milliseconds.
    pub ttft_ms: Spread,
    /// Of first turns, with all of their prompt to compute.
    pub first_turn_ttft_ms: Spread,
    /// Of later turns.
    pub later_turn_ttft_ms: Spread,
    /// Of all requests.
    pub tpot_ms: Spread,
    /// Requests that ended.
    pub requests: usize,
}

const TURNS: u32 = 6;

/// Coding sessions begin at random: 4,000 to 32,000 tokens, then five more turns of 800 tokens, each two to ten seconds
/// after the answer of 150 before it.
pub fn mix(number: usize, sessions: u32, seed: u64) -> Mix {
    let (policy, order) = POLICIES[number];
    let scheduling = SchedulingConfig { order, ..SchedulingConfig::default() };
    let mut lab = Lab::new(Setup { scheduling, ..Setup::default() });
    let mut rng = Rng(seed);
    let mut at_ns = 0;
    for session in 0..sessions {
        at_ns += rng.gap_ns(1.3);
        let len = 4000.0 * 8f64.powf(rng.unit());
        lab.arrive(Arrival { at_ns, label: session * TURNS, prompt: rng.text(len as u32), max_tokens: 150 });
    }
    // Every session thinks and asks the same under all policies.
    let mut rngs: Vec<Rng> = (0..sessions).map(|session| Rng(seed ^ u64::from(session + 1) << 20)).collect();
    let served = lab.run(
        &mut |served| {
            let rng = &mut rngs[(served.label / TURNS) as usize];
            let pause_ns = (2e9 + 8e9 * rng.unit()) as u64;
            let prompt = [&served.text[..], &rng.text(800)].concat();
            let at_ns = served.token_ns.last().copied().unwrap_or(0) + pause_ns;
            (served.label % TURNS + 1 < TURNS).then(|| Arrival {
                at_ns,
                label: served.label + 1,
                prompt,
                max_tokens: 150,
            })
        },
        |_| false,
    );
    let ttft = |is_wanted: &dyn Fn(u32) -> bool| {
        Spread::of(served.iter().filter(|served| is_wanted(served.label % TURNS)).filter_map(Served::ttft_ms))
    };
    Mix {
        policy,
        ttft_ms: ttft(&|_| true),
        first_turn_ttft_ms: ttft(&|turn| turn == 0),
        later_turn_ttft_ms: ttft(&|turn| turn > 0),
        tpot_ms: Spread::of(served.iter().filter_map(Served::tpot_ms)),
        requests: served.iter().filter(|served| served.is_over).count(),
    }
}
