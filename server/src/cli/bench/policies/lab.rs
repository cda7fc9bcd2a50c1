//! The engine's state machine on a machine that is a formula, in virtual time.
//!
//! The same parts as in the real driver decide: `EngineState`, the step budget that learns from step times, the gate that
//! refuses. Only the device is replaced, by `fixed + row · decoding tokens + token · prompt tokens`, a few percent of seeded
//! noise included. Everything is deterministic, so tests may assert latencies.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
};

use tokenspeed_core::{
    driver::{budget::StepBudget, cost::Cost},
    engine::{EngineConfig, EngineState, Plan},
    overload::{Gate, Load, PaceMeter},
    request::{Event, Request, RequestId, SamplingParams},
    scheduler::policy::SchedulingConfig,
    step::StepBuffer,
};

/// splitmix64, as in the load generator of `bench serve`.
#[derive(Clone, Debug)]
pub struct Rng(pub u64);

impl Rng {
    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) as f64 / 2f64.powi(64)
    }

    /// Uniform in [low, high].
    pub fn between(&mut self, low: u32, high: u32) -> u32 {
        low + (self.unit() * f64::from(high - low + 1)) as u32
    }

    /// Nanoseconds between two arrivals of a Poisson process.
    pub fn gap_ns(&mut self, per_s: f64) -> u64 {
        (-(1.0 - self.unit()).ln() / per_s * 1e9) as u64
    }

    /// Fresh token ids.
    pub fn text(&mut self, n: u32) -> Vec<u32> {
        (0..n).map(|_| self.between(1, VOCAB - 1)).collect()
    }
}

const VOCAB: u32 = 16;
/// Tokens per page.
pub const PAGE: u32 = 64;

/// What is run on.
#[derive(Clone, Debug)]
pub struct Setup {
    /// What a step costs.
    pub machine: Cost,
    /// What a step with prompt tokens costs beyond that, for example because only steps that decode are replayed whole.
    pub mixed_ns: f64,
    /// Step times vary by this much, up and down.
    pub noise: f64,
    /// Requests at once.
    pub seats: u32,
    /// Cache pages.
    pub pages: u32,
    /// Whose turn it is.
    pub scheduling: SchedulingConfig,
    /// As `--step-time-target-ms`.
    pub step_time_target_ms: Option<f64>,
    /// As `--max-queue-delay-ms`.
    pub queue_delay_ns_max: Option<u64>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            machine: Cost { fixed_ns: 12e6, row_ns: 1e5, token_ns: 2e4 },
            mixed_ns: 0.0,
            noise: 0.03,
            seats: 64,
            pages: 40_000,
            scheduling: SchedulingConfig::default(),
            step_time_target_ms: None,
            queue_delay_ns_max: None,
        }
    }
}

/// A request to come.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// Not before.
    pub at_ns: u64,
    /// For the caller.
    pub label: u32,
    /// Its prompt.
    pub prompt: Vec<u32>,
    /// Its answer's length.
    pub max_tokens: u32,
}

/// What became of a request.
#[derive(Clone, Debug)]
pub struct Served {
    /// The caller's.
    pub label: u32,
    /// When it came.
    pub arrived_ns: u64,
    /// When each token came.
    pub token_ns: Vec<u64>,
    /// Its text so far.
    pub text: Vec<u32>,
    /// Sent away with 429.
    pub is_refused: bool,
    /// It has ended.
    pub is_over: bool,
}

impl Served {
    /// Time to first token, in milliseconds.
    pub fn ttft_ms(&self) -> Option<f64> {
        Some((self.token_ns.first()? - self.arrived_ns) as f64 / 1e6)
    }

    /// Time per token after the first, in milliseconds.
    pub fn tpot_ms(&self) -> Option<f64> {
        let (first, last) = (self.token_ns.first()?, self.token_ns.last()?);
        let n = self.token_ns.len() - 1;
        (n > 0).then(|| (last - first) as f64 / 1e6 / n as f64)
    }
}

/// The engine and its machine.
#[derive(Debug)]
pub struct Lab {
    setup: Setup,
    /// The engine, for looking at.
    pub engine: EngineState,
    step: StepBuffer,
    budget: StepBudget,
    gate: Gate,
    meter: PaceMeter,
    load: Load,
    rng: Rng,
    /// Virtual time.
    pub now_ns: u64,
    /// Ordered by time and number.
    arrivals: BinaryHeap<Reverse<(u64, usize)>>,
    coming: BTreeMap<usize, Arrival>,
    n_arrivals: usize,
    logits: Vec<f32>,
    open: BTreeMap<RequestId, Served>,
    /// Prompt tokens computed.
    pub prefill_tokens: u64,
}

/// Called when a request has ended: what comes next, if anything.
pub type Follow<'a> = dyn FnMut(&Served) -> Option<Arrival> + 'a;

