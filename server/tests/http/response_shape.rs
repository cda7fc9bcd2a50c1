//! Shapes of answers: chunks, choices, usage, log-probabilities, names and ids.

use serde_json::{Value, json};

use crate::support::{
    MODEL, TestServer,
    client::{self, events, finishes, joined},
    engine::CALL,
};

#[test]
fn role_chunk_shape() {
    let server = TestServer::start();
    for n in [1, 2] {
        let events = events(&server.chat("x B", &format!(r#","stream":true,"n":{n}"#)));
        for choice in 0..n {
            let own: Vec<&Value> = events
                .iter()
                .flat_map(|event| event["choices"].as_array().expect("choices"))
                .filter(|part| part["index"] == choice)
                .collect();
            assert_eq!(own[0]["delta"], json!({"role": "assistant", "content": ""}));
            assert!(own[1..].iter().all(|part| part["delta"].get("role").is_none()));
            assert_eq!(own.last().expect("chunks")["delta"], json!({}));
        }
        for key in ["id", "created", "model", "object"] {
            assert!(events.iter().all(|event| event[key] == events[0][key]), "{key}");
        }
        assert_eq!(events[0]["object"], "chat.completion.chunk");
        assert!(events.iter().all(|event| event.get("usage").is_none()));
    }
}

#[test]
fn n_greater_than_1() {
    let server = TestServer::start();
    for chat in [false, true] {
        let send = |fields: &str| if chat { server.chat("x B", fields) } else { server.complete("x B", fields) };
        let streamed = events(&send(r#","n":3,"stream":true,"max_tokens":8"#));
        for choice in 0..3 {
            assert_eq!(joined(&streamed, choice), "alpha beta gamma delta");
            assert_eq!(finishes(&streamed, choice), ["stop"]);
        }
        let whole = send(r#","n":3,"max_tokens":8"#).json();
        assert_eq!(whole["choices"].as_array().map(Vec::len), Some(3));
        assert_eq!(whole["usage"]["prompt_tokens"], 3);
        assert_eq!(whole["usage"]["completion_tokens"], 12);
    }
    // Without a seed the choices differ from each other and from the next request; with one, only from each other.
    let texts = |fields: &str| -> Vec<String> {
        let json = server.complete("x R", fields).json();
        let choices = json["choices"].as_array().expect("choices");
        choices.iter().map(|choice| choice["text"].as_str().expect("text").to_owned()).collect()
    };
    let free = texts(r#","n":3,"max_tokens":40"#);
    assert!(free[0] != free[1] && free[1] != free[2] && free[0] != free[2]);
    assert_ne!(free, texts(r#","n":3,"max_tokens":40"#));
    assert_eq!(texts(r#","n":3,"seed":7,"max_tokens":40"#), ["7-0", "7-1", "7-2"]);
    assert_eq!(texts(r#","seed":18446744073709551615,"max_tokens":40"#), ["18446744073709551615-0"]);
    server.complete("x R", r#","n":0"#).assert_refused(400, "n");
}

#[test]
fn prompt_lists() {
    let server = TestServer::start();
    let body = |prompt: &str, more: &str| format!(r#"{{"model":"{MODEL}","prompt":{prompt},"max_tokens":32{more}}}"#);
    let expected = ["x Balpha beta gamma delta", r#"x H{"a": [1, 2]}"#, "x F"];
    let prompt = r#"["x B","x H","x F"]"#;
    let whole = server.post("/v1/completions", &body(prompt, r#","n":2,"echo":true"#)).json();
    let streamed = events(&server.post("/v1/completions", &body(prompt, r#","n":2,"echo":true,"stream":true"#)));
    for index in 0..6 {
        let choice = &whole["choices"][index];
        assert_eq!(choice["index"], index);
        assert_eq!(choice["text"], expected[index / 2]);
        assert_eq!(joined(&streamed, index as u64), expected[index / 2]);
    }
    let ids = server.post("/v1/completions", &body("[[120,32,66],[120,32,72]]", "")).json();
    assert_eq!(ids["choices"][0]["text"], "alpha beta gamma delta");
    assert_eq!(ids["choices"][1]["text"], r#"{"a": [1, 2]}"#);
    let echo = server.post("/v1/completions", &body("[120,32,70]", r#","echo":true"#)).json();
    assert_eq!(echo["choices"][0]["text"], "x F");
    let long = format!(r#"["F","{}F"]"#, "y".repeat(199));
    assert_eq!(server.post("/v1/completions", &body(&long, "")).json()["usage"]["prompt_tokens"], 201);
    for bad in ["[]", "[[]]", r#"["a",1]"#, "[[1],\"a\"]", "{}", "[true]", "1"] {
        server.post("/v1/completions", &body(bad, "")).assert_refused(400, "prompt");
    }
}

#[test]
fn stream_options_include_usage() {
    let server = TestServer::start();
    for (chat, n, max_tokens) in [(false, 1, 9), (true, 1, 9), (false, 2, 2), (true, 2, 2)] {
        let send = |fields: &str| if chat { server.chat("x B", fields) } else { server.complete("x B", fields) };
        let common = format!(r#","n":{n},"max_tokens":{max_tokens},"cache_salt":"{chat}{n}""#);
        let mut streamed =
            events(&send(&format!(r#"{common},"stream":true,"stream_options":{{"include_usage":true}}"#)));
        let last = streamed.pop().expect("a usage chunk");
        assert_eq!(last["choices"], json!([]));
        assert_eq!(last["usage"], send(&common).json()["usage"]);
        for event in &streamed {
            assert!(event.get("usage").is_some_and(Value::is_null), "{event}");
        }
    }
    for fields in [r#","stream":true"#, r#","stream":true,"stream_options":{"include_usage":false}"#] {
        let streamed = events(&server.chat("x B", fields));
        assert!(streamed.iter().all(|event| !event["choices"].as_array().expect("choices").is_empty()));
    }
    server.chat("x B", r#","stream_options":{"include_usage":true}"#).assert_refused(400, "stream_options");
}

#[test]
fn usage_with_cached_tokens() {
    let server = TestServer::start();
    let prompt = "p".repeat(200) + "F";
    let cached = |prompt: &str, fields: &str| {
        let usage = server.complete(prompt, &format!(r#","max_tokens":1{fields}"#)).json()["usage"].clone();
        usage["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number")
    };
    assert_eq!(cached(&prompt, ""), 0);
    assert_eq!(cached(&prompt, ""), 192);
    assert_eq!(cached(&format!("{prompt}again"), ""), 192);
    // Salts are namespaces; no salt and an empty one differ.
    assert_eq!(cached(&prompt, r#","cache_salt":"s""#), 0);
    assert_eq!(cached(&prompt, r#","cache_salt":"s""#), 192);
    assert_eq!(cached(&prompt, r#","cache_salt":"""#), 0);
    // Later choices of one prompt find what the first one stored; that is no saving to report.
    assert_eq!(cached(&prompt, r#","cache_salt":"n","n":3"#), 0);
    let flushed = server.post("/flush_cache", "");
    assert_eq!(flushed.status, 200, "{}", flushed.text());
    assert_eq!(cached(&prompt, ""), 0);
}

#[test]
fn logprobs_shape_chat() {
    let server = TestServer::start();
    let content = |fields: &str| server.chat("x B", fields).json()["choices"][0]["logprobs"]["content"].clone();
    let plain = content(r#","logprobs":true"#);
    assert_eq!(plain.as_array().map(Vec::len), Some(3));
    assert_eq!(plain[0], json!({"token": "alpha b", "logprob": -0.25, "bytes": b"alpha b", "top_logprobs": []}));
    let three = content(r#","logprobs":true,"top_logprobs":3"#);
    assert_eq!(three[0]["top_logprobs"].as_array().map(Vec::len), Some(3));
    assert_eq!(three[0]["top_logprobs"][1]["logprob"], -9999.0);
    server.chat("x B", r#","top_logprobs":3"#).assert_refused(400, "top_logprobs");
    server.chat("x B", r#","logprobs":true,"top_logprobs":21"#).assert_refused(400, "top_logprobs");
    server.chat("x B", r#","logprobs":true,"top_logprobs":4294967297"#).assert_refused(400, "top_logprobs");
    server.chat("x B", r#","logprobs":2"#).assert_refused(400, "logprobs");
    assert!(server.chat("x B", "").json()["choices"][0]["logprobs"].is_null());
    // Also where text is held back for a stop string, the pieces join to the whole.
    for fields in [r#","logprobs":true,"top_logprobs":2"#, r#","logprobs":true,"top_logprobs":2,"stop":["delta!"]"#] {
        let streamed = events(&server.chat("x B", &format!(r#"{fields},"stream":true"#)));
        let parts = streamed.iter().flat_map(|event| event["choices"][0]["logprobs"]["content"].as_array().cloned());
        assert_eq!(Value::from(parts.flatten().collect::<Vec<Value>>()), content(fields));
    }
    let partial = server.chat("x A", r#","logprobs":true"#).json();
    assert_eq!(partial["choices"][0]["logprobs"]["content"][3]["token"], "bytes:\\xf0");
}

#[test]
fn logprobs_shape_completions() {
    let server = TestServer::start();
    for top in [0, 2] {
        let fields = format!(r#","logprobs":{top}"#);
        let whole = server.complete("x B", &fields).json()["choices"][0]["logprobs"].clone();
        let lists = ["tokens", "token_logprobs", "top_logprobs", "text_offset"];
        assert!(lists.iter().all(|list| whole[list].as_array().is_some_and(|list| list.len() == 3)), "{whole}");
        assert_eq!(whole["top_logprobs"][0]["alpha b"], -0.25);
        assert_eq!(whole["text_offset"], json!([0, 7, 13]));
        let streamed = events(&server.complete("x B", &format!(r#"{fields},"stream":true"#)));
        for list in lists {
            let parts = streamed.iter().flat_map(|event| event["choices"][0]["logprobs"][list].as_array().cloned());
            assert_eq!(Value::from(parts.flatten().collect::<Vec<Value>>()), whole[list]);
        }
    }
    server.complete("x B", r#","logprobs":true"#).assert_refused(400, "logprobs");
    server.complete("x B", r#","logprobs":21"#).assert_refused(400, "logprobs");
}

#[test]
fn logprobs_shape_infinities_are_finite_numbers() {
    let server = TestServer::start();
    let reply = server.complete("x B", r#","echo":true,"logprobs":5,"temperature":1,"top_k":1,"max_tokens":4"#);
    let logprobs = &reply.json()["choices"][0]["logprobs"];
    assert!(logprobs["token_logprobs"][0].is_null() && logprobs["top_logprobs"][0].is_null());
    assert!(logprobs["top_logprobs"][1].as_object().is_some_and(|top| top.values().any(|value| *value == -9999.0)));
    assert_eq!(logprobs["tokens"].as_array().map(Vec::len), Some(6));
    assert!(!reply.text().contains("NaN") && !reply.text().contains("Infinity"));
}

#[test]
fn prompt_logprobs_extension() {
    let server = TestServer::start();
    let json = server.complete("x B", r#","prompt_logprobs":1"#).json();
    let reports = json["choices"][0]["prompt_logprobs"].as_array().expect("a list").clone();
    assert_eq!(reports.len(), 3);
    assert!(reports[0].is_null());
    assert_eq!(reports[2]["66"], json!({"logprob": -0.25, "rank": 1, "decoded_token": "B"}));
    server.complete("x B", r#","prompt_logprobs":1,"stream":true"#).assert_refused(400, "prompt_logprobs");
    for bad in ["-1", "21", "49151"] {
        server.complete("x B", &format!(r#","prompt_logprobs":{bad}"#)).assert_refused(400, "prompt_logprobs");
    }
}

/// Every generated token has an id in the answer, whatever becomes of its text, and the prompt's come once.
#[test]
fn token_ids_of_prompts_and_answers() {
    let server = TestServer::start();
    let ids = |text: &str| text.bytes().map(u32::from).collect::<Vec<u32>>();
    let of = |value: &Value| -> Vec<u32> {
        let list = value.as_array().unwrap_or_else(|| panic!("{value}"));
        list.iter().map(|id| id.as_u64().expect("an id") as u32).collect()
    };
    let cases: [(&str, &str, Vec<u32>); 9] = [
        // An end-of-sequence id, one that is ignored, a stop token, and none.
        ("x B", r#","max_tokens":9"#, vec![258, 259, 260, 256]),
        ("x J", r#","max_tokens":9"#, [ids("hi"), vec![257]].concat()),
        ("x B", r#","max_tokens":5,"ignore_eos":true"#, vec![258, 259, 260, 256, 256]),
        ("x B", r#","stop_token_ids":[259]"#, vec![258, 259]),
        ("x B", r#","max_tokens":2"#, vec![258, 259]),
        // A stop string, most of whose text is never shown; the second is found in the last token.
        ("x B", r#","stop":"beta""#, vec![258, 259]),
        ("x B", r#","stop":"mma delta""#, vec![258, 259, 260]),
        // Text that is held back until its character is whole, and log-probabilities beside it.
        ("x A", r#","max_tokens":5"#, ids("ok \u{1f642}")[..5].to_vec()),
        ("x F", "", vec![256]),
    ];
    for (prompt, fields, wanted) in &cases {
        for (chat, n, more) in
            [(false, 1, ""), (true, 1, ""), (false, 2, r#","logprobs":1"#), (true, 2, r#","logprobs":true"#)]
        {
            let fields = format!(r#"{fields}{more},"n":{n},"return_token_ids":true"#);
            let send = |fields: &str| if chat { server.chat(prompt, fields) } else { server.complete(prompt, fields) };
            let whole = send(&fields).json();
            assert_eq!(whole["usage"]["completion_tokens"], n * wanted.len(), "{fields}");
            assert_eq!(whole.get("prompt_token_ids").map(of), chat.then(|| ids(prompt)), "{fields}");
            let streamed = events(&send(&format!(r#"{fields},"stream":true"#)));
            let told = streamed.iter().filter(|event| event.get("prompt_token_ids").is_some());
            assert_eq!(told.count(), usize::from(chat), "{fields}");
            if chat {
                assert_eq!(of(&streamed[0]["prompt_token_ids"]), ids(prompt));
            }
            for choice in 0..n {
                let part = &whole["choices"][choice];
                assert_eq!(&of(&part["token_ids"]), wanted, "{prompt}{fields}");
                assert_eq!(part.get("prompt_token_ids").map(of), (!chat).then(|| ids(prompt)));
                let own = streamed.iter().map(|event| &event["choices"][0]).filter(|part| part["index"] == choice);
                let own: Vec<&Value> = own.collect();
                let joined: Vec<u32> = own.iter().flat_map(|part| of(&part["token_ids"])).collect();
                assert_eq!(&joined, wanted, "{prompt}{fields} streamed");
                let (first, rest) = own.split_first().expect("chunks");
                assert_eq!(first.get("prompt_token_ids").map(of), (!chat).then(|| ids(prompt)), "{fields}");
                assert!(rest.iter().all(|part| part.get("prompt_token_ids").is_none()), "{fields}");
            }
        }
    }
    // An echo is text of the prompt, whose ids are told apart; of a scored prompt there is no more.
    for (max_tokens, wanted) in [(9, vec![258, 259, 260, 256]), (0, vec![])] {
        let fields = format!(r#","echo":true,"max_tokens":{max_tokens},"return_token_ids":true"#);
        let whole = server.complete("x B", &fields).json();
        let choice = &whole["choices"][0];
        assert_eq!((of(&choice["prompt_token_ids"]), of(&choice["token_ids"])), (ids("x B"), wanted.clone()));
        let streamed = events(&server.complete("x B", &format!(r#"{fields},"stream":true"#)));
        let parts = || streamed.iter().map(|event| &event["choices"][0]);
        assert_eq!(parts().flat_map(|part| of(&part["token_ids"])).collect::<Vec<u32>>(), wanted);
        let prompts: Vec<Vec<u32>> = parts().filter_map(|part| part.get("prompt_token_ids")).map(of).collect();
        assert_eq!(prompts, [ids("x B")]);
    }
    // Each choice of a list has its own prompt.
    let body = format!(r#"{{"model":"{MODEL}","prompt":["x F","y F"],"return_token_ids":true}}"#);
    let json = server.post("/v1/completions", &body).json();
    let prompts = [0, 1].map(|choice: usize| of(&json["choices"][choice]["prompt_token_ids"]));
    assert_eq!(prompts, [ids("x F"), ids("y F")]);
    // Tools that are not called, and those of a second call, count too.
    let tools =
        r#","tools":[{"type":"function","function":{"name":"f_one"}},{"type":"function","function":{"name":"f_two"}}]"#;
    let fields = format!(r#"{tools},"parallel_tool_calls":false,"return_token_ids":true"#);
    let json = server.chat("x D", &fields).json();
    assert_eq!(json["usage"]["completion_tokens"], of(&json["choices"][0]["token_ids"]).len());
    for off in ["", r#","return_token_ids":false"#, r#","return_token_ids":null"#] {
        for reply in [server.chat("x B", off), server.complete("x B", off)] {
            let text = reply.text();
            assert!(!text.contains("token_ids"), "{text}");
        }
    }
    for bad in ["1", r#""true""#, "[]"] {
        let fields = format!(r#","return_token_ids":{bad}"#);
        server.chat("x B", &fields).assert_refused(400, "return_token_ids");
        server.complete("x B", &fields).assert_refused(400, "return_token_ids");
    }
}

#[test]
fn model_name() {
    let server = TestServer::start();
    let models = server.get("/v1/models").json();
    assert_eq!(models["object"], "list");
    assert_eq!(models["data"][0]["id"], MODEL);
    assert_eq!(models["data"][0]["max_model_len"], 256);
    assert_eq!(server.get("/v1/models/a:b/c.d").json()["id"], MODEL);
    assert_eq!(server.get("/v1/models/a%3Ab%2Fc.d").json()["id"], MODEL);
    assert_eq!(server.get("/v1/models/nope").error()["code"], "model_not_found");
    for path in ["/v1/completions", "/v1/chat/completions", "/tokenize"] {
        let reply = server.post(path, r#"{"model":"nope","prompt":"x","messages":[{"role":"user","content":"x"}]}"#);
        reply.assert_refused(404, "model");
        assert_eq!(reply.error()["code"], "model_not_found");
    }
    assert_eq!(server.complete("x B", "").json()["model"], MODEL);
    assert_eq!(server.post("/v1/completions", r#"{"prompt":"x B"}"#).json()["model"], MODEL);
}

#[test]
fn duplicate_request_id() {
    let server = TestServer::start();
    let body = format!(r#"{{"model":"{MODEL}","prompt":"x E","max_tokens":60,"stream":true,"request_id":"same"}}"#);
    let headers = [("Content-Type", "application/json"), ("X-Request-Id", "same")];
    let address = server.address;
    let replies: Vec<_> = (0..2)
        .map(|_| {
            let body = body.clone();
            std::thread::spawn(move || client::request(address, "POST", "/v1/completions", &headers, body.as_bytes()))
        })
        .map(|thread| thread.join().expect("answered"))
        .collect();
    let ids: Vec<Value> = replies.iter().map(|reply| events(reply)[0]["id"].clone()).collect();
    assert_ne!(ids[0], ids[1]);
    assert!(replies.iter().all(|reply| reply.header("x-request-id").as_deref() == Some("same")));
    let long = "i".repeat(1000);
    let headers = [("Content-Type", "application/json"), ("X-Request-Id", long.as_str())];
    let reply = client::request(address, "POST", "/v1/completions", &headers, br#"{"prompt":"x B"}"#);
    assert_eq!(reply.header("x-request-id").map(|id| id.len()), Some(128));
    let huge = "i".repeat(1 << 20);
    let headers = [("Content-Type", "application/json"), ("X-Request-Id", huge.as_str())];
    let reply = client::request(address, "POST", "/v1/completions", &headers, br#"{"prompt":"x B"}"#);
    assert_eq!(reply.status, 431);
    let id = server.complete("x B", r#","request_id":"mine""#).header("x-request-id");
    assert_eq!(id.as_deref(), Some("mine"));
    server.assert_alive();
}

#[test]
fn generated_ids_are_unique_and_each_response_names_its_request() {
    let server = TestServer::start();
    let (first, second) = (server.complete("x B", ""), server.complete("x B", ""));
    assert_ne!(first.json()["id"], second.json()["id"]);
    assert_ne!(first.header("x-request-id"), second.header("x-request-id"));
    assert!(server.chat("x B", "").json()["id"].as_str().is_some_and(|id| id.starts_with("chatcmpl-")));
}

#[test]
fn tokenise_endpoints_agree_with_usage() {
    let server = TestServer::start();
    for text in ["", "a", " a", "🙂", "three hundred words"] {
        let body = format!(r#"{{"prompt":"{text}"}}"#);
        let tokenized = server.post("/tokenize", &body).json();
        assert_eq!(tokenized["count"], text.len());
        assert_eq!(tokenized["max_model_len"], 256);
        let back = server.post("/detokenize", &json!({"tokens": tokenized["tokens"]}).to_string());
        assert_eq!(back.json()["prompt"], text);
        if !text.is_empty() {
            let usage = server.complete(text, r#","max_tokens":1"#).json()["usage"].clone();
            assert_eq!(usage["prompt_tokens"], tokenized["count"]);
        }
    }
    let messages =
        r#"[{"role":"system","content":"s"},{"role":"user","content":"u"},{"role":"assistant","content":"a"}]"#;
    let tokenized = server.post("/tokenize", &format!(r#"{{"messages":{messages}}}"#)).json();
    let usage = server.post("/v1/chat/completions", &format!(r#"{{"messages":{messages},"max_tokens":1}}"#)).json();
    assert_eq!(usage["usage"]["prompt_tokens"], tokenized["count"]);
    for bad in ["[300]", "[-1]", "[4294967296]", "[1.5]", "\"a\""] {
        server.post("/detokenize", &format!(r#"{{"tokens":{bad}}}"#)).assert_refused(400, "tokens");
    }
    server.post("/tokenize", "{}").assert_refused(400, "prompt");
}

#[test]
fn generation_config_defaults_yield_to_the_request() {
    use tokenspeed_server::engine_setup::GenerationDefaults;
    let defaults = GenerationDefaults {
        temperature: Some(0.25),
        top_p: Some(0.5),
        top_k: Some(3),
        min_p: Some(0.125),
        repetition_penalty: Some(5.0),
    };
    let server = TestServer::with(crate::support::config(), defaults);
    server.complete("x B", "");
    server.complete("x B", r#","temperature":0,"top_p":1,"top_k":-1,"min_p":0,"repetition_penalty":1"#);
    let requests = server.engine.requests();
    let values = |index: usize| {
        let s = &requests[index].sampling;
        (s.temperature, s.top_p, s.top_k, s.min_p, s.repetition_penalty)
    };
    assert_eq!(values(0), (0.25, 0.5, 3, 0.125, 5.0));
    assert_eq!(values(1), (0.0, 1.0, 0, 0.0, 1.0));
}

#[test]
fn every_sampling_field_reaches_the_engine() {
    let server = TestServer::start();
    let fields = r#","temperature":0.5,"top_p":0.9,"top_k":7,"min_p":0.1,"repetition_penalty":1.5,
        "frequency_penalty":-2,"presence_penalty":2,"logit_bias":{"299":100,"5":-100},"seed":-1,"min_tokens":2,
        "max_tokens":9,"stop_token_ids":[299],"ignore_eos":true,"logprobs":2,"prompt_logprobs":3,
        "allowed_token_ids":[9,7,9],"bad_words":["ab"],"priority":-5,"cache_salt":"s","user":"u","metadata":{"a":"b"},
        "store":false,"service_tier":"auto""#;
    let reply = server.complete("x B", fields);
    assert_eq!(reply.status, 200, "{}", reply.text());
    let request = server.engine.requests().pop().expect("submitted");
    let s = request.sampling;
    assert_eq!((s.temperature, s.top_p, s.top_k, s.min_p, s.repetition_penalty), (0.5, 0.9, 7, 0.1, 1.5));
    assert_eq!((s.frequency_penalty, s.presence_penalty, s.seed), (-2.0, 2.0, u64::MAX));
    assert_eq!(s.logit_bias, [(5, -100.0), (299, 100.0)]);
    assert_eq!((s.min_tokens, s.max_tokens, s.stop_token_ids, s.ignore_eos), (2, 9, vec![299], true));
    assert_eq!((s.logprobs, s.prompt_logprobs, s.allowed_token_ids), (Some(2), Some(3), Some(vec![7, 9])));
    assert_eq!(s.bad_words, [vec![97, 98], vec![32, 97, 98]]);
    assert_eq!((request.priority, request.cache_salt.as_deref()), (-5, Some("s")));
}

#[test]
fn metrics_count_every_answer_once() {
    let server = TestServer::start();
    let mut usage = (0, 0);
    let mut note = |reply: &client::Reply| {
        let json = reply.json();
        usage.0 += json["usage"]["prompt_tokens"].as_u64().expect("a count");
        usage.1 += json["usage"]["completion_tokens"].as_u64().expect("a count");
    };
    (0..5).for_each(|_| note(&server.complete("x B", "")));
    (0..4).for_each(|_| note(&server.complete("x E", r#","max_tokens":3"#)));
    (0..3).for_each(|_| note(&server.complete("x B", r#","stop":"eta""#)));
    let tool = r#","tools":[{"type":"function","function":{"name":"get_weather"}}]"#;
    note(&server.chat("x C", tool));
    for _ in 0..2 {
        assert_eq!(server.complete("x B", r#","temperature":9"#).status, 400);
        assert_eq!(server.complete("x X", "").status, 500);
    }
    server.wait_idle();
    let page = server.get("/metrics").text();
    let value = |name: &str| -> f64 {
        let line = page.lines().find(|line| line.starts_with(&format!("{name} ")));
        line.and_then(|line| line.rsplit(' ').next())
            .and_then(|value| value.parse().ok())
            .unwrap_or_else(|| panic!("{name} in {page}"))
    };
    let finished = |reason: &str| value(&format!("tokenspeed_choices_finished_total{{reason=\"{reason}\"}}"));
    assert_eq!((finished("stop"), finished("length"), finished("tool_calls")), (8.0, 4.0, 1.0));
    assert_eq!((finished("abort"), finished("error")), (0.0, 2.0));
    // Failed answers count the tokens they had: three prompt tokens and three generated ones each.
    assert_eq!(value("tokenspeed_prompt_tokens_total"), (usage.0 + 6) as f64);
    assert_eq!(value("tokenspeed_generation_tokens_total"), (usage.1 + 6) as f64);
    assert_eq!(value("tokenspeed_request_seconds_count"), 15.0);
    assert_eq!(value("tokenspeed_requests_running"), 0.0);
    let route = r#"tokenspeed_http_responses_total{route="/v1/completions",status="400"}"#;
    assert_eq!(value(route), 2.0);
    assert!(CALL.len() > 16);
}
