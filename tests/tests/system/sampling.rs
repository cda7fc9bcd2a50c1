//! Sampling through the real engine: seeds, ties, and models whose answers depend on their history.

use std::collections::BTreeSet;

use serde_json::json;
use tokenspeed_core::request::{Request, SamplingParams};
use tokenspeed_tests::script_model::IM_END;

use crate::{
    batch_invariance::ids,
    support::{finish_all, load, models, serving::Serving},
};

/// One token after `q`, of a distribution in which all tokens but the banned end token tie.
fn tied(top_k: u32, temperature: f32, seed: u64) -> Request {
    let sampling = SamplingParams {
        temperature,
        top_k,
        seed,
        max_tokens: 1,
        logit_bias: vec![(IM_END, -100.0)],
        ..SamplingParams::default()
    };
    Request { prompt: vec![u32::from(b'q')], sampling, ..Request::default() }
}

#[test]
fn top_k_ties() {
    let loaded = load(&models::script().model(), "");
    let chosen = |top_k, temperature, at_once: usize| -> BTreeSet<u32> {
        let requests: Vec<Request> = (0..48).map(|seed| tied(top_k, temperature, seed)).collect();
        let answers = requests.chunks(at_once).flat_map(|some| finish_all(&*loaded.engine, some.to_vec()));
        answers.map(|a| a.ids[0]).collect()
    };
    for at_once in [1, 16] {
        assert_eq!(chosen(1, 1.0, at_once), BTreeSet::from([0]), "the lowest id of all that tie");
        assert_eq!(chosen(0, 0.0, at_once), BTreeSet::from([0]));
        assert_eq!(chosen(2, 1.0, at_once), BTreeSet::from([0, 1]), "exactly two, both possible");
    }
    assert!(chosen(0, 1.0, 16).len() > 30, "without top-k all are possible");
}

#[test]
fn seed_reproducibility() {
    let folder = models::tiny();
    let server = Serving::start(load(&folder.model(), ""));
    let prompt = json!(ids(9, 30));
    let fields =
        |seed: u64, n: u64| json!({"temperature": 0.9, "seed": seed, "n": n, "max_tokens": 20, "ignore_eos": true});
    let text = |server: &Serving, seed| {
        server.completion(prompt.clone(), fields(seed, 1))["choices"][0]["text"].as_str().expect("text").to_owned()
    };
    let alone = text(&server, 42);
    assert_eq!(text(&server, 42), alone);
    assert_ne!(text(&server, 43), alone);
    assert_eq!(text(&server, 0), text(&server, 0), "0 is a seed");
    let together: Vec<String> = std::thread::scope(|scope| {
        let seeds = [1, 42, 2, 42, 3, 4];
        let threads = seeds.map(|seed| {
            scope.spawn({
                let (text, server) = (&text, &server);
                move || text(server, seed)
            })
        });
        threads.map(|t| t.join().expect("answered")).into()
    });
    assert_eq!((&together[1], &together[3]), (&alone, &alone), "neighbours have no influence");
    let pair = |_| server.completion(prompt.clone(), fields(42, 2))["choices"].clone();
    let pairs = [0, 1].map(pair);
    assert_eq!(pairs[0], pairs[1]);
    assert_ne!(pairs[0][0]["text"], pairs[0][1]["text"], "choices differ");
    let unseeded =
        |_| server.completion(prompt.clone(), json!({"temperature": 0.9, "max_tokens": 20, "ignore_eos": true}));
    let [a, b] = [0, 1].map(unseeded);
    assert_ne!(a["choices"][0]["text"], b["choices"][0]["text"], "without a seed answers differ");
    drop(server);
    let restarted = Serving::start(load(&folder.model(), "--threads 1"));
    assert_eq!(text(&restarted, 42), alone, "after a restart");
}
