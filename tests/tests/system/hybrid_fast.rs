//! *Recurrent state in fast mode*: on a tiny Kimi K3 the SIMD kernels give one answer, to the last bit, however a prompt
//! is cut on the 64-token grid, cached, batched or divided over threads; and nearly the exact one.

use std::sync::Arc;

use tokenspeed_core::client::Engine;

use crate::{
    batch_invariance::ids,
    support::{self, finish, finish_all, greedy, models, submit},
};

fn engine(folder: &models::Folder, words: &str) -> Arc<dyn Engine> {
    support::load(&folder.model(), &format!("--max-model-len 512 --max-num-seqs 4 {words}")).engine
}

#[test]
fn cuts_cache_neighbours_and_threads_change_no_bit() {
    let folder = models::kimi();
    let prompts = [ids(3, 200), ids(8, 77), ids(5, 1), [&ids(3, 150)[..], &ids(6, 20)].concat()];
    let cold = engine(&folder, "--mode fast --no-prefix-cache");
    let expected: Vec<_> = prompts.iter().map(|p| finish(submit(&*cold, greedy(p, 8)))).collect();
    for words in ["", "--chunked-prefill-size 64", "--chunked-prefill-size 128 --threads 2"] {
        let engine = engine(&folder, &format!("--mode fast {words}"));
        // The second round starts from what the first one left in the cache.
        for round in 0..2 {
            let answers = finish_all(&*engine, prompts.iter().map(|p| greedy(p, 8)));
            for (i, (answer, expected)) in answers.iter().zip(&expected).enumerate() {
                assert_eq!(answer.numbers(), expected.numbers(), "{words}, round {round}, prompt {i}");
            }
        }
        let cached = finish(submit(&*engine, greedy(&prompts[0], 1))).usage.cached_tokens;
        assert_eq!(cached, 192, "{words}: the cache was used");
    }
}

#[test]
fn fast_is_nearly_exact() {
    let folder = models::kimi();
    let [fast, exact] = ["fast", "exact"].map(|mode| engine(&folder, &format!("--mode {mode} --no-prefix-cache")));
    let prompt = ids(3, 150);
    let [fast, exact] = [fast, exact].map(|engine| finish(submit(&*engine, greedy(&prompt, 8))));
    assert_eq!(fast.ids, exact.ids);
    for (fast, exact) in fast.logprobs.iter().zip(&exact.logprobs) {
        for (fast, exact) in fast.top.iter().zip(&exact.top) {
            assert!(fast.0 == exact.0 && (fast.1 - exact.1).abs() <= 1e-4, "{fast:?} for {exact:?}");
        }
    }
}
