//! Why somebody waits, and who loses memory to whom, against plain arithmetic: without a prefix cache a page belongs to one
//! request, so what was free and what each request lacked can be counted on fingers.

use std::collections::BTreeMap;

use super::{fake::Rig, simulation::Rng};
use crate::{
    engine::EngineConfig,
    request::{Request, RequestId, SamplingParams},
    scheduler::{
        decision::{Decision, What, Why},
        policy::{Order, SchedulingConfig},
        queue::{Running, Waiting},
    },
};

const PAGE: u32 = 4;
const CHUNK: u32 = 16;

/// A request that runs or waits.
#[derive(Clone, Copy, Debug)]
struct Seen {
    id: RequestId,
    decodes: bool,
    returns: bool,
    computed: u32,
    len: u32,
    pages: u32,
    planned: u32,
}

/// Who runs and who waits, in order of service, and what is free.
#[derive(Clone, Debug)]
struct State {
    running: Vec<Seen>,
    waiting: Vec<Seen>,
    free: u32,
    seats: usize,
    /// Grows when something is given back.
    releases: u64,
}

fn look(rig: &Rig) -> State {
    let running = rig.engine.queues.iter_running().map(|running| {
        let (body, active) = running.parts();
        let decodes = matches!(running, Running::Decoding(_));
        let (computed, pages, planned) = (active.computed, active.lease.n_pages(), active.planned);
        Seen { id: body.id, decodes, returns: false, computed, len: body.len(), pages, planned }
    });
    let waiting = rig.engine.queues.waiting.iter().map(|waiting| {
        let (body, returns) = (waiting.body(), matches!(waiting, Waiting::Preempted(_)));
        let (id, len) = (body.id, body.len());
        Seen { id, decodes: false, returns, computed: 0, len, pages: 0, planned: 0 }
    });
    let metrics = rig.engine.metrics();
    let free = (metrics.pages_total - metrics.pages_used) as u32;
    let seats = rig.engine.config().max_num_seqs as usize;
    State {
        running: running.collect(),
        waiting: waiting.collect(),
        free,
        seats,
        releases: rig.engine.memory.releases(),
    }
}

fn pages(tokens: u32) -> u32 {
    tokens.div_ceil(PAGE)
}

/// Where a chunk of at most `most` tokens ends: at the end, or on a page.
fn end(of: &Seen, most: u32) -> u32 {
    if of.len - of.computed <= most { of.len } else { ((of.computed + most) / PAGE * PAGE).max(of.computed) }
}

/// Pages with which a request computes up to `end`: what remains comes with it if less than a page.
fn needed(of: &Seen, end: u32) -> u32 {
    pages(if of.len - end < PAGE { of.len } else { end })
}

/// Tokens of a step that prompts can have.
fn for_prompts(state: &State, step: u32) -> u32 {
    let n_decode = state.running.iter().filter(|one| one.decodes).count() as u32;
    step.saturating_sub(n_decode).max(PAGE)
}

/// Who loses memory to whom, first come, first served: one after the other takes what it needs, from the last of all.
fn losses(before: &State, step: u32) -> Losses {
    let (mut running, mut free, mut lost) = (before.running.clone(), before.free, Vec::new());
    let mut tokens = for_prompts(before, step);
    let mut at = 0;
    while at < running.len() {
        let one = running[at];
        let fits = (one.pages + free) * PAGE - one.computed;
        let most = CHUNK.min(tokens);
        let end = match one.decodes {
            true => one.len,
            false if end(&one, most.min(fits)) > one.computed => end(&one, most.min(fits)),
            false => end(&one, most),
        };
        let lacks = needed(&one, end).saturating_sub(one.pages);
        if end == one.computed || lacks > free && at + 1 == running.len() {
            at += 1;
        } else if lacks <= free {
            free -= lacks;
            tokens -= if one.decodes { 0 } else { end - one.computed };
            at += 1;
        } else {
            let victim = running.pop().expect("somebody is behind");
            free += victim.pages;
            lost.push((victim.id, one.id));
        }
    }
    lost
}

/// Who lost memory to whom.
type Losses = Vec<(RequestId, RequestId)>;

fn said(list: &[Decision]) -> (Losses, Vec<(RequestId, Why)>) {
    let lost = list.iter().filter_map(|d| if let What::Preempted { by } = d.what { Some((d.id, by)) } else { None });
    let waits = list.iter().filter_map(|d| if let What::Waits(why) = d.what { Some((d.id, why)) } else { None });
    (lost.collect(), waits.collect())
}

fn config(order: Order, n_pages: u32, seats: u32) -> EngineConfig {
    let mut config = EngineConfig::paged(200, PAGE, 1 + n_pages, 24);
    config.max_num_seqs = seats;
    config.table_rows = seats;
    config.chunked_prefill_size = CHUNK;
    config.max_batch_tokens = seats + 2 * CHUNK;
    config.scheduling = SchedulingConfig { order, ..SchedulingConfig::default() };
    config.eos_ids = Vec::new();
    config.tokenizer_vocab_size = 21;
    config.prefix_cache = false;
    config
}

