//! Refusals before a request reaches the engine: the gate of the driver, fed as the driver feeds it, against figures of its own.
//!
//! What stands before a request is counted here from what the simulator knows: everybody who waits and goes first, and who
//! came since the last report. How much of their prompts is cached is not known here, so there are two bounds; without a
//! prefix cache they meet.

use tokenspeed_core::{
    driver::{budget::StepBudget, cost::Cost},
    engine::{
        EngineState,
        inspect::{Holder, Phase},
    },
    overload::{Gate, Load, Pace, PaceMeter},
};

use crate::{
    check::{Check, Failure, ensure},
    service::Opens,
};

/// Somebody who goes first.
#[derive(Clone, Copy, Debug)]
struct Ahead {
    priority: i32,
    tokens: u64,
    /// Came since the last report.
    is_new: bool,
}

/// The gate, and what it should know.
#[derive(Debug)]
pub(super) struct Door {
    gate: Gate,
    bound_ns: u64,
    budget: StepBudget,
    meter: PaceMeter,
    load: Load,
    arrived: u64,
    ahead: Vec<Ahead>,
    running: u64,
    running_tokens: u64,
    pace: Pace,
    is_exact: bool,
    seats: u64,
}

impl Door {
    /// Nobody is here yet.
    pub fn new(bound_ns: u64, forecast: Option<Cost>, engine: &EngineState) -> Self {
        let config = engine.config();
        let mut budget = StepBudget::new(None);
        budget.expect(forecast);
        Self {
            gate: Gate::new(Some(bound_ns)),
            bound_ns,
            budget,
            meter: PaceMeter::default(),
            load: Load::default(),
            arrived: 0,
            ahead: Vec::new(),
            running: 0,
            running_tokens: 0,
            pace: Pace::default(),
            is_exact: !config.prefix_cache,
            seats: config.max_num_seqs.into(),
        }
    }

    /// Whether a request is let in.
    pub fn asks(&mut self, priority: i32, prompt_tokens: u32) -> Result<bool, Failure> {
        let [least, most] = self.start_ns(priority);
        let answer = self.gate.ask(priority, prompt_tokens);
        let bound = self.bound_ns;
        match answer {
            Err(refusal) => {
                ensure(most > bound as f64, Check::Refusal, || {
                    format!(
                        "priority {priority} is refused ({refusal:?}); it starts in {most} ns, the bound is {bound}"
                    )
                })?;
                let late_s = (refusal.start_ns - bound).div_ceil(1_000_000_000).clamp(1, 600);
                let retry = u64::from(refusal.retry_after_s);
                ensure(retry == late_s, Check::Refusal, || format!("{late_s} s late, told to come back in {retry} s"))?;
                Ok(false)
            }
            Ok(()) => {
                ensure(least <= bound as f64, Check::Refusal, || {
                    format!("priority {priority} is taken; it starts in {least} ns at best, the bound is {bound}")
                })?;
                self.arrived += 1;
                self.ahead.push(Ahead { priority, tokens: prompt_tokens.into(), is_new: true });
                Ok(true)
            }
        }
    }

    /// When a new request would start, by the figures of the last report: at best, and at worst.
    fn start_ns(&self, priority: i32) -> [f64; 2] {
        // Who is on the way counts in any case: nobody knows yet what becomes of it.
        let ahead: Vec<&Ahead> = self.ahead.iter().filter(|a| a.is_new || a.priority <= priority).collect();
        let n = self.running + ahead.len() as u64 + 1;
        let all: u64 = ahead.iter().map(|a| a.tokens).sum::<u64>() + self.running_tokens;
        let new = ahead.iter().filter(|a| a.is_new).map(|a| (a.tokens as f64 * self.pace.uncached) as u64).sum::<u64>();
        let sure = if self.is_exact { all } else { new };
        let bound = |tokens: u64, seats: u64| {
            let prefill = self.pace.prefill_rate.map_or(0.0, |rate| tokens as f64 / rate.max(1e-9) * 1e9);
            let seat = n.saturating_sub(seats) as f64 * self.pace.output_tokens * self.pace.step_ns;
            prefill.max(seat / seats.max(1) as f64)
        };
        // Rounding of either side is not a finding.
        [bound(sure, self.seats) * (1.0 - 1e-9) - 2.0, bound(all, self.running.min(self.seats)) * (1.0 + 1e-9) + 2.0]
    }

    /// A turn of so many decoding and prompt tokens took `ns`; tokens of the next.
    pub fn turned(&mut self, engine: &EngineState, (decode, prefill): (u32, u32), ns: u64) -> u32 {
        self.budget.observe(decode, prefill, ns);
        let metrics = engine.metrics();
        self.meter.observe(metrics.generation_tokens, metrics.finished.iter().sum(), decode, ns);
        self.budget.tokens(engine.n_decoding())
    }

    /// The driver's report after a turn, and what the simulator knows at the same time.
    pub fn report(&mut self, engine: &EngineState, decode: u32, holders: &[Holder], opens: &Opens) {
        engine.load(&mut self.load);
        let (config, metrics) = (engine.config(), engine.metrics());
        let rate = self.budget.prefill_rate(decode, config.chunk_grid(), config.chunked_prefill_size);
        self.pace = self.meter.pace(rate, metrics.prompt_tokens, metrics.cached_tokens);
        self.gate.report(&mut self.load, self.pace, std::mem::take(&mut self.arrived));
        self.ahead.clear();
        for (_, open) in opens.iter().filter(|(id, open)| !open.is_loading && holders.iter().all(|h| h.id != **id)) {
            self.ahead.push(Ahead { priority: open.rank.0, tokens: open.len.into(), is_new: false });
        }
        self.running = holders.len() as u64;
        let left = holders.iter().filter(|h| h.phase == Phase::Prefilling);
        let left = left.filter_map(|h| Some(opens.get(&h.id)?.len - h.computed - h.planned));
        self.running_tokens = left.map(u64::from).sum();
    }
}
