//! Between plan and advance nothing is allocated in steady state: a slow allocation on the engine's thread would delay
//! every running request. A counting allocator proves it, per thread so that the test harness does not count.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use tokenspeed_backend_api::{
    abi::TS_SAMPLED_TOKEN,
    catalogue::{CHOSEN_WIDTH, LOGPROBS_WIDTH},
};
use tokenspeed_core::{
    cache::tally::Tally,
    engine::{ComponentClass, ComponentConfig, EngineConfig, EngineState, Logits},
    grammar::{Constraint, ConstraintError, MaskJob, TokenMask},
    request::{Event, Request, SamplingParams},
    sampler::device::{Sampled, SampledPasses},
    scheduler::policy::{Order, SchedulingConfig},
    speculation::SpeculationConfig,
};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // Fails only while the thread is torn down.
    let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
}

// SAFETY: forwards every call unchanged to the system allocator, which upholds the contract; counting touches only a
// const-initialised thread-local without a destructor, so it allocates nothing itself.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations() -> u64 {
    ALLOCATIONS.with(Cell::get)
}

#[test]
fn the_counter_counts() {
    let before = allocations();
    let text = std::hint::black_box(vec![1u8; 100]);
    assert_eq!(allocations(), before + 1, "{}", text.len());
}

const REQUESTS: u32 = 64;
const VOCABULARY: usize = 1000;

#[test]
fn steady_decoding_of_64_requests_allocates_nothing() {
    assert_eq!(steady_decoding(None, 0, |_| ()).right, 0);
}

/// The next page boundary is reached, and another state slot taken, every 16 tokens.
#[test]
fn neither_does_it_with_recurrent_states() {
    assert_eq!(steady_decoding(STATES, 0, |_| ()).right, 0);
}

/// Prompt lookup.
#[test]
fn nor_with_guesses() {
    assert!(steady_decoding(None, 5, |_| ()).right > 1000);
}

/// Guesses have a pass of their own, and right ones are replayed.
#[test]
fn nor_with_guesses_and_recurrent_states() {
    assert!(steady_decoding(STATES, 5, |_| ()).right > 1000);
}

/// What the first round left in the cache is copied to host memory, then evicted, while the second decodes.
#[test]
fn nor_beside_copies_to_host_memory() {
    let with_host = |config: &mut EngineConfig| (config.host_pages, config.host_states) = (1000, 100);
    let seen = steady_decoding(STATES, 5, with_host);
    assert!(seen.copies > 500, "{} copies in steady steps", seen.copies);
}

#[test]
fn nor_under_other_policies() {
    steady_decoding(STATES, 0, |config| {
        (config.scheduling.order, config.scheduling.coalescing_ns) = (Order::ShortestPrefill, 1000);
    });
}

const STATES: Option<u32> = Some(2 * REQUESTS + 20);

/// What happened in the second round.
struct Seen {
    /// Guesses that were right.
    right: u64,
    /// Copies between the tiers that were ordered in steady steps.
    copies: u64,
}

