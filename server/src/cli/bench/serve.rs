//! `tokenspeed bench serve`: closed-loop load on a running server.
//!
//! A fixed number of clients each send their next request when the last answer is complete. Prompts differ from their
//! first word unless a shared prefix is asked for, so that the prefix cache helps only where it should.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use clap::Args;
use serde_json::json;

use super::{
    client::{self, Target},
    report::Report,
};
use crate::error::CliError;

/// Arguments of `bench serve`.
#[derive(Clone, Debug, Args)]
pub struct BenchServeArgs {
    /// The server
    #[arg(long, default_value = "http://127.0.0.1:8000")]
    pub url: String,
    /// Model name to ask for [default: the server's first]
    #[arg(long)]
    pub model: Option<String>,
    /// Key to send
    #[arg(long, env = "TOKENSPEED_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// Requests in all
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    pub requests: u32,
    /// Requests at once
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    pub concurrency: u32,
    /// Words of each prompt
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    pub prompt_words: u32,
    /// Of these, how many are the same in all prompts
    #[arg(long, default_value_t = 0)]
    pub shared_words: u32,
    /// Tokens of each answer; end-of-sequence is ignored
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_tokens: u32,
    /// Seed of prompts and sampling
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Longest wait for one answer, in seconds
    #[arg(long, default_value_t = 600)]
    pub timeout_s: u32,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

const WORDS: [&str; 16] = [
    "river", "stone", "the", "of", "light", "under", "market", "seven", "and", "slow", "green", "paper", "house", "a",
    "turning", "north",
];

/// The next number of a small generator; the constants are those of splitmix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

fn prompt(args: &BenchServeArgs, number: usize) -> String {
    let mut shared = args.seed;
    let mut own = args.seed ^ (number as u64 + 1).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    let mut words = Vec::with_capacity(args.prompt_words as usize);
    for index in 0..args.prompt_words {
        let state = if index < args.shared_words { &mut shared } else { &mut own };
        words.push(WORDS[(next(state) % WORDS.len() as u64) as usize]);
    }
    words.join(" ")
}

/// Run it.
pub fn run(args: BenchServeArgs) -> Result<(), CliError> {
    let target = Target::parse(&args.url, args.api_key.clone())
        .map_err(|error| CliError::usage(format!("the URL {error}"), args.url.as_str(), ""))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| CliError::new(format!("cannot start the runtime: {error}"), "", ""))?;
    let json = args.json;
    let url = args.url.clone();
    let report = runtime.block_on(load(Arc::new(args), Arc::new(target)));
    if report.samples.is_empty() {
        let why = report.failures.first().map_or("no answer", String::as_str);
        return Err(CliError::new(format!("every request failed: {why}"), url, "is the server running?"));
    }
    if json {
        println!("{}", report.to_json())
    } else {
        print!("{}", report.render())
    }
    Ok(())
}

async fn load(args: Arc<BenchServeArgs>, target: Arc<Target>) -> Report {
    let report = Arc::new(Mutex::new(Report::default()));
    let taken = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    let clients: Vec<_> = (0..args.concurrency)
        .map(|_| {
            let (args, target, report, taken) = (args.clone(), target.clone(), report.clone(), taken.clone());
            tokio::spawn(async move {
                loop {
                    let number = taken.fetch_add(1, Ordering::Relaxed);
                    if number >= args.requests as usize {
                        return;
                    }
                    let mut body = json!({
                        "prompt": prompt(&args, number),
                        "max_tokens": args.max_tokens,
                        "ignore_eos": true,
                        "seed": args.seed,
                        "stream": true,
                        "stream_options": {"include_usage": true},
                    });
                    if let Some(model) = &args.model {
                        body["model"] = model.as_str().into();
                    }
                    let timeout = Duration::from_secs(args.timeout_s.into());
                    let result = client::stream(&target, "/v1/completions", &body, timeout).await;
                    let mut report = report.lock().unwrap_or_else(PoisonError::into_inner);
                    match result {
                        Ok(sample) => report.samples.push(sample),
                        Err(message) => report.failures.push(message),
                    }
                }
            })
        })
        .collect();
    for client in clients {
        let _ = client.await;
    }
    let mut report = std::mem::take(&mut *report.lock().unwrap_or_else(PoisonError::into_inner));
    report.wall = start.elapsed();
    report
}
