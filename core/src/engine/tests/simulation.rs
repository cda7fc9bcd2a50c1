//! Random workloads on random configurations, several hundred seeds.
//!
//! Checked at every step: the fake device's own assertions, conservation of pages, rows, slots and reference counts.
//! Checked per request: it hears exactly what the oracle says it hears alone (a prefix of that, then the end, if it was
//! aborted or failed by `fail_all`), whatever was batched, chunked, preempted, cached or aborted around it.
//! Checked at the end: it came within a bound of steps, nothing is held, and after a flush every page is free.
//!
//! A failing seed is in the panic message; replay it with `run(seed)`.
//!
//! What must hold, and what shows it; of pools, tables, hashes, matches and evictions, `cache/tests.rs` has the rest of the list.
//! `tests/sim` checks all of it again, from outside, behind the C table and with more faults.
//!
//! * **Chunks.** Those that do not complete a prompt end on the grid: `cases`, and each step in `tests/sim`. A tail's pages are
//!   the request's from its body's step on, so that nobody takes them and it cannot fail: each plan in `tests/sim`. (A request
//!   that lacked them would only wait or take memory from others, and nothing here would notice.) An abort between the two
//!   leaves nothing: conservation after every abort.
//! * **Life cycle.** Submitted and finished is as before: at the end nothing is held, and a flush frees every page. So for many,
//!   ending in any order; so for aborts before a plan, in flight, between passes of a draft, of ids that have ended or never
//!   were; so when everything fails. Illegal transitions do not compile: `tests/compile_fail/`.
//! * **Preemption.** The prompt and what was generated are computed again, and no state is stale: the device compares every
//!   row and state with the whole text, the oracle every answer; hundreds lose their memory (asserted).
//! * **Hits** are of tokens that another request of the same salt computed, leave at least one token to compute, and
//!   lie on page boundaries; hundreds of hybrid models' are among them (asserted).
//! * **Copies** between the tiers end late, in any order, some badly. Each is ordered once and counts when its end was heard, and
//!   hearing it twice changes nothing; an abort during a load leaves the load its pages: `host_tier`.
//! * **Flush** is refused while requests or copies are under way, as a whole; otherwise it empties both tiers: here and in `cases`.
//! * **Guesses** of every origin change nothing: right ones of lookups, drafts and side branches occur (asserted).
//! * **Progress.** All end within the steps they would need one after the other. Who goes first, and what each policy promises:
//!   `policies`; that memory pressure does not thrash: `cases`.

use super::{fake::Rig, grammar::Toy, oracle};
use crate::{
    engine::{ComponentClass, ComponentConfig, EngineConfig},
    request::{Event, FinishReason, Request, RequestId, SamplingParams},
    scheduler::policy::{Order, SchedulingConfig},
    speculation::{DraftModel, SpeculationConfig},
};
use std::collections::BTreeMap;

/// splitmix64.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }
    pub fn below(&mut self, n: u32) -> u32 {
        (self.next() % u64::from(n)) as u32
    }
    pub fn between(&mut self, low: u32, high: u32) -> u32 {
        low + self.below(high - low + 1)
    }
    pub fn one_in(&mut self, n: u32) -> bool {
        self.below(n) == 0
    }
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u32) as usize]
    }
}

const TOKENIZER_IDS: u32 = 21;

