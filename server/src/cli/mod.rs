//! The `tokenspeed` command: one file per subcommand, over the two seams of this crate.

use clap::{Parser, Subcommand};

use crate::error::CliError;

pub mod backends;
pub mod bench;
pub mod chat;
pub mod conform;
pub mod engine_options;
pub mod logits;
pub mod model_path;
pub mod plan;
pub mod pull;
#[cfg(feature = "hub")]
mod pull_hub;
pub mod run;
pub mod sampling_options;
pub mod serve;
pub mod session;
pub mod tiny;
pub mod tokenize;

/// Fast LLM inference on any accelerator.
#[derive(Debug, Parser)]
#[command(name = "tokenspeed", version, propagate_version = true, disable_help_subcommand = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve a model over an OpenAI-compatible HTTP API
    Serve(serve::ServeArgs),
    /// Answer one prompt on the terminal
    Run(run::RunArgs),
    /// Talk to a model on the terminal
    Chat(chat::ChatArgs),
    /// Write the logits of a prompt to a file, for checking against other implementations
    Logits(logits::LogitsArgs),
    /// Show how a model's tokenizer splits a text
    Tokenize(tokenize::TokenizeArgs),
    /// Obtain a model by name
    Pull(pull::PullArgs),
    /// List backends, and which of their kernels a model would use
    Backends(backends::BackendsArgs),
    /// Check a backend against the operation catalogue
    Conform(conform::ConformArgs),
    /// Show memory per rank and operation support from a model's config alone
    Plan(plan::PlanArgs),
    /// Write a small random model, for tests, demos and benchmarks
    #[command(subcommand)]
    Tiny(tiny::TinyCommand),
    /// Measure
    #[command(subcommand)]
    Bench(bench::BenchCommand),
}

/// Run the command.
pub fn run(cli: Cli) -> Result<(), CliError> {
    match cli.command {
        Command::Serve(args) => serve::run(args),
        Command::Run(args) => run::run(args),
        Command::Chat(args) => chat::run(args),
        Command::Logits(args) => logits::run(args),
        Command::Tokenize(args) => tokenize::run(args),
        Command::Pull(args) => pull::run(args),
        Command::Backends(args) => backends::run(args),
        Command::Conform(args) => conform::run(args),
        Command::Plan(args) => plan::run(args),
        Command::Tiny(command) => tiny::run(command),
        Command::Bench(command) => bench::run(command),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn arguments_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn serve_takes_every_documented_option() {
        let line = "tokenspeed serve m --backend null --backend-option a=1 --backend-option b=x=y --mode exact --dtype f32 \
                    --kv-cache-dtype fp8_e4m3 --host 0.0.0.0 --port 0 --served-model-name a:b/c --served-model-name d \
                    --max-model-len 256 --max-num-seqs 8 --chunked-prefill-size 64 --step-time-target-ms 20.5 \
                    --memory 1.5GiB --threads 2 --seed 7 --api-key k --log-format json --chat-template t.jinja \
                    --tool-call-parser hermes --reasoning-parser think --drain-timeout-s 5 --max-body-bytes 1000 \
                    --max-concurrent-requests 9 --no-prefix-cache --scheduling-policy shortest-prefill \
                    --max-overtaken-steps 5 --prefill-coalescing-ms 40 --max-queue-delay-ms 0 --trace-steps t.json";
        let cli = Cli::try_parse_from(line.split_whitespace()).expect("all known");
        let Command::Serve(args) = cli.command else { panic!("serve") };
        assert_eq!(args.engine.backend_options, [("a".into(), "1".into()), ("b".into(), "x=y".into())]);
        assert_eq!(args.engine.memory_bytes, Some(3 << 29));
        assert_eq!(args.served_model_names, ["a:b/c", "d"]);
    }
}
