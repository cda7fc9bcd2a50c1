//! *Prefix cache and recurrent state*, with real numbers: whatever is reused, kept, evicted or computed again, a request
//! on a tiny Kimi K3 gets the tokens and log-probabilities it gets alone from an engine without a cache, to the last bit.
//!
//! The first test is that a wrong state would show.

use std::sync::Arc;

use tokenspeed_core::{client::Engine, request::Request};

use crate::{
    batch_invariance::ids,
    support::{self, Answer, finish, finish_all, greedy, models, submit},
};

/// An exact engine, its chunks and its stored states chosen by `words`.
fn engine(folder: &models::Folder, words: &str) -> Arc<dyn Engine> {
    let seqs = if words.contains("--max-num-seqs") { "" } else { "--max-num-seqs 4" };
    support::load(&folder.model(), &format!("--mode exact --max-model-len 512 {seqs} {words}")).engine
}

struct Pair {
    cached: Arc<dyn Engine>,
    cold: Arc<dyn Engine>,
}

impl Pair {
    fn new(folder: &models::Folder, words: &str) -> Self {
        Self { cached: engine(folder, words), cold: engine(folder, "--no-prefix-cache") }
    }

    /// The answer, which is the cold engine's; and how many tokens came from the cache.
    fn ask(&self, prompt: &[u32], max_tokens: u32, label: &str) -> (u32, Vec<u32>) {
        let answer = finish(submit(&*self.cached, greedy(prompt, max_tokens)));
        let expected = finish(submit(&*self.cold, greedy(prompt, max_tokens)));
        assert_eq!(answer.numbers(), expected.numbers(), "{label}");
        (answer.usage.cached_tokens, answer.ids)
    }
}

#[test]
fn an_early_token_reaches_the_end() {
    let folder = models::kimi();
    let cold = engine(&folder, "--no-prefix-cache");
    let mut prompt = ids(3, 200);
    let before = finish(submit(&*cold, greedy(&prompt, 1)));
    prompt[3] += 40;
    let after = finish(submit(&*cold, greedy(&prompt, 1)));
    let (before, after) = (&before.logprobs[0].top, &after.logprobs[0].top);
    let change = before.iter().zip(after).map(|(a, b)| (a.1 - b.1).abs()).fold(0.0, f32::max);
    assert!(change > 1e-3, "token 3 of 200 changes the answer by {change} only");
}

/// Case 80 and 81: the same, a longer, a forked prompt; and every length around a page.
#[test]
fn prefix_cache_state_snapshot_reuse() {
    let folder = models::kimi();
    for words in ["", "--chunked-prefill-size 64", "--chunked-prefill-size 16"] {
        let pair = Pair::new(&folder, words);
        let prompt = ids(3, 200);
        let hits: Vec<u32> = [
            prompt.clone(),
            prompt.clone(),
            [&prompt[..], &ids(5, 7)].concat(),
            [&prompt[..150], &ids(6, 20)].concat(),
            [&prompt[..150], &ids(7, 20)].concat(),
        ]
        .iter()
        .map(|prompt| pair.ask(prompt, 8, words).0)
        .collect();
        assert_eq!(hits, [0, 192, 192, 0, 128], "{words}");
    }
    let pair = Pair::new(&folder, "");
    for n in [1, 63, 64, 65, 127, 128, 129, 130] {
        let prompt = ids(100 + n as u32, n);
        pair.ask(&prompt, 2, "cold");
        let cached = pair.ask(&[&prompt[..], &ids(9, 9)].concat(), 2, "warm").0 as usize;
        assert_eq!(cached, n / 64 * 64, "{n} tokens");
    }
}

/// Case 82: two stored states, many pages; hits fall back to the deepest stored one.
#[test]
fn prefix_cache_state_snapshot_eviction() {
    let folder = models::kimi();
    let pair = Pair::new(&folder, "--max-num-seqs 1 --prefix-snapshots 2");
    let (mut random, mut cached) = (1u32, 0);
    for round in 0..16 {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let shared = (random >> 8) as usize % 4;
        let prompt = [ids(3, 64 * shared), ids(40 + shared as u32, 200 - 64 * shared)].concat();
        cached += pair.ask(&prompt, 2, &format!("round {round}, {shared} pages shared")).0;
    }
    let metrics = pair.cached.metrics();
    assert!(cached > 0 && metrics.cut_tokens > 0, "{cached} tokens reused, {} cut", metrics.cut_tokens);
}

