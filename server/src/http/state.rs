//! What every connection shares: configuration, the loaded model once it is there, and which phase the server is in.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokenspeed_core::client::Limits;

use super::{error::ApiError, metrics::ServerMetrics, request::RequestContext};
use crate::{engine_setup::Loaded, grammar::Grammars, log::Log};

/// Choices of the operator.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Accepted keys; empty = no authentication.
    pub api_keys: Vec<String>,
    /// Names to answer to; empty = the model's own.
    pub model_names: Vec<String>,
    /// Larger bodies get 413.
    pub max_body_bytes: usize,
    /// More requests at once get 429.
    pub max_concurrent_requests: usize,
    /// How long running requests may go on after SIGTERM.
    pub drain_timeout: Duration,
    /// How long a client may take for its headers, and for each piece of its body.
    pub read_timeout: Duration,
    /// Key of requests that bring no seed.
    pub seed: Option<u64>,
    /// Where events go.
    pub log: Log,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            api_keys: Vec::new(),
            model_names: Vec::new(),
            max_body_bytes: 32 << 20,
            max_concurrent_requests: 1024,
            drain_timeout: Duration::from_secs(30),
            read_timeout: Duration::from_secs(30),
            seed: None,
            log: Log::default(),
        }
    }
}

/// The model and what follows from it.
#[derive(Debug)]
pub struct Ready {
    /// Engine, text rules, info.
    pub loaded: Loaded,
    /// Limits, read once.
    pub limits: Limits,
    /// Names to answer to, at least one.
    pub model_names: Vec<String>,
    /// Compiles what answers must look like.
    pub grammars: Arc<Grammars>,
}

impl Ready {
    /// The view that request validation gets.
    pub fn context(&self, seed: Option<u64>) -> RequestContext<'_> {
        RequestContext {
            frontend: &*self.loaded.frontend,
            limits: &self.limits,
            defaults: self.loaded.info.defaults,
            seed,
            model_names: &self.model_names,
        }
    }
}

/// Shared by all connections.
#[derive(Debug)]
pub struct ServerState {
    /// Choices of the operator.
    pub config: ServerConfig,
    /// Counters.
    pub metrics: ServerMetrics,
    /// Seconds since 1970 at start; `created` of the models.
    pub started_s: u64,
    ready: OnceLock<Ready>,
    draining: AtomicBool,
    expired: AtomicBool,
    active: AtomicUsize,
    buffered_bytes: AtomicUsize,
}

/// Seconds since 1970.
pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |duration| duration.as_secs())
}

impl ServerState {
    /// A server that is still loading.
    pub fn new(config: ServerConfig) -> Arc<Self> {
        Arc::new(Self {
            config,
            metrics: ServerMetrics::default(),
            started_s: unix_seconds(),
            ready: OnceLock::new(),
            draining: AtomicBool::new(false),
            expired: AtomicBool::new(false),
            active: AtomicUsize::new(0),
            buffered_bytes: AtomicUsize::new(0),
        })
    }

    /// The model is there. A second call is ignored: a server has one model.
    pub fn set_ready(&self, loaded: Loaded) {
        let mut limits = loaded.engine.limits();
        // Models pad their vocabulary; ids without text are nobody's to name.
        limits.vocab_size = limits.vocab_size.min(loaded.frontend.vocab_size());
        let names = &self.config.model_names;
        let model_names = if names.is_empty() { vec![loaded.info.name.clone()] } else { names.clone() };
        if self.is_draining() {
            loaded.engine.drain();
        }
        let grammars = Grammars::new(Arc::clone(&loaded.frontend));
        let _ = self.ready.set(Ready { loaded, limits, model_names, grammars });
    }

    /// The model, once loaded.
    pub fn loaded(&self) -> Option<&Ready> {
        self.ready.get()
    }

    /// The model, if requests can be served right now; else the 503 to send.
    pub fn serving(&self) -> Result<&Ready, ApiError> {
        if self.is_draining() {
            return Err(ApiError::unavailable("The server is shutting down.", "shutting_down", Some(5)));
        }
        let Some(ready) = self.ready.get() else {
            return Err(ApiError::unavailable("The model is still loading.", "loading", Some(5)));
        };
        ready.loaded.engine.health().map_err(|why| dead(&why))?;
        Ok(ready)
    }

    /// Refuse new requests from now on.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
        if let Some(ready) = self.ready.get() {
            ready.loaded.engine.drain();
        }
    }

    /// SIGTERM was heard.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// The drain time is over: running requests must end with an error.
    pub fn expire(&self) {
        self.expired.store(true, Ordering::SeqCst);
    }

    /// Why running requests cannot go on, if so.
    pub fn interruption(&self) -> Option<ApiError> {
        if self.expired.load(Ordering::SeqCst) {
            let message = "The server shut down before the answer was complete.";
            return Some(ApiError::unavailable(message, "shutting_down", Some(5)));
        }
        let ready = self.ready.get()?;
        ready.loaded.engine.health().err().map(|why| dead(&why))
    }

    /// Requests being answered.
    pub fn active(&self) -> usize {
        self.active.load(Ordering::SeqCst)
    }

    /// Take a place among the concurrent requests.
    pub fn enter(self: &Arc<Self>) -> Result<ActiveRequest, ApiError> {
        let limit = self.config.max_concurrent_requests;
        // Counted before the check, so that two arrivals cannot both take the last place.
        let active = ActiveRequest { state: self.clone(), buffered_bytes: 0 };
        if self.active.fetch_add(1, Ordering::SeqCst) >= limit {
            let message = format!("{limit} requests are already running (--max-concurrent-requests).");
            return Err(ApiError::overloaded(message, 1));
        }
        Ok(active)
    }
}

fn dead(why: &str) -> ApiError {
    ApiError::unavailable(format!("The engine has stopped: {why}"), "engine_dead", None)
}

/// A place among the concurrent requests, given back on drop, together with the body bytes it holds.
#[derive(Debug)]
pub struct ActiveRequest {
    state: Arc<ServerState>,
    buffered_bytes: usize,
}

impl ActiveRequest {
    /// Account for `bytes` more of body; all bodies together are bounded, so that many large ones cannot exhaust memory.
    pub fn buffer(&mut self, bytes: usize) -> Result<(), ApiError> {
        let limit = self.state.config.max_body_bytes.saturating_mul(8);
        self.buffered_bytes += bytes;
        if self.state.buffered_bytes.fetch_add(bytes, Ordering::SeqCst) + bytes > limit {
            return Err(ApiError::overloaded("Too many large request bodies at once.", 1));
        }
        Ok(())
    }

    /// The body has been turned into something smaller.
    pub fn release_buffer(&mut self) {
        self.state.buffered_bytes.fetch_sub(std::mem::take(&mut self.buffered_bytes), Ordering::SeqCst);
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.release_buffer();
        self.state.active.fetch_sub(1, Ordering::SeqCst);
    }
}
