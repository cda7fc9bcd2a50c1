//! The engine as one pure state machine: requests and logits in, parameter blocks and events out.
//!
//! The caller owns threads, the clock and the device. One turn is: [`EngineState::plan`] writes the parameter block of
//! a step, the caller runs it, [`EngineState::advance`] takes the logits and delivers what they mean. `submit` and
//! `abort` may come between the two. At most one step is in flight; a plan is a move-only ticket for it.
//!
//! Rejected: an engine that owns its thread. The simulator could then not own time, and a failing seed not replay.

mod config;

pub use config::{ComponentClass, ComponentConfig, ConfigError, EngineConfig};

use crate::{
    client::{Limits, Metrics},
    request::{Event, Request, RequestId},
    step::StepBuffer,
    validate::RequestError,
};

/// Why [`EngineState::submit`] took nothing.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SubmitError {
    /// The request is wrong; see [`RequestError::kind`] for a machine-readable reason.
    #[error(transparent)]
    Invalid(#[from] RequestError),
    /// Too many wait already.
    #[error("{waiting} requests are waiting already; try again later")]
    QueueFull {
        /// How many, the configured limit.
        waiting: u32,
    },
}

/// Why the cache was not flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the cache cannot be flushed while {requests} requests are running or waiting")]
pub struct FlushError {
    /// How many.
    pub requests: usize,
}

/// A step to run: the ticket that [`EngineState::advance`] takes back with the logits.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "run the step and give the plan to `advance`"]
pub struct Plan {
    /// Step counter, also in the parameter block.
    pub sequence: u64,
    /// Tokens of the step.
    pub n_tokens: u32,
    /// Requests of the step.
    pub n_rows: u32,
    /// Rows of logits `advance` needs; may be 0.
    pub n_logit_rows: u32,
    /// Of the tokens, those that decode.
    pub n_decode_tokens: u32,
    /// Sum over rows of query length times context length, for the backend's cost model.
    pub attention_pairs: u64,
}

/// Hears events in order; called by the engine only inside `advance`, `abort` and `fail_all`.
pub type Deliver<'a> = dyn FnMut(RequestId, Event) + 'a;

/// The engine.
#[derive(Debug)]
pub struct EngineState {
    config: EngineConfig,
}

impl EngineState {
    /// An idle engine with an empty cache.
    pub fn new(config: EngineConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self { config })
    }

    /// As given.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// A buffer for this engine's steps.
    pub fn new_step_buffer(&self) -> StepBuffer {
        StepBuffer::new(self.config.step_capacity())
    }

    /// Queue a request. `now_ns` starts its waiting time.
    pub fn submit(&mut self, request: Request, now_ns: u64) -> Result<RequestId, SubmitError> {
        let _ = (request, now_ns);
        unimplemented!()
    }

    /// End a request: it hears `Finished` with [`crate::request::FinishReason::Abort`] now, its memory is free at once, or when the step
    /// in flight is done. False, and nothing happens, if the id is unknown or has ended.
    pub fn abort(&mut self, id: RequestId, deliver: &mut Deliver<'_>) -> bool {
        let _ = (id, deliver);
        unimplemented!()
    }

    /// Choose the next step and write its parameter block; `None` when there is nothing to run.
    ///
    /// # Panics
    /// While a step is in flight.
    pub fn plan(&mut self, now_ns: u64, step: &mut StepBuffer) -> Option<Plan> {
        let _ = (now_ns, step);
        unimplemented!()
    }

    /// Take the logits of a step, row-major `[plan.n_logit_rows, vocab_size]`, and deliver what follows from them.
    ///
    /// # Panics
    /// If `plan` is not the step in flight or `logits` has another size.
    pub fn advance(&mut self, now_ns: u64, plan: Plan, logits: &[f32], deliver: &mut Deliver<'_>) {
        let _ = (now_ns, plan, logits, deliver);
        unimplemented!()
    }

    /// End every request with `Failed`: the step in flight, if any, is lost and its plan must be dropped. The device
    /// must not be running it any more.
    pub fn fail_all(&mut self, message: &str, deliver: &mut Deliver<'_>) {
        let _ = (message, deliver);
        unimplemented!()
    }

    /// Drop every cached prefix; returns how many pages that freed.
    pub fn flush_cache(&mut self) -> Result<u32, FlushError> {
        unimplemented!()
    }

    /// Most tokens of the following steps, from the caller's cost model. Decoding requests always run and one chunk on
    /// the page grid is always allowed, so any value keeps everything moving. Default: `max_batch_tokens`.
    pub fn set_step_tokens(&mut self, tokens: u32) {
        let _ = tokens;
        unimplemented!()
    }

    /// True when no request runs or waits.
    pub fn is_idle(&self) -> bool {
        unimplemented!()
    }

    /// How long the request that waits longest has done so.
    pub fn oldest_waiting_ns(&self, now_ns: u64) -> Option<u64> {
        let _ = now_ns;
        unimplemented!()
    }

    /// Gauges and counters.
    pub fn metrics(&self) -> Metrics {
        unimplemented!()
    }

    /// Static limits.
    pub fn limits(&self) -> Limits {
        unimplemented!()
    }

    /// Check that every page, row and state slot is accounted for and every reference count is right; says what is
    /// wrong. O(pool): for tests and for idle moments.
    pub fn check_conservation(&self) -> Result<(), String> {
        unimplemented!()
    }
}
