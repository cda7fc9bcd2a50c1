//! A small case from a failing one: try to remove or simplify one thing after the other, and keep what still fails by
//! the same check.

use tokenspeed_core::{request::SamplingParams, scheduler::policy::SchedulingConfig};

use crate::{
    check::Failure,
    graph::DRAFT,
    scenario::{Arrival, Origin, Scenario},
    simulate::examine,
};

/// Most runs a shrinker may take.
pub const RUNS_MAX: u32 = 3000;

/// A smaller scenario that fails by the same check, and its failure.
pub fn shrink(scenario: &Scenario, failure: &Failure) -> (Scenario, Failure) {
    let mut best = (scenario.clone(), failure.clone());
    let mut runs = 0;
    loop {
        let before = best.0.clone();
        let mut attempt = |candidate: Scenario, best: &mut (Scenario, Failure)| {
            if candidate == best.0 || runs >= RUNS_MAX {
                return false;
            }
            runs += 1;
            match examine(&candidate) {
                Err(failure) if failure.check == best.1.check => {
                    *best = (candidate, failure);
                    true
                }
                _ => false,
            }
        };
        remove_parts(&mut best, &mut attempt, |s| &mut s.arrivals);
        remove_parts(&mut best, &mut attempt, |s| &mut s.faults);
        for simplify in WHOLE {
            let mut candidate = best.0.clone();
            simplify(&mut candidate);
            attempt(candidate, &mut best);
        }
        for simplify in EACH {
            for at in 0..best.0.arrivals.len() {
                let mut candidate = best.0.clone();
                simplify(&mut candidate.arrivals[at]);
                attempt(candidate, &mut best);
            }
        }
        if best.0 == before || runs >= RUNS_MAX {
            return best;
        }
    }
}

type Attempt<'a> = &'a mut dyn FnMut(Scenario, &mut (Scenario, Failure)) -> bool;

/// Remove runs of items, long runs first.
fn remove_parts<T>(best: &mut (Scenario, Failure), attempt: Attempt<'_>, list: fn(&mut Scenario) -> &mut Vec<T>) {
    let mut size = list(&mut best.0).len().div_ceil(2);
    while size > 0 {
        let mut at = 0;
        while at < list(&mut best.0).len() {
            let mut candidate = best.0.clone();
            let items = list(&mut candidate);
            items.drain(at..(at + size).min(items.len()));
            if !attempt(candidate, best) {
                at += size;
            }
        }
        size /= 2;
    }
}

const WHOLE: [fn(&mut Scenario); 25] = [
    |s| s.repeats = false,
    |s| s.varies = false,
    |s| s.load_faults.clear(),
    |s| s.refuses_fused = false,
    |s| s.overlaps = false,
    |s| s.via = tokenspeed_backend_api::exec::Via::Program,
    |s| s.arrivals.iter_mut().for_each(|arrival| arrival.tick /= 2),
    |s| s.faults.iter_mut().for_each(|(tick, _)| *tick /= 2),
    |s| s.config.max_num_seqs = (s.config.max_num_seqs / 2).max(1),
    |s| (s.config.speculation, s.config.draft) = (None, None),
    |s| s.config.draft = None,
    |s| s.config.speculation.iter_mut().for_each(|speculation| speculation.branches = 0),
    |s| s.config.speculation.iter_mut().for_each(|speculation| speculation.draft_max = 1),
    |s| {
        s.config.draft = None;
        s.config.components.retain(|component| component.name != DRAFT);
    },
    |s| s.config.components.retain(|component| component.name != "kda"),
    |s| s.config.table_rows = s.config.max_num_seqs,
    |s| s.lends_masks = false,
    |s| s.queue_delay_ns = None,
    |s| s.forecast = None,
    |s| s.wire.trouble = 0,
    |s| s.wire.delay = 0,
    |s| (s.config.host_pages, s.config.host_states) = (0, 0),
    |s| s.config.host_states = 0,
    |s| s.config.scheduling.coalescing_ns = 0,
    |s| s.config.scheduling = SchedulingConfig::default(),
];

const EACH: [fn(&mut Arrival); 15] = [
    |a| a.sampling = SamplingParams { temperature: 0.0, max_tokens: a.sampling.max_tokens, ..Default::default() },
    |a| a.sampling.max_tokens /= 2,
    |a| a.sampling.max_tokens = a.sampling.max_tokens.saturating_sub(1),
    |a| a.abort = None,
    |a| a.salt = None,
    |a| a.priority = 0,
    |a| a.boundaries.clear(),
    |a| a.grammar = None,
    |a| a.grammar.iter_mut().for_each(|grammar| grammar.trouble = None),
    |a| a.text.edit = None,
    |a| a.text.fresh /= 2,
    |a| a.text.keep /= 2,
    |a| a.text.origin = Origin::Base(0),
    |a| a.tick = 0,
    |a| a.text.seed = 0,
];
