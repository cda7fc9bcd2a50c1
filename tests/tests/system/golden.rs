//! SmolLM2-135M against what llama.cpp computed from the same file (`tests/golden/record_smollm2.py`).
//!
//! With `--dtype f32` both sides multiply the same 32-bit weights, so tokens must be equal and log-probabilities agree to
//! rounding, decoding token by token (as a batch of ten) and scoring the whole text as one prompt. On the quantised
//! file the peer rounds activations too, so only clear winners are comparable. Exact mode computes on one number at a
//! time: CI runs a part of it (the test prints which), `cargo xtask test --long` all.

use serde_json::Value;
use tokenspeed_core::request::{Request, SamplingParams};
use tokenspeed_server::{
    engine_setup::{self, Loaded},
    progress::Silent,
};

use crate::support::{self, finish_all, greedy, models};

/// Largest difference of a log-probability between two correct f32 engines.
const TOLERANCE: f32 = 5e-4;
/// Lead of our best token, in logits, from which the peer must agree although it rounds activations to 8 bits.
const CLEAR_LEAD: f32 = 1.0;
/// Largest difference of a logit between fast and exact mode.
const MODES_TOLERANCE: f32 = 1e-4;

struct Golden {
    name: String,
    text: String,
    prompt: Vec<u32>,
    ids: Vec<u32>,
    logprobs: Vec<f32>,
    /// The peer's best token at each place of `ids`, on the quantised file.
    q4_1_best: Vec<u32>,
}

fn golden() -> Vec<Golden> {
    let file: Value = serde_json::from_str(include_str!("../../golden/smollm2_f32.json")).expect("JSON");
    let number = |v: &Value| v.as_u64().expect("an id") as u32;
    let ids = |v: &Value| v.as_array().expect("a list").iter().map(number).collect::<Vec<u32>>();
    let of = |p: &Value| Golden {
        name: p["name"].as_str().expect("a name").to_owned(),
        text: p["text"].as_str().expect("text").to_owned(),
        prompt: ids(&p["prompt_ids"]),
        ids: ids(&p["ids"]),
        logprobs: p["logprobs"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|v| v.as_f64().expect("a number") as f32)
            .collect(),
        q4_1_best: p["q4_1_top_ids"].as_array().expect("a list").iter().map(|top| number(&top[0])).collect(),
    };
    file["prompts"].as_array().expect("prompts").iter().map(of).collect()
}

fn load(words: &str) -> Loaded {
    support::load(&models::smollm2(), &format!("--max-model-len 256 --chunked-prefill-size 256 --memory 2GiB {words}"))
}

/// Score `prompt` and the golden continuation as one prompt; `top` alternatives each.
fn scored(golden: &Golden, n: usize, top: u32) -> Request {
    let prompt = golden.prompt.iter().chain(&golden.ids[..n]).copied().collect();
    let sampling = SamplingParams { max_tokens: 0, prompt_logprobs: Some(top), ..SamplingParams::default() };
    Request { prompt, sampling, ..Request::default() }
}

/// Generate `n` tokens of each prompt, and compare ids and log-probabilities; the largest difference.
fn assert_same_text(loaded: &Loaded, golden: &[Golden], n: usize) -> f32 {
    let answers = finish_all(&*loaded.engine, golden.iter().map(|g| greedy(&g.prompt, n as u32)));
    let mut worst = 0f32;
    for (g, answer) in golden.iter().zip(answers) {
        let same = answer.ids.iter().zip(&g.ids).take_while(|(a, b)| a == b).count();
        assert_eq!(same, n, "{}: token {same} is {:?}, the peer's {}", g.name, answer.ids.get(same), g.ids[same]);
        for (report, theirs) in answer.logprobs.iter().zip(&g.logprobs) {
            worst = worst.max((report.logprob - theirs).abs());
        }
    }
    worst
}

