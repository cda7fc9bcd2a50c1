//! *Prefix cache and recurrent state*, with real numbers: whatever is reused, kept, evicted or computed again, a request
//! on a tiny Kimi K3 gets the tokens and log-probabilities it gets alone from an engine without a cache, to the last bit.
//!
//! The first test is that a wrong state would show.

use std::{collections::BTreeMap, sync::Arc};

use tokenspeed_core::{client::Engine, request::Request};

use crate::{
    batch_invariance::ids,
    support::{
        self, Answer, finish, finish_all, greedy,
        models::{self, long_tests},
        settled, submit,
    },
};

/// An exact engine, its chunks, its memory and its stored states chosen by `words`.
fn engine(folder: &models::Folder, words: &str) -> Arc<dyn Engine> {
    let mut words = format!("--mode exact {words}");
    for (option, value) in [("--max-num-seqs", "4"), ("--max-model-len", "512")] {
        if !words.contains(option) {
            words += &format!(" {option} {value}");
        }
    }
    support::load(&folder.model(), &support::in_bytes(&folder.model(), &words)).engine
}

struct Pair {
    cached: Arc<dyn Engine>,
    cold: Arc<dyn Engine>,
    /// What the cold engine said, by prompt and length.
    alone: BTreeMap<(Vec<u32>, u32), Answer>,
}

impl Pair {
    fn new(folder: &models::Folder, words: &str) -> Self {
        let len =
            words.split_once("--max-model-len ").map_or("512", |(_, rest)| rest.split(' ').next().expect("a number"));
        let cold = engine(folder, &format!("--no-prefix-cache --max-model-len {len}"));
        Self { cached: engine(folder, words), cold, alone: BTreeMap::new() }
    }

    /// With another engine beside the same cold one.
    fn with(self, folder: &models::Folder, words: &str) -> Self {
        Self { cached: engine(folder, words), ..self }
    }

