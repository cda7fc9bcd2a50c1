//! Decoding with a draft emits what decoding without one emits, whatever the draft proposes.

use crate::{
    fixture::{Folder, PLACE, Pair, Run, WIDTH, prompt},
    variants::SEED,
};
use tokenspeed_models::{
    eagle3::{
        chain::{Drafter, Eagle, Generated, Pass, Passes, argmax, generate},
        tiny,
        walker::WalkError,
    },
    kimi,
};

const TOKENS: usize = 64;

/// Greedy decoding, one token a step, without any of the code under test.
fn plain(run: &mut Run<'_>, ids: &[i32]) -> Vec<i32> {
    let (mut at, mut span, mut out) = (0, ids.to_vec(), Vec::new());
    while out.len() < TOKENS {
        let logits = run.run(Pass::Forward, &PLACE.step(at, &span, false)).expect("a step");
        at += span.len() as u32;
        span = vec![argmax(&logits[0]) as i32];
        out.push(span[0]);
    }
    out
}

fn drafted<'a>(run: &mut Run<'a>, ids: &[i32], drafter: &mut dyn Drafter<Run<'a>>) -> Generated {
    generate(run, PLACE, ids, 5, drafter, WIDTH, TOKENS).expect("every pass runs")
}

fn report(name: &str, made: &Generated) {
    let mut counts = [0; WIDTH + 1];
    made.verified.iter().for_each(|(_, accepted)| counts[*accepted] += 1);
    let (share, per_pass) = (made.acceptance(), made.tokens_per_pass());
    println!("{name}: {share:.3} of the candidates, {per_pass:.2} tokens a pass; passes by accepted {counts:?}");
}

/// A random draft, as its checkpoint comes: with the target's embedding, with its own, with part of the vocabulary.
#[test]
fn a_random_draft_changes_nothing() {
    let folder = Folder::new("random");
    let mut config = tiny::config(&kimi::tiny::k3());
    for (seed, draft_vocab_size, embedding) in [(0, 512, false), (1, 200, true)] {
        config.draft_vocab_size = draft_vocab_size;
        config.norm_output = !config.norm_output;
        let pair = Pair::random(&folder, &config, embedding);
        let source = pair.source();
        let ids = prompt(seed, 12);
        let expected = plain(&mut pair.run(&source), &ids);
        let mut eagle = Eagle::new(PLACE, pair.draft_weights.token_ids());
        let made = drafted(&mut pair.run(&source), &ids, &mut eagle);
        report("random draft", &made);
        assert_eq!(made.ids, expected, "prompt {seed}");
    }
}

/// Knows the text, and proposes every mixture of right, wrong and impossible tokens, of every length.
struct Adversary {
    text: Vec<i32>,
    turn: usize,
}

impl Drafter<Run<'_>> for Adversary {
    fn propose(&mut self, _: &mut Run<'_>, history: &[i32], n: usize) -> Result<Vec<i32>, WalkError> {
        self.turn += 1;
        let right = self.text[history.len().min(self.text.len())..].iter().copied().chain(std::iter::repeat(1));
        let wrong = [-1, 511, 1 << 20, i32::MIN, 0, i32::MAX];
        let mut ids: Vec<i32> = right.take(n).collect();
        for (i, id) in ids.iter_mut().enumerate().skip(self.turn % (WIDTH + 1)) {
            *id = if i % 2 == 0 { wrong[self.turn % wrong.len()] } else { *id };
        }
        ids.truncate([3, 3, 2, 3, 1, 0, 3][self.turn % 7]);
        Ok(ids)
    }
}

#[test]
fn an_adversary_changes_nothing() {
    let folder = Folder::new("adversary");
    let pair = Pair::random(&folder, &tiny::config(&kimi::tiny::k3()), false);
    let source = pair.source();
    for seed in [2, 3] {
        let ids = prompt(seed, 9);
        let expected = plain(&mut pair.run(&source), &ids);
        let mut adversary = Adversary { text: [&ids[..], &expected].concat(), turn: seed };
        let made = drafted(&mut pair.run(&source), &ids, &mut adversary);
        report("adversary", &made);
        assert_eq!(made.ids, expected, "prompt {seed}");
        let kinds: std::collections::BTreeSet<_> = made.verified.iter().collect();
        assert!(kinds.len() >= 7, "too few mixtures: {kinds:?}");
    }
}

/// A fitted draft is worth having on prompts it was not fitted on, and still changes nothing.
#[test]
fn a_fitted_draft_is_accepted() {
    let folder = Folder::new("fitted");
    tiny::write_target(&folder.target(), &kimi::tiny::k3(), SEED).expect("written");
    let start = std::time::Instant::now();
    let fit = tiny::fitted(&folder.target(), &folder.draft(), 7).expect("fitted");
    println!("{fit:?} in {:?}", start.elapsed());
    let pair = Pair::open(&folder.target(), &folder.draft());
    let source = pair.source();
    let mut all = Generated::default();
    for seed in 10..14 {
        let ids = prompt(seed, 12);
        let expected = plain(&mut pair.run(&source), &ids);
        let made = drafted(&mut pair.run(&source), &ids, &mut Eagle::new(PLACE, None));
        report(&format!("fitted draft, prompt {seed}"), &made);
        assert_eq!(made.ids, expected, "prompt {seed}");
        all.verified.extend(made.verified);
    }
    report("fitted draft", &all);
    assert!(all.acceptance() >= 0.5, "{}", all.acceptance());
}
