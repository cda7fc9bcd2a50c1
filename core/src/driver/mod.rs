//! The thin driver: a thread that turns the state machine's plans into steps of a device, the device's own thread, and a
//! handle to both.
//!
//! The engine thread owns the engine state and lends the device out for each step; callers talk to it through an inbox and hear events through
//! mailboxes, so nobody ever waits on the engine's lock. Everything here is about time and threads; every decision is
//! the state machine's.
//!
//! What ends a request, a step or the engine: a request's own fault ends that request; a failed step fails the
//! requests that were running and the engine goes on if the device says it is well; a lost device or a panic of this
//! thread ends the engine, `health` says so, and every request hears `Failed`. So does memory that is not accounted for
//! ([`audit`]).

mod audit;
pub mod budget;
mod copies;
pub mod cost;
mod device;
mod feed;
pub mod forecast;
mod inbox;
mod masks;
mod outstanding;
mod queue;
#[cfg(test)]
mod races;
mod report;
mod steps;
mod thread;
mod workers;

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokenspeed_backend_api::backend::Load;

use crate::{
    cache::copies::CopyOrder,
    client::{Engine, EventStream, Limits, Mailbox, Metrics, SubmitError},
    engine::{ConfigError, EngineConfig, EngineState, Pass},
    overload::Gate,
    request::{Request, RequestId},
    sampler::{device::Sampled, side::SideUpdates},
    scheduler::trace::{StepRecord, StepTrace},
};
pub use copies::{CopyError, HostCache};
use feed::Feed;
pub use feed::{BlockEvents, EventBatch};
use inbox::{Command, Inbox};
use outstanding::Outstanding;
use steps::Steps;

/// Runs one step on a device.
pub trait StepRunner: Send {
    /// Run the parameter block of a pass that the model has.
    fn run(&mut self, pass: Pass, step: &[u8], n_logit_rows: u32) -> Result<(), String>;
    /// The pass's last logits, `n_logit_rows · vocab` f32, row-major.
    fn logits(&self, pass: Pass) -> &[f32];
    /// Run the parameter block of a forward or verify pass whose rows of logits the device samples. Only asked of a runner whose
    /// engine relays ([`EngineConfig::relay`]).
    fn run_sampled(&mut self, pass: Pass, step: &[u8], n_logit_rows: u32) -> Result<(), String> {
        let _ = (pass, step, n_logit_rows);
        Err("this device does not sample".to_owned())
    }
    /// Write rows of the side tables that the device samples with; no pass runs meanwhile. Only asked of a runner whose engine has
    /// such rows ([`EngineConfig::side_rows`]).
    fn write_side(&mut self, updates: &SideUpdates) -> Result<(), String> {
        let _ = updates;
        Err("this device has no side tables".to_owned())
    }
    /// Sample the rows of a pass that was run without being sampled, by a block that differs from its own in the records.
    fn sample(&mut self, pass: Pass, step: &[u8], n_logit_rows: u32) -> Result<(), String> {
        let _ = (pass, step, n_logit_rows);
        Err("this device does not sample".to_owned())
    }
    /// What the pass gave when it was last sampled, `n_logit_rows` rows.
    fn sampled(&self, pass: Pass) -> Sampled<'_> {
        let _ = pass;
        Sampled::default()
    }
    /// Copy a page or a state between the device and host memory, as [`EngineState::next_copy`] ordered; no pass runs
    /// meanwhile. A runner without host memory refuses.
    fn copy(&mut self, order: &CopyOrder) -> Result<(), CopyError> {
        let _ = order;
        Err(CopyError::NoHostMemory)
    }
    /// By the device's own model, nanoseconds of a pass under `load`; `None` if it has none. Asked at start, never while steps run.
    fn forecast(&self, pass: Pass, load: &Load) -> Result<Option<u64>, String> {
        let _ = (pass, load);
        Ok(None)
    }
    /// `Err` if the device is lost for good.
    fn status(&self) -> Result<(), String>;
}

/// What the driver adds to the engine's own configuration.
#[derive(Clone, Debug)]
pub struct DriverConfig {
    /// Target of a mixed step; `None` = twice the measured decode-only step.
    pub step_time_target_ms: Option<f64>,
    /// Requests that would start later than this are refused; `None` = nobody is, before too many wait.
    pub max_queue_delay: Option<Duration>,
    /// A step longer than this makes `health` report the engine as stuck.
    pub stuck_after: Duration,
    /// Plan the next step while the device runs one.
    pub overlap: bool,
    /// With a draft model: measure at start what its guesses cost, in three seconds at most.
    pub warm_up: bool,
}

impl Default for DriverConfig {
    fn default() -> Self {
        let stuck_after = Duration::from_secs(120);
        Self { step_time_target_ms: None, max_queue_delay: None, stuck_after, overlap: true, warm_up: false }
    }
}

/// Shared by the handle and the thread.
struct Shared {
    inbox: Inbox,
    metrics: Mutex<Metrics>,
    outstanding: Outstanding,
    gate: Mutex<Gate>,
    steps: Steps,
    draining: AtomicBool,
    dead: Mutex<Option<String>>,
    /// Nanoseconds since `epoch` when the step in flight began; 0 = none.
    step_began_ns: AtomicU64,
    epoch: Instant,
    /// Block events of the prefix cache.
    feed: Arc<Feed>,
}

impl Shared {
    fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    fn dead(&self) -> Option<String> {
        self.dead.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn gate(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For callers who already know that the thread has ended.
    fn why_dead(&self) -> String {
        self.dead().unwrap_or_else(|| "the engine has stopped".into())
    }
}

/// What a caught panic says.
fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    text.unwrap_or("no message").to_owned()
}

/// A running engine. Dropping the last handle stops the thread after the step in flight.
pub struct EngineHandle {
    shared: Arc<Shared>,
    limits: Limits,
    config: EngineConfig,
    stuck_after: Duration,
    next_ticket: AtomicU64,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl std::fmt::Debug for EngineHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "EngineHandle({:?})", self.limits)
    }
}

