//! Tools, tool choice, and the history that clients replay.

use serde_json::{Value, json};

use crate::support::{
    MODEL, Reply, TestServer,
    client::{events, finishes, joined},
    engine::{CALL, TWO_CALLS},
};

const WEATHER: &str = r#","tools":[{"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{"city":{"type":"string"}}}}}]"#;
const TWO: &str =
    r#","tools":[{"type":"function","function":{"name":"f_one"}},{"type":"function","function":{"name":"f_two"}}]"#;

/// (id, name, arguments) of each call, joined by index; checks that only first pieces have id, type and name.
fn streamed_calls(events: &[Value]) -> Vec<(String, String, String)> {
    let mut calls: Vec<(String, String, String)> = Vec::new();
    for event in events {
        for piece in event["choices"][0]["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let index = piece["index"].as_u64().expect("an index") as usize;
            let arguments = piece["function"]["arguments"].as_str().expect("a string");
            if index == calls.len() {
                assert_eq!(piece["type"], "function");
                let text = |value: &Value| value.as_str().expect("a string").to_owned();
                calls.push((text(&piece["id"]), text(&piece["function"]["name"]), arguments.to_owned()));
            } else {
                assert!(piece.get("id").is_none() && piece.get("type").is_none());
                assert!(piece["function"].get("name").is_none());
                calls[index].2.push_str(arguments);
            }
        }
    }
    calls
}

fn whole_calls(reply: &Reply) -> Vec<(String, String, String)> {
    let json = reply.json();
    let calls = json["choices"][0]["message"]["tool_calls"].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().expect("a string").to_owned();
    calls
        .iter()
        .map(|call| {
            assert_eq!(call["type"], "function");
            (text(&call["id"]), text(&call["function"]["name"]), text(&call["function"]["arguments"]))
        })
        .collect()
}

