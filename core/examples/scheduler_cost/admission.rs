//! One long prompt after the other, mostly cached, into an engine that does nothing else.

use tokenspeed_core::request::RequestId;

use crate::{bench::Bench, numbers, options::Options, trace};

/// Each sample is a prompt's `submit` and the `plan` that admits it.
pub fn run(options: &Options) -> Result<String, String> {
    let mut bench = Bench::new(options)?;
    let mut life = 0..;
    let mut request = || trace::request(life.next().expect("endless"), options.total, options.shared, 1);
    // The second one marks where the first and all later ones part.
    for _ in 0..2 {
        bench.submit(request())?;
        bench.drain();
    }
    let (mut submit, mut plans, mut advance, mut hit) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..options.samples {
        let before = bench.engine.metrics().cached_tokens;
        let (ns, _): (u64, RequestId) = bench.submit(request())?;
        submit.push(ns);
        let (ns, plan) = bench.plan();
        plans.push(ns);
        advance.push(bench.advance(plan.ok_or("nothing was admitted")?));
        bench.drain();
        hit.push(bench.engine.metrics().cached_tokens - before);
    }
    bench.engine.check_conservation()?;
    let [submit, plans, advance, hit] = [submit, plans, advance, hit].map(numbers);
    Ok(format!("{{\"submit\":{submit},\"plan\":{plans},\"advance\":{advance},\"hit\":{hit}}}"))
}
