//! What the engine's thread looks at when figures are published: its account of memory, and what the gate that refuses requests
//! in time has to know.

use super::{Shared, audit::Audit, budget::StepBudget, inbox::Command};
use crate::{
    client::Metrics,
    engine::EngineState,
    overload::{Load, PaceMeter},
};

/// Waiting requests up to which every step is reported; with more, every so many steps.
const FEW_WAITING: u64 = 256;
const EVERY: u64 = 16;

/// Makes the account, and gathers what the gate wants to know; nothing if nobody is ever refused.
#[derive(Debug)]
pub(super) struct Reporter {
    audit: Audit,
    is_on: bool,
    load: Load,
    meter: PaceMeter,
    /// Requests that came since the last report.
    arrived: u64,
    /// Decoding tokens and time of the last step, until it is counted.
    last: (u32, u64),
    n_reports: u64,
}

impl Reporter {
    pub(super) fn new(is_on: bool) -> Self {
        let (load, meter) = (Load::default(), PaceMeter::default());
        Self { audit: Audit::default(), is_on, load, meter, arrived: 0, last: (0, 0), n_reports: 0 }
    }

    /// A command has been taken from the inbox.
    pub(super) fn obeyed(&mut self, command: &Command) {
        self.arrived += u64::from(matches!(command, Command::Submit { .. }));
    }

    /// A step with so many decoding tokens took `ns`.
    pub(super) fn step(&mut self, decoding: u32, ns: u64) {
        self.last = (decoding, ns);
    }

    pub(super) fn report(&mut self, state: &EngineState, metrics: &Metrics, budget: &StepBudget, shared: &Shared) {
        self.audit.look(state, metrics.steps, || shared.now_ns());
        if !self.is_on {
            return;
        }
        let (decoding, ns) = std::mem::take(&mut self.last);
        self.meter.observe(metrics.generation_tokens, metrics.finished.iter().sum(), decoding, ns);
        self.n_reports += 1;
        if metrics.waiting > FEW_WAITING && !self.n_reports.is_multiple_of(EVERY) {
            return;
        }
        state.load(&mut self.load);
        let config = state.config();
        let rate = budget.prefill_rate(decoding, config.chunk_grid(), config.chunked_prefill_size);
        let pace = self.meter.pace(rate, metrics.prompt_tokens, metrics.cached_tokens);
        shared.gate().report(&mut self.load, pace, std::mem::take(&mut self.arrived));
    }
}