/// Case 90: turns, an edited turn, two conversations in turn: little more than what is new is computed.
#[test]
fn prefix_cache_multi_turn() {
    let folder = models::kimi();
    let pair = Pair::new(&folder, "");
    let mut talks = [ids(3, 100), ids(4, 90)];
    let turn = |talk: &mut Vec<u32>, salt: u32, is_first: bool| {
        let before = talk.len();
        talk.extend(ids(salt, 20));
        let (cached, said) = pair.ask(talk, 12, "turn");
        talk.extend(said);
        assert!(is_first || before - cached as usize <= 64, "{cached} of {before} tokens reused");
    };
    turn(&mut talks[0], 11, true);
    turn(&mut talks[1], 12, true);
    for n in 0..4 {
        for talk in &mut talks {
            turn(talk, 20 + n, false);
        }
    }
    let mut edited = talks[0][..talks[0].len() - 32].to_vec();
    turn(&mut edited, 40, false);
}

/// Case 91 and *batch variance*: too few pages for all, sampled and greedy, alone and together.
#[test]
fn preemption_and_neighbours_with_recurrent_state() {
    let folder = models::kimi();
    let cold = engine(&folder, "--no-prefix-cache");
    let requests: Vec<Request> = (0..6u32)
        .map(|n| {
            let mut request = greedy(&ids(3 + n / 2, 70 + 20 * n as usize), 40);
            (request.sampling.temperature, request.sampling.seed) = ([0.0, 0.8][n as usize % 2], 7);
            request
        })
        .collect();
    let expected: Vec<Answer> = requests.iter().map(|r| finish(submit(&*cold, r.clone()))).collect();
    for words in ["--prefix-snapshots 0", "--chunked-prefill-size 64", "--max-num-seqs 2 --prefix-snapshots 1"] {
        let engine = engine(&folder, words);
        for round in 0..2 {
            let answers = finish_all(&*engine, requests.clone());
            for (n, (answer, expected)) in answers.iter().zip(&expected).enumerate() {
                assert_eq!(answer.numbers(), expected.numbers(), "{words}: round {round}, request {n}");
            }
        }
    }
}

/// Case 83: turns of a conversation, with guesses that are often wrong and with the cache; each on and off.
#[test]
fn prefix_cache_and_speculation() {
    let folder = models::kimi();
    let plain = engine(&folder, "--no-prefix-cache");
    for (k, cache) in [(1, ""), (3, ""), (7, ""), (7, "--no-prefix-cache"), (3, "--chunked-prefill-size 64")] {
        let words = format!(
            "--speculative-algorithm ngram --speculative-ngram 1 --speculative-num-draft-tokens {} --prefix-snapshots 4 {cache}",
            k
        );
        let guessing = engine(&folder, &words);
        let (mut talk, mut cached) = (ids(3, 60), 0);
        for turn in 0..3u32 {
            talk.extend(ids(10 + turn, 20));
            let mut request = greedy(&talk, 24);
            // A random model repeats itself only if it has little choice.
            request.sampling.allowed_token_ids = Some(vec![5, 6, 7]);
            (request.sampling.temperature, request.sampling.seed) = ([0.0, 1.0][turn as usize % 2], 5);
            let answer = finish(submit(&*guessing, request.clone()));
            assert_eq!(answer.numbers(), finish(submit(&*plain, request)).numbers(), "{words}: turn {turn}");
            cached += answer.usage.cached_tokens;
            talk.extend(answer.ids);
        }
        let metrics = guessing.metrics();
        let (drafts, accepted): (u64, u64) = (metrics.drafts.iter().sum(), metrics.accepted.iter().sum());
        assert!(accepted > 0 && accepted < drafts, "{words}: of {drafts} guesses {accepted} were right");
        assert_eq!(cached > 0, !cache.contains("--no-prefix-cache"), "{words}: {cached} tokens reused");
    }
}
