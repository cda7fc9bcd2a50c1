//! The same sessions with half the cache they need, beside Belady's eviction.
//!
//! All sessions are alive at once and take turns in random order, one request at a time, so the cache has to hold
//! conversations that are not running; and requests follow each other, so that the simulation sees exactly what the
//! engine saw. *Needed* is the least number of pages with which Belady finds everything that was ever computed. The engine
//! is first run with enough memory, which also gives the ids of the answers, then loaded again with half of that.
//!
//! States of hybrid models are as many as in the first load: the comparison is about pages.

use std::time::Duration;

use super::{
    BenchAgenticArgs, Source, belady,
    in_process::InProcess,
    load,
    replay::{Judged, Manner, Pass, judge, rotate},
    report::{HalfMemory, sums},
    target::Target as _,
};
use crate::{cli::engine_options::EngineOptions, error::CliError};

/// Run both. `engine` is given up before the second one is loaded.
pub(super) fn measure(
    engine: InProcess,
    options: &EngineOptions,
    args: &BenchAgenticArgs,
    source: &Source,
) -> Result<HalfMemory, CliError> {
    engine.flush().map_err(|error| failed(error, options))?;
    let (enough, judged) = pass(&engine, args, source, options)?;
    let page_tokens = u64::from(engine.page_tokens());
    let pages_needed = belady::memory_needed(&judged.paths);
    let longest = judged.paths.iter().map(|path| path.pages.len() + 1).max().unwrap_or(1);
    // A request and its next page always fit.
    let pages = (pages_needed / 2).max(longest + 1) as u32;
    let max_tokens = engine.max_tokens().expect("known in this process");
    let smaller = with_pages(options, pages, engine.page_tokens(), max_tokens, engine.has_states());
    drop(engine);
    let engine = load(&smaller, source)?;
    let pages = engine.counters().map_or(0, |counters| counters.pages) as usize;
    let (half, judged) = pass(&engine, args, source, options)?;
    let found = belady::found(&judged.paths, pages);
    let found = found.ok_or_else(|| failed(format!("a request does not fit in {pages} pages"), options))?;
    let tokens = |pages: usize| pages as u64 * page_tokens;
    Ok(HalfMemory {
        alive: source.work(0).n_sessions(),
        requests: half.served.len(),
        pages_needed,
        pages,
        prompt_tokens: sums(&half).0,
        maximum: judged.maxima.iter().map(|maximum| tokens(maximum.finished)).sum(),
        found_in_enough: sums(&enough).1,
        found: sums(&half).1,
        belady: found.into_iter().map(tokens).sum(),
    })
}

fn pass(
    engine: &InProcess,
    args: &BenchAgenticArgs,
    source: &Source,
    options: &EngineOptions,
) -> Result<(Pass, Judged), CliError> {
    let work = source.work(args.concurrency.len() as u64);
    let (salt, tells_shared) = ("half-memory", !args.no_boundaries);
    let manner = Manner { salt, think: Duration::ZERO, seed: args.trace_seed, tells_shared };
    let pass = rotate(engine, &work, work.n_sessions(), manner);
    if let Some(first) = pass.failures.first() {
        return Err(failed(first.clone(), options));
    }
    let judged = judge(engine, &pass).map_err(|error| failed(error, options))?;
    Ok((pass, judged.expect("ids are known in this process")))
}

fn failed(error: String, options: &EngineOptions) -> CliError {
    CliError::new(error, options.model.clone(), "")
}

/// Options with which the engine has `pages` pages, or a few less: it takes no more than all its sequences at full length
/// can use, so the number and length of sequences say how many.
fn with_pages(
    options: &EngineOptions,
    pages: u32,
    page_tokens: u32,
    max_tokens: u32,
    has_states: bool,
) -> EngineOptions {
    let per_sequence = (max_tokens / page_tokens).clamp(1, pages);
    let sequences = pages.div_ceil(per_sequence);
    let states = options.prefix_snapshots.unwrap_or(options.max_num_seqs.saturating_mul(4));
    EngineOptions {
        max_num_seqs: sequences,
        max_model_len: Some(pages / sequences * page_tokens),
        prefix_snapshots: (has_states && !options.no_prefix_cache).then_some(states),
        ..options.clone()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn sequences_and_their_length_say_how_many_pages() {
        let Command::Plan(args) = Cli::try_parse_from(["tokenspeed", "plan", "m"]).expect("parses").command else {
            panic!("plan")
        };
        let of = |pages, max_tokens| {
            let options = with_pages(&args.engine, pages, 64, max_tokens, true);
            (options.max_num_seqs, options.max_model_len.unwrap_or(0) / 64, options.prefix_snapshots)
        };
        assert_eq!(of(10, 6400), (1, 10, Some(256)));
        assert_eq!(of(250, 6400), (3, 83, Some(256)));
        assert_eq!(of(100, 6400), (1, 100, Some(256)));
        let plain = with_pages(&args.engine, 10, 64, 6400, false);
        assert_eq!(plain.prefix_snapshots, None, "a model without states refuses the option");
    }
}
