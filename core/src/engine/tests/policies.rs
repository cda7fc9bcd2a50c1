//! What every policy promises, on random workloads: decoding waits for nobody, nobody is overtaken too often, a preempted
//! request comes back before a new one of its class, coalescing keeps its time bound, and every decision is written down.

use super::{fake::Rig, simulation::Rng};
use crate::{
    engine::EngineConfig,
    request::{Request, RequestId, SamplingParams},
    scheduler::{
        decision::{What, Why},
        policy::{Order, SchedulingConfig},
        queue::{Running, Waiting},
        sequence::Rank,
    },
};
use std::collections::BTreeMap;

const OVERTAKEN_MAX: u32 = 3;
const COALESCING_NS: u64 = 30_000;

fn scheduling(order: Order, coalescing_ns: u64) -> SchedulingConfig {
    SchedulingConfig { order, overtaken_steps_max: OVERTAKEN_MAX, coalescing_ns }
}

const ALL: [SchedulingConfig; 4] = {
    const fn config(order: Order, coalescing_ns: u64) -> SchedulingConfig {
        SchedulingConfig { order, overtaken_steps_max: OVERTAKEN_MAX, coalescing_ns }
    }
    [
        config(Order::FirstCome, 0),
        config(Order::ShortestPrefill, 0),
        config(Order::FirstCome, COALESCING_NS),
        config(Order::ShortestPrefill, COALESCING_NS),
    ]
};

fn config(scheduling: SchedulingConfig, pages: u32, seats: u32) -> EngineConfig {
    let mut config = EngineConfig::paged(200, 4, 1 + pages, 24);
    config.max_num_seqs = seats;
    config.table_rows = seats;
    config.chunked_prefill_size = 16;
    config.max_batch_tokens = seats + 16;
    config.scheduling = scheduling;
    config.eos_ids = Vec::new();
    config.tokenizer_vocab_size = 21;
    config
}

fn request(rng: &mut Rng, prompt: u32, max_tokens: u32, priority: i32) -> Request {
    let prompt = (0..prompt).map(|_| rng.below(21)).collect();
    Request {
        prompt,
        priority,
        sampling: SamplingParams { max_tokens, ..SamplingParams::default() },
        ..Request::default()
    }
}

/// Mostly short prompts, now and then a long one.
fn arrive(rng: &mut Rng, rig: &mut Rig, priorities: &[i32]) -> RequestId {
    let prompt = if rng.one_in(5) { rng.between(60, 150) } else { rng.between(1, 20) };
    let (max_tokens, priority) = (rng.between(1, 40), rng.pick(priorities));
    rig.submit(request(rng, prompt, max_tokens, priority))
}

/// Ranks of waiting requests: (new, preempted), and how often each new one was overtaken.
fn waiting(rig: &Rig) -> (Vec<(Rank, u32)>, Vec<Rank>) {
    let (mut new, mut preempted) = (Vec::new(), Vec::new());
    for waiting in &rig.engine.queues.waiting {
        let body = waiting.body();
        match waiting {
            Waiting::Queued(_) => new.push((body.rank, body.overtaken_steps)),
            Waiting::Preempted(_) => preempted.push(body.rank),
        }
    }
    (new, preempted)
}

/// Run `n` requests that come a few per step, looking at every plan.
fn run(seed: u64, config: EngineConfig, priorities: &[i32], n: u32, mut look: impl FnMut(&Rig, &Looked)) -> Rig {
    let rng = &mut Rng(seed);
    let mut rig = Rig::new(config);
    let mut ranks = BTreeMap::new();
    let mut left = n;
    for _ in 0..20_000 {
        while left > 0 && rng.one_in(2) {
            let id = arrive(rng, &mut rig, priorities);
            let (new, _) = waiting(&rig);
            ranks.insert(id, new.iter().find(|(rank, _)| rank.1 == id.0).expect("just submitted").0);
            left -= 1;
        }
        let (new, preempted) = waiting(&rig);
        let Some(plan) = rig.plan() else {
            if left == 0 {
                return rig;
            }
            continue;
        };
        let list = &rig.engine.decisions().list;
        let admitted = list.iter().filter_map(|d| match d.what {
            What::Admitted { returns: false, .. } => Some(ranks[&d.id]),
            _ => None,
        });
        let returned: Vec<_> = list
            .iter()
            .filter(|d| matches!(d.what, What::Admitted { returns: true, .. }))
            .map(|d| ranks[&d.id])
            .collect();
        let preempted = preempted.into_iter().filter(|rank| !returned.contains(rank)).collect();
        look(&rig, &Looked { new, preempted, admitted: admitted.collect() });
        rig.finish_step(plan);
    }
    panic!("not idle: {:?}", rig.engine.metrics());
}

/// Before a plan: who waited (and did not come back in it); in it: which new requests were admitted.
struct Looked {
    new: Vec<(Rank, u32)>,
    preempted: Vec<Rank>,
    admitted: Vec<Rank>,
}