/// Score the peer's text; the largest difference of a log-probability.
fn assert_same_scores(loaded: &Loaded, golden: &[Golden], n: usize) -> f32 {
    let answers = finish_all(&*loaded.engine, golden.iter().map(|g| scored(g, n, 1)));
    let mut worst = 0f32;
    for (g, answer) in golden.iter().zip(answers) {
        for (i, theirs) in g.logprobs[..n].iter().enumerate() {
            let report = &answer.prompt[g.prompt.len() - 1 + i];
            assert_eq!(report.rank, 1, "{}: token {i}", g.name);
            worst = worst.max((report.logprob - theirs).abs());
        }
    }
    worst
}

#[test]
fn fast_mode_writes_llama_cpp_s_text_in_f32() {
    let loaded = load("--dtype f32");
    let golden = golden();
    for g in &golden {
        assert_eq!(loaded.frontend.encode(&g.text, true).expect("encodes"), g.prompt, "{}", g.name);
    }
    let n_scored = if models::long_tests() { golden.len() } else { 1 };
    let scores = assert_same_scores(&loaded, &golden[..n_scored], 64);
    let text = assert_same_text(&loaded, &golden, 64);
    println!("largest difference of a log-probability: {text} decoding, {scores} scoring");
    assert!(text < TOLERANCE && scores < TOLERANCE, "{text} decoding, {scores} scoring");
}

#[test]
fn exact_mode_writes_llama_cpp_s_text_in_f32() {
    let loaded = load("--dtype f32 --mode exact");
    let golden = golden();
    let (prompts, tokens) = if models::long_tests() { (golden.len(), 64) } else { (2, 16) };
    println!("{prompts} of {} prompts, {tokens} of 64 tokens each", golden.len());
    let text = assert_same_text(&loaded, &golden[..prompts], tokens);
    println!("largest difference of a log-probability: {text}");
    assert!(text < TOLERANCE, "{text}");
}

#[test]
fn clear_winners_are_llama_cpp_s_on_the_quantised_file() {
    let loaded = load("");
    let golden = golden();
    let answers = finish_all(&*loaded.engine, golden.iter().map(|g| scored(g, 64, 2)));
    let (mut clear, mut equal, mut all) = (0, 0, 0);
    for (g, answer) in golden.iter().zip(answers) {
        for (i, theirs) in g.q4_1_best.iter().enumerate() {
            let [first, second] = answer.prompt[g.prompt.len() - 1 + i].top[..] else { panic!("two were asked for") };
            all += 1;
            equal += usize::from(first.0 == *theirs);
            if first.1 - second.1 > CLEAR_LEAD {
                clear += 1;
                assert_eq!(first.0, *theirs, "{}: place {i}, ahead by {}", g.name, first.1 - second.1);
            }
        }
    }
    println!("{clear} of {all} places have a clear winner; the best token is the peer's at {equal}");
    assert!(clear * 4 > all, "only {clear} of {all} places have a clear winner: nothing was compared");
}

#[test]
fn fast_mode_is_near_exact_mode() {
    let model = models::smollm2();
    // Three prompts on end: what matters is the mixture of contexts.
    let ids: Vec<u32> = golden().iter().skip(2).take(3).flat_map(|g| g.prompt[..10].to_vec()).collect();
    let logits = |mode: &str| {
        let options = support::options(&model, &format!("--mode {mode} --memory 2GiB --threads 1"));
        engine_setup::prompt_logits(&options, &ids, &mut Silent).unwrap_or_else(|e| panic!("{}", e.render()))
    };
    let (fast, exact) = (logits("fast"), logits("exact"));
    assert_eq!((fast.len(), exact.len()), (ids.len(), ids.len()));
    let pairs = fast.iter().flatten().zip(exact.iter().flatten());
    let worst = pairs.map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
    println!("largest difference of a logit: {worst}");
    assert!(worst > 0.0, "the two modes are the same code");
    assert!(worst < MODES_TOLERANCE, "{worst}");
}
