//! *Trees of guesses*: side branches beside the likeliest continuation, from the text and from draft models, on models with
//! and without recurrent state. They change nothing, and some of them are right.

use tokenspeed_core::{engine::ComponentClass, request::Request};

use crate::{
    batch_invariance::ids,
    drafts::{LIMITS, alone, assert_same, eagle, fitted_pair, subjects},
    support::{greedy, models, stepper::Stepper},
};

const TREE: &str = "--speculative-eagle-topk 4";

/// A text that goes on in two ways, so that its own continuation can be found and is often the older one.
fn forking(seed: u32) -> Vec<u32> {
    let [a, b, c] = [1, 2, 3].map(|part| ids(seed + part, 9));
    [&a[..], &b, &a, &c, &a, &b, &a, &c, &a[..6]].concat()
}

/// One by one, together, with cached prefixes, and where memory does not suffice. Returns checked and right branches.
fn unchanged(model: &str, words: &str, mode: &str) -> [u64; 2] {
    let mut requests = subjects();
    requests.extend([60, 61].map(|seed| greedy(&forking(seed), 40)));
    let expected: Vec<_> = {
        let mut plain = Stepper::new(model, &format!("{LIMITS} --no-prefix-cache {mode}"));
        requests.iter().flat_map(|r| plain.answers(std::slice::from_ref(r))).collect()
    };
    let mut branches = [0; 2];
    let mut add =
        |stepper: &Stepper| branches.iter_mut().zip(stepper.state.metrics().branches).for_each(|(b, n)| *b += n);
    let mut all = Stepper::new(model, &format!("{words} {TREE} {mode}"));
    for label in ["together", "again"] {
        assert_same(&mut all, &requests, &expected, label);
    }
    assert!(all.state.metrics().cached_tokens >= 64, "{words}: the cache was not used");
    add(&all);
    let crowd: Vec<Request> = (40..44).map(|seed| greedy(&ids(seed, 40), 100)).collect();
    let expected = match mode {
        "" => alone(model, &crowd),
        _ => return branches,
    };
    let mut tight = Stepper::changed(model, &format!("{words} {TREE}"), |config| {
        let paged = config.components.iter_mut().filter(|c| c.class == ComponentClass::Paged);
        paged.for_each(|c| c.n_blocks = 6);
    });
    assert_same(&mut tight, &crowd, &expected, "in little memory");
    assert!(tight.state.metrics().preemptions > 0, "{words}: nobody lost memory");
    add(&tight);
    branches
}

fn some_are_right([checked, right]: [u64; 2]) {
    println!("of {checked} side branches {right} were right");
    assert!(right > 0 && right < checked, "of {checked} side branches {right} were right");
}

#[test]
fn second_choices_of_an_eagle_draft() {
    let (target, draft) = fitted_pair();
    some_are_right(unchanged(&target.model(), &eagle(&draft), ""));
}

#[test]
fn earlier_continuations_in_the_text_itself() {
    let words =
        format!("{LIMITS} --speculative-algorithm ngram --speculative-ngram 1 --speculative-num-draft-tokens 4");
    let llama = models::tiny();
    some_are_right(unchanged(&llama.model(), &words, ""));
    // Cache rows keep their positions, so that even the kernels' order of summation is that of a chain.
    unchanged(&llama.model(), &words, "--mode fast");
    let (hybrid, _) = fitted_pair();
    some_are_right(unchanged(&hybrid.model(), &words, ""));
}