#[test]
fn parallel_tool_calls_index_and_parameterless_tools() {
    let server = TestServer::start();
    let streamed = events(&server.chat("x D", &format!(r#"{TWO},"stream":true"#)));
    let calls = streamed_calls(&streamed);
    assert_eq!(calls, whole_calls(&server.chat("x D", TWO)));
    assert_eq!(calls.len(), 2);
    assert_ne!(calls[0].0, calls[1].0);
    assert_eq!((calls[0].1.as_str(), calls[1].1.as_str()), ("f_one", "f_two"));
    assert_eq!(serde_json::from_str::<Value>(&calls[0].2).expect("JSON"), json!({"x": 1}));
    assert_eq!(calls[1].2, "{}");
    assert_eq!(finishes(&streamed, 0), ["tool_calls"]);
    // `parallel_tool_calls: false` ends before the second call.
    let one = server.chat("x D", &format!(r#"{TWO},"parallel_tool_calls":false"#));
    assert_eq!(whole_calls(&one).len(), 1);
    assert_eq!(one.json()["choices"][0]["finish_reason"], "tool_calls");
    let one = events(&server.chat("x D", &format!(r#"{TWO},"parallel_tool_calls":false,"stream":true"#)));
    assert_eq!(streamed_calls(&one).len(), 1);
}

#[test]
fn tool_arguments_type_and_stop_string_leaking() {
    let server = TestServer::start();
    let stop = r#","stop":["a stop string of forty-odd characters ......"]"#;
    let reply = server.chat("x C", &format!("{WEATHER}{stop}"));
    let calls = whole_calls(&reply);
    assert_eq!(serde_json::from_str::<Value>(&calls[0].2).expect("JSON"), json!({"city": "Par\"is"}));
    assert!(reply.json()["choices"][0]["message"]["content"].is_null());
    let streamed = events(&server.chat("x C", &format!(r#"{WEATHER}{stop},"stream":true"#)));
    assert_eq!(streamed_calls(&streamed), calls);
    assert_eq!(joined(&streamed, 0), "");
}

#[test]
fn tool_choice_is_never_ignored() {
    let server = TestServer::start();
    // (a) none: no calls, the tools are not in the prompt.
    let none = server.chat("x C", &format!(r#"{WEATHER},"tool_choice":"none""#)).json();
    assert!(none["choices"][0]["message"].get("tool_calls").is_none());
    assert_eq!(none["choices"][0]["finish_reason"], "stop");
    assert_eq!(none["choices"][0]["message"]["content"], CALL);
    assert_eq!(none["usage"]["prompt_tokens"], 3);
    // (b) forcing reaches the engine; that it is obeyed is tested with an engine that would not call by itself.
    let named = r#""tool_choice":{"type":"function","function":{"name":"get_weather"}}"#;
    for choice in [r#""tool_choice":"required""#, named] {
        let forced = server.chat("x C", &format!("{WEATHER},{choice}")).json();
        assert_eq!(forced["choices"][0]["finish_reason"], "tool_calls");
        assert!(server.engine.requests().last().expect("one").constraint.is_some());
    }
    // (c) none without tools is fine.
    assert_eq!(server.chat("x B", r#","tool_choice":"none""#).status, 200);
    // (d), (e) wrong.
    let unknown = r#","tool_choice":{"type":"function","function":{"name":"other"}}"#;
    server.chat("x B", &format!("{WEATHER}{unknown}")).assert_refused(400, "tool_choice");
    server.chat("x B", r#","tool_choice":"required""#).assert_refused(400, "tool_choice");
    server.chat("x B", &format!(r#"{WEATHER},"tool_choice":"sometimes""#)).assert_refused(400, "tool_choice");
    // auto is the default with tools.
    let auto = server.chat("x C", &format!(r#"{WEATHER},"tool_choice":"auto""#)).json();
    assert_eq!(auto["choices"][0]["finish_reason"], "tool_calls");
}

#[test]
fn without_tools_markup_is_text() {
    let server = TestServer::start();
    assert_eq!(server.chat("x D", "").json()["choices"][0]["message"]["content"], TWO_CALLS);
}

#[test]
fn tools_are_validated() {
    let server = TestServer::start();
    for (tools, path) in [
        (r#"[{"type":"web"}]"#, "tools[0].type"),
        (r#"[{"type":"function"}]"#, "tools[0].function"),
        (r#"[{"type":"function","function":{"name":""}}]"#, "tools[0].function.name"),
        (r#"[{"type":"function","function":{"name":"f","parameters":7}}]"#, "tools[0].function.parameters"),
        (r#"[{"type":"function","function":{"name":"f","strict":true}}]"#, "tools[0].function.strict"),
        (
            r#"[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"f"}}]"#,
            "tools[1].function.name",
        ),
    ] {
        server.chat("x B", &format!(r#","tools":{tools}"#)).assert_refused(400, path);
    }
    server.chat("x B", r#","tools":{}"#).assert_refused(400, "tools");
}

#[test]
fn empty_content_and_tool_calls_null() {
    let server = TestServer::start();
    let prompt_tokens = |assistant: &str| {
        let body = format!(
            r#"{{"model":"{MODEL}","max_tokens":8,"messages":[{{"role":"user","content":"q"}},{assistant},{{"role":"tool","tool_call_id":"call_1","content":"42"}},{{"role":"user","content":"x B"}}]}}"#
        );
        let reply = server.post("/v1/chat/completions", &body);
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.json()["usage"]["prompt_tokens"].as_u64()
    };
    let calls = r#""tool_calls":[{"id":"call_1","type":"function","function":{"name":"f","arguments":"{}"}}]"#;
    let null = prompt_tokens(&format!(r#"{{"role":"assistant","content":null,{calls}}}"#));
    assert_eq!(null, Some("q{}42x B".len() as u64));
    assert_eq!(prompt_tokens(&format!(r#"{{"role":"assistant",{calls}}}"#)), null);
    assert_eq!(prompt_tokens(&format!(r#"{{"role":"assistant","content":"",{calls}}}"#)), null);
    // What this server sent comes back in whole.
    let extra = r#""refusal":null,"audio":null,"function_call":null,"annotations":[]"#;
    assert_eq!(prompt_tokens(&format!(r#"{{"role":"assistant","content":null,{extra},{calls}}}"#)), null);
    assert_eq!(prompt_tokens(r#"{"role":"assistant","content":"ok","tool_calls":null}"#), Some(8));
}

#[test]
fn content_parts_list() {
    let server = TestServer::start();
    let send = |content: &str| {
        let body = format!(r#"{{"messages":[{{"role":"user","content":{content}}}],"max_tokens":8}}"#);
        server.post("/v1/chat/completions", &body)
    };
    let parts = send(r#"[{"type":"text","text":"x "},{"type":"text","text":"B"}]"#).json();
    assert_eq!(parts["usage"], server.chat("x B", r#","max_tokens":8"#).json()["usage"]);
    assert_eq!(parts["choices"][0]["message"]["content"], "alpha beta gamma delta");
    send(r#"[{"type":"image_url","image_url":{"url":"x"}}]"#).assert_refused(400, "messages[0].content[0].type");
    send(r#"[{"text":"x"}]"#).assert_refused(400, "messages[0].content[0].type");
    send(r#"[{"type":"text"}]"#).assert_refused(400, "messages[0].content[0].text");
    send("7").assert_refused(400, "messages[0].content");
    // An empty list is an empty message, and this template adds nothing to it.
    send("[]").assert_refused(400, "messages");
    let body = r#"{"messages":[{"role":"system","content":[{"type":"text","text":"s"}]},
        {"role":"user","content":"u"},{"role":"tool","tool_call_id":"1","content":[{"type":"text","text":"F"}]}]}"#;
    assert_eq!(server.post("/v1/chat/completions", body).json()["usage"]["prompt_tokens"], 3);
}

#[test]
fn message_fields_are_validated() {
    let server = TestServer::start();
    for (message, path) in [
        ("7", "messages[0]"),
        (r#"{"content":"x"}"#, "messages[0].role"),
        (r#"{"role":"robot","content":"x"}"#, "messages[0].role"),
        (r#"{"role":"user"}"#, "messages[0].content"),
        (r#"{"role":"user","content":"x","contnt":"y"}"#, "messages[0].contnt"),
        (r#"{"role":"user","content":"x","tool_calls":[]}"#, "messages[0].tool_calls"),
        (r#"{"role":"tool","content":"x"}"#, "messages[0].tool_call_id"),
        (
            r#"{"role":"assistant","tool_calls":[{"type":"function","function":{"name":"f"}}]}"#,
            "messages[0].tool_calls[0].id",
        ),
        (
            r#"{"role":"assistant","tool_calls":[{"id":"1","function":{"name":"f","arguments":{}}}]}"#,
            "messages[0].tool_calls[0].function.arguments",
        ),
    ] {
        server.post("/v1/chat/completions", &format!(r#"{{"messages":[{message}]}}"#)).assert_refused(400, path);
    }
}
