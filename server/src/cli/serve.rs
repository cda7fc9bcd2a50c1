//! `tokenspeed serve`: bind, load, announce, serve, drain.

use std::{io::Write as _, path::PathBuf, time::Duration};

use clap::Args;

use super::engine_options::EngineOptions;
use crate::{
    acceptance, engine_setup,
    error::CliError,
    http::{
        server,
        state::{ServerConfig, ServerState},
    },
    kv_events::{KvEventsArgs, Publisher},
    log::{Log, LogFormat},
    progress::Terminal,
    step_trace_file::StepTraceFile,
};

/// Arguments of `serve`.
#[derive(Clone, Debug, Args)]
pub struct ServeArgs {
    /// Engine options.
    #[command(flatten)]
    pub engine: EngineOptions,
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    pub host: String,
    /// Port to listen on; 0 = any free one
    #[arg(long, default_value_t = 8000)]
    pub port: u16,
    /// Name that clients use; may be repeated [default: from the model's path]
    #[arg(long = "served-model-name", value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub served_model_names: Vec<String>,
    /// Key that clients must send; may be repeated. Also read from the environment, separated by commas
    #[arg(
        long = "api-key",
        env = "TOKENSPEED_API_KEY",
        hide_env_values = true,
        value_delimiter = ',',
        value_name = "KEY"
    )]
    pub api_keys: Vec<String>,
    /// How log lines look
    #[arg(long, value_enum, default_value_t)]
    pub log_format: LogFormat,
    /// How long running requests may go on after SIGTERM, in seconds
    #[arg(long, default_value_t = 30, value_name = "S")]
    pub drain_timeout_s: u32,
    /// Largest request body, in bytes
    #[arg(long, default_value_t = 32 << 20, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_body_bytes: u32,
    /// Requests answered at once; more get 429
    #[arg(long, default_value_t = 1024, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_concurrent_requests: u32,
    /// Block events.
    #[command(flatten)]
    pub kv_events: KvEventsArgs,
    /// Write what each step did, for whom and why, as a Chrome trace; open it in Perfetto
    #[arg(long, value_name = "FILE")]
    pub trace_steps: Option<PathBuf>,
}

/// Serve until a signal ends it.
pub fn run(mut args: ServeArgs) -> Result<(), CliError> {
    let log = Log::new(args.log_format);
    if let Some(key) = args.api_keys.iter().find(|key| key.trim().is_empty() || key.trim() != key.as_str()) {
        let what = if key.trim().is_empty() { "an API key is empty" } else { "an API key has blanks around it" };
        return Err(CliError::usage(what, "--api-key or TOKENSPEED_API_KEY", "give each key as one word"));
    }
    args.engine.refuse_idle()?;
    let kv_events = args.kv_events.config()?;
    if let Some(config) = &kv_events {
        if args.engine.no_prefix_cache {
            let hint = "leave one of the two out";
            return Err(CliError::usage("without a prefix cache there are no block events", "--no-prefix-cache", hint));
        }
        args.engine.cache_events = config.max_queue_size;
    }
    let trace = args.trace_steps.as_deref().map(StepTraceFile::create).transpose()?;
    let listener = server::bind(&args.host, args.port)?;
    let address = listener
        .local_addr()
        .map_err(|error| CliError::new(format!("cannot read the bound address: {error}"), args.host.as_str(), ""))?;
    let state = ServerState::new(ServerConfig {
        api_keys: args.api_keys,
        model_names: args.served_model_names,
        max_body_bytes: args.max_body_bytes as usize,
        max_concurrent_requests: args.max_concurrent_requests as usize,
        drain_timeout: Duration::from_secs(args.drain_timeout_s.into()),
        read_timeout: Duration::from_secs(30),
        seed: args.engine.seed,
        log,
    });
    // Two threads carry thousands of streams; the rest of the machine belongs to the engine.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(8)
        .thread_name("http")
        .enable_all()
        .build()
        .map_err(|error| CliError::new(format!("cannot start the runtime: {error}"), "", ""))?;
    let url = server::url(address);
    let drafts_by_a_model = args.engine.speculative_draft_model.is_some();
    let result = runtime.block_on(async {
        let mut stop = StopSignals::new()?;
        let publisher = match kv_events {
            Some(config) => Some(Publisher::bind(config).await?),
            None => None,
        };
        let (loaded_sender, loaded) = tokio::sync::oneshot::channel();
        let engine = args.engine.clone();
        std::thread::spawn(move || {
            let result = engine_setup::load(&engine, &mut Terminal::new(log, true));
            let _ = loaded_sender.send(result);
        });
        // The server answers probes while the model loads.
        let (begin_stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let serving = tokio::spawn(server::serve(state.clone(), listener, async {
            let _ = stopped.await;
        }));
        tokio::select! {
            loaded = loaded => match loaded {
                Ok(loaded) => {
                    let loaded = loaded?;
                    if let (Some(publisher), Some(events)) = (publisher, loaded.engine.block_events()) {
                        let (endpoint, replay) = (&publisher.endpoint, &publisher.replay_endpoint);
                        log.event("block events", &[("endpoint", endpoint), ("replay", replay)]);
                        publisher.start(events);
                    }
                    if let Some(trace) = &trace {
                        trace.follow(loaded.engine.clone());
                    }
                    if drafts_by_a_model {
                        tokio::spawn(acceptance::watch(loaded.engine.clone(), log));
                    }
                    announce(&state, loaded, &url, log);
                }
                Err(_) => return Err(CliError::new("loading the model failed unexpectedly", args.engine.model.as_str(), "")),
            },
            signal = stop.next() => {
                log.event("stopped", &[("signal", signal), ("while", "loading")]);
                return Ok(());
            }
        }
        let signal = stop.next().await;
        let running = state.active().to_string();
        let limit = args.drain_timeout_s.to_string();
        log.event("draining", &[("signal", signal), ("running", &running), ("timeout_s", &limit)]);
        let _ = begin_stop.send(());
        tokio::select! {
            served = serving => match served {
                Ok(Ok(())) => log.event("stopped", &[("signal", signal)]),
                Ok(Err(error)) => return Err(CliError::new(format!("the server failed: {error}"), url.as_str(), "")),
                Err(_) => return Err(CliError::new("the server failed unexpectedly", url.as_str(), "")),
            },
            second = stop.next() => {
                log.event("stopped at once", &[("signal", second)]);
                if let Some(trace) = trace {
                    trace.finish();
                }
                std::process::exit(130);
            }
        }
        if let Some(trace) = trace {
            trace.finish();
        }
        Ok(())
    });
    // Loading may still run on its thread, and must not hold the process.
    runtime.shutdown_background();
    result
}

fn announce(state: &ServerState, loaded: engine_setup::Loaded, url: &str, log: Log) {
    let defaults = loaded.info.defaults.to_string();
    state.set_ready(loaded);
    let names = state.loaded().map(|ready| ready.model_names.join(", ")).unwrap_or_default();
    if log.is_json() {
        log.event("ready", &[("url", url), ("model", &names), ("sampling_defaults", &defaults)]);
    }
    // On standard output, alone, for scripts.
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "ready: {url} (model {names})");
    let _ = out.flush();
}

struct StopSignals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl StopSignals {
    fn new() -> Result<Self, CliError> {
        use tokio::signal::unix::{SignalKind, signal};
        let failed = |error| CliError::new(format!("cannot listen for signals: {error}"), "", "");
        let terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        Ok(Self { terminate, interrupt })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
