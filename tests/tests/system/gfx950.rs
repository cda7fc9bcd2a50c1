//! The MI355X plugin under the whole engine, executed by the emulator of its machine code.
//!
//! The plugin is the shared library that ships; only the HIP library beneath it is the emulator's.

use std::sync::{Arc, Once};

use tokenspeed_core::client::Engine;
use tokenspeed_server::{engine_setup, progress::Silent};

use crate::{
    batch_invariance::ids,
    support::{self, Answer, finish, finish_all, greedy, models, submit},
};

/// Points the plugin at the emulator and the kernels of this build. `checks`: with every check of the emulator, or fast.
pub fn emulated(checks: bool) -> String {
    static ONCE: Once = Once::new();
    let plugin = tokenspeed_tests::plugin("amd-gfx950");
    ONCE.call_once(|| {
        let folder = plugin.parent().expect("a folder");
        let kernels = folder.parent().expect("target").join("kernels");
        let set = |name: &str, value: std::path::PathBuf| {
            // SAFETY: once, before anything of the plugin is loaded; each test has its process (`cargo nextest`).
            unsafe { std::env::set_var(name, value) };
        };
        set("TOKENSPEED_HIP_LIBRARY", folder.join("libamdhip64.so"));
        set("TOKENSPEED_EMULATOR_CHECKS", if checks { "1" } else { "0" }.into());
        if std::env::var_os("TOKENSPEED_KERNELS").is_none() {
            set("TOKENSPEED_KERNELS", kernels);
        }
    });
    plugin.to_str().expect("UTF-8").to_owned()
}

fn engine(model: &str, words: &str) -> Arc<dyn Engine> {
    let words = format!("--max-model-len 256 --max-num-seqs 4 --memory 900MiB {words}");
    let loaded = engine_setup::load(&support::options(model, &words), &mut Silent);
    loaded.unwrap_or_else(|e| panic!("{words}: {}", e.render())).engine
}

/// Largest distance of logprobs of the same tokens.
fn distance(a: &Answer, b: &Answer) -> f32 {
    assert_eq!(a.ids, b.ids);
    let pairs = a.logprobs.iter().zip(&b.logprobs);
    pairs.map(|(a, b)| (a.logprob - b.logprob).abs()).fold(0.0, f32::max)
}

#[test]
fn smollm2_answers_as_on_the_cpu() {
    let plugin = emulated(false);
    let model = models::smollm2();
    let prompt = support::load(&model, "--max-model-len 256").frontend.encode("The capital of France is", true);
    let prompt = prompt.expect("encodes");
    let of = |words: &str| finish(submit(&*engine(&model, words), greedy(&prompt, 8)));
    let (ours, reference) = (of(&format!("--backend {plugin}")), of(""));
    assert!(distance(&ours, &reference) < 0.2, "{ours:?} for {reference:?}");
}

/// A tiny Llama: captured or launched one by one, cut, cached, with neighbours: the same bits; with f32 products nearly the
/// CPU's numbers, with bf16 products near them.
#[test]
fn graphs_cuts_cache_and_neighbours_change_no_bit() {
    let plugin = emulated(true);
    let folder = models::tiny();
    let with = |words: &str| engine(&folder.model(), &format!("--backend {plugin} {words}"));
    let prompts = [ids(3, 90), ids(8, 33), ids(5, 1)];
    let reference = engine(&folder.model(), "--mode exact");
    for precision in ["f32", "bf16"] {
        let options = format!("--backend-option precision={precision}");
        let cold = with(&format!("{options} --no-prefix-cache"));
        let expected: Vec<_> = prompts.iter().map(|p| finish(submit(&*cold, greedy(p, 6)))).collect();
        for (prompt, ours) in prompts.iter().zip(&expected) {
            let exact = finish(submit(&*reference, greedy(prompt, 6)));
            let limit = if precision == "f32" { 1e-4 } else { 0.15 };
            assert!(distance(ours, &exact) < limit, "{precision}: {ours:?} for {exact:?}");
        }
        for words in ["--backend-option graphs=off", "--chunked-prefill-size 64"] {
            let engine = with(&format!("{options} {words}"));
            for round in 0..2 {
                let answers = finish_all(&*engine, prompts.iter().map(|p| greedy(p, 6)));
                for (i, (answer, expected)) in answers.iter().zip(&expected).enumerate() {
                    assert_eq!(answer.numbers(), expected.numbers(), "{precision}, {words}, round {round}, prompt {i}");
                }
            }
        }
    }
}

/// The device samples as the host does, and its tokens go on to the next step without the host.
#[test]
fn the_device_samples_what_the_host_would() {
    let plugin = emulated(false);
    let folder = models::tiny();
    let sampled = |seed| {
        let mut request = greedy(&ids(4, 20), 24);
        let s = &mut request.sampling;
        (s.temperature, s.top_p, s.top_k, s.min_p, s.seed) = (0.9, 0.95, 50, 0.01, seed);
        request
    };
    let requests = [greedy(&ids(3, 30), 24), sampled(1), sampled(2)];
    let on = |words: &str| engine(&folder.model(), &format!("--backend {plugin} {words}"));
    let (device, host) = (on(""), on("--host-sampling"));
    let [found, expected] = [&device, &host].map(|engine| finish_all(&**engine, requests.clone()));
    for (n, (found, expected)) in found.iter().zip(&expected).enumerate() {
        assert_eq!(found.ids, expected.ids, "request {n}");
        assert!(distance(found, expected) < 1e-5, "request {n}: {found:?} for {expected:?}");
    }
    let [by_device, by_host] = [&device, &host].map(|engine| engine.metrics().relayed_steps);
    assert!(by_device > 10 && by_host == 0, "{by_device} and {by_host} steps took their tokens from the device");
}
