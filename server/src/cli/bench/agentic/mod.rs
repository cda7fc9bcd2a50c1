//! `tokenspeed bench agentic`: coding sessions of many turns, replayed at several concurrencies.
//!
//! Each session sends its next turn when the last answer is complete, with all of the conversation as the prompt, as
//! agents do. What counts is time to first token in later turns, which is the prefix cache's work; so the report sets hits
//! beside the most that the served token ids allow ([`maximum`]), memory pressure beside a clairvoyant cache ([`belady`]),
//! and a later turn's first token beside a cold request of only its new part ([`reference`]).
//!
//! Rejected: replaying at fixed arrival times. An agent's next turn waits for the answer, and an open loop on a slow
//! machine would measure its queue.

use std::{path::PathBuf, time::Duration};

use clap::Args;

use super::client::Target as Address;
use crate::{cli::engine_options::EngineOptions, engine_setup, error::CliError, log::Log, progress::Terminal};
use figures::Figures;
use in_process::InProcess;
use replay::{Manner, judge, replay};
use report::Report;
use server::Server;
use session::Work;
use target::Target;
use trace::Sizes;

pub mod belady;
pub mod conversations;
pub mod figures;
pub mod half_memory;
pub mod in_process;
pub mod maximum;
pub mod page;
pub mod pages;
pub mod random;
pub mod reference;
pub mod replay;
pub mod report;
pub mod server;
pub mod session;
pub mod target;
pub mod trace;

/// Arguments of `bench agentic`.
#[derive(Clone, Debug, Args)]
// Optional as a whole is not optional to clap: a required positional inside stays required.
#[command(mut_arg("model", |model| model.required(false)))]
pub struct BenchAgenticArgs {
    /// Engine options.
    #[command(flatten)]
    pub engine: Option<EngineOptions>,
    /// A running server instead of MODEL
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// Model name to ask the server for [default: its first]
    #[arg(long = "model", value_name = "NAME", requires = "url")]
    pub model_name: Option<String>,
    /// Key to send
    #[arg(long, env = "TOKENSPEED_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// Use /v1/chat/completions, even if the server takes token ids
    #[arg(long, requires = "url")]
    pub chat: bool,
    /// Send only fields of the OpenAI API: no ignore_eos, no cache_salt
    #[arg(long, requires = "url")]
    pub plain: bool,
    /// Tokens of the server's reusable unit, for the maximum
    #[arg(long, default_value_t = 64, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub page_tokens: u32,
    /// Longest wait for one answer, in seconds
    #[arg(long, default_value_t = 600, value_name = "S")]
    pub timeout_s: u32,
    /// Sessions at once; one pass each
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,2,4,8,16",
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub concurrency: Vec<u32>,
    /// Sessions per pass
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub sessions: u32,
    /// Multiply all lengths by this
    #[arg(long, default_value_t = 1.0, value_name = "FACTOR", value_parser = factor, conflicts_with = "conversations")]
    pub scale: f64,
    /// Mean length of first prompts, in tokens
    #[arg(long, default_value_t = 50_000, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub first_tokens: u32,
    /// Mean of what a turn adds besides the answer before it, in tokens
    #[arg(long, default_value_t = 800, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub turn_tokens: u32,
    /// Turns of a session, forks and retries not counted
    #[arg(long, default_value = "10-15", value_name = "N-M", value_parser = turns)]
    pub turns: (u32, u32),
    /// Length of each answer, in tokens
    #[arg(long, default_value_t = 500, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub output_tokens: u32,
    /// Share of the first prompt that all sessions begin with: system text and tools
    #[arg(long, default_value_t = 0.3, value_name = "SHARE", value_parser = share)]
    pub shared: f64,
    /// Do not say where what all sessions begin with ends, which the chat layer of a server does
    #[arg(long, conflicts_with_all = ["url", "conversations"])]
    pub no_boundaries: bool,
    /// Chance that a turn is asked again, or that an older one is continued in another direction
    #[arg(long, default_value_t = 0.1, value_name = "SHARE", value_parser = share)]
    pub forks: f64,
    /// Replay these instead: a conversation per line, as {"messages": […]}
    #[arg(long, value_name = "FILE")]
    pub conversations: Option<PathBuf>,
    /// Mean time between an answer and the next turn
    #[arg(long, default_value_t = 0, value_name = "MS")]
    pub think_ms: u32,
    /// Seed of the sessions
    #[arg(long, default_value_t = 1, value_name = "SEED")]
    pub trace_seed: u64,
    /// Also load the model with half the cache that rotating sessions need, and compare with Belady's eviction
    #[arg(long, conflicts_with = "url")]
    pub half_memory: bool,
    /// Write everything as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write tables and plots as one HTML file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

fn factor(text: &str) -> Result<f64, String> {
    let ok = |factor: &f64| (1e-4..=100.0).contains(factor);
    text.parse().ok().filter(ok).ok_or_else(|| "must be a number from 0.0001 to 100".into())
}

fn share(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|share| (0.0..=1.0).contains(share)).ok_or_else(|| "must be a number from 0 to 1".into())
}

