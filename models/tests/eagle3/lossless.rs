//! Decoding with a draft emits what decoding without one emits, whatever the draft proposes.

use crate::fixture::{Folder, PLACE, Pair, Run, WIDTH, prompt};
use tokenspeed_models::eagle3::{
    chain::{Drafter, Eagle, Generated, Pass, Passes, argmax, generate},
    walker::WalkError,
};

const TOKENS: usize = 64;

/// Greedy decoding, one token a step, without any of the code under test.
pub fn plain(run: &mut Run<'_>, ids: &[i32], n: usize) -> Vec<i32> {
    let (mut at, mut span, mut out) = (0, ids.to_vec(), Vec::new());
    while out.len() < n {
        let logits = run.run(Pass::Forward, &PLACE.step(at, &span, false)).expect("a step");
        at += span.len() as u32;
        span = vec![argmax(&logits[0]) as i32];
        out.push(span[0]);
    }
    out
}

#[test]
fn timing() {
    let folder = Folder::new("timing");
    let pair = Pair::random(&folder, |_| {}, false);
    let source = pair.source();
    for seed in 0..6 {
        let t = std::time::Instant::now();
        let ids = prompt(seed, 12);
        let text = plain(&mut pair.run(&source), &ids, 64);
        println!("{:?} {text:?}", t.elapsed());
        let t = std::time::Instant::now();
        let made = generate(&mut pair.run(&source), PLACE, &ids, 5, &mut Eagle::new(PLACE, None), WIDTH, 64).expect("x");
        println!("{:?} {} {:?}", t.elapsed(), made.ids == text, made.verified);
    }
}