/// Two rounds, the second planned ahead where that is possible.
fn steady_decoding(states: Option<u32>, guesses: u32, change: impl Fn(&mut EngineConfig)) -> Seen {
    // Tight: 64 requests fill 64 * 28 pages of 16 tokens, so growth evicts what the first round left in the cache.
    let mut config = EngineConfig::paged(448, 16, 64 * 28 + 1, VOCABULARY as u32);
    config.max_num_seqs = REQUESTS;
    config.components.extend(states.map(|n_blocks| ComponentConfig {
        name: "state".into(),
        class: ComponentClass::State,
        n_blocks,
    }));
    config.speculation =
        (guesses > 0).then(|| SpeculationConfig { draft_max: guesses, ..SpeculationConfig::default() });
    change(&mut config);
    let can_plan_ahead = guesses == 0 && config.scheduling == SchedulingConfig::default();
    let mut seen = Seen { right: 0, copies: 0 };
    let mut logits = vec![0.0f32; VOCABULARY * config.max_logit_rows as usize];
    let mut engine = EngineState::new(config).unwrap();
    let mut step = engine.new_step_buffer();
    let mut noise = 1u32;
    for round in 0..2 {
        for i in 0..REQUESTS {
            // Greedy, sampled over everything, sampled with filters, with penalties and masks.
            let mut sampling =
                SamplingParams { max_tokens: 330, ignore_eos: true, seed: 5, ..SamplingParams::default() };
            match i % 4 {
                0 => sampling.temperature = 0.0,
                1 => {}
                2 => (sampling.top_k, sampling.top_p, sampling.min_p) = (50, 0.9, 0.01),
                _ => {
                    (sampling.repetition_penalty, sampling.frequency_penalty) = (1.1, 0.2);
                    sampling.bad_words = vec![vec![1, 2]];
                    sampling.logit_bias = vec![(7, 1.0)];
                }
            }
            let prompt = (0..100).map(|t| (t * 7 + i * 13 + round) % VOCABULARY as u32).collect();
            engine.submit(Request { prompt, sampling, ..Request::default() }, 0).unwrap();
        }
        let (mut n_steps, mut n_steady, mut n_tokens) = (0u32, 0, 0u64);
        loop {
            let before = allocations();
            let Some(plan) = engine.plan(0, &mut step) else { break };
            // As the driver does before it gives the device the step.
            let mut n_copies = 0;
            while let Some(order) = engine.next_copy() {
                engine.copied(order.id, true);
                n_copies += 1;
            }
            let mut during = allocations() - before;
            let is_steady = engine.metrics().running == u64::from(REQUESTS) && plan.n_decode_tokens == plan.n_tokens;
            let before = allocations();
            if round == 1 {
                assert!(engine.plan_ahead() || !can_plan_ahead);
            }
            during += allocations() - before;
            let used = [plan.n_logit_rows, plan.verify.unwrap_or(0)].map(|n| n as usize * VOCABULARY);
            // Random rows, and stretches in which every row prefers the same token, which is then guessed.
            let is_repeating = n_steps % 16 > 8;
            for row in logits[..used[0].max(used[1])].chunks_exact_mut(VOCABULARY) {
                for logit in &mut *row {
                    noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    *logit = (noise >> 8) as f32 / (1 << 21) as f32;
                }
                row[9] += if is_repeating { 50.0 } else { 0.0 };
            }
            let mut has_ended = false;
            let rows = Logits { forward: &logits[..used[0]], verify: &logits[..used[1]] };
            let before = allocations();
            engine.advance(n_steps.into(), plan, rows, &mut |_, event| match event {
                Event::Token { .. } => n_tokens += 1,
                Event::Finished { .. } | Event::Failed { .. } => has_ended = true,
                Event::Started { .. } => {}
            });
            engine.replay_step();
            engine.replayed(n_steps.into());
            during += allocations() - before;
            n_steps += 1;
            if is_steady && !has_ended {
                assert_eq!(during, 0, "round {round}, steady step {n_steady}");
                n_steady += 1;
                seen.copies += n_copies;
            }
        }
        assert!(n_steady > if guesses > 0 { 100 } else { 300 }, "round {round}: {n_steady} steady steps");
        assert_eq!(n_tokens, 330 * u64::from(REQUESTS));
        engine.check_conservation().unwrap();
    }
    seen.right = engine.metrics().accepted.iter().sum();
    seen
}