fn request(rng: &mut Rng, prompt: u32, max_tokens: u32) -> Request {
    let prompt = (0..prompt).map(|_| rng.below(21)).collect();
    let priority = rng.pick(&[0, 0, 1]);
    Request {
        prompt,
        priority,
        sampling: SamplingParams { max_tokens, ..SamplingParams::default() },
        ..Request::default()
    }
}

/// Random requests to their end; `check` sees what was before each plan, what is after it, the step's tokens and what was
/// said.
fn run(seed: u64, order: Order, mut check: impl FnMut(&State, &State, u32, &[Decision])) {
    let rng = &mut Rng(seed);
    let (n_pages, seats) = (rng.between(55, 90), rng.between(3, 8));
    let mut rig = Rig::new(config(order, n_pages, seats));
    let mut left = 30;
    for _ in 0..20_000 {
        while left > 0 && rng.one_in(2) {
            let (prompt, max_tokens) =
                (if rng.one_in(4) { rng.between(40, 120) } else { rng.between(1, 20) }, rng.between(1, 50));
            let request = request(rng, prompt, max_tokens);
            rig.submit(request);
            left -= 1;
        }
        let step = rng.between(1, seats + 2 * CHUNK);
        rig.engine.set_step_tokens(step);
        let before = look(&rig);
        let Some(plan) = rig.plan() else {
            if left == 0 {
                return;
            }
            continue;
        };
        check(&before, &look(&rig), step, &rig.engine.decisions().list);
        rig.finish_step(plan);
    }
    panic!("not idle: {:?}", rig.engine.metrics());
}

#[test]
fn memory_is_lost_to_whom_it_is_said() {
    let mut n_lost = 0;
    for seed in 0..60 {
        run(seed, Order::FirstCome, |before, after, step, list| {
            let (lost, _) = said(list);
            assert_eq!(lost, losses(before, step), "{before:#?} with {step} tokens");
            assert!(lost.iter().all(|(id, _)| after.running.iter().all(|one| one.id != *id)));
            n_lost += lost.len();
        });
    }
    assert!(n_lost > 200, "{n_lost}");
}

/// Whatever the policy, memory goes from the last in order of service to one before it that goes on.
#[test]
fn the_last_in_order_loses_memory_under_every_policy() {
    let mut n_lost = 0;
    for seed in 0..60 {
        run(seed, Order::ShortestPrefill, |before, after, _, list| {
            let (lost, _) = said(list);
            let last_first = before.running.iter().rev().map(|one| one.id);
            assert!(lost.iter().map(|(id, _)| *id).eq(last_first.take(lost.len())), "{lost:?} of {before:?}");
            for (_, by) in &lost {
                let taker = after.running.iter().find(|one| one.id == *by).expect("it keeps its own");
                let had = before.running.iter().find(|one| one.id == *by).expect("it ran");
                // It lacked a page at least. All it could take may have been too little; then it waits.
                let least = if had.decodes { had.len } else { end(had, PAGE) };
                assert!(needed(had, least) > had.pages, "{had:?} lacks nothing");
                assert_eq!(taker.pages > had.pages, taker.planned > 0, "{taker:?}, {list:?}");
            }
            n_lost += lost.len();
        });
    }
    assert!(n_lost > 100, "{n_lost}");
}