fn turns(text: &str) -> Result<(u32, u32), String> {
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    let range = low.parse().ok().zip(high.parse().ok());
    range.filter(|(low, high)| (1..=*high).contains(low)).ok_or_else(|| "must look like 10-15, or 12".into())
}

impl BenchAgenticArgs {
    fn sizes(&self) -> Sizes {
        let sizes = Sizes {
            sessions: self.sessions,
            first: self.first_tokens,
            shared: self.shared,
            turn: self.turn_tokens,
            turns: self.turns,
            answer: self.output_tokens,
            forks: self.forks,
        };
        sizes.scaled(self.scale)
    }

    fn describe(&self) -> String {
        if let Some(path) = &self.conversations {
            return format!("conversations of {}, answers of {} tokens", path.display(), self.output_tokens);
        }
        let s = self.sizes();
        format!(
            "{} sessions of {}-{} turns, first prompt about {} tokens of which {} are shared, about {} new tokens per turn, \
             answers of {}, forks {}, seed {}",
            s.sessions,
            s.turns.0,
            s.turns.1,
            s.first,
            (f64::from(s.first) * s.shared).round(),
            s.turn,
            s.answer,
            s.forks,
            self.trace_seed
        )
    }
}

/// What there is to replay; contents differ between passes, so that none finds the pages of another in a cache that
/// ignores salts.
pub(crate) struct Source {
    recorded: Option<Vec<conversations::Conversation>>,
    sizes: Sizes,
    seed: u64,
    answer: u32,
}

impl Source {
    pub(crate) fn work(&self, content: u64) -> Work {
        match &self.recorded {
            Some(recorded) => Work::Recorded(recorded.clone(), self.answer),
            None => Work::Made(trace::generate(&self.sizes, self.seed, content)),
        }
    }

    /// Tokens of the longest prompt and its answer, where they are known before they are encoded.
    fn longest(&self) -> usize {
        let Work::Made(trace) = self.work(0) else { return 0 };
        let of_session = |session: &trace::Session| {
            let mut lengths: Vec<usize> = Vec::new();
            for turn in &session.turns {
                let history = turn.history.map_or(0, |from| lengths[from]);
                lengths.push(history + turn.new.len() + turn.answer as usize);
            }
            lengths.into_iter().max().unwrap_or(0)
        };
        trace.sessions.iter().map(of_session).max().unwrap_or(0)
    }
}

/// Run it.
pub fn run(args: BenchAgenticArgs) -> Result<(), CliError> {
    let report = measure(&args)?;
    print!("{}", report.render());
    if let Some(path) = &args.json {
        write(path, &format!("{:#}\n", report.to_json()))?;
    }
    if let Some(path) = &args.html {
        write(path, &page::render(&report))?;
    }
    Ok(())
}

fn write(path: &PathBuf, text: &str) -> Result<(), CliError> {
    std::fs::write(path, text)
        .map_err(|error| CliError::new(format!("cannot write the report: {error}"), path.display().to_string(), ""))
}

