//! `tokenspeed bench model`: one request at a time, prefill and decode apart, decode beside the bytes it must read.
//!
//! Decoding is bound by memory, so tokens per second say little alone: the table sets the bytes that a token must read at
//! its context beside its time, and their ratio beside the machine's measured bandwidth. Everything runs through the
//! engine, scheduler and sampler included; the context is filled by a real prefill, whose rate is reported too.

use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};
use tokenspeed_core::{
    client::Engine,
    request::{Event, Request, SamplingParams},
};

use super::{bandwidth, report::percentile};
use crate::{
    cli::engine_options::EngineOptions,
    engine_setup::{self, DecodeReads},
    error::CliError,
    log::Log,
    progress::Terminal,
};

/// Arguments of `bench model`.
#[derive(Clone, Debug, Args)]
pub struct BenchModelArgs {
    /// Engine options.
    #[command(flatten)]
    pub engine: EngineOptions,
    /// Prompt lengths to measure, in tokens
    #[arg(long, value_name = "TOKENS,…", value_delimiter = ',', default_value = "512,2048",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub prefill: Vec<u32>,
    /// Contexts to decode at, in tokens
    #[arg(long, value_name = "TOKENS,…", value_delimiter = ',', default_value = "1024",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub decode_at: Vec<u32>,
    /// Tokens to decode at each context; the time of one is the median over them
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    pub decode_tokens: u32,
    /// Prompts per length; the time is the median over them
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub repeat: u32,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Prompt and answer of the run that brings weights into memory before anything is timed.
const WARM_UP: (u32, u32) = (256, 8);

/// Run it.
pub fn run(args: BenchModelArgs) -> Result<(), CliError> {
    let threads = args
        .engine
        .threads
        .map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), |threads| threads as usize);
    let bandwidth = bandwidth::read_bytes_per_s(threads);
    let loaded = engine_setup::load_ids_only(&args.engine, &mut Terminal::new(Log::default(), false))?;
    let bandwidth = loaded.info.host_memory.then_some(bandwidth);
    let engine = &*loaded.engine;
    check_room(engine.limits().max_model_len, &args)?;

    let mut seed = 0;
    let mut once = |prompt, tokens| {
        seed += 1;
        one(engine, prompt, tokens, seed)
    };
    once(WARM_UP.0.min(engine.limits().max_model_len.saturating_sub(WARM_UP.1).max(1)), WARM_UP.1)?;
    let mut prefill = Vec::new();
    for tokens in &args.prefill {
        let mut seconds = Vec::new();
        for _ in 0..args.repeat {
            seconds.push(once(*tokens, 1)?.first.as_secs_f64());
        }
        prefill.push(Prefill { tokens: *tokens, seconds: sorted(seconds) });
    }
    let mut decode = Vec::new();
    for context in &args.decode_at {
        let run = once(*context, args.decode_tokens + 1)?;
        let gaps = run.gaps.iter().map(Duration::as_secs_f64).collect();
        decode.push(Decode { context: *context, prefill_s: run.first.as_secs_f64(), seconds: sorted(gaps) });
    }
    let report = Report { model: loaded.info.name, reads: loaded.info.reads, bandwidth, threads, prefill, decode };
    if args.json {
        println!("{}", report.to_json())
    } else {
        print!("{}", report.render())
    }
    Ok(())
}

fn check_room(max_model_len: u32, args: &BenchModelArgs) -> Result<(), CliError> {
    let prompts = args.prefill.iter().map(|n| ("--prefill", *n, 1));
    let decodes = args.decode_at.iter().map(|n| ("--decode-at", *n, args.decode_tokens + 1));
    for (option, prompt, answer) in prompts.chain(decodes) {
        if u64::from(prompt) + u64::from(answer) > u64::from(max_model_len) {
            let what = format!("{option} {prompt} and {answer} tokens more do not fit in {max_model_len}");
            return Err(CliError::usage(what, "", "give less, or a larger --max-model-len or --memory"));
        }
    }
    Ok(())
}

fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

/// Times of one request.
struct Times {
    /// To the first token.
    first: Duration,
    /// From each token to the next.
    gaps: Vec<Duration>,
}

/// A prompt that shares no prefix with any other seed's.
fn one(engine: &dyn Engine, prompt_tokens: u32, tokens: u32, seed: u32) -> Result<Times, CliError> {
    let vocab = engine.limits().vocab_size.max(1);
    let id = |at: u32| (at.wrapping_mul(2_654_435_761) ^ seed.wrapping_mul(40_503)) % vocab;
    let sampling =
        SamplingParams { temperature: 0.0, max_tokens: tokens, ignore_eos: true, ..SamplingParams::default() };
    let failed = |what: String| CliError::new(what, format!("a prompt of {prompt_tokens} tokens"), "");
    let request = Request { prompt: (0..prompt_tokens).map(id).collect(), sampling, ..Request::default() };
    let start = Instant::now();
    let mut events = engine.submit(request).map_err(|e| failed(e.to_string()))?;
    let mut times = Vec::with_capacity(tokens as usize);
    loop {
        match events.blocking_next() {
            Some(Event::Token { .. }) => times.push(start.elapsed()),
            Some(Event::Finished { .. }) => break,
            Some(Event::Failed { message }) => return Err(failed(message)),
            Some(_) => {}
            None => return Err(failed("the engine closed the request without a result".into())),
        }
    }
    let Some(first) = times.first().copied().filter(|_| times.len() == tokens as usize) else {
        return Err(failed(format!("the engine made {} tokens instead of {tokens}", times.len())));
    };
    Ok(Times { first, gaps: times.windows(2).map(|pair| pair[1] - pair[0]).collect() })
}

