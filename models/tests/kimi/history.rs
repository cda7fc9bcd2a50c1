//! What a token's logits may depend on: its own history, and nothing about how it was cut into steps.

use crate::{
    fixture::{Model, Request, distance, full, prompt, step},
    host_walker::Mode,
    variants,
};
use tokenspeed_models::kimi::{GraphOptions, tiny};

/// Chunks of every awkward size, single tokens, histories shorter than the convolution; states move between slots as
/// copy-on-use moves them; a second request shares the steps. Bit for bit the one-step result.
#[test]
fn incremental_equals_full() {
    for (name, config) in variants::all().into_iter().filter(|(n, _)| ["k3", "kimi_linear"].contains(n)) {
        let model = Model::new(&format!("{name}-incremental"), &config, GraphOptions::EXACT);
        let (ids, others) = (prompt(96), prompt(40).into_iter().map(|id| id / 2 + 3).collect::<Vec<_>>());
        let expected = full(&mut model.host(Mode::Exact), &model, &ids);
        let expected_others = full(&mut model.host(Mode::Exact), &model, &others);
        let mut host = model.host(Mode::Exact);
        let (mut logits, mut other_logits) = (Vec::new(), Vec::new());
        let (mut slots, mut at, mut other_at) = ([1, 2], 0, 0);
        for chunk in [1, 1, 2, 60, 1, 7, 23, 1] {
            let request = Request { row: 2, computed: at as u32, read: slots[0], write: slots[1] };
            let other = Request { row: 0, computed: other_at as u32, read: 5, write: 5 };
            let span = &ids[at..at + chunk];
            let other_span = &others[other_at..other_at + 5];
            let mut rows = host.run(&model.graphs.forward, &step(&[(other, other_span), (request, span)]));
            logits.extend(rows.split_off(5));
            other_logits.extend(rows);
            (at, other_at) = (at + chunk, other_at + 5);
            slots.swap(0, 1);
        }
        assert!(logits == expected && at == ids.len(), "{name}: {}", distance(&logits, &expected));
        assert!(other_logits == expected_others, "{name}: {}", distance(&other_logits, &expected_others));
    }
}

/// One token alone is the first row of a longer run: T = 1 and an empty convolution window.
#[test]
fn one_token() {
    let model = Model::new("one-token", &tiny::k3(), GraphOptions::EXACT);
    let ids = prompt(3);
    let long = full(&mut model.host(Mode::Exact), &model, &ids);
    assert_eq!(full(&mut model.host(Mode::Exact), &model, &ids[..1])[0], long[0]);
}

/// Chunked against recurrent attention, and fused ops against their decompositions: the whole model within 1e-5 of the
/// exact one; on the 64-token grid, cutting a prompt does not change a bit of the chunked result.
#[test]
fn chunks_equal_steps() {
    let model = Model::new("chunks", &tiny::k3(), GraphOptions::EXACT);
    let ids = prompt(150);
    let exact = full(&mut model.host(Mode::Exact), &model, &ids);
    let chunked = full(&mut model.host(Mode::Fused), &model, &ids);
    let difference = distance(&exact, &chunked);
    println!("chunked: max |Δ| {difference:e}");
    assert!(difference > 0.0 && difference <= 1e-5, "{difference:e}");

    let mut host = model.host(Mode::Fused);
    let mut logits = Vec::new();
    for span in [0..64, 64..128, 128..150] {
        let request = Request { row: 1, computed: span.start as u32, read: 3, write: 3 };
        logits.extend(host.run(&model.graphs.forward, &step(&[(request, &ids[span])])));
    }
    assert!(logits == chunked, "{}", distance(&logits, &chunked));
}

/// The recurrent state is constant in size; an early token must still reach the end.
#[test]
fn an_early_token_matters() {
    for (name, config) in variants::all().into_iter().filter(|(n, _)| ["k3", "kimi_linear"].contains(n)) {
        let model = Model::new(&format!("{name}-early"), &config, GraphOptions::EXACT);
        let mut ids = prompt(200);
        let before = full(&mut model.host(Mode::Exact), &model, &ids);
        ids[3] += 1;
        let after = full(&mut model.host(Mode::Exact), &model, &ids);
        assert!(before[..3] == after[..3], "{name}: a later token reached an earlier one");
        let moved = distance(&before[199..], &after[199..]);
        println!("{name}: token 3 moves the last logits by {moved:e}");
        assert!(moved > 1e-3, "{name}: {moved:e}");
    }
}