impl EngineHandle {
    /// Start the engine thread on a loaded device; returns when it takes requests, after a warm-up if there is one.
    pub fn start(
        config: EngineConfig,
        driver: DriverConfig,
        runner: Box<dyn StepRunner>,
    ) -> Result<Arc<Self>, ConfigError> {
        let state = EngineState::new(config.clone())?;
        let DriverConfig { max_queue_delay, stuck_after, .. } = driver;
        let limits = state.limits();
        let shared = Arc::new(Shared {
            inbox: Inbox::new(),
            metrics: Mutex::new(state.metrics()),
            outstanding: Outstanding::default(),
            gate: Mutex::new(Gate::new(max_queue_delay.map(|delay| delay.as_nanos() as u64))),
            steps: Steps::new(StepTrace::default()),
            draining: AtomicBool::new(false),
            dead: Mutex::new(None),
            step_began_ns: AtomicU64::new(0),
            epoch: Instant::now(),
            feed: Feed::new(config.block_tokens, config.cache_events),
        });
        let for_thread = Arc::clone(&shared);
        let (ready, is_ready) = std::sync::mpsc::sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("engine".into())
            .spawn(move || thread::main(for_thread, state, runner, &driver, &ready))
            .expect("a thread can be started");
        // A thread that died instead has said why to `health`.
        let _ = is_ready.recv();
        Ok(Arc::new(Self { shared, limits, config, stuck_after, next_ticket: AtomicU64::new(1), thread: Some(thread) }))
    }
}

/// Events a mailbox holds without allocating; a reader that lags further behind costs an allocation, nothing else.
const MAILBOX_EVENTS_MAX: u32 = 4096;

impl Engine for EngineHandle {
    fn submit(&self, mut request: Request) -> Result<EventStream, SubmitError> {
        let shared = &self.shared;
        if let Some(why) = shared.dead() {
            return Err(SubmitError::Dead(why));
        }
        if shared.draining.load(Ordering::Acquire) {
            return Err(SubmitError::Draining);
        }
        request.validate(&self.config.request_limits()).map_err(|e| SubmitError::Invalid(e.to_string()))?;
        // The engine appends the answer: room for it is made here, where copying a long prompt delays nobody else.
        let room = (self.limits.max_model_len as usize).saturating_sub(request.prompt.len());
        request.prompt.reserve_exact(room.min(request.sampling.max_tokens as usize));
        let most = u64::from(self.config.max_waiting) + u64::from(self.config.max_num_seqs);
        if !shared.outstanding.enter(most) {
            return Err(SubmitError::Overloaded { retry_after_s: 1 });
        }
        if let Err(refusal) = shared.gate().ask(request.priority, request.prompt.len() as u32) {
            shared.outstanding.leave(1);
            return Err(SubmitError::Overloaded { retry_after_s: refusal.retry_after_s });
        }
        let ticket = RequestId(self.next_ticket.fetch_add(1, Ordering::Relaxed));
        let capacity = request.sampling.max_tokens.min(self.limits.max_model_len).min(MAILBOX_EVENTS_MAX) + 2;
        let mailbox = Mailbox::new(capacity as usize);
        let command = Command::Submit { ticket, request: Box::new(request), mailbox: Arc::clone(&mailbox) };
        if !shared.inbox.push(command) {
            return Err(SubmitError::Dead(shared.why_dead()));
        }
        let for_abort = Arc::clone(shared);
        Ok(EventStream::new(ticket, mailbox, move |ticket| {
            // An engine that has ended has nothing left to abort.
            let _ = for_abort.inbox.push(Command::Abort { ticket });
        }))
    }

    fn metrics(&self) -> Metrics {
        self.shared.metrics.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn limits(&self) -> Limits {
        self.limits.clone()
    }

    fn health(&self) -> Result<(), String> {
        if let Some(why) = self.shared.dead() {
            return Err(why);
        }
        let began = self.shared.step_began_ns.load(Ordering::Acquire);
        let running = Duration::from_nanos(self.shared.now_ns().saturating_sub(began));
        if began != 0 && running > self.stuck_after {
            return Err(format!("a step has been running for {} s", running.as_secs()));
        }
        Ok(())
    }

    fn drain(&self) {
        self.shared.draining.store(true, Ordering::Release);
    }

    fn block_events(&self) -> Option<BlockEvents> {
        (self.config.cache_events > 0).then(|| BlockEvents::new(Arc::clone(&self.shared.feed)))
    }

    fn flush_cache(&self) -> Result<(), String> {
        let (reply, answer) = std::sync::mpsc::sync_channel(1);
        if !self.shared.inbox.push(Command::Flush { reply }) {
            return Err(self.shared.why_dead());
        }
        answer.recv().map_err(|_| self.shared.why_dead())?
    }

    fn steps(&self, after: u64, most: usize) -> Vec<StepRecord> {
        self.shared.steps.copy(after, most, steps::AT_ONCE)
    }

    fn last_steps(&self, n: usize) -> Vec<StepRecord> {
        self.shared.steps.copy_last(n, steps::AT_ONCE)
    }
}

impl Drop for EngineHandle {
    fn drop(&mut self) {
        // A thread that has ended needs no telling.
        let _ = self.shared.inbox.push(Command::Stop);
        if let Some(thread) = self.thread.take() {
            // A panic was already turned into `dead` by the thread itself.
            let _ = thread.join();
        }
    }
}
