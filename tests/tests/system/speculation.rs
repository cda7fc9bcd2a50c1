//! *Spec decode*: guesses change nothing but the time an answer takes. What is said of guesses that are right, wrong, cut off
//! by a stop or by a cap is compared with an engine that does not guess, and there must have been guesses of both kinds.

use std::sync::Arc;

use serde_json::{Value, json};
use tokenspeed_core::{
    client::Engine,
    request::{Request, SamplingParams},
};
use tokenspeed_tests::script_model::IM_END;

use crate::support::{
    client::{events, finishes, joined},
    finish, finish_all, greedy, load, models,
    serving::{Serving, with},
    submit,
};

const NGRAM: &str = "--speculative-algorithm ngram --speculative-num-draft-tokens 7 --speculative-ngram";

/// Guesses of an engine: all, and the right ones.
fn guesses(engine: &Arc<dyn Engine>) -> (u64, u64) {
    let metrics = engine.metrics();
    (metrics.drafts.iter().sum(), metrics.accepted.iter().sum())
}

/// Case 99: of several right guesses in one step the first ends the answer, or the cap does, whichever comes first.
#[test]
fn spec_decode_stop_handling() {
    let folder = models::script();
    let [plain, guessing] = ["", &format!("{NGRAM} 1")].map(|words| Serving::start(load(&folder.model(), words)));
    // The script that answers `B`, then `B` again: what follows it is known, its end included.
    let said = finish(submit(&*plain.engine, greedy(&[u32::from(b'B')], 3))).ids;
    let known = [&[u32::from(b'B')][..], &said, &[IM_END, u32::from(b'B')]].concat();
    let endless = vec![u32::from(b'E')];
    let hear = |server: &Serving, prompt: &[u32], fields: &Value| -> (Value, String) {
        let whole = server.completion(json!(prompt), fields.clone());
        let stream = with(fields.clone(), json!({"stream": true, "stream_options": {"include_usage": true}}));
        let streamed = events(&server.complete(json!(prompt), stream));
        let usage = streamed.iter().find_map(|e| e["usage"]["completion_tokens"].as_u64()).expect("a usage chunk");
        let choice = &whole["choices"][0];
        assert_eq!(choice["text"], joined(&streamed, 0), "{fields}");
        assert_eq!(json!([choice["finish_reason"]]), json!(finishes(&streamed, 0)), "{fields}");
        assert_eq!(whole["usage"]["completion_tokens"], usage, "{fields}");
        (choice["finish_reason"].clone(), format!("{} {usage}", choice["text"]))
    };
    let mut reasons = Vec::new();
    for (prompt, most) in [(&known, 6), (&endless, 20)] {
        for stop in [json!(null), json!("gamma"), json!(["beta gamma"]), json!("tock t")] {
            for max_tokens in 1..=most {
                let fields = json!({"max_tokens": max_tokens, "temperature": 0, "stop": stop});
                let [wanted, found] = [&plain, &guessing].map(|server| hear(server, prompt, &fields));
                assert_eq!(found, wanted, "{fields}");
                reasons.push(found.0);
            }
        }
    }
    assert!(reasons.contains(&json!("stop")) && reasons.contains(&json!("length")), "{reasons:?}");
    let (drafts, accepted) = guesses(&guessing.engine);
    assert!(accepted > 100 && guesses(&plain.engine) == (0, 0), "of {drafts} guesses {accepted} were right");
}

/// Case 101: rules that look back see every accepted token, one by one, and no rejected one.
#[test]
fn spec_decode_and_penalties() {
    let model = models::smollm2();
    let words = "--max-model-len 256 --max-num-seqs 10";
    let [plain, guessing] = [words.to_owned(), format!("{words} {NGRAM} 2")].map(|words| load(&model, &words));
    let text = "one two three one two three one two three one two three one two";
    let prompt = plain.frontend.encode(text, true).expect("encodes");
    let three = *plain.frontend.encode(" three", false).expect("encodes").last().expect("a token");
    let change: [fn(&mut SamplingParams, u32); 9] = [
        |_, _| {},
        |s, _| s.frequency_penalty = 1.5,
        |s, _| s.presence_penalty = 1.0,
        |s, _| s.repetition_penalty = 1.3,
        |s, _| s.min_p = 0.1,
        |s, three| (s.stop_token_ids, s.min_tokens) = (vec![three], 20),
        |s, three| s.logit_bias = vec![(three, -3.0)],
        |s, three| s.bad_words = vec![vec![three]],
        |s, _| (s.temperature, s.seed, s.frequency_penalty) = (0.8, 11, 0.4),
    ];
    let requests = change.map(|change| {
        let mut request = Request { prompt: prompt.clone(), ..greedy(&prompt, 24) };
        change(&mut request.sampling, three);
        request
    });
    let [wanted, found] = [&plain, &guessing].map(|loaded| finish_all(&*loaded.engine, requests.clone()));
    for (n, (found, alike)) in found.iter().zip(&wanted).enumerate() {
        assert_eq!((found.numbers(), found.reason), (alike.numbers(), alike.reason), "request {n}");
        // Each rule does something, or comparing would prove nothing; a minimal probability does not at temperature 0.
        assert!(n == 0 || n == 4 || found.ids != wanted[0].ids, "request {n} is as without its rule");
    }
    assert!(wanted[5].ids.len() > 20, "the stop token came 20 times too early");
    let (drafts, accepted) = guesses(&guessing.engine);
    assert!(accepted > 0 && accepted < drafts, "of {drafts} guesses {accepted} were right");
}
