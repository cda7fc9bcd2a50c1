//! Characters, stop strings and endings, streamed and whole.

use crate::support::{
    TestServer,
    client::{events, finishes, joined},
    engine::TEXT_A,
};

/// The same request in all four forms: (path, whole text, streamed text, finish reasons).
fn four_forms(server: &TestServer, prompt: &str, fields: &str) -> Vec<(String, String, Vec<String>)> {
    let whole_fields = fields.to_owned();
    let stream_fields = format!(r#"{fields},"stream":true"#);
    let mut forms = Vec::new();
    for chat in [false, true] {
        let send = |fields: &str| if chat { server.chat(prompt, fields) } else { server.complete(prompt, fields) };
        let whole = send(&whole_fields);
        assert_eq!(whole.status, 200, "{}", whole.text());
        let choice = &whole.json()["choices"][0];
        let text = if chat { &choice["message"]["content"] } else { &choice["text"] };
        let streamed = events(&send(&stream_fields));
        let mut reasons = finishes(&streamed, 0);
        assert_eq!(reasons.len(), 1, "one finish per choice");
        reasons.push(choice["finish_reason"].as_str().expect("a reason").to_owned());
        forms.push((text.as_str().expect("text").to_owned(), joined(&streamed, 0), reasons));
    }
    forms
}

fn assert_all(server: &TestServer, prompt: &str, fields: &str, text: &str, reason: &str) {
    for (whole, streamed, reasons) in four_forms(server, prompt, fields) {
        assert_eq!((whole.as_str(), streamed.as_str()), (text, text), "{prompt} {fields}");
        assert!(reasons.iter().all(|found| found == reason), "{prompt} {fields}: {reasons:?}");
    }
}

#[test]
fn utf8_split_across_sse_chunks() {
    let server = TestServer::start();
    assert_all(&server, "x A", r#","max_tokens":64"#, TEXT_A, "stop");
    let reply = server.complete("x A", r#","max_tokens":64,"stream":true"#);
    assert!(!reply.text().contains('\u{FFFD}'));
}

#[test]
fn stop_string_spanning_tokens() {
    let server = TestServer::start();
    assert_all(&server, "x B", r#","stop":["beta gamma"]"#, "alpha ", "stop");
    assert_all(&server, "x B", r#","stop":"mma""#, "alpha beta ga", "stop");
    assert_all(&server, "x B", r#","stop":["zzz","eta g"]"#, "alpha b", "stop");
    assert_all(&server, "x B", r#","stop":["alpha beta gamma delta"]"#, "", "stop");
    assert_all(&server, "x B", r#","stop":"mma","include_stop_str_in_output":true"#, "alpha beta gamma", "stop");
    // Found in the second of three tokens: two were generated.
    let usage = server.complete("x B", r#","stop":"eta g""#).json()["usage"].clone();
    assert_eq!(usage["completion_tokens"], 2);
    server.wait_idle();
}

#[test]
fn stop_string_ends_the_sequence_in_the_engine() {
    let server = TestServer::start();
    assert_all(&server, "x E", r#","stop":"tock","max_tokens":200"#, "tick ", "stop");
    server.wait_idle();
    assert!(server.engine.aborted() >= 1);
}

#[test]
fn empty_stop_string() {
    let server = TestServer::start();
    for stop in [r#""""#, r#"[""]"#, r#"["","gamma"]"#] {
        server.complete("x B", &format!(r#","max_tokens":8,"stop":{stop}"#)).assert_refused(400, "stop");
    }
    for stop in ["[]", "null"] {
        assert_all(&server, "x B", &format!(r#","stop":{stop}"#), "alpha beta gamma delta", "stop");
    }
}

#[test]
fn finish_reason_at_the_boundary() {
    let server = TestServer::start();
    for (prompt, max_tokens, reason, tokens) in [
        ("x B", 2, "length", 2),
        ("x B", 3, "length", 3),
        ("x B", 4, "stop", 4),
        ("x F", 1, "stop", 1),
        ("x F", 5, "stop", 1),
        ("x E", 7, "length", 7),
    ] {
        let fields = format!(r#","max_tokens":{max_tokens}"#);
        let json = server.complete(prompt, &fields).json();
        assert_eq!(json["choices"][0]["finish_reason"], reason, "{prompt} {max_tokens}");
        assert_eq!(json["usage"]["completion_tokens"], tokens, "{prompt} {max_tokens}");
        for (whole, streamed, reasons) in four_forms(&server, prompt, &fields) {
            assert_eq!(whole, streamed);
            assert!(reasons.iter().all(|found| found == reason));
        }
    }
}

#[test]
fn eos_list_second_id_stops_and_is_hidden() {
    let server = TestServer::start();
    assert_all(&server, "x J", "", "hi", "stop");
    assert_all(&server, "x J", r#","skip_special_tokens":false"#, "hi", "stop");
}

#[test]
fn eos_list_ignore_eos_and_min_tokens() {
    let server = TestServer::start();
    let json = server.complete("x B", r#","ignore_eos":true,"max_tokens":10"#).json();
    assert_eq!(
        (&json["choices"][0]["finish_reason"], &json["usage"]["completion_tokens"]),
        (&"length".into(), &10.into())
    );
    assert_all(&server, "x B", r#","min_tokens":6"#, "alpha beta gamma deltazzz", "stop");
    assert_all(&server, "x B", r#","ignore_eos":true,"max_tokens":10,"stop":["gamma"]"#, "alpha beta ", "stop");
    // With special tokens shown, one that did not end the answer is text.
    let fields = r#","ignore_eos":true,"max_tokens":4,"skip_special_tokens":false"#;
    assert_all(&server, "x B", fields, "alpha beta gamma delta<eos>", "length");
    server.complete("x B", r#","min_tokens":9,"max_tokens":8"#).assert_refused(400, "min_tokens");
}

#[test]
fn stop_token_ids_end_without_text() {
    let server = TestServer::start();
    assert_all(&server, "x B", r#","stop_token_ids":[260]"#, "alpha beta ga", "stop");
}

#[test]
fn max_completion_tokens() {
    let server = TestServer::start();
    let tokens = |fields: &str| server.chat("x E", fields).json()["usage"]["completion_tokens"].clone();
    assert_eq!(tokens(r#","max_completion_tokens":5"#), 5);
    assert_eq!(tokens(r#","max_completion_tokens":5,"max_tokens":5"#), 5);
    server.chat("x E", r#","max_completion_tokens":5,"max_tokens":9"#).assert_refused(400, "max_completion_tokens");
    // Without a limit: to the context's end on chat, 16 on completions.
    assert_eq!(tokens(""), 253);
    assert_eq!(server.complete("x E", "").json()["usage"]["completion_tokens"], 16);
    server.complete("x E", r#","max_completion_tokens":5"#).assert_refused(400, "max_completion_tokens");
}

#[test]
fn max_tokens_0_and_1() {
    let server = TestServer::start();
    for stream in [false, true] {
        let fields = format!(r#","max_tokens":0,"echo":true,"logprobs":1,"stream":{stream}"#);
        let reply = server.complete("x B", &fields);
        let (text, reason, logprobs) = if stream {
            let events = events(&reply);
            (joined(&events, 0), finishes(&events, 0).join(","), events[0]["choices"][0]["logprobs"].clone())
        } else {
            let choice = reply.json()["choices"][0].clone();
            assert_eq!(reply.json()["usage"]["completion_tokens"], 0);
            (
                choice["text"].as_str().expect("text").into(),
                choice["finish_reason"].as_str().expect("a reason").into(),
                choice["logprobs"].clone(),
            )
        };
        assert_eq!((text.as_str(), reason.as_str()), ("x B", "length"));
        assert_eq!(logprobs["tokens"], serde_json::json!(["x", " ", "B"]));
        assert_eq!(logprobs["token_logprobs"], serde_json::json!([null, -0.25, -0.25]));
        assert_eq!(logprobs["text_offset"], serde_json::json!([0, 1, 2]));
    }
    server.complete("x B", r#","max_tokens":0"#).assert_refused(400, "max_tokens");
    server.chat("x B", r#","max_tokens":0"#).assert_refused(400, "max_tokens");
    server.complete("x B", r#","max_tokens":-1"#).assert_refused(400, "max_tokens");
    assert_eq!(server.complete("x B", r#","max_tokens":1"#).json()["usage"]["completion_tokens"], 1);
    server.wait_idle();
    server.assert_alive();
}
