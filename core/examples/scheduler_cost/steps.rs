//! Requests come, decode and go.

use tokenspeed_core::cache::tally::Tally;

use crate::{
    bench::Bench,
    numbers,
    options::{BLOCK, Options},
    timed,
    trace::{self, Trace},
};

/// Nanoseconds of one step's calls, and what was in it.
#[derive(Default)]
struct Sample {
    submit_ns: u64,
    plan_ns: u64,
    /// Planning ahead: hidden behind the device's work.
    ahead_ns: u64,
    advance_ns: u64,
    waited_ns: u64,
    rows: u32,
    prompts: u32,
    tokens: u32,
}

/// Runs it twice: once for the digest, which reads more than a step may cost, and once by the clock.
pub fn run(options: &Options) -> Result<String, String> {
    let trace = Trace::new(options);
    let mut digest = 0xcbf2_9ce4_8422_2325u64;
    let (mut digests, mut n_planned) = (Vec::new(), Vec::new());
    let mut first = None;
    let checked = go(options, &trace, &mut |bench, step| {
        let planned = bench.planned()?;
        for &(id, tokens) in &planned {
            let arrival = id.0 - *first.get_or_insert(id.0);
            for word in [u64::from(step), arrival, u64::from(tokens)] {
                digest = (digest ^ word).wrapping_mul(0x0100_0000_01b3);
            }
        }
        digests.push(digest);
        n_planned.push((planned.len() as u32, planned.iter().map(|&(_, tokens)| tokens).sum::<u32>()));
        Ok(())
    })?;
    // As the driver checks: in room that was made before.
    let mut tally = Tally::default();
    checked.engine.check_conservation_in(&mut tally)?;
    let checks: Vec<u64> = (0..5).map(|_| timed(|| checked.engine.check_conservation_in(&mut tally)).0).collect();
    drop(checked);
    let mut samples = Vec::new();
    let bench = go_timed(options, &trace, &mut samples)?;
    let same = samples.iter().map(|s| (s.rows, s.tokens)).eq(n_planned.iter().copied());
    if !same {
        return Err("the same trace was planned in two ways".into());
    }
    let measured = &samples[(trace.full_at() + options.warm) as usize..];
    // A prompt that stores a state on its way takes a step more, so there may be more at once.
    if let Some(odd) = measured.iter().position(|s| s.rows < options.running) {
        return Err(format!("measured step {odd} ran {} requests, not {}", measured[odd].rows, options.running));
    }
    let metrics = bench.engine.metrics();
    let column = |of: fn(&Sample) -> u64| numbers(measured.iter().map(of));
    let clock: Vec<u64> = (0..1001).map(|_| timed(|| ()).0).collect();
    Ok(format!(
        "{{\"digests\":{},\"rows\":{},\"all_tokens\":{},\"cached_tokens\":{},\"prompt_tokens\":{},\"preemptions\":{},\
         \"clock_ns\":{},\"check\":{},\"submit\":{},\"plan\":{},\"ahead\":{},\"advance\":{},\"waited\":{},\"prompts\":{},\"tokens\":{}}}",
        numbers(digests),
        numbers(samples.iter().map(|s| s.rows)),
        numbers(samples.iter().map(|s| s.tokens)),
        metrics.cached_tokens,
        metrics.prompt_tokens,
        metrics.preemptions,
        clock[500],
        numbers(checks),
        column(|s| s.submit_ns),
        column(|s| s.plan_ns),
        column(|s| s.ahead_ns),
        column(|s| s.advance_ns),
        column(|s| s.waited_ns),
        column(|s| s.prompts.into()),
        column(|s| s.tokens.into()),
    ))
}

type Look<'a> = dyn FnMut(&Bench, u32) -> Result<(), String> + 'a;

fn go(options: &Options, trace: &Trace, look: &mut Look<'_>) -> Result<Bench, String> {
    each_step(options, trace, &mut |bench, step, requests| {
        for request in requests {
            bench.submit(request)?;
        }
        let plan = bench.plan().1.ok_or_else(|| format!("nothing ran in step {step}"))?;
        look(bench, step)?;
        bench.advance(plan);
        Ok(())
    })
}

fn go_timed(options: &Options, trace: &Trace, samples: &mut Vec<Sample>) -> Result<Bench, String> {
    each_step(options, trace, &mut |bench, step, requests| {
        let waited_ns = bench.waited_ns()?;
        let mut sample = Sample { prompts: requests.len() as u32, ..Sample::default() };
        for request in requests {
            sample.submit_ns += bench.submit(request)?.0;
        }
        let (plan_ns, plan) = bench.plan();
        let plan = plan.ok_or_else(|| format!("nothing ran in step {step}"))?;
        (sample.plan_ns, sample.rows, sample.tokens) = (plan_ns, plan.n_rows, plan.n_tokens);
        if options.ahead {
            sample.ahead_ns = bench.plan_ahead();
        }
        sample.advance_ns = bench.advance(plan);
        sample.waited_ns = bench.waited_ns()? - waited_ns;
        samples.push(sample);
        Ok(())
    })
}

type Turn<'a> = dyn FnMut(&mut Bench, u32, Vec<tokenspeed_core::request::Request>) -> Result<(), String> + 'a;

fn each_step(options: &Options, trace: &Trace, turn: &mut Turn<'_>) -> Result<Bench, String> {
    let mut bench = Bench::new(options)?;
    if options.fill {
        fill(&mut bench, options)?;
    }
    let mut next = 0;
    for step in 0..trace.full_at() + options.warm + options.steps {
        let from = next;
        while trace.has_come(next, step) {
            next += 1;
        }
        turn(&mut bench, step, (from..next).map(|i| trace.request(i)).collect())?;
    }
    Ok(bench)
}

/// Leave no page free: all hold the text of requests that have ended, which share nothing with the trace.
fn fill(bench: &mut Bench, options: &Options) -> Result<(), String> {
    let mut i = 1 << 30;
    while {
        let metrics = bench.engine.metrics();
        metrics.pages_used + 1 < metrics.pages_total
    } {
        bench.submit(trace::request(i, options.total / BLOCK * BLOCK, 0, 1))?;
        bench.drain();
        i += 1;
    }
    Ok(())
}
