//! Whether to take a request now or send it away with a time to come back: decided from when it would start.
//!
//! * A new request starts when the prompt tokens ahead of it are computed (tokens that the cache does not have, over the
//!   measured prefill rate) and when a seat is free (requests ahead that find none, each for as long as the tokens
//!   expected of it take to decode). Both go on at the same time, so the later of the two decides.
//! * Beyond the bound it is refused at once, and told after how long the queue will be short enough. Whoever is taken
//!   therefore starts in time, also when twice as much is asked as can be done.
//! * Before anything is measured everybody is taken; the limit on the number of waiting requests bounds memory.
//!
//! Pure: the engine's thread reports [`Load`] and [`Pace`], callers ask. Rejected: refusing by the number of waiting
//! requests. A hundred short questions start within a second, three long documents may take minutes.

use crate::bug::seeded;

/// Refusals that suggest a longer wait than this suggest this one, in seconds.
const RETRY_AFTER_S_MAX: u64 = 600;

/// How fast the engine is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pace {
    /// Prompt tokens per second beside those who decode now; `None` = not measured yet.
    pub prefill_rate: Option<f64>,
    /// Mean nanoseconds of a step in which somebody decodes.
    pub step_ns: f64,
    /// Tokens that a request generates, on average.
    pub output_tokens: f64,
    /// Part of a prompt that the cache does not have, on average.
    pub uncached: f64,
}

/// New requests of one priority class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassLoad {
    /// Smaller goes first.
    pub priority: i32,
    /// Waiting requests.
    pub requests: u64,
    /// Their prompt tokens that the cache does not have.
    pub tokens: u64,
}

/// What the engine has to do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Load {
    /// Requests that run.
    pub running: u64,
    /// Prompt tokens that running requests have still to compute.
    pub running_tokens: u64,
    /// Requests that can run at once: the seats, or those who run now if memory for more is lacking.
    pub seats: u64,
    /// Waiting requests, by ascending priority.
    pub classes: Vec<ClassLoad>,
}

impl Load {
    /// Count a waiting request; they come in order of priority.
    pub fn wait(&mut self, priority: i32, tokens: u32) {
        match self.classes.last_mut() {
            Some(class) if class.priority == priority => {
                class.requests += 1;
                class.tokens += u64::from(tokens);
            }
            _ => self.classes.push(ClassLoad { priority, requests: 1, tokens: tokens.into() }),
        }
    }
}

/// Nanoseconds until a new request of `priority` would start, behind `load` and `beside` (on their way to the engine).
pub fn start_ns(load: &Load, beside: ClassLoad, pace: &Pace, priority: i32) -> u64 {
    let mut ahead = beside;
    let goes_first = |class: &&ClassLoad| class.priority <= priority || seeded!(RefusalCountsWhoeverWaits);
    for class in load.classes.iter().filter(goes_first) {
        ahead.requests += class.requests;
        ahead.tokens += class.tokens;
    }
    let tokens = (ahead.tokens + load.running_tokens) as f64;
    let prefill_ns = pace.prefill_rate.map_or(0.0, |rate| tokens / rate.max(1e-9) * 1e9);
    let without_seat = (load.running + ahead.requests + 1).saturating_sub(load.seats) as f64;
    let seat_ns = without_seat * pace.output_tokens * pace.step_ns / load.seats.max(1) as f64;
    // A float too large for u64 saturates.
    prefill_ns.max(seat_ns) as u64
}

/// A request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// When it would have started.
    pub start_ns: u64,
    /// When to come back.
    pub retry_after_s: u32,
}

/// Says who is taken.
#[derive(Clone, Debug)]
pub struct Gate {
    delay_ns_max: Option<u64>,
    load: Load,
    pace: Pace,
    /// Taken, and not in `load` yet.
    underway: ClassLoad,
}

impl Gate {
    /// Refuse requests that would start later than in `delay_ns_max`; `None`: nobody.
    pub fn new(delay_ns_max: Option<u64>) -> Self {
        Self { delay_ns_max, load: Load::default(), pace: Pace::default(), underway: ClassLoad::default() }
    }

    /// Whether anybody is ever refused; if not, nothing need be reported.
    pub fn is_on(&self) -> bool {
        self.delay_ns_max.is_some()
    }

    /// Take a request, or not.
    pub fn ask(&mut self, priority: i32, prompt_tokens: u32) -> Result<(), Refusal> {
        let Some(delay_ns_max) = self.delay_ns_max else { return Ok(()) };
        let start_ns = start_ns(&self.load, self.underway, &self.pace, priority);
        if start_ns > delay_ns_max {
            let seconds = (start_ns - delay_ns_max).div_ceil(1_000_000_000).clamp(1, RETRY_AFTER_S_MAX);
            return Err(Refusal { start_ns, retry_after_s: seconds as u32 });
        }
        if !seeded!(BurstSlipsThrough) {
            self.underway.requests += 1;
            self.underway.tokens += self.expected(prompt_tokens);
        }
        Ok(())
    }

    fn expected(&self, prompt_tokens: u32) -> u64 {
        (f64::from(prompt_tokens) * self.pace.uncached.clamp(0.0, 1.0)) as u64
    }

    /// The engine's report; `arrived` requests have reached it since the one before. Keeps the memory of both loads.
    pub fn report(&mut self, load: &mut Load, pace: Pace, arrived: u64) {
        std::mem::swap(&mut self.load, load);
        self.pace = pace;
        // Which ones they were does not matter: what is underway is taken to be alike.
        let left = self.underway.requests.saturating_sub(arrived);
        self.underway.tokens = self.underway.tokens * left / self.underway.requests.max(1);
        self.underway.requests = left;
    }
}