/// Two steps on the device at a time, or one with guesses: what comes back is what it sampled.
#[test]
fn nor_with_tokens_sampled_on_the_device() {
    let states = Some(2 * REQUESTS + 20);
    for (states, guesses) in [(None, 0), (states, 0), (None, 5), (states, 5)] {
        let mut config = EngineConfig::paged(448, 16, 64 * 28 + 1, VOCABULARY as u32);
        (config.max_num_seqs, config.relay, config.side_rows) = (REQUESTS, true, 400);
        config.speculation =
            (guesses > 0).then(|| SpeculationConfig { draft_max: guesses, ..SpeculationConfig::default() });
        let n_rows = config.max_logit_rows as usize;
        config.components.extend(states.map(|n_blocks| ComponentConfig {
            name: "state".into(),
            class: ComponentClass::State,
            n_blocks,
        }));
        let mut engine = EngineState::new(config).unwrap();
        let mut steps = [engine.new_step_buffer(), engine.new_step_buffer()];
        let (mut side, mut n_side_rows) = (engine.new_side_updates(), 0);
        for i in 0..REQUESTS {
            // Some end early, by the length that is known ahead or by a token that is not.
            let (max_tokens, stop) = (if i < 8 { 40 } else { 330 }, if i < 4 { vec![3] } else { vec![] });
            let mut sampling =
                SamplingParams { max_tokens, stop_token_ids: stop, ignore_eos: true, ..SamplingParams::default() };
            if i % 3 == 0 {
                (sampling.repetition_penalty, sampling.frequency_penalty) = (1.1, 0.2);
                (sampling.logit_bias, sampling.bad_words) = (vec![(7, 1.0)], vec![vec![5]]);
                sampling.min_tokens = 20;
            }
            let prompt = (0..100).map(|t| (t * 7 + i * 13) % VOCABULARY as u32).collect();
            engine.submit(Request { prompt, sampling, ..Request::default() }, 0).unwrap();
        }
        let (mut chosen, logprobs) = (vec![0u32; CHOSEN_WIDTH * n_rows], vec![0f32; LOGPROBS_WIDTH * n_rows]);
        let (mut behind, mut n_steps, mut n_steady, mut n_relayed) = (None, 0u32, 0, 0);
        loop {
            let now_ns = 1000 * u64::from(n_steps);
            let before = allocations();
            let Some(plan) = behind.take().or_else(|| engine.plan(now_ns, &mut steps[0])) else { break };
            // As the driver does before it gives the device the step.
            side.copy_from(engine.side_updates());
            n_side_rows += side.rows().count();
            behind = engine.plan_behind(now_ns, &mut steps[1]);
            side.copy_from(engine.side_updates());
            n_side_rows += side.rows().count();
            let mut during = allocations() - before;
            assert!(plan.is_sampled, "nothing here needs the host");
            n_relayed += u32::from(behind.is_some());
            // Now and then every row says the same, which is then guessed.
            let is_repeating = guesses > 0 && n_steps % 16 > 8;
            for (at, row) in chosen.chunks_exact_mut(CHOSEN_WIDTH).enumerate() {
                let id = if is_repeating { 9 } else { (n_steps * 31 + at as u32 * 7) % VOCABULARY as u32 };
                (row[0], row[1]) = (TS_SAMPLED_TOKEN, id);
            }
            let [forward, verify] = [plan.n_logit_rows, plan.verify.unwrap_or(0)].map(|n| Sampled {
                chosen: &chosen[..n as usize * CHOSEN_WIDTH],
                logprobs: &logprobs[..n as usize * LOGPROBS_WIDTH],
            });
            let sampled = SampledPasses { forward, verify };
            let is_steady = plan.n_decode_tokens == plan.n_tokens && n_steps > 60;
            let mut has_ended = false;
            let before = allocations();
            engine.advance_sampled(now_ns + 1000, plan, sampled, &mut |_, event| {
                has_ended |= matches!(event, Event::Finished { .. } | Event::Failed { .. });
            });
            engine.replay_step();
            engine.replayed(now_ns + 1000);
            during += allocations() - before;
            n_steps += 1;
            if is_steady && !has_ended {
                assert_eq!(during, 0, "steady step {n_steady}");
                n_steady += 1;
            }
        }
        let accepted: u64 = engine.metrics().accepted.iter().sum();
        assert!(n_side_rows > if guesses > 0 { 500 } else { 60 }, "{n_side_rows} rows of side tables were written");
        if guesses > 0 {
            // Looks find something or rest.
            let counts = format!("{n_steady} steady steps, {n_relayed} relayed, {accepted} right");
            assert!(n_steady > 50 && n_relayed > 20 && accepted > 100, "{counts}");
        } else {
            assert!(n_steady > 250 && n_relayed > 300, "{n_steady} steady steps, {n_relayed} relayed");
        }
        engine.check_conservation().unwrap();
    }
}

/// Every third token, another third after each.
#[derive(Debug)]
struct Thirds(u32);

impl Constraint for Thirds {
    fn mask(&mut self, mask: &mut TokenMask) -> Result<(), ConstraintError> {
        (0..mask.vocab_size()).filter(|id| (id + self.0).is_multiple_of(3)).for_each(|id| mask.allow(id));
        Ok(())
    }
    fn accept(&mut self, id: u32) -> Result<(), ConstraintError> {
        assert!((id + self.0).is_multiple_of(3));
        self.0 += 1;
        Ok(())
    }
    fn roll_back(&mut self, n: usize) -> Result<(), ConstraintError> {
        self.0 -= n as u32;
        Ok(())
    }
    fn count_allowed(&mut self, ids: &[u32]) -> Result<usize, ConstraintError> {
        Ok((self.0..).zip(ids).take_while(|(n, id)| (*id + n).is_multiple_of(3)).count())
    }
    fn is_complete(&self) -> bool {
        false
    }
    fn fresh(&self) -> Box<dyn Constraint> {
        Box::new(Thirds(0))
    }
}

