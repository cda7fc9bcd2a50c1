//! `tokenspeed bench engine`: the engine in this process, without HTTP and text. With `--backend null` what is left is
//! the cost of scheduling.

use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;
use tokenspeed_core::{
    client::{Engine, EventStream},
    request::{Event, Request, SamplingParams},
};

use super::report::{Report, Sample};
use crate::{cli::engine_options::EngineOptions, engine_setup, error::CliError, log::Log, progress::Terminal};

/// Arguments of `bench engine`.
#[derive(Clone, Debug, Args)]
pub struct BenchEngineArgs {
    /// Engine options.
    #[command(flatten)]
    pub engine: EngineOptions,
    /// Requests in all
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    pub requests: u32,
    /// Requests at once
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    pub concurrency: u32,
    /// Tokens of each prompt
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    pub prompt_tokens: u32,
    /// Tokens of each answer
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_tokens: u32,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Run it.
pub fn run(args: BenchEngineArgs) -> Result<(), CliError> {
    let loaded = engine_setup::load_ids_only(&args.engine, &mut Terminal::new(Log::default(), false))?;
    let before = loaded.engine.metrics();
    let report = load(&*loaded.engine, &args)?;
    let after = loaded.engine.metrics();
    let steps = after.steps - before.steps;
    // From the plan's start to the logits; the rest of a step is sampling, bookkeeping and delivery.
    let device_us = (after.step_ns - before.step_ns) as f64 / 1e3 / steps.max(1) as f64;
    let host_us = report.wall.as_secs_f64() * 1e6 / steps.max(1) as f64 - device_us;
    if args.json {
        let mut value = report.to_json();
        value["steps"] = json!(steps);
        value["device_us_per_step"] = json!(device_us);
        value["host_us_per_step"] = json!(host_us);
        println!("{value}");
    } else {
        let row = |name: &str, value: String| format!("  {name:<26}{value}\n");
        print!(
            "{}{}{}{}",
            report.render(),
            row("steps", steps.to_string()),
            row("device_us_per_step", format!("{device_us:.2}")),
            row("host_us_per_step", format!("{host_us:.2}"))
        );
    }
    Ok(())
}

struct Running {
    events: EventStream,
    start: Instant,
    sample: Sample,
}

/// One thread submits and reads; with as many streams as clients, each is read when its turn comes.
fn load(engine: &dyn Engine, args: &BenchEngineArgs) -> Result<Report, CliError> {
    let vocab_size = engine.limits().vocab_size.max(1);
    let mut report = Report::default();
    let mut running: Vec<Running> = Vec::new();
    let mut submitted = 0;
    let start = Instant::now();
    while submitted < args.requests || !running.is_empty() {
        while submitted < args.requests && running.len() < args.concurrency as usize {
            // A different first token each, so that prompts share no cached prefix.
            let id = |index: u32| (index.wrapping_mul(2_654_435_761) ^ submitted.wrapping_mul(40_503)) % vocab_size;
            let sampling = SamplingParams {
                temperature: 0.0,
                max_tokens: args.max_tokens,
                ignore_eos: true,
                ..SamplingParams::default()
            };
            let prompt = (0..args.prompt_tokens).map(id).collect();
            let start = Instant::now();
            let events = engine
                .submit(Request { prompt, sampling, ..Request::default() })
                .map_err(|error| CliError::new(error.to_string(), "", "lower --concurrency or --prompt-tokens"))?;
            running.push(Running { events, start, sample: Sample::default() });
            submitted += 1;
        }
        let mut index = 0;
        while index < running.len() {
            if read(&mut running[index], &mut report) { drop(running.swap_remove(index)) } else { index += 1 }
        }
    }
    report.wall = start.elapsed();
    Ok(report)
}

/// Wait for this stream's next event; true at its end.
fn read(running: &mut Running, report: &mut Report) -> bool {
    match running.events.blocking_next() {
        Some(Event::Started { cached_tokens, .. }) => running.sample.cached_tokens = cached_tokens.into(),
        Some(Event::Token { .. }) => {
            running.sample.first_token.get_or_insert_with(|| running.start.elapsed());
        }
        Some(Event::Finished { usage, .. }) => {
            running.sample.whole = running.start.elapsed().max(Duration::from_nanos(1));
            running.sample.prompt_tokens = usage.prompt_tokens.into();
            running.sample.completion_tokens = usage.completion_tokens.into();
            report.samples.push(std::mem::take(&mut running.sample));
            return true;
        }
        Some(Event::Failed { message }) => {
            report.failures.push(message);
            return true;
        }
        None => {
            report.failures.push("the engine closed the request without a result".into());
            return true;
        }
    }
    false
}
