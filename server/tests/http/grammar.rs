//! Answers that must have a form, made by a model of pure noise.

use std::{
    io::{Read, Write},
    path::PathBuf,
    sync::Arc,
    time::Instant,
};

use serde_json::{Value, json};
use tokenspeed_models::text::{Tokenizer, kimi};
use tokenspeed_server::text_frontend::{ModelFrontend, TextChoices};

use crate::support::{
    MODEL, Reply, TestServer,
    client::{connect, events, head, joined},
    frontend::ByteFrontend,
    noise,
    schema::fits,
};

/// So that strings, lists and answers come to an end.
const LIKELY: &[&str] = &["\"", "}", "]", ",", "0", "<"];

fn start() -> TestServer {
    noise::server(Arc::new(ByteFrontend), LIKELY, false)
}

fn chat(server: &TestServer, fields: Value) -> Reply {
    let mut body =
        json!({"model": MODEL, "messages": [{"role": "user", "content": "x"}], "temperature": 1.5, "max_tokens": 2000});
    for (key, value) in fields.as_object().expect("fields") {
        body[key] = value.clone();
    }
    server.post("/v1/chat/completions", &body.to_string())
}

fn schema_format(schema: &Value) -> Value {
    json!({"type": "json_schema", "json_schema": {"name": "x", "strict": true, "schema": schema}})
}

/// Content and finish reason.
fn content(reply: &Reply) -> (String, String) {
    assert_eq!(reply.status, 200, "{}", reply.text());
    let choice = &reply.json()["choices"][0];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    (text(&choice["message"]["content"]), text(&choice["finish_reason"]))
}

/// A whole answer fits; one that was cut off says so.
fn check(text: &str, finish: &str, schema: &Value) -> bool {
    if finish == "length" {
        return false;
    }
    assert_eq!(finish, "stop");
    let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert!(fits(&value, schema, schema), "{text} does not fit {schema}");
    true
}

