//! Between plan and advance nothing is allocated in steady state: a slow allocation on the engine's thread would delay
//! every running request. A counting allocator proves it, per thread so that the test harness does not count.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use tokenspeed_core::{
    engine::{EngineConfig, EngineState},
    request::{Event, Request, SamplingParams},
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

#[test]
fn steady_decoding_of_64_requests_allocates_nothing() {
    const REQUESTS: u32 = 64;
    const VOCABULARY: usize = 1000;
    // Tight: 64 requests fill 64 * 28 pages of 16 tokens, so growth evicts what the first round left in the cache.
    let mut config = EngineConfig::paged(448, 16, 64 * 28 + 1, VOCABULARY as u32);
    config.max_num_seqs = REQUESTS;
    let mut engine = EngineState::new(config).unwrap();
    let mut step = engine.new_step_buffer();
    let mut logits = vec![0.0f32; VOCABULARY * (REQUESTS as usize + 16)];
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
        let (mut n_steady, mut n_tokens) = (0, 0u64);
        loop {
            let before = allocations();
            let Some(plan) = engine.plan(0, &mut step) else { break };
            let mut during = allocations() - before;
            let is_steady = plan.n_rows == REQUESTS && plan.n_decode_tokens == REQUESTS;
            let before = allocations();
            if round == 1 {
                assert!(engine.plan_ahead());
            }
            during += allocations() - before;
            let used = plan.n_logit_rows as usize * VOCABULARY;
            for logit in &mut logits[..used] {
                noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                *logit = (noise >> 8) as f32 / (1 << 21) as f32;
            }
            let mut has_ended = false;
            let before = allocations();
            engine.advance(0, plan, &logits[..used], &mut |_, event| match event {
                Event::Token { .. } => n_tokens += 1,
                Event::Finished { .. } | Event::Failed { .. } => has_ended = true,
                Event::Started { .. } => {}
            });
            during += allocations() - before;
            if is_steady && !has_ended {
                assert_eq!(during, 0, "round {round}, steady step {n_steady}");
                n_steady += 1;
            }
        }
        assert!(n_steady > 300, "round {round}: {n_steady} steady steps");
        assert_eq!(n_tokens, 330 * u64::from(REQUESTS));
        engine.check_conservation().unwrap();
    }
}