fn random_config(rng: &mut Rng) -> EngineConfig {
    let block_tokens = rng.pick(&[1, 2, 3, 4, 8, 16]);
    let max_model_len = rng.between(8, 80);
    let pages = max_model_len.div_ceil(block_tokens);
    // From barely enough for one request to plenty.
    let n_blocks = 1 + pages + rng.pick(&[0, 1, pages / 2, pages, pages * 6]);
    let mut config = EngineConfig::paged(max_model_len, block_tokens, n_blocks, TOKENIZER_IDS + 3);
    config.max_num_seqs = rng.between(1, 8);
    config.table_rows = config.max_num_seqs + rng.below(2);
    config.chunked_prefill_size = rng.between(1, 40);
    let least = config.max_num_seqs + config.chunk_grid();
    config.max_batch_tokens = least + rng.below(60);
    config.max_logit_rows = least + rng.below(10);
    config.tokenizer_vocab_size = TOKENIZER_IDS;
    config.eos_ids = vec![0, 20];
    config.prefix_cache = !rng.one_in(4);
    config.secret = [rng.next(), rng.next()];
    if rng.one_in(3) {
        let class = ComponentClass::Paged;
        config.components.push(ComponentConfig { name: "draft".into(), class, n_blocks: n_blocks + rng.below(3) });
    }
    if rng.one_in(2) {
        let (class, n_blocks) = (ComponentClass::State, 1 + rng.between(1, config.max_num_seqs * 2 + 6));
        config.components.insert(0, ComponentConfig { name: "kda".into(), class, n_blocks });
    }
    if rng.one_in(3) {
        (config.host_pages, config.host_states) = (rng.between(1, pages * 6), rng.below(12));
    }
    if rng.one_in(2) {
        config.max_logit_rows += rng.below(20);
        config.speculation = Some(SpeculationConfig {
            draft_max: rng.between(1, 15),
            ngram: rng.between(1, 3),
            branches: rng.pick(&[0, 1, 3]),
        });
        let has_room = config.components.iter().any(|c| c.name == "draft");
        config.draft =
            (has_room && !rng.one_in(3)).then_some(DraftModel { vocab_size: config.vocab_size, token_ids: None });
    }
    // Of its own, so that the rest of a seed stays what it is.
    let rng = &mut Rng(rng.0 ^ 0x5c4e_d01e);
    config.scheduling = SchedulingConfig {
        order: rng.pick(&[Order::FirstCome, Order::FirstCome, Order::FirstCome, Order::ShortestPrefill]),
        overtaken_steps_max: rng.pick(&[0, 3, 64]),
        // In steps of 2,000 ns.
        coalescing_ns: rng.pick(&[0, 0, 0, 0, 0, 0, 20_000, u64::MAX]),
    };
    config
}

fn random_request(rng: &mut Rng, config: &EngineConfig, bases: &[Vec<u32>]) -> Request {
    // A prefix of a shared text, then something of its own: hits, forks and exact repeats.
    let max_prompt = config.max_model_len - 1;
    let base = &bases[rng.below(bases.len() as u32) as usize];
    let shared = rng.below(base.len() as u32 + 1).min(max_prompt) as usize;
    let mut prompt = base[..shared].to_vec();
    for _ in 0..rng.pick(&[0, 0, 1, 3, 9]) {
        prompt.push(rng.below(TOKENIZER_IDS));
    }
    prompt.truncate(max_prompt as usize);
    if prompt.is_empty() {
        prompt.push(1);
    }
    let max_tokens = rng.pick(&[0, 1, 2, 5, 12, 40, u32::MAX]);
    let constraint = rng.one_in(4).then(|| {
        let fails_after = rng.pick(&[1000, 1000, 1000, 1000, 5]);
        Toy::boxed(rng.next(), rng.between(1, 60) as usize, fails_after)
    });
    let sampling = SamplingParams {
        temperature: rng.pick(&[0.0, 0.0, 0.7, 1.5]),
        top_k: rng.pick(&[0, 0, 5]),
        top_p: rng.pick(&[1.0, 0.8]),
        repetition_penalty: rng.pick(&[1.0, 1.0, 1.3]),
        frequency_penalty: rng.pick(&[0.0, 0.0, 0.5]),
        seed: rng.next(),
        min_tokens: rng.pick(&[0, 0, 4]).min(max_tokens),
        max_tokens,
        stop_token_ids: if rng.one_in(3) { vec![rng.below(TOKENIZER_IDS)] } else { vec![] },
        ignore_eos: constraint.is_none() && rng.one_in(2),
        // Of two ids, half of all guesses are right.
        allowed_token_ids: rng.one_in(3).then(|| vec![1, 2]),
        logprobs: rng.pick(&[None, None, Some(0), Some(3)]),
        prompt_logprobs: rng.pick(&[None, None, None, Some(2)]),
        ..SamplingParams::default()
    };
    // Half of them say where the shared text ends.
    let boundaries = if shared.is_multiple_of(2) { vec![shared.min(prompt.len()) as u32] } else { vec![] };
    Request {
        prompt,
        sampling,
        boundaries,
        priority: rng.pick(&[0, 0, 0, -1, 3]),
        cache_salt: rng.pick(&[None, None, Some(""), Some("a")]).map(str::to_owned),
        constraint,
    }
}