impl Lab {
    /// Idle at time 0.
    pub fn new(setup: Setup) -> Self {
        let mut config = EngineConfig::paged(65_536, PAGE, setup.pages + 1, VOCAB);
        config.max_num_seqs = setup.seats;
        config.table_rows = setup.seats;
        config.max_batch_tokens = setup.seats + config.chunked_prefill_size;
        config.scheduling = setup.scheduling;
        let engine = EngineState::new(config).expect("sizes that fit together");
        Self {
            step: engine.new_step_buffer(),
            budget: StepBudget::new(setup.step_time_target_ms),
            gate: Gate::new(setup.queue_delay_ns_max),
            meter: PaceMeter::default(),
            load: Load::default(),
            rng: Rng(99),
            now_ns: 0,
            arrivals: BinaryHeap::new(),
            coming: BTreeMap::new(),
            n_arrivals: 0,
            logits: Vec::new(),
            open: BTreeMap::new(),
            prefill_tokens: 0,
            engine,
            setup,
        }
    }

    /// Let a request come.
    pub fn arrive(&mut self, arrival: Arrival) {
        self.arrivals.push(Reverse((arrival.at_ns, self.n_arrivals)));
        self.coming.insert(self.n_arrivals, arrival);
        self.n_arrivals += 1;
    }

    fn submit(&mut self, done: &mut Vec<Served>) {
        while let Some(Reverse((at_ns, number))) = self.arrivals.peek().copied()
            && at_ns <= self.now_ns
        {
            self.arrivals.pop();
            let Arrival { label, prompt, max_tokens, .. } = self.coming.remove(&number).expect("comes once");
            let mut served = Served {
                label,
                arrived_ns: at_ns,
                token_ns: Vec::new(),
                text: prompt.clone(),
                is_refused: false,
                is_over: false,
            };
            if self.gate.ask(0, prompt.len() as u32).is_err() {
                served.is_refused = true;
                done.push(served);
                continue;
            }
            let sampling =
                SamplingParams { temperature: 0.0, max_tokens, ignore_eos: true, ..SamplingParams::default() };
            let request = Request { prompt, sampling, ..Request::default() };
            let id = self.engine.submit(request, at_ns).expect("a good request");
            self.open.insert(id, served);
        }
    }

    /// Requests come, a step runs and is taken in; false if there is nothing left to do. Who ended is in `done`.
    pub fn turn(&mut self, done: &mut Vec<Served>) -> bool {
        self.submit(done);
        let Some(plan) = self.engine.plan(self.now_ns, &mut self.step) else {
            let Some(Reverse((at_ns, _))) = self.arrivals.peek() else { return false };
            self.now_ns = self.now_ns.max(*at_ns);
            return true;
        };
        let (decode, prefill) = (plan.n_decode_tokens, plan.n_tokens - plan.n_decode_tokens);
        let noise = 1.0 + self.setup.noise * (2.0 * self.rng.unit() - 1.0);
        let mixed_ns = if prefill > 0 { self.setup.mixed_ns } else { 0.0 };
        let ns = ((self.setup.machine.ns(decode, f64::from(prefill)) + mixed_ns) * noise) as u64;
        self.now_ns += ns;
        self.prefill_tokens += u64::from(prefill);
        self.take_in(plan, done);
        self.budget.observe(decode, prefill, ns);
        self.engine.set_step_tokens(self.budget.tokens(decode));
        let metrics = self.engine.metrics();
        self.meter.observe(metrics.generation_tokens, metrics.finished.iter().sum(), decode, ns);
        self.engine.load(&mut self.load);
        let rate = self.budget.prefill_rate(decode, PAGE, self.engine.config().chunked_prefill_size);
        let pace = self.meter.pace(rate, metrics.prompt_tokens, metrics.cached_tokens);
        self.gate.report(&mut self.load, pace, u64::MAX);
        true
    }

    fn take_in(&mut self, plan: Plan, done: &mut Vec<Served>) {
        self.logits.clear();
        self.logits.resize(plan.n_logit_rows as usize * VOCAB as usize, 0.0);
        let (open, now_ns) = (&mut self.open, self.now_ns);
        self.engine.advance(now_ns, plan, &self.logits, &mut |id, event| match event {
            Event::Started { .. } => {}
            Event::Token { id: token, .. } => {
                let served = open.get_mut(&id).expect("it is open");
                served.token_ns.push(now_ns);
                served.text.push(token);
            }
            Event::Finished { .. } | Event::Failed { .. } => {
                let mut served = open.remove(&id).expect("it is open");
                served.is_over = true;
                done.push(served);
            }
        });
    }

    /// Run until nothing is left, or `until` says so; returns everybody, those still open too.
    pub fn run(&mut self, follow: &mut Follow<'_>, mut until: impl FnMut(&Self) -> bool) -> Vec<Served> {
        let (mut all, mut done) = (Vec::new(), Vec::new());
        while !until(self) && self.turn(&mut done) {
            for served in done.drain(..) {
                if let Some(next) = follow(&served) {
                    self.arrive(next);
                }
                all.push(served);
            }
        }
        all.extend(done);
        all.extend(std::mem::take(&mut self.open).into_values());
        all
    }

    /// End every open request, as if all callers had left.
    #[cfg(test)]
    pub fn abort_all(&mut self) {
        for (id, _) in std::mem::take(&mut self.open) {
            self.engine.abort(id, &mut |_, _| {});
        }
    }
}
