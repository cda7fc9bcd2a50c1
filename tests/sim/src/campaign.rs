//! Many seeds on several threads: each seed is one scenario on one thread, so the threads share nothing but a counter.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokenspeed_core::request::SamplingParams;

use crate::{
    check::Failure,
    ears::Tally,
    generate::scenario,
    scenario::{Arrival, Scenario},
    shrink::shrink,
    simulate::examine,
};

/// How many and how long.
#[derive(Clone, Copy, Debug)]
pub struct Campaign {
    /// First seed.
    pub from: u64,
    /// Most seeds.
    pub seeds: u64,
    /// Stop starting seeds after this.
    pub time: Option<Duration>,
    /// Threads.
    pub jobs: usize,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Seeds run, from the first on without gaps but those in progress at the end of the time.
    pub seeds: u64,
    /// Sum of all runs.
    pub tally: Tally,
    /// The lowest failing seed of those that ran.
    pub failure: Option<(u64, Failure)>,
    /// Wall time.
    pub elapsed: Duration,
}

impl Campaign {
    /// Run it; ends early at the first failure.
    pub fn run(&self) -> Report {
        silence_panics();
        let start = Instant::now();
        let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let report = Mutex::new(Report::default());
        std::thread::scope(|scope| {
            for _ in 0..self.jobs.max(1) {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) && self.time.is_none_or(|time| start.elapsed() < time) {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= self.seeds {
                            break;
                        }
                        let seed = self.from + number;
                        let result = examine(&scenario(seed));
                        let mut report = report.lock().unwrap_or_else(PoisonError::into_inner);
                        report.seeds += 1;
                        match result {
                            Ok(tally) => report.tally += tally,
                            Err(failure) => {
                                stop.store(true, Ordering::Relaxed);
                                if report.failure.as_ref().is_none_or(|(other, _)| seed < *other) {
                                    report.failure = Some((seed, failure));
                                }
                            }
                        }
                    }
                });
            }
        });
        let mut report = report.into_inner().unwrap_or_else(PoisonError::into_inner);
        report.elapsed = start.elapsed();
        report
    }
}

/// A failing seed in words: what failed, how to run it again, and the smallest scenario found that fails alike.
pub fn explain(seed: u64, failure: &Failure) -> String {
    silence_panics();
    let (small, why) = shrink(&scenario(seed), failure);
    format!(
        "seed {seed} fails: {failure}\nreplay: cargo xtask sim --from {seed} --seeds 1\nsmallest scenario found \
         ({} requests, {} faults) fails: {why}\n{}",
        small.arrivals.len(),
        small.faults.len(),
        describe(&small)
    )
}

/// A scenario, one line per part.
fn describe(s: &Scenario) -> String {
    let mut text = format!("{:?}\n{:?}, refuses the fused op: {}", s.config, s.via, s.refuses_fused);
    text += &format!(", plans ahead: {}", s.overlaps);
    text += &format!(", lends masks: {}, queue delay: {:?}, {:?}", s.lends_masks, s.queue_delay_ns, s.wire);
    text += &format!(", {:?}", s.forecast);
    for Arrival { label, tick, text: prompt, sampling, priority, salt, boundaries, grammar, abort } in &s.arrivals {
        let greedy = SamplingParams {
            temperature: 0.0,
            max_tokens: sampling.max_tokens,
            seed: sampling.seed,
            ..SamplingParams::default()
        };
        let how = if *sampling == greedy { "greedy".to_owned() } else { format!("{sampling:?}") };
        text += &format!("\nrequest {label} at tick {tick}: {prompt:?}, at most {} tokens, {how}", sampling.max_tokens);
        text += &format!(", priority {priority}, salt {salt:?}, boundaries {boundaries:?}, {grammar:?}, {abort:?}");
    }
    s.faults.iter().for_each(|(tick, fault)| text += &format!("\nat tick {tick}: {fault:?}"));
    s.load_faults.iter().for_each(|fault| text += &format!("\nat load: {fault:?}"));
    text
}

thread_local!(static IS_SIMULATING: std::cell::Cell<bool> = const { std::cell::Cell::new(false) });

/// The engine's assertions are findings, reported with their seed; their backtraces would only be in the way. Panics
/// outside of [`simulating`] are printed as ever.
pub fn silence_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !IS_SIMULATING.get() {
                before(info);
            }
        }));
    });
}

/// Run something whose panics are caught and reported.
pub(crate) fn simulating<T>(run: impl FnOnce() -> T) -> T {
    IS_SIMULATING.set(true);
    let result = run();
    IS_SIMULATING.set(false);
    result
}