#[test]
fn masks_are_reserved_when_a_request_is_submitted() {
    const REQUESTS: u32 = 8;
    const VOCABULARY: usize = 1000;
    // By the host, and by the device when there are masks.
    for side_rows in [0, 20] {
        let mut config = EngineConfig::paged(448, 16, 64 * 28 + 1, VOCABULARY as u32);
        (config.relay, config.side_rows) = (side_rows > 0, side_rows);
        let mut engine = EngineState::new(config).unwrap();
        let (mut step, mut side) = (engine.new_step_buffer(), engine.new_side_updates());
        for seed in 0..u64::from(REQUESTS) {
            let sampling = SamplingParams { max_tokens: 200, seed, ..SamplingParams::default() };
            let constraint: Option<Box<dyn Constraint>> = Some(Box::new(Thirds(0)));
            engine.submit(Request { prompt: vec![1; 100], sampling, constraint, ..Request::default() }, 0).unwrap();
        }
        let logits = vec![0.5f32; VOCABULARY * REQUESTS as usize];
        let mut chosen = [0u32; CHOSEN_WIDTH * REQUESTS as usize];
        let logprobs = [0f32; LOGPROBS_WIDTH * REQUESTS as usize];
        let mut jobs: Vec<MaskJob> = Vec::with_capacity(REQUESTS as usize);
        let (mut n_steady, mut n_tokens, mut n_masks) = (0, 0u32, 0);
        loop {
            let before = allocations();
            let Some(plan) = engine.plan(0, &mut step) else { break };
            engine.lend_masks(&mut |job| jobs.push(job));
            jobs.iter_mut().for_each(MaskJob::run);
            jobs.drain(..).for_each(|job| engine.return_masks(job));
            let is_steady = plan.n_decode_tokens == REQUESTS;
            let mut has_ended = false;
            let mut hear = |_, event| match event {
                Event::Token { .. } => n_tokens += 1,
                Event::Finished { .. } | Event::Failed { .. } => has_ended = true,
                Event::Started { .. } => {}
            };
            let n_rows = plan.n_logit_rows as usize;
            if plan.samples_later {
                side.copy_from(engine.sampling_step(&plan).side);
                // The first id that each mask allows.
                for (row, chosen) in side.rows().zip(chosen.chunks_exact_mut(CHOSEN_WIDTH)) {
                    let first = row.entries[0][0];
                    (chosen[0], chosen[1]) = (TS_SAMPLED_TOKEN, first.at * 32 + first.word.trailing_zeros());
                    n_masks += 1;
                }
                let chosen = &chosen[..n_rows * CHOSEN_WIDTH];
                let sampled = Sampled { chosen, logprobs: &logprobs[..n_rows * LOGPROBS_WIDTH] };
                engine.advance_sampled(0, plan, sampled, &mut hear);
            } else {
                engine.advance(0, plan, &logits[..n_rows * VOCABULARY], &mut hear);
            }
            if is_steady && !has_ended {
                assert_eq!(allocations() - before, 0, "steady step {n_steady}");
                n_steady += 1;
            }
        }
        assert!(n_steady > 190 && n_tokens == 200 * REQUESTS, "{n_steady} steady steps, {n_tokens} tokens");
        assert_eq!(n_masks, if side_rows > 0 { n_tokens } else { 0 });
    }
}

/// The account of all memory is made while requests run, too: only the first one makes room for it.
#[test]
fn checking_conservation_again_allocates_nothing() {
    let mut config = EngineConfig::paged(448, 16, 64 * 28 + 1, VOCABULARY as u32);
    (config.host_pages, config.host_states) = (100, 10);
    config.components.push(ComponentConfig { name: "state".into(), class: ComponentClass::State, n_blocks: 100 });
    let mut engine = EngineState::new(config).unwrap();
    let (mut tally, mut step) = (Tally::default(), engine.new_step_buffer());
    engine.check_conservation_in(&mut tally).unwrap();
    for _ in 0..20 {
        engine.submit(Request { prompt: vec![1; 100], ..Request::default() }, 0).unwrap();
    }
    let plan = engine.plan(0, &mut step).expect("there is work");
    let before = allocations();
    engine.check_conservation_in(&mut tally).unwrap();
    assert_eq!(allocations() - before, 0, "with {} requests running", plan.n_rows);
}