/// Mean length of answers and the pace of steps, from counters that only grow.
#[derive(Clone, Debug, Default)]
pub struct PaceMeter {
    counted: (u64, u64),
    generated: f64,
    finished: f64,
    step_ns: f64,
}

impl PaceMeter {
    /// `generated` tokens and `finished` requests since start; the last step took `ns` and had `decoding` tokens.
    pub fn observe(&mut self, generated: u64, finished: u64, decoding: u32, ns: u64) {
        const OLD: f64 = 0.98;
        let (new_tokens, new_ends) = (generated - self.counted.0, finished - self.counted.1);
        self.counted = (generated, finished);
        let kept = OLD.powf(new_ends as f64);
        self.generated = self.generated * kept + new_tokens as f64;
        self.finished = self.finished * kept + new_ends as f64;
        if decoding > 0 {
            self.step_ns =
                if self.step_ns == 0.0 { ns as f64 } else { self.step_ns + 0.05 * (ns as f64 - self.step_ns) };
        }
    }

    /// Put together; nothing is expected of requests before the first has ended.
    pub fn pace(&self, prefill_rate: Option<f64>, prompt_tokens: u64, cached_tokens: u64) -> Pace {
        let uncached = 1.0 - cached_tokens as f64 / prompt_tokens.max(1) as f64;
        let output_tokens = if self.finished > 0.0 { self.generated / self.finished } else { 0.0 };
        Pace { prefill_rate, step_ns: self.step_ns, output_tokens, uncached }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACE: Pace = Pace { prefill_rate: Some(1000.0), step_ns: 1e7, output_tokens: 100.0, uncached: 1.0 };

    fn load(running: u64, seats: u64, waiting: &[(i32, u32)]) -> Load {
        let mut load = Load { running, running_tokens: 500, seats, classes: Vec::new() };
        waiting.iter().for_each(|&(priority, tokens)| load.wait(priority, tokens));
        load
    }

    #[test]
    fn the_later_of_prefill_and_seat_decides() {
        let nobody = ClassLoad::default();
        assert_eq!(start_ns(&load(2, 8, &[(0, 1500), (0, 1000)]), nobody, &PACE, 0), 3_000_000_000);
        // All seats are taken, each for a second; the third to come needs three to become free.
        assert_eq!(
            start_ns(&load(8, 8, &[(0, 1), (0, 1)]), nobody, &PACE, 0),
            502_000_000,
            "not the 375 ms until a seat is free"
        );
        let many: Vec<_> = (0..79).map(|_| (0, 1)).collect();
        assert_eq!(start_ns(&load(8, 8, &many), nobody, &PACE, 0), 10_000_000_000);
        assert_eq!(
            start_ns(&load(2, 8, &[]), ClassLoad { requests: 1, tokens: 4000, priority: 0 }, &PACE, 0),
            4_500_000_000
        );
    }

    #[test]
    fn whoever_goes_first_waits_for_fewer() {
        let load = load(2, 8, &[(-1, 1500), (0, 1000), (5, 7000)]);
        let start = |priority| start_ns(&load, ClassLoad::default(), &PACE, priority) / 1_000_000;
        assert_eq!([-2, -1, 0, 4, 5].map(start), [500, 2000, 3000, 3000, 10_000]);
    }

    #[test]
    fn a_burst_between_two_reports_does_not_slip_through() {
        let mut gate = Gate::new(Some(2_000_000_000));
        gate.report(&mut load(1, 1000, &[]), PACE, 0);
        let taken = (0..100).take_while(|_| gate.ask(0, 100).is_ok()).count();
        assert_eq!(taken, 16, "500 tokens were there; the 16th starts after 2 s");
        let refusal = gate.ask(0, 1).unwrap_err();
        assert_eq!((refusal.start_ns, refusal.retry_after_s), (2_100_000_000, 1));
        gate.report(&mut load(1, 1000, &[]), PACE, 10);
        assert_eq!((0..100).take_while(|_| gate.ask(0, 100).is_ok()).count(), 10);
    }

    #[test]
    fn without_a_bound_or_figures_nobody_is_refused() {
        let mut gate = Gate::new(None);
        gate.report(&mut load(1, 1, &[(0, u32::MAX)]), PACE, 0);
        assert_eq!(gate.ask(0, u32::MAX), Ok(()));
        let mut gate = Gate::new(Some(0));
        assert_eq!(gate.ask(0, u32::MAX), Ok(()));
        gate.report(&mut load(1, 2, &[(0, u32::MAX)]), Pace { prefill_rate: Some(1e-300), ..PACE }, 0);
        assert_eq!(gate.ask(0, 1).unwrap_err().retry_after_s, 600, "no wait is longer");
    }

    #[test]
    fn meter_finds_the_mean_answer() {
        let mut meter = PaceMeter::default();
        assert_eq!(meter.pace(None, 0, 0).output_tokens, 0.0);
        for i in 1..=500 {
            meter.observe(i * 30, i, 4, 10);
        }
        let pace = meter.pace(Some(1.0), 100, 25);
        assert!((pace.output_tokens - 30.0).abs() < 0.1 && pace.step_ns == 10.0 && pace.uncached == 0.75, "{pace:?}");
    }
}
