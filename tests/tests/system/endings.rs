//! Characters, stop strings and ends of sequence, through the real tokenizer, detokenizer and engine.

use serde_json::{Value, json};
use tokenspeed_tests::script_model::{CONTEXT, END_OF_TEXT, IM_END};

use crate::support::{load, models, serving::Serving};

fn serve() -> Serving {
    Serving::start(load(&models::script().model(), ""))
}

/// Script B's text: three tokens, then the end.
const GREEK: &str = "alpha beta gamma delta";

#[test]
fn utf8_split_across_sse_chunks() {
    let server = serve();
    server.assert_all("x A", json!({"max_tokens": 32, "temperature": 0}), "ok 🙂 🦜 e\u{301} fin", "stop", 8);
    let raw = server.complete("x A", json!({"max_tokens": 32, "stream": true}));
    assert!(!raw.text().contains('\u{FFFD}') && !raw.text().contains("ufffd"));
    // Cut inside a character for good: half of one is no text.
    let cut = server.completion("x A", json!({"max_tokens": 2}));
    assert_eq!(cut["choices"][0]["text"], "ok ");
}

#[test]
fn stop_string_spanning_tokens() {
    let server = serve();
    let stopped = |stop: Value, text: &str, tokens| {
        server.assert_all("x B", json!({"stop": stop, "max_tokens": 32}), text, "stop", tokens);
    };
    stopped(json!(["beta gamma"]), "alpha ", 3);
    stopped(json!("mma"), "alpha beta ga", 3);
    stopped(json!(["zzz", "eta g"]), "alpha b", 2);
    stopped(json!([GREEK]), "", 3);
    // A prefix of a stop string that does not complete is not lost.
    stopped(json!(["delta!"]), GREEK, 4);
    let raw = server.complete("x B", json!({"stop": ["beta gamma"], "stream": true})).text();
    assert!(!raw.contains("beta") && !raw.contains("delta"), "{raw}");
    assert_eq!(server.idle_metrics().running, 0);
}

#[test]
fn finish_reason_wrong() {
    let server = serve();
    let ends = |prompt: &str, max_tokens: u64, text: &str, reason: &str, tokens: u64| {
        server.assert_all(prompt, json!({"max_tokens": max_tokens}), text, reason, tokens);
    };
    ends("x B", 2, "alpha beta ga", "length", 2);
    ends("x B", 3, GREEK, "length", 3);
    ends("x B", 4, GREEK, "stop", 4);
    ends("x F", 1, "", "stop", 1);
    ends("x F", 5, "", "stop", 1);
    ends("x E", 7, "tick tock tick tock tick tock tick ", "length", 7);
}

#[test]
fn max_completion_tokens() {
    let server = serve();
    let chat = |fields: Value| {
        let reply = server.chat("x E", fields);
        assert_eq!(reply.status, 200, "{}", reply.text());
        let json = reply.json();
        assert_eq!(json["choices"][0]["finish_reason"], "length");
        json["usage"]["completion_tokens"].as_u64().expect("a count")
    };
    assert_eq!(chat(json!({"max_completion_tokens": 5})), 5);
    // Neither name: a chat runs to the end of the context, a completion 16 tokens.
    assert_eq!(chat(json!({})), CONTEXT as u64 - 3);
    assert_eq!(server.completion("x E", json!({}))["usage"]["completion_tokens"], 16);
}

#[test]
fn max_tokens_0_and_1() {
    let server = serve();
    let scored = server.completion("x B", json!({"max_tokens": 0, "echo": true, "logprobs": 1}));
    let choice = &scored["choices"][0];
    assert_eq!((choice["text"].as_str(), choice["finish_reason"].as_str()), (Some("x B"), Some("length")));
    let logprobs = choice["logprobs"]["token_logprobs"].as_array().expect("a list");
    assert_eq!(logprobs.len(), 3);
    assert!(logprobs[0].is_null() && logprobs[1..].iter().all(|l| l.as_f64().is_some_and(|l| l < 0.0)), "{logprobs:?}");
    assert_eq!(scored["usage"]["completion_tokens"], 0);
    server.assert_all("x B", json!({"max_tokens": 1}), "alpha b", "length", 1);
}

#[test]
fn eos_list() {
    // Every place that may name the end tokens: (config.json, generation_config.json).
    let both = json!([IM_END, END_OF_TEXT]);
    for (config, generation) in [
        (json!(IM_END), Some(both.clone())),
        (both.clone(), None),
        (both.clone(), Some(json!(IM_END))),
        (json!(IM_END), Some(json!(END_OF_TEXT))),
    ] {
        let folder = models::script();
        set(&folder.file("config.json"), "eos_token_id", &config);
        match &generation {
            Some(ids) => set(&folder.file("generation_config.json"), "eos_token_id", ids),
            None => std::fs::remove_file(folder.file("generation_config.json")).expect("it was there"),
        }
        let server = Serving::start(load(&folder.model(), ""));
        server.assert_all("x J", json!({"max_tokens": 9}), "hi", "stop", 2);
        server.assert_all("x B", json!({"max_tokens": 9}), GREEK, "stop", 4);
    }
    // No file but the tokenizer's own names one.
    let folder = models::script();
    set(&folder.file("config.json"), "eos_token_id", &Value::Null);
    std::fs::remove_file(folder.file("generation_config.json")).expect("it was there");
    let server = Serving::start(load(&folder.model(), ""));
    server.assert_all("x B", json!({"max_tokens": 9}), GREEK, "stop", 4);
}

fn set(file: &str, field: &str, value: &Value) {
    let mut json: Value = serde_json::from_slice(&std::fs::read(file).expect("there")).expect("JSON");
    json[field] = value.clone();
    std::fs::write(file, json.to_string()).expect("written");
}

#[test]
fn eos_list_ignore_eos_and_min_tokens() {
    let server = serve();
    server.assert_all("x B", json!({"ignore_eos": true, "max_tokens": 10}), GREEK, "length", 10);
    server.assert_all("x J", json!({"ignore_eos": true, "max_tokens": 5}), "hi", "length", 5);
    // Nothing ends before six tokens: neither the end token nor a stop string.
    for (text, reason, tokens) in
        server.four_forms("x B", &json!({"min_tokens": 6, "max_tokens": 20, "temperature": 0}))
    {
        assert!(text.starts_with(GREEK) && text.len() > GREEK.len(), "{text:?}");
        assert_eq!((reason.as_str(), tokens), ("stop", 7));
    }
    server.assert_all(
        "x B",
        json!({"ignore_eos": true, "stop": ["gamma"], "max_tokens": 10}),
        "alpha beta ",
        "stop",
        3,
    );
    server.assert_all("x B", json!({"stop_token_ids": [99], "max_tokens": 10}), GREEK, "stop", 4);
}