struct Prefill {
    tokens: u32,
    seconds: Vec<f64>,
}

struct Decode {
    context: u32,
    prefill_s: f64,
    seconds: Vec<f64>,
}

impl Decode {
    /// Middle of the contexts that were measured.
    fn mean_context(&self) -> u64 {
        u64::from(self.context) + self.seconds.len() as u64 / 2
    }
}

struct Report {
    model: String,
    reads: DecodeReads,
    bandwidth: Option<f64>,
    threads: usize,
    prefill: Vec<Prefill>,
    decode: Vec<Decode>,
}

fn median(sorted: &[f64]) -> f64 {
    percentile(sorted, 50.0).expect("at least one measurement")
}

impl Report {
    fn to_json(&self) -> Value {
        let prefill = self.prefill.iter().map(|p| {
            json!({"tokens": p.tokens, "seconds": p.seconds, "tokens_per_s": f64::from(p.tokens) / median(&p.seconds)})
        });
        let decode = self.decode.iter().map(|d| {
            let (reads, context) = (&self.reads, d.mean_context());
            let rate = reads.at(context) as f64 / median(&d.seconds);
            json!({
                "context": d.context, "tokens": d.seconds.len(), "prefill_s": d.prefill_s,
                "tokens_per_s": 1.0 / median(&d.seconds),
                "ms_per_token": {
                    "p25": percentile(&d.seconds, 25.0).map(|s| s * 1e3), "p50": median(&d.seconds) * 1e3,
                    "p75": percentile(&d.seconds, 75.0).map(|s| s * 1e3),
                },
                "read_bytes": {
                    "dense": reads.dense, "experts": reads.experts, "state": reads.state,
                    "cache": reads.cached_token * context, "total": reads.at(context),
                },
                "read_bytes_per_s": rate, "of_bandwidth": self.bandwidth.map(|b| rate / b),
            })
        });
        json!({
            "model": self.model, "threads": self.threads, "bandwidth_bytes_per_s": self.bandwidth,
            "prefill": prefill.collect::<Vec<_>>(), "decode": decode.collect::<Vec<_>>(),
        })
    }

    /// The same as tables in Markdown.
    fn render(&self) -> String {
        let mut text = match self.bandwidth {
            Some(b) => format!("{}: read bandwidth {:.1} GB/s with {} threads\n", self.model, b / 1e9, self.threads),
            None => format!("{}: the device has memory of its own, whose bandwidth is not measured\n", self.model),
        };
        text.push_str("\n| prompt | s | tokens/s |\n|---|---|---|\n");
        for p in &self.prefill {
            let seconds = median(&p.seconds);
            text.push_str(&format!("| {} | {seconds:.3} | {:.1} |\n", p.tokens, f64::from(p.tokens) / seconds));
        }
        text.push_str(
            "\n| context | ms/token | quartiles | tokens/s | must read | weights | experts | state | cache | GB/s | of \
             bandwidth |\n|---|---|---|---|---|---|---|---|---|---|---|\n",
        );
        let mb = |bytes: u64| format!("{:.1}", bytes as f64 / 1e6);
        for d in &self.decode {
            let (reads, context, seconds) = (&self.reads, d.mean_context(), median(&d.seconds));
            let quartile = |percent| percentile(&d.seconds, percent).map_or(0.0, |s| s * 1e3);
            let rate = reads.at(context) as f64 / seconds;
            text.push_str(&format!(
                "| {} | {:.2} | {:.2}-{:.2} | {:.1} | {} MB | {} | {} | {} | {} | {:.1} | {} |\n",
                d.context,
                seconds * 1e3,
                quartile(25.0),
                quartile(75.0),
                1.0 / seconds,
                mb(reads.at(context)),
                mb(reads.dense),
                mb(reads.experts),
                mb(reads.state),
                mb(reads.cached_token * context),
                rate / 1e9,
                self.bandwidth.map_or("-".into(), |b| format!("{:.0}%", 100.0 * rate / b)),
            ));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        Report {
            model: "m".into(),
            reads: DecodeReads { dense: 700_000_000, experts: 40_000_000, cached_token: 10_000, state: 9_000_000 },
            bandwidth: Some(20e9),
            threads: 2,
            prefill: vec![Prefill { tokens: 512, seconds: vec![0.5, 1.0, 9.0] }],
            decode: vec![Decode { context: 1000, prefill_s: 2.0, seconds: vec![0.1, 0.2, 0.2, 0.4] }],
        }
    }

    #[test]
    fn figures_follow_from_times_and_bytes() {
        let json = report().to_json();
        assert_eq!(json["prefill"][0]["tokens_per_s"], 512.0);
        let decode = &json["decode"][0];
        assert_eq!(decode["tokens_per_s"], 5.0);
        // 1002 = the middle of 1000 and the four tokens decoded.
        assert_eq!(decode["read_bytes"]["total"], 749_000_000 + 10_020_000);
        let share = decode["of_bandwidth"].as_f64().expect("a number");
        assert!((share - 759_020_000.0 / 0.2 / 20e9).abs() < 1e-9);
        let text = report().render();
        assert!(
            text.contains("| 1000 | 200.00 | 100.00-200.00 | 5.0 | 759.0 MB | 700.0 | 40.0 | 9.0 | 10.0 | 3.8 | 19% |")
        );
    }
}
