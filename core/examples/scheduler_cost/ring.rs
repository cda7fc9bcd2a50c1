//! What the ring of decisions costs apart from everything else: blocks of decoding steps with it and without it, in turn.
//!
//! Time is that of this thread on its core: what the clock says, less what the kernel says it had to wait. The ring is written as
//! the driver writes it, under its lock. Noting the decisions themselves is part of planning, with the ring and without.

use std::sync::{Mutex, PoisonError};

use tokenspeed_core::scheduler::trace::StepTrace;

use crate::{bench::Bench, numbers, options::Options, timed, trace::Trace};

/// Steps of a block.
const BLOCK_STEPS: u32 = 64;

/// Nanoseconds per step of each block, and of each write of the ring.
pub fn run(options: &Options) -> Result<String, String> {
    let options = Options { life: 0, ..options.clone() };
    let mut bench = Bench::new(&options)?;
    let trace = Trace::new(&options);
    for i in 0..options.running {
        bench.submit(trace.request(i))?;
    }
    let mut decodes = false;
    while !decodes {
        let plan = bench.plan().1.ok_or("nothing runs")?;
        decodes = plan.n_decode_tokens == options.running;
        bench.advance(plan);
    }
    let ring = Mutex::new(StepTrace::default());
    let (mut per_step, mut writes) = ([Vec::new(), Vec::new()], Vec::new());
    for block in 0..options.steps / BLOCK_STEPS {
        let has_ring = block % 2 == 1;
        let waited_ns = bench.waited_ns()?;
        let (ns, done) =
            timed(|| (0..BLOCK_STEPS).try_for_each(|_| step(&mut bench, has_ring.then_some(&ring), &mut writes)));
        done?;
        let on_core = ns.saturating_sub(bench.waited_ns()? - waited_ns);
        per_step[usize::from(has_ring)].push(on_core / u64::from(BLOCK_STEPS));
    }
    let clock: Vec<u64> = (0..1001).map(|_| timed(|| ()).0).collect();
    let [without, with] = per_step.map(numbers);
    Ok(format!(
        "{{\"running\":{},\"clock_ns\":{},\"without\":{without},\"with\":{with},\"write\":{}}}",
        options.running,
        clock[500],
        numbers(writes)
    ))
}

fn step(bench: &mut Bench, ring: Option<&Mutex<StepTrace>>, writes: &mut Vec<u64>) -> Result<(), String> {
    let plan = bench.plan().1.ok_or("the answers are too short for so many steps")?;
    let sequence = plan.sequence;
    if let Some(ring) = ring {
        let write = || ring.lock().unwrap_or_else(PoisonError::into_inner).planned(bench.engine.decisions());
        let (ns, ()) = timed(write);
        bench.advance(plan);
        let (end_ns, ()) = timed(|| ring.lock().unwrap_or_else(PoisonError::into_inner).ended(sequence, 0));
        writes.push(ns + end_ns);
    } else {
        bench.advance(plan);
    }
    Ok(())
}