/// Measure, print nothing but progress.
pub fn measure(args: &BenchAgenticArgs) -> Result<Report, CliError> {
    let source = Source {
        recorded: args.conversations.as_deref().map(conversations::read).transpose()?,
        sizes: args.sizes(),
        seed: args.trace_seed,
        answer: args.output_tokens,
    };
    match (&args.engine, &args.url) {
        (Some(_), Some(_)) => Err(CliError::usage("MODEL and --url exclude each other", "", "give one of them")),
        (None, None) => Err(CliError::usage("nothing to measure", "", "give MODEL, or --url of a running server")),
        (None, Some(url)) => {
            let address = Address::parse(url, args.api_key.clone())
                .map_err(|error| CliError::usage(format!("the URL {error}"), url.as_str(), ""))?;
            let manner = server::Manner { chat: args.chat || source.recorded.is_some(), plain: args.plain };
            let timeout = Duration::from_secs(args.timeout_s.into());
            let server = Server::open(address, args.model_name.clone(), manner, args.page_tokens, timeout)
                .map_err(|error| CliError::new(error, url.as_str(), "is the server running?"))?;
            passes(&server, args, &source)
        }
        (Some(options), None) => {
            let engine = load(options, &source)?;
            check_room(&engine, options, &source)?;
            let mut report = passes(&engine, args, &source)?;
            if args.half_memory {
                report.half = Some(half_memory::measure(engine, options, args, &source)?);
            }
            Ok(report)
        }
    }
}

/// With text rules only where conversations need them: a model without a tokenizer can be measured too.
fn load(options: &EngineOptions, source: &Source) -> Result<InProcess, CliError> {
    let mut progress = Terminal::new(Log::default(), false);
    let loaded = match source.recorded {
        Some(_) => engine_setup::load(options, &mut progress),
        None => engine_setup::load_ids_only(options, &mut progress),
    };
    loaded.map(InProcess::new)
}

fn check_room(engine: &InProcess, options: &EngineOptions, source: &Source) -> Result<(), CliError> {
    let (longest, most) = (source.longest(), engine.max_tokens().map_or(usize::MAX, |most| most as usize));
    if longest > most {
        let what = format!("the longest session comes to {longest} tokens, the model takes {most}");
        return Err(CliError::usage(
            what,
            options.model.clone(),
            "give a smaller --scale, or a larger --max-model-len",
        ));
    }
    Ok(())
}

fn passes(target: &dyn Target, args: &BenchAgenticArgs, source: &Source) -> Result<Report, CliError> {
    let log = Log::default();
    let failed = |error: String| CliError::new(error, target.describe(), "");
    let mut report = Report {
        target: target.describe(),
        workload: args.describe(),
        page_tokens: target.page_tokens(),
        ..Report::default()
    };
    // Salts of their own, so that a server that was measured before is cold again.
    let run = crate::generation::ids::random_u64();
    for (at, &concurrency) in args.concurrency.iter().enumerate() {
        let salt = format!("agentic-{run:016x}-{at}");
        let manner = Manner {
            salt: &salt,
            think: Duration::from_millis(args.think_ms.into()),
            seed: args.trace_seed,
            tells_shared: !args.no_boundaries,
        };
        let pass = replay(target, &source.work(at as u64), concurrency, manner);
        if pass.served.is_empty() {
            let why = pass.failures.first().map_or("no answer", String::as_str);
            return Err(failed(format!("every request failed: {why}")));
        }
        let judged = judge(target, &pass).map_err(failed)?;
        let figures = Figures::of(concurrency, &pass, judged.as_ref(), target.page_tokens());
        let (n, wall) = (figures.requests.to_string(), format!("{:.1}", figures.wall_s));
        log.event("pass", &[("concurrency", &concurrency.to_string()), ("requests", &n), ("wall_s", &wall)]);
        if let Some(first) = figures.failures.first() {
            report.notes.push(format!("concurrency {concurrency}, {} failed: {first}", figures.failures.len()));
        }
        if let Some(hits) = figures.hits.filter(|hits| hits.n_unknown > 0) {
            report.notes.push(format!(
                "concurrency {concurrency}: the ids of {} of {} answers are unknown; the maximum counts their prompts only",
                hits.n_unknown, figures.requests
            ));
        }
        report.passes.push(figures);
        if concurrency == 1
            && report.compared.is_none()
            && let Some(judged) = &judged
        {
            report.compared = reference::compare(target, &pass, judged, &salt).map_err(failed)?;
        }
    }
    Ok(report)
}

#[cfg(test)]
mod tests;