#[test]
fn decoding_never_waits_for_prefill() {
    for (seed, scheduling) in (0..20).flat_map(|seed| ALL.map(|scheduling| (seed, scheduling))) {
        let (mut decoding, mut mixed) = (0, 0);
        run(seed, config(scheduling, 2000, 8), &[0], 60, |rig, _| {
            let decisions = rig.engine.decisions();
            for running in rig.engine.queues.iter_running() {
                let (body, active) = running.parts();
                let is_decoding = matches!(running, Running::Decoding(_));
                assert!(!is_decoding || active.planned > 0, "{:?} decodes and waits, {scheduling:?}", body.id);
                decoding += u32::from(is_decoding);
            }
            mixed += u32::from(decisions.decode_tokens > 0 && decisions.prefill_tokens > 0);
        });
        assert!(decoding > 100 && mixed > 5, "{decoding} {mixed}");
    }
}

#[test]
fn nobody_is_overtaken_in_more_steps_than_promised() {
    let mut most = 0;
    for seed in 0..40 {
        // Seats and memory for all: only tokens are scarce.
        run(seed, config(scheduling(Order::ShortestPrefill, 0), 10_000, 100), &[0, 0, 1], 80, |rig, _| {
            let running = rig.engine.queues.iter_running().map(|running| running.parts().0);
            for body in running.chain(rig.engine.queues.waiting.iter().map(Waiting::body)) {
                assert!(body.overtaken_steps <= OVERTAKEN_MAX, "{:?}: {}", body.id, body.overtaken_steps);
                most = most.max(body.overtaken_steps);
            }
        });
    }
    assert_eq!(most, OVERTAKEN_MAX, "the bound is reached, so it was put to the test");
}

#[test]
fn whoever_was_overtaken_enough_is_admitted_before_later_ones_also_without_free_seats() {
    let mut n_aged = 0;
    for seed in 0..40 {
        run(seed, config(scheduling(Order::ShortestPrefill, 0), 120, 3), &[0, 0, 1], 60, |_, looked| {
            let aged: Vec<_> = looked.new.iter().filter(|(_, n)| *n >= OVERTAKEN_MAX).map(|(rank, _)| *rank).collect();
            n_aged += aged.len();
            for admitted in &looked.admitted {
                let passed = aged.iter().find(|rank| rank.0 == admitted.0 && rank.1 < admitted.1);
                let is_admitted = passed.is_some_and(|rank| looked.admitted.contains(rank));
                assert!(passed.is_none() || is_admitted, "{admitted:?} was admitted before {passed:?}");
            }
        });
    }
    assert!(n_aged > 100, "{n_aged}");
}

#[test]
fn a_preempted_request_returns_before_a_new_one_of_its_class() {
    for scheduling in ALL {
        let (mut n_waits, mut n_admitted) = (0, 0);
        for seed in 0..30 {
            let rig = run(seed, config(scheduling, 60, 6), &[0, 0, 1], 40, |_, looked| {
                n_waits += looked.preempted.len();
                n_admitted += looked.admitted.len();
                for admitted in &looked.admitted {
                    let behind = looked.preempted.iter().find(|rank| rank.0 == admitted.0);
                    assert!(behind.is_none(), "{admitted:?} was admitted before {behind:?} came back, {scheduling:?}");
                }
            });
            assert_eq!(rig.engine.metrics().finished.iter().sum::<u64>(), 40);
        }
        assert!(n_waits > 100 && n_admitted > 500, "{n_waits} {n_admitted}");
    }
}

#[test]
fn coalescing_keeps_its_time_bound_and_holds_only_where_somebody_decodes() {
    for order in [Order::FirstCome, Order::ShortestPrefill] {
        let mut held = 0;
        for seed in 0..20 {
            run(seed, config(scheduling(order, COALESCING_NS), 10_000, 100), &[0], 60, |rig, _| {
                let decisions = rig.engine.decisions();
                let is_held = decisions.list.iter().any(|d| d.what == What::Waits(Why::Coalescing));
                held += u32::from(is_held);
                assert!(!is_held || decisions.decode_tokens > 0 && decisions.prefill_tokens == 0);
                for waiting in rig.engine.queues.waiting.iter().filter(|_| is_held) {
                    let waited_ns = rig.now_ns - waiting.body().submitted_ns;
                    assert!(waited_ns < COALESCING_NS, "held for {waited_ns} ns");
                }
            });
        }
        assert!(held > 50, "{held}");
    }
}

#[test]
fn a_short_prompt_overtakes_a_long_one_that_runs() {
    let mut steps = Vec::new();
    for order in [Order::FirstCome, Order::ShortestPrefill] {
        let rng = &mut Rng(1);
        let mut rig = Rig::new(config(scheduling(order, 0), 1000, 8));
        rig.engine.set_step_tokens(16);
        let long = rig.submit(request(rng, 160, 2, 0));
        assert!(rig.turn());
        let short = rig.submit(request(rng, 8, 2, 0));
        let mut n = 0;
        while rig.ids(short).is_empty() {
            assert!(rig.turn());
            n += 1;
        }
        assert_eq!(rig.ids(long).is_empty(), order == Order::ShortestPrefill);
        steps.push(n);
        rig.run_to_idle(100);
    }
    assert_eq!(steps, [10, 1], "after the rest of the long one; at once");
}
