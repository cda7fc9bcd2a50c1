//! Logits of every draft against the float64 oracle, on the hidden states of a target that is checked the same way.

use crate::{
    fixture::{Folder, PLACE, Pair},
    variants,
};
use serde_json::Value;
use tokenspeed_models::{
    eagle3::chain::{Pass, Passes, argmax},
    kimi,
};

fn numbers(v: &Value) -> Vec<f64> {
    v.as_array().expect("a list").iter().map(|n| n.as_f64().expect("a number")).collect()
}

/// Largest difference from the oracle over the kept logits; every argmax must agree. The target reads the ids in chunks of
/// `chunk`, the draft follows chunk by chunk.
fn check(name: &str, chunk: usize) -> f64 {
    let golden: Value = serde_json::from_str(include_str!("golden.json")).expect("JSON");
    let ids: Vec<i32> = numbers(&golden["ids"]).into_iter().map(|id| id as i32).collect();
    let target = kimi::tiny::k3();
    let (_, config, embedding) = variants::all(&target).into_iter().find(|(n, ..)| *n == name).expect("a variant");
    let folder = Folder::new(&format!("golden-{name}-{chunk}"));
    let pair = Pair::random(&folder, &config, embedding);
    let source = pair.source();
    let mut run = pair.run(&source);

    let first = ids.len() - 2;
    let mut rows = Vec::new();
    for start in (0..first).step_by(chunk) {
        let end = (start + chunk).min(first);
        run.run(Pass::Forward, &PLACE.step(start as u32, &ids[start..end], false)).expect("a step");
        rows.extend(run.run(Pass::First, &PLACE.step(start as u32, &ids[start..end], true)).expect("a step"));
    }
    for p in first..ids.len() {
        rows.extend(run.run(Pass::Next, &PLACE.step(p as u32, &ids[p..=p], true)).expect("a step"));
    }

    let expected = &golden["drafts"][name];
    let kept = [&expected["first"], &expected["next"]].map(|v| v.as_array().expect("rows").clone()).concat();
    let best = numbers(&expected["argmax"]);
    assert!(rows.len() == ids.len() && kept.len() == rows.len() && best.len() == rows.len());
    let mut worst = 0f64;
    for (p, row) in rows.iter().enumerate() {
        assert_eq!(row.len() as u64, config.draft_vocab_size, "{name}");
        assert_eq!(argmax(row) as f64, best[p], "{name}: argmax of row {p}");
        for (j, wanted) in numbers(&kept[p]).into_iter().enumerate() {
            worst = worst.max((f64::from(row[(37 * p + 61 * j) % row.len()]) - wanted).abs());
        }
    }
    println!("{name} in chunks of {chunk}: max |Δ| {worst:e}");
    worst
}

#[test]
fn logits_agree_with_numpy() {
    for (name, chunk) in
        [("eagle31", 64), ("eagle31", 4), ("eagle3", 64), ("part_of_the_vocabulary", 7), ("four_taps", 64)]
    {
        let worst = check(name, chunk);
        assert!(worst <= 2e-5, "{name}: {worst:e}");
    }
}