    /// The answer, which is the cold engine's; and how many tokens came from the cache.
    fn ask(&mut self, prompt: &[u32], max_tokens: u32, label: &str) -> (u32, Vec<u32>) {
        let answer = finish(submit(&*self.cached, greedy(prompt, max_tokens)));
        let Self { cold, alone, .. } = self;
        let ask_alone = || finish(submit(&**cold, greedy(prompt, max_tokens)));
        let expected = alone.entry((prompt.to_vec(), max_tokens)).or_insert_with(ask_alone);
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
    let mut pair = Pair::new(&folder, "");
    for words in ["", "--chunked-prefill-size 64", "--chunked-prefill-size 16"] {
        pair = pair.with(&folder, words);
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
    let mut pair = pair.with(&folder, "");
    for n in [1, 63, 64, 65, 127, 128, 129, 130, 191, 192, 193] {
        let prompt = ids(100 + n as u32, n);
        pair.ask(&prompt, 2, "cold");
        let cached = pair.ask(&[&prompt[..], &ids(9, 9)].concat(), 2, "warm").0 as usize;
        assert_eq!(cached, n / 64 * 64, "{n} tokens");
    }
}

/// Case 82: two stored states, many pages; hits fall back to the deepest stored one. At length: ten prompts that share up to nine
/// pages, a hundred rounds.
#[test]
fn prefix_cache_state_snapshot_eviction() {
    let folder = models::kimi();
    let (rounds, most, n_tokens) = if long_tests() { (100, 9, 590) } else { (16, 3, 200) };
    let mut pair = Pair::new(&folder, "--max-num-seqs 1 --prefix-snapshots 2 --max-model-len 640");
    let (mut random, mut cached) = (1u32, 0);
    for round in 0..rounds {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let shared = (random >> 8) as usize % (most + 1);
        let prompt = [ids(3, 64 * shared), ids(40 + shared as u32, n_tokens - 64 * shared)].concat();
        cached += pair.ask(&prompt, 2, &format!("round {round}, {shared} pages shared")).0;
    }
    let metrics = pair.cached.metrics();
    assert!(cached > 0 && metrics.cut_tokens > 0, "{cached} tokens reused, {} cut", metrics.cut_tokens);
}

/// Case 90: turns, an edited turn, two conversations in turn: little more than what is new is computed.
#[test]
fn prefix_cache_multi_turn() {
    let folder = models::kimi();
    let mut pair = Pair::new(&folder, "");
    let mut talks = [ids(3, 100), ids(4, 90)];
    let mut turn = |talk: &mut Vec<u32>, salt: u32, is_first: bool| {
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

/// An edit far behind in a long prompt goes on from the ladder of stored states inside it, the first rung of which is at 1,024
/// tokens; wherever chunks end.
#[test]
fn a_rung_of_stored_states_inside_a_long_prompt() {
    let folder = models::small_kimi();
    const LONG: &str = "--max-model-len 1280";
    let text = ids(3, 1180);
    let edited = |at: usize| [&text[..at], &ids(5, 30)].concat();
    let mut pair = Pair::new(&folder, LONG);
    for chunk in [100, 1000, 8192] {
        let words = format!("{LONG} --chunked-prefill-size {chunk}");
        pair = pair.with(&folder, &words);
        let prompts = [text.clone(), text.clone(), edited(1100), edited(1030), edited(1000)];
        let hits = prompts.map(|prompt| pair.ask(&prompt, 4, &words).0);
        // The end of the prompt; the rung; of a page seen twice by now; nothing is stored before the rung.
        assert_eq!(hits, [0, 1152, 1024, 1024, 0], "{words}");
    }
}

/// Case 91 and *batch variance*: too few pages for all, sampled and greedy, alone and together.
#[test]
fn preemption_and_neighbours_with_recurrent_state() {
    let folder = models::kimi();
    let cold = engine(&folder, "--no-prefix-cache");
    let requests: Vec<Request> = (0..6u32)
        .map(|n| {
            let mut request = greedy(&ids(3 + n % 3, 80 + 3 * n as usize), 60);
            (request.sampling.temperature, request.sampling.seed) = ([0.0, 0.8][n as usize % 2], 7);
            request
        })
        .collect();
    let expected: Vec<Answer> = requests.iter().map(|r| finish(submit(&*cold, r.clone()))).collect();
    for words in ["--prefix-snapshots 0", "--chunked-prefill-size 64", "--max-num-seqs 2 --prefix-snapshots 1"] {
        // Five pages; the six come with two each, so two are let in, and grow to three.
        let engine = engine(&folder, &format!("--max-model-len 320 --memory least {words}"));
        for round in 0..2 {
            let answers = finish_all(&*engine, requests.clone());
            for (n, (answer, expected)) in answers.iter().zip(&expected).enumerate() {
                assert_eq!(answer.numbers(), expected.numbers(), "{words}: round {round}, request {n}");
            }
        }
        let metrics = engine.metrics();
        assert!(metrics.preemptions > 0, "{words}: nobody lost memory: {metrics:?}");
        settled(&*engine);
    }
}

/// Case 83: turns of a conversation, with guesses that are often wrong and with the cache; each on and off.
#[test]
fn prefix_cache_and_speculation() {
    let folder = models::kimi();
    let plain = engine(&folder, "--no-prefix-cache");
    // Every way asks the same, so the answers alone are found once.
    let mut alone: Vec<Answer> = Vec::new();
    let kept = ["--prefix-snapshots 4", "--no-prefix-cache", "--prefix-snapshots 4 --chunked-prefill-size 64"];
    for (k, cache) in [(1, kept[0]), (3, kept[0]), (7, kept[0]), (7, kept[1]), (3, kept[2])] {
        let words =
            format!("--speculative-algorithm ngram --speculative-ngram 1 --speculative-num-draft-tokens {} {cache}", k);
        let guessing = engine(&folder, &words);
        let (mut talk, mut cached) = (ids(3, 60), 0);
        for turn in 0..6u32 {
            talk.extend(ids(10 + turn, 20));
            let mut request = greedy(&talk, 24);
            // A random model repeats itself only if it has little choice.
            request.sampling.allowed_token_ids = Some(vec![5, 6, 7]);
            (request.sampling.temperature, request.sampling.seed) = ([0.0, 1.0][turn as usize % 2], 5);
            let answer = finish(submit(&*guessing, request.clone()));
            if alone.len() <= turn as usize {
                alone.push(finish(submit(&*plain, request)));
            }
            assert_eq!(answer.numbers(), alone[turn as usize].numbers(), "{words}: turn {turn}");
            cached += answer.usage.cached_tokens;
            talk.extend(answer.ids);
        }
        let metrics = guessing.metrics();
        let (drafts, accepted): (u64, u64) = (metrics.drafts.iter().sum(), metrics.accepted.iter().sum());
        assert!(accepted > 0 && accepted < drafts, "{words}: of {drafts} guesses {accepted} were right");
        assert_eq!(cached > 0, !cache.contains("--no-prefix-cache"), "{words}: {cached} tokens reused");
    }
}
