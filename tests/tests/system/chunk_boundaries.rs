//! *Chunked prefill boundary mismatch* on a model with recurrent states and convolution windows: where a prompt is cut, and
//! with how many tokens it ends, changes nothing. In fast mode whole tiles of a prompt are matrix products, so a cut inside
//! one shows in the last bits; in exact mode nothing does.

use std::sync::Arc;

use tokenspeed_core::{client::Engine, request::Request};

use crate::{
    batch_invariance::ids,
    support::{
        Answer, finish, finish_all, greedy, load,
        models::{self, long_tests},
        submit,
    },
};

fn engine(folder: &models::Folder, words: &str) -> Arc<dyn Engine> {
    load(&folder.model(), &format!("--max-model-len 640 --max-num-seqs 4 --no-prefix-cache {words}")).engine
}

/// Equal: to the last bit in exact mode, nearly in fast mode.
fn assert_same(mode: &str, found: &Answer, wanted: &Answer, label: &str) {
    if mode == "exact" {
        assert_eq!(found.numbers(), wanted.numbers(), "{mode}: {label}");
        return;
    }
    assert_eq!(found.ids, wanted.ids, "{mode}: {label}");
    for (found, wanted) in found.logprobs.iter().zip(&wanted.logprobs) {
        for (found, wanted) in found.top.iter().zip(&wanted.top) {
            assert!((found.1 - wanted.1).abs() <= 1e-4, "{mode}: {label}: {found:?} for {wanted:?}");
        }
    }
}

/// Case 92: every length, whole against token by token; then the state goes on into decoding.
#[test]
fn chunked_prefill_boundary_mismatch_of_the_last_chunk() {
    let folder = models::small_kimi();
    for mode in ["exact", "fast"] {
        let whole = engine(&folder, &format!("--mode {mode}"));
        let single = engine(&folder, &format!("--mode {mode} --chunked-prefill-size 1"));
        let lengths: Vec<usize> = if long_tests() {
            (1..=200).chain(289..=301).chain(511..=513).collect()
        } else {
            // Around windows, tiles, pages.
            (1..=5)
                .chain(15..=18)
                .chain(31..=33)
                .chain(47..=49)
                .chain(62..=66)
                .chain(79..=81)
                .chain([129, 193])
                .collect()
        };
        for n in lengths {
            let request = greedy(&ids(n as u32, n), 3);
            let [wanted, found] = [&whole, &single].map(|engine| finish(submit(&**engine, request.clone())));
            assert_same(mode, &found, &wanted, &format!("{n} tokens"));
        }
    }
}

/// Case 93: chunks of every awkward size, alone and beside others that decode.
#[test]
fn chunked_prefill_boundary_mismatch_of_the_window() {
    let folder = models::small_kimi();
    for mode in ["exact", "fast"] {
        let request = greedy(&ids(3, 150), 4);
        let wanted = finish(submit(&*engine(&folder, &format!("--mode {mode}")), request.clone()));
        let sizes: &[u32] = if long_tests() { &[1, 2, 3, 4, 5, 7, 16, 63, 64, 65, 1000] } else { &[1, 3, 7, 63, 65] };
        for size in sizes {
            let engine = engine(&folder, &format!("--mode {mode} --chunked-prefill-size {size}"));
            let decoding: Vec<Request> = (0..3).map(|n| greedy(&ids(20 + n, 9), 60)).collect();
            let answers = finish_all(&*engine, decoding.into_iter().chain([request.clone()]));
            assert_same(mode, &answers[3], &wanted, &format!("chunks of {size}, beside others"));
            let alone = finish(submit(&*engine, request.clone()));
            assert_same(mode, &alone, &wanted, &format!("chunks of {size}"));
        }
    }
}

/// Case 98 as far as a CPU goes: odd numbers of rows that end at different times; whatever pads a batch is nobody's state.
#[test]
fn odd_batches_of_recurrent_rows() {
    let folder = models::small_kimi();
    let requests: Vec<Request> = (0..7).map(|n| greedy(&ids(n, 5 + 11 * n as usize), 3 + 4 * n)).collect();
    let alone = engine(&folder, "--mode exact");
    let wanted: Vec<Answer> = requests.iter().map(|r| finish(submit(&*alone, r.clone()))).collect();
    for n in [5, 7] {
        let engine = load(&folder.model(), &format!("--mode exact --max-model-len 640 --max-num-seqs {n}")).engine;
        for rows in 1..=n {
            let answers = finish_all(&*engine, requests[..rows].to_vec());
            for (at, (found, wanted)) in answers.iter().zip(&wanted).enumerate() {
                assert_eq!(found.numbers(), wanted.numbers(), "row {at} of {rows} of at most {n}");
            }
        }
    }
}
