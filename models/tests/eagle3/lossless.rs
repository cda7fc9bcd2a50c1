//! x
use crate::fixture::*;
use tokenspeed_models::{kimi, eagle3::{tiny, chain::{Pass, Passes, Eagle, generate, argmax}}};

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
    for seed in [1] {
    tiny::write_target(&folder.target(), &kimi::tiny::k3(), seed).unwrap();
    let t = std::time::Instant::now();
    let fit = tiny::fitted(&folder.target(), &folder.draft(), 7).unwrap();
    println!("{:?} {fit:?}", t.elapsed());
    let pair = Pair::open(&folder.target(), &folder.draft());
    let source = pair.source();
    for seed in 0..4 {
        let ids = prompt(seed, 12);
        let t = std::time::Instant::now();
        let made = generate(&mut pair.run(&source), PLACE, &ids, 5, &mut Eagle::new(PLACE, None), WIDTH, 64).expect("x");
        let mut h = [0; 4];
        for (_, a) in &made.verified { h[*a] += 1; }
        println!("{:?} {:.3} {:.2} {h:?} {:?}", t.elapsed(), made.acceptance(), made.tokens_per_pass(), &made.ids[..40]);
    }
    }
}