#[test]
fn the_reason_to_wait_is_the_true_one() {
    let mut seen = BTreeMap::<&str, u32>::new();
    for (seed, order) in (0..60).flat_map(|seed| [Order::FirstCome, Order::ShortestPrefill].map(|order| (seed, order)))
    {
        // Not tried again before something is given back, though fewer tokens might need fewer pages by then.
        let mut blocked = None;
        run(seed, order, |before, after, step, list| {
            let n_running = after.running.len() as u32;
            let used: u32 = after.running.iter().filter(|one| !one.decodes).map(|one| one.planned).sum();
            // Who decoded before and lost its memory is counted, too.
            let left = for_prompts(before, step).saturating_sub(used);
            let waits = said(list).1;
            for (id, why) in &waits {
                *seen.entry(why.text()).or_default() += 1;
                let Some(one) = after.running.iter().find(|one| one.id == *id) else { continue };
                let truth = if one.decodes {
                    assert!(after.free == 0 && one.computed.is_multiple_of(PAGE), "{one:?} could go on: {after:?}");
                    Why::NoPages
                } else if end(one, CHUNK.min(left)) > one.computed {
                    // Who is no favourite of a policy leaves a page for each that runs.
                    let kept = if order == Order::FirstCome { 0 } else { n_running };
                    let most = one.pages + after.free.saturating_sub(kept);
                    let fits = end(one, CHUNK.min(left).min(most * PAGE - one.computed));
                    assert!(fits == one.computed || needed(one, fits) > most, "{one:?} could have {most}: {after:?}");
                    Why::NoPages
                } else if order == Order::FirstCome {
                    Why::StepBudget
                } else {
                    let others = after.running.iter().filter(|other| !other.decodes && other.planned > 0);
                    assert!(others.count() > 0, "{one:?} waits for nobody: {after:?}");
                    Why::Policy
                };
                assert_eq!(*why, truth, "{one:?} with {left} of {step} tokens: {after:?}");
            }
            // Of those that wait for a seat, the first stands for all.
            let Some((first, why)) = after
                .waiting
                .first()
                .and_then(|first| waits.iter().find(|(id, _)| *id == first.id).map(|(_, why)| (first, *why)))
            else {
                assert!(after.waiting.is_empty(), "the first that waits has no reason");
                return;
            };
            if order != Order::FirstCome {
                return;
            }
            let (chunk, tried) = (end(first, CHUNK.min(left)), Some((first.id, after.releases)));
            let truth = if after.running.len() == after.seats {
                Why::NoSeat
            } else if left > 0 && blocked == tried {
                Why::NoPages
            } else if chunk == 0 {
                Why::StepBudget
            } else {
                // All of it and the first token it generates, if it returns or its prompt is whole; a page for each that runs.
                let is_whole = first.returns || chunk == first.len;
                let foreseen = if is_whole { pages(first.len + 1) } else { needed(first, chunk) };
                if foreseen + n_running > after.free {
                    blocked = tried;
                }
                assert_eq!(
                    blocked, tried,
                    "{why:?}, {left} of {step} tokens, {foreseen} pages: {list:?}, {first:?} of {after:?}"
                );
                Why::NoPages
            };
            assert_eq!(why, truth, "{first:?} with {left} of {step} tokens: {after:?}");
        });
    }
    assert!(seen.values().all(|n| *n > 30) && seen.len() >= 4, "{seen:?}");
}

/// A scoring prompt that has tokens and pages, and no rows of logits.
#[test]
fn who_lacks_rows_of_logits_is_told_so() {
    let mut config = config(Order::FirstCome, 100, 4);
    config.max_logit_rows = config.max_num_seqs + 2 * PAGE;
    let mut rig = Rig::new(config);
    let score = |rig: &mut Rig, priority: i32| {
        let sampling = SamplingParams { prompt_logprobs: Some(0), max_tokens: 1, ..SamplingParams::default() };
        rig.submit(Request { prompt: vec![3; 40], priority, sampling, ..Request::default() })
    };
    let late = score(&mut rig, 1);
    assert!(rig.turn());
    let [first, waits] = [score(&mut rig, 0), score(&mut rig, 2)];
    let plan = rig.plan().expect("there is work");
    let list = rig.engine.decisions().list.clone();
    let prefills = list.iter().filter(|d| matches!(d.what, What::Prefills { tokens, .. } if tokens == 2 * PAGE));
    assert!(prefills.map(|d| d.id).eq([late]), "it has its memory, so it goes on: {list:?}");
    rig.finish_step(plan);
    assert_eq!(said(&list).1, [(first, Why::StepRoom), (waits, Why::StepRoom)]);
    rig.run_to_idle(100);
}

/// Prompts that are cached but for their end, and no room in the step for so many changes of tables.
#[test]
fn who_lacks_table_changes_is_told_so() {
    let mut config = EngineConfig::paged(512, 16, 200, 24);
    (config.max_num_seqs, config.table_rows, config.tokenizer_vocab_size) = (8, 8, 21);
    (config.chunked_prefill_size, config.max_batch_tokens) = (200, 208);
    let most = config.step_capacity().deltas / 32;
    let mut rig = Rig::new(config);
    let ask = |rig: &mut Rig| {
        let sampling = SamplingParams { max_tokens: 1, ..SamplingParams::default() };
        rig.submit(Request { prompt: vec![5; 500], sampling, ..Request::default() })
    };
    ask(&mut rig);
    rig.run_to_idle(20);
    let ids: Vec<RequestId> = (0..8).map(|_| ask(&mut rig)).collect();
    let plan = rig.plan().expect("there is work");
    let list = rig.engine.decisions().list.clone();
    let admitted: Vec<RequestId> =
        list.iter().filter(|d| matches!(d.what, What::Admitted { cached: 496, .. })).map(|d| d.id).collect();
    assert_eq!((&admitted[..], most < 8), (&ids[..most as usize], true), "{list:?}");
    let late = ids[most as usize..].iter().map(|id| (*id, Why::StepRoom));
    assert!(said(&list).1.into_iter().eq(late), "{list:?}");
    rig.finish_step(plan);
    rig.run_to_idle(100);
}