/// Returns preemptions, tokens from the cache, aborts, tokens from the cache of hybrid models, right guesses,
/// right guesses of hybrid models, right guesses of draft models, plans made ahead, right side branches, pages from host memory.
fn run(seed: u64) -> [u64; 10] {
    let rng = &mut Rng(seed);
    let config = random_config(rng);
    let bases: Vec<Vec<u32>> =
        (0..3).map(|_| (0..rng.between(1, config.max_model_len)).map(|_| rng.below(TOKENIZER_IDS)).collect()).collect();
    let mut rig = Rig::new(config.clone());
    rig.plans_ahead = rng.one_in(2);
    let mut asked: BTreeMap<RequestId, Request> = BTreeMap::new();
    let n_requests = rng.between(1, 24);
    let abort_rate = rng.pick(&[0, 0, 40, 8]);
    let fails_at = rng.one_in(10).then(|| rng.below(40));
    let mut work = 100;
    let mut steps = 0;
    while asked.len() < n_requests as usize || !rig.engine.is_idle() {
        while asked.len() < n_requests as usize && rng.one_in(3) {
            let request = random_request(rng, &config, &bases);
            work += config.max_model_len;
            asked.insert(rig.submit(request.clone()), request);
        }
        if rng.one_in(20) {
            rig.engine.set_step_tokens(rng.below(100));
        }
        let abort_some = |rng: &mut Rng, rig: &mut Rig, n_asked: usize| {
            if abort_rate > 0 && rng.one_in(abort_rate) && n_asked > 0 {
                // Known or not, running or over: all are fine.
                rig.abort(RequestId(1 + u64::from(rng.below(n_asked as u32 + 2))));
                rig.engine.check_conservation().unwrap();
            }
        };
        abort_some(rng, &mut rig, asked.len());
        rig.take_orders();
        while !rig.copies.is_empty() && !rng.one_in(3) {
            let at = rng.below(rig.copies.len() as u32) as usize;
            rig.end_copy(at, !rng.one_in(12));
            rig.engine.check_conservation().unwrap();
        }
        if let Some(plan) = rig.plan() {
            steps += 1;
            let mut jobs = Vec::new();
            if rng.one_in(2) {
                rig.engine.lend_masks(&mut |job| jobs.push(job));
            }
            abort_some(rng, &mut rig, asked.len());
            rig.engine.check_conservation().unwrap();
            if rng.one_in(8) && asked.len() < n_requests as usize {
                let request = random_request(rng, &config, &bases);
                work += config.max_model_len;
                asked.insert(rig.submit(request.clone()), request);
            }
            for mut job in jobs.into_iter().rev() {
                if !rng.one_in(3) {
                    job.run();
                }
                rig.engine.return_masks(job);
            }
            if fails_at == Some(steps) {
                let heard = &mut rig.heard;
                rig.engine.fail_all("device lost", &mut |id, event| heard.entry(id).or_default().push(event));
                assert!(rig.engine.is_idle());
            } else {
                rig.finish_turn(plan);
                abort_some(rng, &mut rig, asked.len());
                while rig.draft_pass() {
                    abort_some(rng, &mut rig, asked.len());
                }
            }
            rig.engine.check_conservation().unwrap();
            // The first in order goes on in every step, so all end within the steps they need one after the other.
            assert!(steps <= work, "no end after {steps} steps");
        }
    }
    let under_way = rig.engine.flush_cache();
    rig.take_orders();
    assert_eq!(under_way.is_err(), !rig.copies.is_empty(), "a flush waits for copies, and for nothing else");
    while !rig.copies.is_empty() {
        rig.end_copy(0, true);
    }
    let metrics = rig.engine.metrics();
    assert_eq!((metrics.running, metrics.waiting, metrics.pages_used), (0, 0, metrics.pages_cached));
    assert_eq!(metrics.finished.iter().sum::<u64>(), u64::from(n_requests));
    let mut longest = 0;
    for (id, request) in &asked {
        let (events, cached) = oracle::without_cached_tokens(&rig.heard[id]);
        let expected = oracle::alone(request, &config);
        let was_cut_short = match events.last().unwrap() {
            Event::Finished { reason, .. } => *reason == FinishReason::Abort,
            Event::Failed { message } => message == "device lost",
            _ => panic!("{id:?} never ended"),
        };
        if was_cut_short {
            let heard = &events[..events.len() - 1];
            assert!(expected.starts_with(heard), "{id:?} heard {heard:?} before its early end, not {expected:?}");
        } else {
            assert_eq!(events, expected, "{id:?} heard something else than alone");
        }
        assert!(cached < request.prompt.len() as u32 && cached % config.block_tokens == 0, "{cached} cached tokens");
        let cannot_hit = !config.prefix_cache || request.sampling.prompt_logprobs.is_some() && request.prompt.len() > 1;
        assert!(cached == 0 || !cannot_hit);
        // A hit is something another request of the same salt really computed: its prompt and output but the last id.
        let shares = |(other, theirs): (&RequestId, &Request)| {
            let text = [&theirs.prompt[..], &rig.ids(*other)].concat();
            let computed = text.len() - usize::from(text.len() > theirs.prompt.len());
            let n = cached as usize;
            other != id && theirs.cache_salt == request.cache_salt && n <= computed && text[..n] == request.prompt[..n]
        };
        assert!(cached == 0 || asked.iter().any(shares), "{id:?} hit {cached} tokens nobody computed");
        longest = longest.max(cached);
    }
    rig.engine.flush_cache().unwrap();
    let after = rig.engine.metrics();
    assert_eq!((after.pages_used, after.host_pages[0], after.host_states[0]), (0, 0, 0), "a flush frees every page");
    assert_eq!(rig.engine.memory.index.n_namespaces(), 0, "no salt is remembered");
    rig.engine.check_conservation().unwrap();
    let is_hybrid = config.components_of(ComponentClass::State).next().is_some();
    let hybrid = if is_hybrid { metrics.cached_tokens } else { 0 };
    let accepted = metrics.accepted.iter().sum();
    let of_hybrid = if is_hybrid { accepted } else { 0 };
    let of_draft = if config.draft.is_some() { accepted } else { 0 };
    [
        metrics.preemptions,
        metrics.cached_tokens,
        metrics.finished[2],
        hybrid,
        accepted,
        of_hybrid,
        of_draft,
        rig.n_ahead,
        metrics.branches[1],
        metrics.host_loaded,
    ]
}

#[test]
fn every_request_hears_what_it_hears_alone() {
    let mut totals = [0; 10];
    for seed in 0..600 {
        let result = std::panic::catch_unwind(|| run(seed));
        let counts = result.unwrap_or_else(|_| panic!("seed {seed} failed"));
        totals.iter_mut().zip(counts).for_each(|(total, n)| *total += n);
    }
    // The workload really has what it is meant to check.
    assert!(
        totals.iter().zip([500, 3000, 300, 500, 500, 200, 200, 2000, 100, 100]).all(|(total, least)| *total > least),
        "{totals:?}"
    );
    println!(
        "preemptions, cached tokens, aborts, cached tokens of hybrids, right guesses, of hybrids, of drafts, plans ahead, branches, loaded pages: \
         {totals:?}"
    );
}
