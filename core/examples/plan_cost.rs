//! Host cost of a decoding step: microseconds of plan + advance with 1, 64 and 256 running requests of 50,000 tokens,
//! first with a vocabulary of 16 (the scheduler alone), then the sampler on rows of 50,000 logits.
//!
//! `cargo run --release -p tokenspeed-core --example plan_cost`

use std::time::Instant;

use tokenspeed_core::{
    engine::{EngineConfig, EngineState},
    request::{Request, SamplingParams},
    sampler::{History, RowContext, Sampler},
};

const PROMPT_TOKENS: u32 = 50_000;
const STEPS: usize = 2_000;

fn main() {
    println!(
        "{:>8} {:>12} {:>12} {:>12} {:>12}",
        "requests", "plan p50 us", "plan p99 us", "adv. p50 us", "adv. p99 us"
    );
    for requests in [1, 64, 256] {
        let (mut plan_us, mut advance_us) = run(requests);
        let [p50, p99] = quantiles(&mut plan_us);
        let [a50, a99] = quantiles(&mut advance_us);
        println!("{requests:>8} {p50:>12.1} {p99:>12.1} {a50:>12.1} {a99:>12.1}");
    }
    println!("\nsampler, one row of 50,000 logits");
    let default = SamplingParams::default();
    let cases = [
        ("greedy", SamplingParams { temperature: 0.0, ..default.clone() }),
        ("temperature 1", default.clone()),
        ("top_k 50", SamplingParams { top_k: 50, ..default.clone() }),
        ("top_p 0.9", SamplingParams { top_p: 0.9, ..default.clone() }),
        ("greedy + logprobs 5", SamplingParams { temperature: 0.0, logprobs: Some(5), ..default }),
    ];
    for (name, params) in cases {
        let mut us = sample(&params);
        let [p50, p99] = quantiles(&mut us);
        println!("{name:>20}: p50 {p50:.1} us, p99 {p99:.1} us");
    }
}

fn quantiles(us: &mut [f64]) -> [f64; 2] {
    us.sort_by(f64::total_cmp);
    [us[us.len() / 2], us[us.len() * 99 / 100]]
}

fn run(requests: u32) -> (Vec<f64>, Vec<f64>) {
    let max_len = PROMPT_TOKENS + 2 * STEPS as u32;
    let pages = requests * max_len.div_ceil(64);
    let mut config = EngineConfig::paged(max_len, 64, pages + 1, 16);
    config.max_num_seqs = 256;
    let mut engine = EngineState::new(config).expect("the sizes fit");
    let mut step = engine.new_step_buffer();
    for i in 0..requests {
        let prompt = (0..PROMPT_TOKENS).map(|t| if t < 8 { (i >> t) & 1 } else { t % 16 }).collect();
        let sampling = SamplingParams { temperature: 0.0, max_tokens: 2 * STEPS as u32, ..SamplingParams::default() };
        engine.submit(Request { prompt, sampling, ..Request::default() }, 0).expect("a good request");
    }
    let logits: Vec<f32> = (0..16 * 512).map(|i| (i * 37 % 101) as f32).collect();
    let (mut plan_us, mut advance_us) = (Vec::new(), Vec::new());
    while plan_us.len() < STEPS {
        let start = Instant::now();
        let plan = engine.plan(0, &mut step).expect("requests run");
        let planned = start.elapsed();
        let is_steady = plan.n_decode_tokens == requests;
        let rows = &logits[..plan.n_logit_rows as usize * 16];
        let start = Instant::now();
        engine.advance(0, plan, rows, &mut |_, event| drop(std::hint::black_box(event)));
        if is_steady {
            plan_us.push(planned.as_secs_f64() * 1e6);
            advance_us.push(start.elapsed().as_secs_f64() * 1e6);
        }
    }
    (plan_us, advance_us)
}

fn sample(params: &SamplingParams) -> Vec<f64> {
    let row: Vec<f32> =
        (0..50_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 20) as f32).collect();
    let mut sampler = Sampler::new(50_000);
    let history = History::new(params, &[0], 0);
    let context = RowContext { params, history: &history, tokens: &[0], n_generated: 0, eos_ids: &[], mask: None };
    (0..200)
        .map(|_| {
            let start = Instant::now();
            std::hint::black_box(sampler.sample(std::hint::black_box(&row), &context)).expect("a good row");
            start.elapsed().as_secs_f64() * 1e6
        })
        .collect()
}