fn case_76_schema() -> Value {
    json!({"$defs": {"C": {"type": "string", "enum": ["red", "grün", "a\"b"]}}, "type": "object", "properties": {
        "c": {"$ref": "#/$defs/C"},
        "d": {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/C"}, {"type": "null"}]}, "minItems": 2, "maxItems": 3},
        "e": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"}},
        "required": ["c", "d", "e"], "additionalProperties": false})
}

#[test]
fn case_76_enums_behind_references() {
    let server = start();
    let schema = case_76_schema();
    for seed in 0..20 {
        let (text, finish) = content(&chat(&server, json!({"response_format": schema_format(&schema), "seed": seed})));
        assert!(check(&text, &finish, &schema), "{text}");
    }
    let lost = json!({"$ref": "#/$defs/missing"});
    let reply = chat(&server, json!({"response_format": schema_format(&lost)}));
    reply.assert_refused(400, "response_format.json_schema.schema");
    assert!(reply.text().contains("/$ref: '#/$defs/missing' is not in the schema"), "{}", reply.text());
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

fn random_schema(rng: &mut Rng, depth: u64) -> Value {
    match rng.below(if depth == 0 { 6 } else { 9 }) {
        0 => json!({"type": "string", "minLength": rng.below(3), "maxLength": 3 + rng.below(8)}),
        1 => {
            let low = rng.below(2000) as i64 - 1000;
            json!({"type": "integer", "minimum": low, "maximum": low + rng.below(500) as i64})
        }
        2 => json!({"type": ["boolean", "null"]}),
        3 => json!({"enum": ["a", "b c", 7, null, {"k": [1]}]}),
        4 => json!({"const": {"x": "\u{1F642}\"\\"}}),
        5 => json!({"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 1000}),
        6 => {
            let low = rng.below(3);
            json!({"type": "array", "items": random_schema(rng, depth - 1), "minItems": low, "maxItems": low + rng.below(3)})
        }
        7 => json!({"anyOf": [random_schema(rng, depth - 1), random_schema(rng, depth - 1)]}),
        _ => {
            let mut properties = serde_json::Map::new();
            let mut required = Vec::new();
            for name in ["one", "two \"quoted\"", "drei-ü", "4"].iter().take(1 + rng.below(4) as usize) {
                properties.insert((*name).into(), random_schema(rng, depth - 1));
                if rng.below(2) == 0 {
                    required.push(*name);
                }
            }
            json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
        }
    }
}

/// Property: whatever the schema, an answer that ends by itself fits it; guesses, streaming and company change nothing.
#[test]
fn noise_fits_random_schemas_with_and_without_guesses() {
    let plain = start();
    let guessing = noise::server(Arc::new(ByteFrontend), LIKELY, true);
    let rng = &mut Rng(1);
    let mut whole = 0;
    for seed in 0..60 {
        let schema = random_schema(rng, 3);
        let fields = json!({"response_format": schema_format(&schema), "seed": seed, "max_tokens": 600});
        let first = content(&chat(&plain, fields.clone()));
        whole += u32::from(check(&first.0, &first.1, &schema));
        assert_eq!(content(&chat(&guessing, fields.clone())), first, "guesses change nothing, {schema}");
        let mut streaming = fields;
        streaming["stream"] = true.into();
        assert_eq!(joined(&events(&chat(&guessing, streaming)), 0), first.0);
    }
    assert!(whole > 50, "{whole} of 60 came to an end");
}

/// Public fault: draft tokens past the end of the grammar.
#[test]
fn case_79_guesses_and_grammar() {
    let schema = json!({"type": "array", "items": {"type": "array", "items": {"enum": [true, 0]}, "minItems": 6, "maxItems": 6},
        "minItems": 8, "maxItems": 20});
    let plain = start();
    let guessing = noise::server(Arc::new(ByteFrontend), LIKELY, true);
    for seed in 0..10 {
        let fields = json!({"response_format": schema_format(&schema), "seed": seed, "temperature": seed % 2});
        let alone = content(&chat(&plain, fields.clone()));
        assert!(check(&alone.0, &alone.1, &schema), "{alone:?}");
        assert_eq!(content(&chat(&guessing, fields)), alone);
    }
    let metrics = guessing.get("/metrics").text();
    assert!(metrics.contains("tokenspeed_generation_tokens_total"), "{metrics}");
    let accepted: u64 = {
        let ready = guessing.state.loaded().expect("loaded");
        ready.loaded.engine.metrics().accepted.iter().sum()
    };
    assert!(accepted > 20, "{accepted} guesses were right");
}

#[test]
fn cut_off_answers_say_so_and_others_are_not_touched() {
    let server = start();
    let object = json!({"type": "object", "properties": {"a": {"type": "string", "minLength": 50, "maxLength": 60}}, "required": ["a"]});
    let (text, finish) =
        content(&chat(&server, json!({"response_format": schema_format(&object), "max_tokens": 20, "seed": 1})));
    assert_eq!(finish, "length");
    assert!(text.trim_start().starts_with('{') && serde_json::from_str::<Value>(&text).is_err(), "{text}");
    // An unconstrained answer is the same beside constrained ones.
    let free = json!({"max_tokens": 300, "seed": 5});
    let alone = content(&chat(&server, free.clone()));
    let beside = std::thread::scope(|scope| {
        let constrained: Vec<_> = (0..3)
            .map(|seed| {
                let fields = json!({"response_format": schema_format(&case_76_schema()), "seed": seed});
                let server = &server;
                scope.spawn(move || content(&chat(server, fields)))
            })
            .collect();
        let beside = content(&chat(&server, free));
        for (seed, one) in constrained.into_iter().enumerate() {
            let (text, finish) = one.join().expect("answered");
            assert!(check(&text, &finish, &case_76_schema()), "{seed}: {text}");
        }
        beside
    });
    assert_eq!(beside, alone);
}

#[test]
fn a_client_that_leaves_ends_its_request() {
    let server = start();
    let schema = json!({"type": "array", "items": {"type": "string"}, "minItems": 1000});
    let body = json!({"model": MODEL, "messages": [{"role": "user", "content": "x"}], "stream": true,
        "response_format": schema_format(&schema), "max_tokens": 4000});
    let mut socket = connect(server.address);
    let head = head("POST", "/v1/chat/completions", &[("content-type", "application/json")], body.to_string().len());
    socket.write_all(head.as_bytes()).and_then(|()| socket.write_all(body.to_string().as_bytes())).expect("sent");
    // The answer has begun.
    assert!(socket.read(&mut [0; 100]).expect("read") > 0);
    drop(socket);
    for _ in 0..400 {
        let ready = server.state.loaded().expect("loaded");
        let metrics = ready.loaded.engine.metrics();
        if metrics.running + metrics.waiting == 0 && server.state.active() == 0 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("still running");
}

/// Public fault: grammar compile errors took the server down, or were not named.
#[test]
fn case_74_bad_schemas_are_refused_by_place() {
    let server = start();
    for (schema, place) in [
        (json!({"type": "object", "properties": {"foo": "bar"}}), "/properties/foo"),
        (json!({"type": "int"}), "/type"),
        (json!({"enum": []}), "/enum"),
        (json!({"required": "a"}), "/required"),
        (json!({"type": "string", "pattern": "("}), ""),
        (json!({"items": {"minItems": -1}}), "/items/minItems"),
        (json!({"anyOf": [{"type": "string"}, 7]}), "/anyOf/1"),
        (json!({"x-guidance": {"lenient": true}}), "/x-guidance"),
        (json!({"$ref": "https://example.com/schema"}), "/$ref"),
        (json!(false), ""),
    ] {
        let reply = chat(&server, json!({"response_format": schema_format(&schema)}));
        reply.assert_refused(400, "response_format.json_schema.schema");
        assert!(reply.text().contains(place), "{schema}: {}", reply.text());
    }
    for bad in [json!(7), json!("x"), Value::Null] {
        let reply = chat(&server, json!({"response_format": schema_format(&bad)}));
        reply.assert_refused(400, "response_format.json_schema.schema");
    }
    let none = json!({"type": "json_schema", "json_schema": {"name": "x"}});
    chat(&server, json!({"response_format": none})).assert_refused(400, "response_format.json_schema.schema");
    let large = json!({"type": "integer", "minimum": 19_999_999_990u64, "maximum": 20_000_000_000u64});
    for schema in [large, json!({"type": "integer", "minimum": 3, "maximum": 5})] {
        let (text, finish) = content(&chat(&server, json!({"response_format": schema_format(&schema), "seed": 1})));
        assert!(check(&text, &finish, &schema));
    }
}

/// Public fault: what could not be turned into a grammar was dropped without a word.
#[test]
fn case_75_unsupported_keywords_are_named() {
    let server = start();
    let object = |extra: Value| {
        let mut schema = json!({"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["a"]});
        schema.as_object_mut().expect("an object").extend(extra.as_object().expect("one").clone());
        schema
    };
    for (schema, word) in [
        (object(json!({"not": {"required": ["b"]}})), "not"),
        (object(json!({"if": {"required": ["b"]}, "then": {"required": ["c"]}})), "then"),
        (object(json!({"propertyNames": {"maxLength": 3}})), "propertyNames"),
        (json!({"type": "array", "items": {"type": "integer"}, "uniqueItems": true}), "uniqueItems"),
        (json!({"type": "string", "pattern": "^(?!a)b$"}), "look"),
        (json!({"type": "string", "format": "no-such-format"}), "no-such-format"),
    ] {
        let reply = chat(&server, json!({"response_format": schema_format(&schema)}));
        reply.assert_refused(400, "response_format.json_schema.schema");
        assert!(reply.text().contains(word), "{schema}: {}", reply.text());
    }
    let closed = json!({"additionalProperties": false});
    for schema in [
        json!({"allOf": [object(closed.clone()), {"type": "object", "required": ["a"]}]}),
        json!({"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 100}),
        json!({"type": "string", "pattern": "\\d", "maxLength": 20}),
    ] {
        for seed in 0..5 {
            let fields = json!({"response_format": schema_format(&schema), "seed": seed, "temperature": 1.2});
            let (text, finish) = content(&chat(&server, fields));
            check(&text, &finish, &schema);
        }
    }
}

/// Public fault: compiling without limits blocked every client.
#[test]
fn case_58_expensive_grammars_do_not_stop_the_others() {
    let server = start();
    let mut nested = json!({"type": "string"});
    for _ in 0..55 {
        nested = json!({"type": "object", "properties": {"a": nested}});
    }
    let text = |pattern: &str| json!({"type": "string", "pattern": pattern});
    let words: Vec<String> = (0..50_000).map(|n| format!("word {n}")).collect();
    let many: Vec<String> = words[..5000].to_vec();
    let itself = json!({"$ref": "#"});
    let tree = json!({"type": "object", "properties": {"child": {"$ref": "#"}}, "additionalProperties": false});
    for (name, schema) in [
        ("nested", nested),
        ("itself", itself),
        ("tree", tree),
        ("states", text("^[ab]*a[ab]{20}$")),
        ("count", text("^a{1000000000}$")),
        ("brackets", text(&"(".repeat(10_000))),
        ("look-behind", text("^(?<=x)*$")),
        ("words", json!({"enum": words})),
        ("fewer words", json!({"enum": many})),
        ("items", json!({"type": "array", "minItems": 1_000_000_000u64})),
        ("length", json!({"type": "string", "maxLength": 100_000})),
    ] {
        let start = Instant::now();
        let reply = std::thread::scope(|scope| {
            let hostile =
                scope.spawn(|| chat(&server, json!({"response_format": schema_format(&schema), "max_tokens": 20})));
            assert_eq!(content(&chat(&server, json!({"max_tokens": 5, "seed": 1}))).1, "length");
            hostile.join().expect("answered")
        });
        assert!(reply.status == 200 || reply.status == 400, "{name}: {}", reply.text());
        println!("{name}: {} after {} ms", reply.status, start.elapsed().as_millis());
    }
}

/// Public fault: endless blanks until the tokens ran out.
#[test]
fn case_78_blanks_are_bounded() {
    let server = start();
    let bias = json!({"32": 100, "10": 100});
    for format in [json!({"type": "json_object"}), schema_format(&case_76_schema())] {
        let fields = json!({"response_format": format, "logit_bias": bias, "max_tokens": 1500, "seed": 3});
        let (text, finish) = content(&chat(&server, fields));
        let outside = text.split('"').step_by(2);
        let longest = outside.flat_map(|part| part.split(|c: char| !c.is_whitespace())).map(str::len).max();
        assert!(longest.is_some_and(|blanks| blanks <= 24), "{text:?}");
        assert!(finish == "length" || serde_json::from_str::<Value>(&text).is_ok() && !text.ends_with([' ', '\n']));
    }
}

#[test]
fn other_forms_and_their_fields() {
    let server = start();
    let complete = |fields: Value| {
        let mut body = json!({"model": MODEL, "prompt": "x", "max_tokens": 500, "temperature": 1.0, "seed": 4});
        for (key, value) in fields.as_object().expect("fields") {
            body[key] = value.clone();
        }
        server.post("/v1/completions", &body.to_string())
    };
    let text = |reply: Reply| {
        assert_eq!(reply.status, 200, "{}", reply.text());
        assert_eq!(reply.json()["choices"][0]["finish_reason"], "stop", "{}", reply.text());
        reply.json()["choices"][0]["text"].as_str().expect("text").to_owned()
    };
    for fields in [json!({"structured_outputs": {"regex": "^(ab|cd){3}/$"}}), json!({"guided_regex": "(ab|cd){3}/"})] {
        let text = text(complete(fields));
        assert!(
            text.len() == 7 && text.ends_with('/') && text.as_bytes()[..6].chunks(2).all(|p| p == b"ab" || p == b"cd")
        );
    }
    for fields in [
        json!({"structured_outputs": {"choice": ["ja", "nein \"n\""]}}),
        json!({"guided_choice": ["ja", "nein \"n\""]}),
    ] {
        assert!(["ja", "nein \"n\""].contains(&text(complete(fields)).as_str()));
    }
    let lark = "start: \"(\" word (\",\" word)* \")\"\nword: /[a-c]{1,3}/";
    for fields in [json!({"structured_outputs": {"grammar": lark}}), json!({"guided_grammar": lark})] {
        let text = text(complete(fields));
        assert!(text.starts_with('(') && text.ends_with(')') && text.chars().all(|c| "(),abc".contains(c)), "{text}");
    }
    let schema = json!({"type": "array", "items": {"type": "boolean"}, "maxItems": 3});
    for fields in [
        json!({"structured_outputs": {"json": schema}}),
        json!({"guided_json": schema}),
        json!({"guided_json": schema.to_string()}),
        json!({"response_format": schema_format(&schema)}),
    ] {
        check(&text(complete(fields)), "stop", &schema);
    }
    for (fields, param) in [
        (json!({"structured_outputs": {}}), "structured_outputs"),
        (json!({"structured_outputs": {"structural_tag": "x"}}), "structured_outputs.structural_tag"),
        (json!({"structured_outputs": {"choice": []}}), "structured_outputs.choice"),
        (json!({"guided_json": "{"}), "guided_json"),
        (json!({"guided_json": {}, "guided_regex": "a"}), "guided_regex"),
        (json!({"guided_regex": "(("}), "guided_regex"),
        (json!({"guided_grammar": "start: nobody"}), "guided_grammar"),
        (json!({"guided_json": {}, "ignore_eos": true}), "ignore_eos"),
        (json!({"guided_whitespace_pattern": " "}), "guided_whitespace_pattern"),
    ] {
        complete(fields).assert_refused(400, param);
    }
}

/// Log-probabilities are those of the model, not of what the mask left over.
#[test]
fn log_probabilities_are_the_models_own() {
    let server = start();
    let fields =
        json!({"structured_outputs": {"choice": ["ab"]}, "logprobs": true, "top_logprobs": 5, "temperature": 0});
    let reply = chat(&server, fields).json();
    let tokens = reply["choices"][0]["logprobs"]["content"].as_array().expect("a list").clone();
    assert_eq!(tokens.len(), 2);
    for (token, chosen) in tokens.iter().zip(["a", "b"]) {
        assert_eq!(token["token"], chosen);
        assert!(token["logprob"].as_f64().expect("a number") < -1.0, "one of 300: {token}");
        let top = token["top_logprobs"].as_array().expect("a list");
        assert!(
            top.iter().any(|other| other["token"] != chosen && other["logprob"].as_f64().expect("a number") > -20.0)
        );
    }
}

fn tools() -> Value {
    json!([
        {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {
            "city": {"type": "string", "maxLength": 12}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["city", "days"], "additionalProperties": false}}},
        {"type": "function", "function": {"name": "note", "parameters": {"type": "object", "properties": {
            "text": {"type": "string", "description": "what"}, "kind": {"type": "string", "enum": ["a & b", "c"]},
            "flags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}}, "required": ["text", "flags"],
            "additionalProperties": false}}},
        {"type": "function", "function": {"name": "stop_now"}}
    ])
}

/// (name, arguments) of the calls, each checked against its schema.
fn calls(reply: &Reply) -> Vec<(String, Value)> {
    assert_eq!(reply.status, 200, "{}", reply.text());
    let choice = &reply.json()["choices"][0];
    if choice["finish_reason"] == "length" {
        return Vec::new();
    }
    assert_eq!(choice["finish_reason"], "tool_calls", "{}", reply.text());
    let list = choice["message"]["tool_calls"].as_array().expect("calls").clone();
    list.iter()
        .map(|call| {
            let name = call["function"]["name"].as_str().expect("a name").to_owned();
            let text = call["function"]["arguments"].as_str().expect("text");
            let arguments: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
            let tools = tools();
            let tool = tools.as_array().expect("a list").iter().find(|tool| tool["function"]["name"] == name.as_str());
            match tool.expect("a known tool")["function"].get("parameters") {
                Some(schema) => assert!(fits(&arguments, schema, schema), "{text}"),
                None => assert_eq!(arguments, json!({})),
            }
            (name, arguments)
        })
        .collect()
}

/// Public fault: forced choices were accepted and not enforced.
#[test]
fn case_21_forced_calls_are_made() {
    let server = start();
    let named = json!({"type": "function", "function": {"name": "get_weather"}});
    let mut made = 0;
    for seed in 0..8 {
        let required = json!({"tools": tools(), "tool_choice": "required", "seed": seed});
        made += usize::from(!calls(&chat(&server, required.clone())).is_empty());
        let single = calls(&chat(
            &server,
            json!({"tools": tools(), "tool_choice": "required", "seed": seed, "parallel_tool_calls": false}),
        ));
        assert!(single.len() <= 1);
        let one = calls(&chat(&server, json!({"tools": tools(), "tool_choice": named, "seed": seed})));
        assert!(one.len() <= 1 && one.iter().all(|(name, _)| name == "get_weather"), "{one:?}");
        made += one.len();
        let mut streaming = required;
        streaming["stream"] = true.into();
        let streamed = events(&chat(&server, streaming));
        let finish = streamed.iter().filter_map(|event| event["choices"][0]["finish_reason"].as_str()).next_back();
        assert!(matches!(finish, Some("tool_calls" | "length")), "{finish:?}");
    }
    assert!(made >= 12, "{made} of 16 came to an end");
    // Text of a form or a call: either is whole.
    let form = json!({"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": false});
    for seed in 0..8 {
        let reply = chat(&server, json!({"tools": tools(), "response_format": schema_format(&form), "seed": seed}));
        let choice = &reply.json()["choices"][0];
        match choice["finish_reason"].as_str() {
            Some("stop") => drop(check(choice["message"]["content"].as_str().expect("text"), "stop", &form)),
            Some("tool_calls") => drop(calls(&reply)),
            other => assert_eq!(other, Some("length"), "{}", reply.text()),
        }
    }
    let bad = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": 5}}}}]);
    let reply = chat(&server, json!({"tools": bad, "tool_choice": "required"}));
    reply.assert_refused(400, "tool_choice");
    assert!(reply.text().contains("parameters of tool 'f': /properties/a"), "{}", reply.text());
}

struct KimiNoise {
    server: TestServer,
    folder: PathBuf,
}

impl Drop for KimiNoise {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Kimi K3's channels over a made-up tokenizer in its published layout.
fn start_kimi(name: &str) -> KimiNoise {
    let folder = std::env::temp_dir().join(format!("tokenspeed-http-grammar-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let ids = kimi::tiny_tokenizer(&folder, 512, 3).expect("written");
    let tokenizer = Arc::new(Tokenizer::from_folder(&folder).expect("read"));
    let frontend = ModelFrontend::new(tokenizer, vec![ids.eos], TextChoices::default()).expect("a frontend");
    let likely = ["\"", "}", "]", ",", "0", "<|close|>"];
    KimiNoise { server: noise::server(Arc::new(frontend), &likely, true), folder }
}

#[test]
fn kimi_k3_answers_and_calls_are_enforced_in_its_channels() {
    let kimi = start_kimi("channels");
    let schema = case_76_schema();
    let (mut answers, mut made) = (0, 0);
    for seed in 0..6 {
        for thinking in [true, false] {
            let form = json!({"response_format": schema_format(&schema), "seed": seed, "thinking": thinking});
            let (text, finish) = content(&chat(&kimi.server, form));
            answers += usize::from(check(&text, &finish, &schema));
            let forced = json!({"tools": tools(), "tool_choice": "required", "seed": seed, "thinking": thinking});
            let single = json!({"parallel_tool_calls": false});
            let mut one = forced.clone();
            one.as_object_mut().expect("fields").extend(single.as_object().expect("fields").clone());
            made += usize::from(!calls(&chat(&kimi.server, forced)).is_empty());
            assert!(calls(&chat(&kimi.server, one)).len() <= 1);
        }
    }
    assert!(answers >= 8 && made >= 6, "{answers} answers and {made} calls came to an end");
    // A schema that argument elements cannot express is one JSON object.
    let tree = json!([{"type": "function", "function": {"name": "get_weather", "parameters": {
        "$defs": {"n": {"type": "integer", "minimum": 1, "maximum": 9}}, "type": "object", "properties": {
            "city": {"type": "string", "maxLength": 12}, "days": {"$ref": "#/$defs/n"}},
        "required": ["city", "days"], "additionalProperties": false}}}]);
    for seed in 0..4 {
        calls(&chat(&kimi.server, json!({"tools": tree, "tool_choice": "required", "seed": seed})));
    }
}
