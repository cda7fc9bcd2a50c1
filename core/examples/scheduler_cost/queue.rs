//! A full engine beside a long queue.

use tokenspeed_core::request::Request;

use crate::{bench::Bench, numbers, options::Options, timed, trace};

const PROMPT: u32 = 100;

/// Fill the engine, let others wait behind it, and time what meets the queue.
pub fn run(options: &Options) -> Result<String, String> {
    let mut bench = Bench::new(options)?;
    let seats = bench.engine.config().max_num_seqs;
    let life = options.max_len() - PROMPT;
    for i in 0..seats {
        bench.submit(trace::request(i, PROMPT, 0, life))?;
    }
    let turn = |bench: &mut Bench| -> Result<(u64, u64), String> {
        let (plan_ns, plan) = bench.plan();
        Ok((plan_ns, bench.advance(plan.ok_or("nothing runs")?)))
    };
    // All seats are taken after these.
    for _ in 0..4 {
        turn(&mut bench)?;
    }
    let (mut submit, mut ids) = (Vec::new(), Vec::new());
    for i in 0..options.waiting {
        // Eight classes of priority, so that most go somewhere into the middle.
        let request = Request { priority: (i % 8).cast_signed(), ..trace::request(seats + i, PROMPT, 0, life) };
        let (ns, id) = bench.submit(request)?;
        submit.push(ns);
        ids.push(id);
    }
    let (mut plans, mut advance, mut oldest) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..options.steps {
        let (plan_ns, advance_ns) = turn(&mut bench)?;
        plans.push(plan_ns);
        advance.push(advance_ns);
        oldest.push(timed(|| std::hint::black_box(bench.engine.oldest_waiting_ns(1))).0);
    }
    if bench.engine.metrics().waiting != u64::from(options.waiting) {
        return Err("a request that should wait runs".into());
    }
    // In an order that is neither that of arrival nor its reverse.
    let n = ids.len() as u64;
    let stride = (1..).map(|k| n * 5 / 8 + k).find(|&s| gcd(s, n) == 1).expect("one is coprime");
    let mut abort = Vec::new();
    for i in 0..n {
        let id = ids[(i * stride % n) as usize];
        let (ns, was_there) = timed(|| bench.engine.abort(id, &mut |_, event| drop(std::hint::black_box(event))));
        if !was_there {
            return Err(format!("{id:?} was not there"));
        }
        abort.push(ns);
    }
    let [submit, plans, advance, oldest, abort] = [submit, plans, advance, oldest, abort].map(numbers);
    Ok(format!(
        "{{\"submit\":{submit},\"plan\":{plans},\"advance\":{advance},\"oldest_waiting\":{oldest},\"abort\":{abort}}}"
    ))
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
