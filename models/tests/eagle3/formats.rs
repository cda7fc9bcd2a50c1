//! Narrow formats of everything the draft keeps between steps.

use crate::{
    fixture::{Folder, PLACE, prompt},
    variants::SEED,
};
use tokenspeed_backend_api::{dtype::DType, graph::WeightSource};
use tokenspeed_models::{
    eagle3::{self, Eagle3Weights, Joined, tiny, walker::Walker},
    kimi::{self, GraphOptions, KimiWeights},
    weights::Checkpoint,
};

/// Rows of taps, hidden states and latents in bf16 move the logits a little, and not more.
#[test]
fn narrow_rows_move_logits_a_little() {
    let folder = Folder::new("formats");
    let (target, draft) = (kimi::tiny::k3(), tiny::config(&kimi::tiny::k3()));
    kimi::tiny::write(&folder.target(), &target, SEED).expect("written");
    tiny::write(&folder.draft(), &draft, SEED + 1, false).expect("written");
    let open = |folder: std::path::PathBuf| Checkpoint::open(&folder.join("model.safetensors")).expect("it opens");
    let target_weights = KimiWeights::open(open(folder.target()), &target).expect("complete");
    let draft_weights = Eagle3Weights::open(open(folder.draft()), &draft).expect("complete");
    let source = Joined::<&dyn WeightSource> { target: &target_weights, draft: &draft_weights };
    let ids = prompt(1, 8);
    let logits = [DType::F32, DType::BF16].map(|dtype| {
        let taps = draft.taps_of(&target).expect("they fit");
        let options = GraphOptions { window: dtype, taps, ..GraphOptions::EXACT };
        let mut graphs = kimi::Graphs::new(&target, options);
        let options = eagle3::Options { latent: dtype, own_embedding: false };
        let drafts = eagle3::Graphs::attach(&draft, &mut graphs, options);
        let mut walker = Walker::new(&drafts.first.components, &source, 1, 32);
        walker.run(&graphs.forward, &PLACE.step(0, &ids[..7], false)).expect("a step");
        let mut rows = walker.run(&drafts.first, &PLACE.step(0, &ids[1..], true)).expect("a step");
        rows.extend(walker.run(&drafts.next, &PLACE.step(7, &[5], true)).expect("a step"));
        rows
    });
    let pairs = logits[0].iter().flatten().zip(logits[1].iter().flatten());
    let (moved, size) = pairs.fold((0f32, 0f32), |(m, s), (a, b)| (m + (a - b) * (a - b), s + a * a));
    let share = (moved / size).sqrt();
    println!("bf16 rows move the logits by {share:e} of their size");
    assert!(share > 0.0 && share < 0.05, "{share:e}");
}
