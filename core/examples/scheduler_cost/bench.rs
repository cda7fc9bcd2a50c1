//! An engine with logits that make every request answer the same token, and a stopwatch around its calls.

use std::{collections::BTreeMap, fs::File, os::unix::fs::FileExt as _};

use tokenspeed_core::{
    engine::{EngineState, Logits, Plan},
    request::{Event, Request, RequestId},
    step::{StepBuffer, StepReader},
};

use crate::{
    options::{Options, VOCABULARY},
    timed,
    trace::ANSWER,
};

/// What is timed.
pub struct Bench {
    pub engine: EngineState,
    step: StepBuffer,
    logits: Vec<f32>,
    /// Read between timed calls, so that they find nothing in the core's own caches; empty = they do.
    sweep: Vec<u64>,
    scheduling: File,
}

impl Bench {
    pub fn new(options: &Options) -> Result<Self, String> {
        let config = options.engine();
        let mut logits = vec![0.0; config.max_logit_rows as usize * VOCABULARY as usize];
        logits.chunks_exact_mut(VOCABULARY as usize).for_each(|row| row[ANSWER as usize] = 1.0);
        let engine = EngineState::new(config).map_err(|error| error.to_string())?;
        let step = engine.new_step_buffer();
        let sweep = vec![1; if options.cold { 2 << 20 } else { 0 }];
        let path = "/proc/thread-self/schedstat";
        let scheduling = File::open(path).map_err(|error| format!("{path}: {error}"))?;
        Ok(Self { engine, step, logits, sweep, scheduling })
    }

    /// Nanoseconds that this thread has had to wait for its core so far: what grew meanwhile was not timed fairly.
    pub fn waited_ns(&self) -> Result<u64, String> {
        let mut text = [0; 80];
        let n = self.scheduling.read_at(&mut text, 0).map_err(|error| error.to_string())?;
        let waited = std::str::from_utf8(&text[..n]).ok().and_then(|text| text.split(' ').nth(1)?.parse().ok());
        waited.ok_or_else(|| "the kernel's scheduling statistics have another form".into())
    }

    fn forget_caches(&self) {
        std::hint::black_box(self.sweep.iter().step_by(8).sum::<u64>());
    }

    pub fn submit(&mut self, request: Request) -> Result<(u64, RequestId), String> {
        self.forget_caches();
        let (ns, id) = timed(|| self.engine.submit(request, 0));
        Ok((ns, id.map_err(|error| error.to_string())?))
    }

    pub fn plan(&mut self) -> (u64, Option<Plan>) {
        self.forget_caches();
        timed(|| self.engine.plan(0, &mut self.step))
    }

    pub fn plan_ahead(&mut self) -> u64 {
        self.forget_caches();
        timed(|| std::hint::black_box(self.engine.plan_ahead())).0
    }

    pub fn advance(&mut self, plan: Plan) -> u64 {
        self.forget_caches();
        let logits = |n: u32| &self.logits[..n as usize * VOCABULARY as usize];
        let logits = Logits { forward: logits(plan.n_logit_rows), verify: logits(plan.verify.unwrap_or(0)) };
        let mut hear = |_: RequestId, event: Event| drop(std::hint::black_box(event));
        let (ns, ()) = timed(|| {
            self.engine.advance(0, plan, logits, &mut hear);
            std::hint::black_box(self.engine.replay_step().is_some());
            self.engine.replayed(0);
        });
        ns
    }

    /// Until nothing is left to do.
    pub fn drain(&mut self) {
        while let (_, Some(plan)) = self.plan() {
            self.advance(plan);
        }
    }

    /// What the step planned last tells the device: (request, tokens to compute), by request.
    pub fn planned(&self) -> Result<Vec<(RequestId, u32)>, String> {
        let block = StepReader::read(self.step.bytes()).map_err(|error| error.to_string())?;
        let by_row: BTreeMap<u32, RequestId> = self.engine.holders().map(|h| (h.table_row, h.id)).collect();
        let mut planned: Vec<_> = block.rows.iter().map(|row| (by_row[&row.table_row], row.query_len)).collect();
        planned.sort_unstable();
        Ok(planned)
    }
}
