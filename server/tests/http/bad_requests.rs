//! Requests that must be refused, each naming its fault, with the server answering as before.

use crate::support::{MODEL, TestServer, client};

fn vocab(value: i64) -> i64 {
    i64::from(crate::support::frontend::VOCAB) + value
}

#[test]
fn malformed_body() {
    let server = TestServer::start();
    let nested = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let bodies: Vec<Vec<u8>> = [
        "",
        "{",
        "[]",
        "\"x\"",
        "7",
        "null",
        r#"{"prompt":"x"} x"#,
        "\u{feff}{\"prompt\":\"x\"}",
        &nested,
        r#"{"prompt":"a","prompt":"b"}"#,
        r#"{"prompt":"a","logit_bias":{"1":1,"1":2}}"#,
        r#"{'prompt':'a'}"#,
    ]
    .iter()
    .map(|body| body.as_bytes().to_vec())
    .chain([b"{\"prompt\":\"\xff\"}".to_vec()])
    .collect();
    for path in ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"] {
        for body in &bodies {
            let reply = client::request(server.address, "POST", path, &[("Content-Type", "application/json")], body);
            assert_eq!(reply.status, 400, "{}", String::from_utf8_lossy(body));
            assert!(!reply.error()["message"].as_str().unwrap_or("").contains("serde"));
        }
    }
    server.post("/v1/completions", &format!(r#"{{"model":"{MODEL}"}}"#)).assert_refused(400, "prompt");
    server.post("/v1/chat/completions", "{}").assert_refused(400, "messages");
    server.post("/v1/chat/completions", r#"{"messages":"hi"}"#).assert_refused(400, "messages");
    server.post("/v1/chat/completions", r#"{"messages":[]}"#).assert_refused(400, "messages");
    server.assert_alive();
}

#[test]
fn content_type() {
    let server = TestServer::start();
    let send = |kind: Option<&str>| {
        let headers: Vec<(&str, &str)> = kind.into_iter().map(|kind| ("Content-Type", kind)).collect();
        client::request(server.address, "POST", "/v1/completions", &headers, br#"{"prompt":"x B"}"#)
    };
    for kind in ["application/json; charset=utf-8", "APPLICATION/JSON", "application/json"] {
        assert_eq!(send(Some(kind)).status, 200, "{kind}");
    }
    for kind in [None, Some("text/plain"), Some("application/x-www-form-urlencoded"), Some("application/jsonx")] {
        let reply = send(kind);
        assert_eq!(reply.status, 415, "{kind:?}");
        reply.error();
    }
}

#[test]
fn unknown_and_unsupported_parameters() {
    let server = TestServer::start();
    let reply = server.complete("x B", r#","temprature":1"#);
    reply.assert_refused(400, "temprature");
    assert!(reply.error()["message"].as_str().is_some_and(|message| message.contains("'temperature'")));
    server.chat("x B", r#","nonsense_field":1"#).assert_refused(400, "nonsense_field");
    for (field, value) in [
        ("suffix", r#""return x""#),
        ("best_of", "4"),
        ("response_format", "7"),
        ("guided_decoding_backend", r#""x""#),
        ("ebnf", r#""x""#),
        ("use_beam_search", "true"),
    ] {
        server.complete("x B", &format!(r#","{field}":{value}"#)).assert_refused(400, field);
    }
    for (field, value) in [
        ("functions", "[]"),
        ("function_call", r#""auto""#),
        ("audio", "{}"),
        ("modalities", r#"["text","audio"]"#),
        ("reasoning_effort", r#""low""#),
        ("echo", "true"),
        ("prompt", r#""x""#),
    ] {
        server.chat("x B", &format!(r#","{field}":{value}"#)).assert_refused(400, field);
    }
    server.complete("x B", r#","n":2,"best_of":1"#).assert_refused(400, "best_of");
    // Neutral values and null change nothing, so they pass.
    let neutral =
        r#","suffix":null,"response_format":{"type":"text"},"use_beam_search":false,"best_of":1,"length_penalty":1.0"#;
    assert_eq!(server.complete("x B", neutral).status, 200);
    assert_eq!(server.chat("x B", r#","modalities":["text"],"echo":false,"audio":null"#).status, 200);
}

#[test]
fn nan_in_request() {
    let server = TestServer::start();
    let fields = ["temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"];
    for field in fields {
        for value in ["NaN", "Infinity", "-Infinity", "1e999", "\"NaN\"", "true", "[]"] {
            let reply = server.complete("x B", &format!(r#","{field}":{value}"#));
            assert_eq!(reply.status, 400, "{field} {value}");
            reply.error();
        }
    }
    for field in ["temperature", "min_p", "presence_penalty", "frequency_penalty"] {
        assert_eq!(server.complete("x B", &format!(r#","{field}":-0.0"#)).status, 200, "{field}");
    }
    server.assert_alive();
}

#[test]
fn huge_numbers() {
    let server = TestServer::start();
    let bad = [
        ("temperature", "2.01"),
        ("temperature", "999999"),
        ("temperature", "-0.01"),
        ("temperature", "2.00000001"),
        ("top_p", "0"),
        ("top_p", "1.01"),
        ("top_p", "-1"),
        ("top_p", "1e-60"),
        ("top_k", "-2"),
        ("top_k", "1.5"),
        ("min_p", "-0.1"),
        ("min_p", "1.1"),
        ("presence_penalty", "2.1"),
        ("presence_penalty", "-2.1"),
        ("frequency_penalty", "2.1"),
        ("repetition_penalty", "0"),
        ("repetition_penalty", "-1"),
        ("repetition_penalty", "1e30"),
        ("seed", "18446744073709551616"),
        ("seed", "1e19"),
        ("seed", "1.5"),
    ];
    for (field, value) in bad {
        server.complete("x B", &format!(r#","{field}":{value}"#)).assert_refused(400, field);
    }
    let good = [
        ("temperature", "2.0"),
        ("temperature", "0"),
        ("top_p", "1"),
        ("top_k", "-1"),
        ("top_k", "0"),
        ("top_k", "1000000000"),
        ("min_p", "1"),
        ("presence_penalty", "2"),
        ("presence_penalty", "-2"),
        ("seed", "-1"),
        ("seed", "9223372036854775808"),
        ("seed", "18446744073709551615"),
    ];
    for (field, value) in good {
        assert_eq!(server.complete("x B", &format!(r#","{field}":{value}"#)).status, 200, "{field} {value}");
    }
    assert!(server.engine.requests().iter().all(|request| request.sampling.top_k == 0));
}

#[test]
fn logit_bias_out_of_range() {
    let server = TestServer::start();
    let many: Vec<String> = (0..2000).map(|id| format!(r#""{id}":1"#)).collect();
    let bad = [
        format!(r#"{{"{}":5}}"#, vocab(0)),
        r#"{"-1":5}"#.into(),
        r#"{"999999999999":5}"#.into(),
        r#"{"1.5":1}"#.into(),
        r#"{"x":1}"#.into(),
        r#"{"":1}"#.into(),
        r#"{"+1":1}"#.into(),
        r#"{"1":101}"#.into(),
        r#"{"1":-101}"#.into(),
        r#"{"1":"a"}"#.into(),
        r#"{"1":1,"01":2}"#.into(),
        "[]".into(),
        format!("{{{}}}", many.join(",")),
    ];
    for value in bad {
        server.complete("x B", &format!(r#","logit_bias":{value}"#)).assert_refused(400, "logit_bias");
    }
    let last = vocab(-1);
    assert_eq!(server.complete("x B", &format!(r#","logit_bias":{{"{last}":100}},"max_tokens":2"#)).status, 200);
    assert_eq!(server.complete("x B", r#","logit_bias":{}"#).status, 200);
}

#[test]
fn stop_token_ids_out_of_range() {
    let server = TestServer::start();
    for field in ["stop_token_ids", "allowed_token_ids"] {
        for value in [format!("[{}]", vocab(0)), "[-1]".into(), "[4294967296]".into(), "[1.5]".into(), "[\"a\"]".into()]
        {
            for more in ["", r#","min_tokens":5"#] {
                server.complete("x B", &format!(r#","{field}":{value}{more}"#)).assert_refused(400, field);
            }
        }
    }
    assert_eq!(server.complete("x B", r#","stop_token_ids":[]"#).status, 200);
    server.complete("x B", r#","allowed_token_ids":[]"#).assert_refused(400, "allowed_token_ids");
    let many = vec!["1"; 257].join(",");
    server.complete("x B", &format!(r#","stop_token_ids":[{many}]"#)).assert_refused(400, "stop_token_ids");
}

#[test]
fn token_id_prompts_and_integer_overflow() {
    let server = TestServer::start();
    let send = |prompt: &str| server.post("/v1/completions", &format!(r#"{{"prompt":{prompt},"max_tokens":1}}"#));
    for prompt in [
        "[-1]",
        &format!("[{}]", vocab(0)),
        "[]",
        "[[]]",
        "[1.5]",
        r#"["a",1]"#,
        &format!("[[1],[{}]]", vocab(0)),
        "[4294967301]",
        "[18446744073709551621]",
        "[5279552648203111001]",
        "[1e20]",
        "[null]",
    ] {
        send(prompt).assert_refused(400, "prompt");
    }
    assert!(server.engine.requests().is_empty(), "a batch with one bad member is refused whole");
    assert_eq!(send(&format!("[{}]", vocab(-1))).status, 200);
    for value in ["2147483648", "9223372036854775807", "100000000000000000000", "1e20"] {
        let reply = server.complete("x B", &format!(r#","max_tokens":{value}"#));
        assert_eq!(reply.status, 400, "{value}");
    }
    server.complete("x B", r#","n":2147483647"#).assert_refused(400, "n");
    server.assert_alive();
}

#[test]
fn empty_prompt() {
    let server = TestServer::start();
    for prompt in [r#""""#, r#"[""]"#, r#"["","x B"]"#] {
        server.post("/v1/completions", &format!(r#"{{"prompt":{prompt}}}"#)).assert_refused(400, "prompt");
    }
    server.complete("", r#","echo":true"#).assert_refused(400, "prompt");
    server.chat("", "").assert_refused(400, "messages");
    server.assert_alive();
}

#[test]
fn unicode_normalisation_and_surrogates() {
    let server = TestServer::start();
    for half in [r"emoji \ud83d", r"x \ude00 y", r"\ud83d\ud83d"] {
        for stream in ["", r#","stream":true"#] {
            assert_eq!(server.complete(half, stream).status, 400, "{half}");
            assert_eq!(server.chat(half, stream).status, 400, "{half}");
        }
        assert_eq!(server.complete("x B", &format!(r#","stop":"{half}""#)).status, 400);
        server.complete("x B", &format!(r#","stop":"{half}""#)).error();
    }
    let echo =
        |text: &str| server.complete(text, r#","max_tokens":1,"echo":true"#).json()["choices"][0]["text"].clone();
    assert_eq!(echo(r"ok \ud83d\ude00"), "ok 😀?");
    // Composed and decomposed stay what they are.
    assert_eq!(echo("é"), "é?");
    assert_eq!(echo("e\u{301}"), "e\u{301}?");
}

#[test]
fn prompt_longer_than_context() {
    let server = TestServer::start();
    let long = "p".repeat(300);
    for stream in ["", r#","stream":true"#] {
        for (reply, numbers) in [
            (server.complete(&long, stream), ["256", "300"]),
            (server.chat(&long, stream), ["256", "300"]),
            (server.complete("12345678", &format!(r#","max_tokens":255{stream}"#)), ["256", "263"]),
            (server.chat("12345678", &format!(r#","max_tokens":255{stream}"#)), ["256", "263"]),
        ] {
            assert_eq!(reply.status, 400);
            let error = reply.error();
            assert_eq!(error["code"], "context_length_exceeded");
            let message = error["message"].as_str().expect("a message");
            assert!(numbers.iter().all(|number| message.contains(number)), "{message}");
        }
    }
    assert_eq!(server.complete(&"p".repeat(255), r#","max_tokens":1"#).status, 200);
    server.assert_alive();
}

#[test]
fn unbounded_work() {
    let server = TestServer::start();
    server.complete("x B", r#","n":100000"#).assert_refused(400, "n");
    server.complete("x B", r#","best_of":100000"#).assert_refused(400, "best_of");
    let stops = vec![r#""s""#; 100_000].join(",");
    server.complete("x B", &format!(r#","stop":[{stops}]"#)).assert_refused(400, "stop");
    let prompts = vec![r#""x B""#; 2000].join(",");
    server.post("/v1/completions", &format!(r#"{{"prompt":[{prompts}]}}"#)).assert_refused(400, "prompt");
    let prompts = vec![r#""x B""#; 100].join(",");
    server.post("/v1/completions", &format!(r#"{{"prompt":[{prompts}],"n":100}}"#)).assert_refused(400, "prompt");
    let long = "s".repeat(5000);
    server.complete("x B", &format!(r#","stop":"{long}""#)).assert_refused(400, "stop");
    server.complete("x B", &format!(r#","cache_salt":"{long}""#)).assert_refused(400, "cache_salt");
    server.assert_alive();
}

#[test]
fn bad_words() {
    let server = TestServer::start();
    for value in [r#"[""]"#, "[7]", r#""a""#, &format!("[{}]", vec![r#""a""#; 300].join(","))] {
        server.complete("x B", &format!(r#","bad_words":{value}"#)).assert_refused(400, "bad_words");
    }
    assert_eq!(server.complete("x B", r#","bad_words":["\u0007"," "]"#).status, 200);
}

#[test]
fn embeddings_and_other_paths_are_404_in_the_right_shape() {
    let server = TestServer::start();
    for path in ["/v1/embeddings", "/", "/v1", "/v1/models/", "/nothing?x=1", "/%2e%2e/etc/passwd"] {
        let reply = server.post(path, r#"{"input":"hello"}"#);
        assert_eq!(reply.status, 404, "{path}");
        assert_eq!(reply.error()["code"], "unknown_url");
    }
    for (method, path, allow) in [
        ("GET", "/v1/completions", "POST"),
        ("DELETE", "/v1/models", "GET, HEAD"),
        ("POST", "/health", "GET, HEAD"),
        ("OPTIONS", "/v1/chat/completions", "POST"),
        ("BREW", "/metrics", "GET, HEAD"),
    ] {
        let reply = client::request(server.address, method, path, &[], b"");
        assert_eq!(reply.status, 405, "{method} {path}");
        assert_eq!(reply.header("allow").as_deref(), Some(allow));
        reply.error();
    }
    let head = client::request(server.address, "HEAD", "/health", &[], b"");
    assert_eq!((head.status, head.body.len()), (200, 0));
}
