//! `tokenspeed bench`: a server under load, the engine alone, sessions of agents, one request, single operations.

use clap::{Args, Subcommand};

use crate::{engine_setup, error::CliError};

pub mod agentic;
pub mod bandwidth;
pub mod client;
pub mod engine;
pub mod model;
pub mod plot;
pub mod policies;
pub mod report;
pub mod serve;

/// What to measure.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Put load on a running server and report latencies and throughput
    Serve(serve::BenchServeArgs),
    /// Put load on the engine in this process, without HTTP and text
    Engine(engine::BenchEngineArgs),
    /// Replay coding sessions of many turns: latencies by concurrency, and cache hits beside what is possible
    Agentic(Box<agentic::BenchAgenticArgs>),
    /// Time prefill and decode of one request, beside the bytes that decoding must read
    Model(model::BenchModelArgs),
    /// Time single operations of a backend
    Ops(BenchOpsArgs),
    /// Show what scheduling does to latencies, in virtual time on a machine that is a formula; no model is needed
    Policies(policies::BenchPoliciesArgs),
}

/// Arguments of `bench ops`.
#[derive(Clone, Debug, Args)]
pub struct BenchOpsArgs {
    /// Backend name, or path of a plugin
    #[arg(long, default_value = "reference-cpu", value_name = "NAME|PATH")]
    pub backend: String,
    /// Only operations whose name contains this
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Option for the backend
    #[arg(long = "backend-option", value_name = "K=V")]
    pub backend_options: Vec<String>,
    /// Threads for computing
    #[arg(long, value_name = "N")]
    pub threads: Option<u32>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Run it.
pub fn run(command: BenchCommand) -> Result<(), CliError> {
    match command {
        BenchCommand::Serve(args) => serve::run(args),
        BenchCommand::Engine(args) => engine::run(args),
        BenchCommand::Agentic(args) => agentic::run(*args),
        BenchCommand::Model(args) => model::run(args),
        BenchCommand::Ops(args) => engine_setup::bench_ops(&args),
        BenchCommand::Policies(args) => policies::run(&args),
    }
}
