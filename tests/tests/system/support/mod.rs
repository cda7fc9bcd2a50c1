//! Models on disk, engines loaded as the commands load them, requests without HTTP, and servers with.
#[allow(dead_code, reason = "shared with the server's own tests, which use all of it")]
#[path = "../../../../server/tests/http/support/client.rs"]
pub mod client;
pub mod lockstep;
pub mod models;
pub mod serving;
pub mod stepper;

use std::time::Duration;

use clap::Parser as _;
use tokenspeed_core::{
    client::{Engine, EventStream, Metrics},
    request::{Event, FinishReason, Request, SamplingParams, TokenLogprobs, Usage},
};
use tokenspeed_server::{
    cli::{Cli, Command, engine_options::EngineOptions},
    engine_setup::{self, Loaded},
    error::CliError,
    progress::Silent,
};

/// The options that `words` mean on the command line, blanks between them.
pub fn options(model: &str, words: &str) -> EngineOptions {
    let line = ["tokenspeed", "plan", model].into_iter().chain(words.split_whitespace());
    match Cli::try_parse_from(line).unwrap_or_else(|e| panic!("{words}: {e}")).command {
        Command::Plan(args) => args.engine,
        _ => unreachable!("`plan` parses as plan"),
    }
}

/// Load a model as `run` and `serve` do. Few sequences, little memory and one thread, unless `words` ask for more: tests
/// run side by side, and workers that wait for each other on busy cores take ten times as long.
pub fn try_load(model: &str, words: &str) -> Result<Loaded, CliError> {
    let mut words = words.to_owned();
    for (option, value) in [("--memory", "900MiB"), ("--max-num-seqs", "16"), ("--threads", "1")] {
        if !words.contains(option) {
            words += &format!(" {option} {value}");
        }
    }
    engine_setup::load(&options(model, &words), &mut Silent)
}

pub fn load(model: &str, words: &str) -> Loaded {
    try_load(model, words).unwrap_or_else(|e| panic!("{model} {words}: {}", e.render()))
}

/// `words` in which `--memory least` (room for one request of full length) and `--memory some` (and half of such a cache more)
/// are bytes.
pub fn in_bytes(model: &str, words: &str) -> String {
    let mut words = words.to_owned();
    for (name, halves) in [("least", 0), ("some", 1)] {
        if words.contains(&format!("--memory {name}")) {
            let [needed, cache] = least_memory(model, &words.replace(&format!("--memory {name}"), "--memory 1"));
            let bytes = needed + cache * halves / 2;
            words = words.replace(&format!("--memory {name}"), &format!("--memory {bytes}"));
        }
    }
    words
}

/// Bytes without which nothing is loaded, and of these the cache; from the words in which a byte is refused.
fn least_memory(model: &str, words: &str) -> [u64; 2] {
    let refusal = try_load(model, words).expect_err("a byte is not enough").render();
    ["the model needs ", "full length "].map(|before| {
        let number = refusal.split_once(before).expect("it says so").1;
        let digits: String = number.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().expect("a number")
    })
}

/// Wait until nobody runs, and flush: nothing is held any more.
pub fn settled(engine: &dyn Engine) -> Metrics {
    let mut held = (0, 0, 0, 0);
    for _ in 0..10_000 {
        // Callers that gave up are gone before the engine has noticed, and figures are told after the answer to a flush.
        let flushed = engine.flush_cache();
        let metrics = engine.metrics();
        held = (metrics.running, metrics.waiting, metrics.pages_used, metrics.states_used);
        if flushed.is_ok() && held == (0, 0, 0, 0) {
            return metrics;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("(running, waiting, pages, states) are {held:?} long after the last answer");
}

/// What a request heard.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    pub ids: Vec<u32>,
    /// Of the generated tokens, if asked for.
    pub logprobs: Vec<TokenLogprobs>,
    /// Of the prompt's tokens after the first, if asked for.
    pub prompt: Vec<TokenLogprobs>,
    pub reason: FinishReason,
    pub usage: Usage,
}

impl Answer {
    /// Everything that must not depend on what else runs or on what was cached.
    pub fn numbers(&self) -> (&[u32], &[TokenLogprobs], &[TokenLogprobs]) {
        (&self.ids, &self.logprobs, &self.prompt)
    }
}

/// Greedy, to exactly `max_tokens`, with the five most likely tokens of each place.
pub fn greedy(prompt: &[u32], max_tokens: u32) -> Request {
    let sampling = SamplingParams {
        temperature: 0.0,
        max_tokens,
        ignore_eos: true,
        logprobs: Some(5),
        ..SamplingParams::default()
    };
    Request { prompt: prompt.to_vec(), sampling, ..Request::default() }
}

pub fn submit(engine: &dyn Engine, request: Request) -> EventStream {
    engine.submit(request).expect("a good request")
}

/// Read a request to its end.
pub fn finish(mut events: EventStream) -> Answer {
    answer(std::iter::from_fn(|| events.blocking_next()))
}

/// What events say of a request that ended well.
pub fn answer(events: impl IntoIterator<Item = Event>) -> Answer {
    let (mut ids, mut logprobs, mut prompt) = (Vec::new(), Vec::new(), Vec::new());
    for event in events {
        match event {
            Event::Started { prompt_logprobs, .. } => prompt = prompt_logprobs.unwrap_or_default(),
            Event::Token { id, logprobs: report } => {
                ids.push(id);
                logprobs.extend(report);
            }
            Event::Finished { reason, usage } => return Answer { ids, logprobs, prompt, reason, usage },
            Event::Failed { message } => panic!("the request failed: {message}"),
        }
    }
    panic!("the events ended without an end");
}

/// All at once, answers in order.
pub fn finish_all(engine: &dyn Engine, requests: impl IntoIterator<Item = Request>) -> Vec<Answer> {
    let running: Vec<EventStream> = requests.into_iter().map(|r| submit(engine, r)).collect();
    running.into_iter().map(finish).collect()
}
