//! *Batch variance*: what a request gets must not depend on what else runs, in which pieces its prompt was computed, how
//! many threads computed it, whether a prefix came from the cache, or how ops reached the device. The promise on the CPU
//! is equality to the last bit, in both modes.

use std::{path::Path, sync::Arc};

use tokenspeed_backend_api::{
    catalogue::OpDesc,
    exec::Via,
    loader::{self, SearchPaths},
    record::OpRecord,
    support::Support,
};
use tokenspeed_core::{
    client::Engine,
    driver::{DriverConfig, EngineHandle},
    engine::{ComponentConfig, EngineConfig},
    load::{self, Plan},
    lower::Capacity,
    memory::{MemoryRequest, plan_memory},
    request::{Request, SamplingParams},
};
use tokenspeed_models::loader::{LoadOptions, Model};

use crate::support::{self, Answer, finish, finish_all, greedy, models, submit};

/// Tokens that repeat only after a long time.
pub fn ids(seed: u32, n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| (i * i * 7 + i * seed + seed) % 251).collect()
}

fn sampled(prompt: &[u32], seed: u64) -> Request {
    let sampling = SamplingParams { temperature: 0.9, top_p: 0.95, seed, ..greedy(prompt, 24).sampling };
    Request { prompt: prompt.to_vec(), sampling, ..Request::default() }
}

/// Greedy over three pages, sampled, and one that scores its prompt.
fn subjects() -> Vec<Request> {
    let mut scored = greedy(&ids(11, 90), 4);
    scored.sampling.prompt_logprobs = Some(3);
    vec![greedy(&ids(3, 150), 24), sampled(&ids(5, 40), 42), scored]
}

/// Seven others, unlike in length and kind.
fn neighbours() -> Vec<Request> {
    (0..7)
        .map(|i| if i % 2 == 0 { greedy(&ids(20 + i, 1 + 29 * i as usize), 30) } else { sampled(&ids(i, 66), 7) })
        .collect()
}

/// Each subject alone, again, and among neighbours that began before and after it.
fn all_ways(engine: &dyn Engine, expected: &[Answer], label: &str) {
    for (n, (subject, expected)) in subjects().into_iter().zip(expected).enumerate() {
        for way in ["alone", "again"] {
            let answer = finish(submit(engine, subject.clone()));
            assert_eq!(answer.numbers(), expected.numbers(), "{label}: subject {n} {way}");
        }
        let mut others = neighbours();
        let later = others.split_off(3);
        let requests = others.into_iter().chain([subject]).chain(later);
        let answer = finish_all(engine, requests).swap_remove(3);
        assert_eq!(answer.numbers(), expected.numbers(), "{label}: subject {n} among others");
    }
}

/// A backend's ops reach it through `via`.
fn engine_via(folder: &Path, mode: &str, via: Via, tokenizer_vocab_size: u32) -> Arc<EngineHandle> {
    let model = Model::open(folder, &LoadOptions::default()).expect("a model");
    let backend = loader::load("reference-cpu", &SearchPaths::from_env()).expect("it is linked in");
    let device = backend.open(0, &[("mode", mode), ("threads", "1")]).expect("opens");
    let vocab = model.config.vocab_size() as u32;
    let mut config = EngineConfig::paged(256, 64, 2, vocab);
    (config.max_num_seqs, config.table_rows, config.chunked_prefill_size) = (16, 16, 256);
    config.tokenizer_vocab_size = tokenizer_vocab_size;
    (config.max_batch_tokens, config.max_logit_rows) = (256 + 16, 64 + 16);
    let capacity = Capacity {
        tokens: config.max_batch_tokens,
        rows: config.max_num_seqs,
        logit_rows: config.max_logit_rows,
        table_rows: config.table_rows,
        blocks_per_row: config.blocks_per_row,
        block_tokens: config.block_tokens,
        blocks: 0,
        states: 0,
    };
    let request = MemoryRequest { budget_bytes: 1 << 30, blocks_max: 65, blocks_min: 5, states_extra: 0 };
    let mut support = |desc: &OpDesc, label: &str| {
        let operands = desc.operands.iter().map(|t| t.to_abi()).collect();
        let record = OpRecord::new(desc.kind, operands, desc.attrs, label);
        device.op_support(&record).unwrap_or_else(|e| Support::no(e.to_string()))
    };
    let (lowered, memory) =
        plan_memory(&[&model.graph], capacity, device.alignment(), request, &mut support).expect("it fits");
    config.components = model.graph.components.iter().map(|c| ComponentConfig::of(c, memory.blocks)).collect();
    let plan = Plan {
        graphs: &[&model.graph],
        lowered: &lowered,
        capacity: Capacity { blocks: memory.blocks, ..capacity },
        step_bytes: config.step_capacity().bytes() as u64,
        via: Some(via),
    };
    let program = load::load(device, &plan, Arc::new(model.weights), &mut |_, _| ()).expect("loads");
    assert_eq!(program.via(), via);
    EngineHandle::start(config, DriverConfig::default(), Box::new(program)).expect("starts")
}

fn invariant_in(mode: &str) {
    let tiny = models::tiny();
    let load = |words: &str| support::load(&tiny.model(), &format!("--mode {mode} {words}"));
    let plain = load("--threads 1 --no-prefix-cache");
    let (plain, tokens) = (plain.engine, plain.frontend.vocab_size());
    let expected: Vec<Answer> = subjects().into_iter().map(|s| finish(submit(&*plain, s))).collect();
    // A model in which the past does not matter would prove nothing.
    let mut other = subjects().swap_remove(0);
    other.prompt[3] += 1;
    let other = finish(submit(&*plain, other));
    let change = (other.logprobs[0].top[0].1 - expected[0].logprobs[0].top[0].1).abs();
    assert!(change > 1e-3, "token 3 of 150 changes the answer by {change} only");
    all_ways(&*plain, &expected, "no cache, 1 thread");
    for threads in [1, 2] {
        for chunk in [16, 64, 8192] {
            let words = format!("--threads {threads} --chunked-prefill-size {chunk}");
            let engine = load(&words).engine;
            all_ways(&*engine, &expected, &words);
            let cached = finish(submit(&*engine, subjects().swap_remove(0))).usage.cached_tokens;
            assert_eq!(cached, 128, "{words}: the cache was not used");
        }
    }
    let words = "--threads 1 --speculative-algorithm ngram --speculative-ngram 1 --speculative-num-draft-tokens 7";
    let engine = load(words).engine;
    all_ways(&*engine, &expected, words);
    // A random model repeats itself only if it has little choice.
    let mut narrow = sampled(&ids(4, 70), 3);
    (narrow.sampling.allowed_token_ids, narrow.sampling.max_tokens) = (Some(vec![5, 6]), 60);
    // And an engine that has only seen others is slow to look.
    let engine = load(words).engine;
    let answer = finish(submit(&*engine, narrow.clone()));
    assert_eq!(answer.numbers(), finish(submit(&*plain, narrow)).numbers(), "{words}: two ids");
    let metrics = engine.metrics();
    let (drafts, accepted): (u64, u64) = (metrics.drafts.iter().sum(), metrics.accepted.iter().sum());
    assert!(accepted > 0 && accepted < drafts, "of {drafts} guesses {accepted} were right");
    for via in [Via::Program, Via::Walker] {
        let engine = engine_via(tiny.path(), mode, via, tokens);
        all_ways(&*engine, &expected, &format!("{via:?}"));
    }
}

#[test]
fn batch_variance_fast() {
    invariant_in("fast");
}

#[test]
fn batch_variance_exact() {
    invariant_in("exact");
}
