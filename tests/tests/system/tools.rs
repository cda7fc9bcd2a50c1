//! Tool calls as the real parser finds them in text that the real detokenizer cut.

use serde_json::{Value, json};
use tokenspeed_tests::script_model::ONE_CALL;

use crate::support::{
    client::{Reply, events, finishes, joined},
    load, models,
    serving::{MODEL, Serving, with},
};

fn serve() -> Serving {
    Serving::start(load(&models::script().model(), "--tool-call-parser hermes"))
}

fn weather() -> Value {
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    json!({"tools": [{"type": "function", "function": {"name": "get_weather", "parameters": parameters}}]})
}

/// (id, name, arguments) of each call of a stream, joined by index; only the first piece of each has id, type and name.
fn streamed(reply: &Reply) -> (Vec<(String, String, String)>, Vec<String>, String) {
    let events = events(reply);
    let text = |value: &Value| value.as_str().expect("a string").to_owned();
    let mut calls: Vec<(String, String, String)> = Vec::new();
    for piece in events.iter().flat_map(|e| e["choices"][0]["delta"]["tool_calls"].as_array().into_iter().flatten()) {
        let index = piece["index"].as_u64().expect("an index") as usize;
        if index == calls.len() {
            assert_eq!(piece["type"], "function");
            calls.push((text(&piece["id"]), text(&piece["function"]["name"]), String::new()));
        } else {
            let again = piece.get("id").or(piece.get("type")).or(piece["function"].get("name"));
            assert_eq!((index + 1, again), (calls.len(), None), "{piece}");
        }
        calls[index].2.push_str(piece["function"]["arguments"].as_str().unwrap_or_default());
    }
    (calls, finishes(&events, 0), joined(&events, 0))
}

/// (name, arguments) of each call of a whole answer, whose shape is checked.
fn whole(reply: &Reply) -> Vec<(String, Value)> {
    assert_eq!(reply.status, 200, "{}", reply.text());
    let message = reply.json()["choices"][0]["message"].clone();
    assert!(message["content"].is_null() || message["content"] == "", "{message}");
    let calls = message["tool_calls"].as_array().expect("a list").clone();
    let mut ids: Vec<&str> = calls.iter().map(|c| c["id"].as_str().expect("an id")).collect();
    assert!(ids.iter().all(|id| !id.is_empty()));
    ids.dedup();
    assert_eq!(ids.len(), calls.len(), "ids are unique");
    let read = |call: &Value| {
        assert_eq!(call["type"], "function");
        let function = &call["function"];
        let arguments = function["arguments"].as_str().expect("a string, not an object");
        (function["name"].as_str().expect("a name").to_owned(), serde_json::from_str(arguments).expect("JSON"))
    };
    calls.iter().map(read).collect()
}

#[test]
fn parallel_tool_calls_index_and_parameterless_tools() {
    let server = serve();
    let tool = |name: &str| json!({"type": "function", "function": {"name": name}});
    let tools = json!({"tools": [tool("f_one"), tool("f_two")]});
    let expected = vec![("f_one".to_owned(), json!({"x": 1})), ("f_two".to_owned(), json!({}))];
    let reply = server.chat("x D", tools.clone());
    assert_eq!(whole(&reply), expected);
    assert_eq!(reply.json()["choices"][0]["finish_reason"], "tool_calls");
    let (calls, reasons, text) = streamed(&server.chat("x D", with(tools, json!({"stream": true}))));
    assert_ne!(calls[0].0, calls[1].0);
    let parsed: Vec<_> = calls.iter().map(|c| (c.1.clone(), serde_json::from_str(&c.2).expect("JSON"))).collect();
    assert_eq!((parsed, reasons), (expected, vec!["tool_calls".to_owned()]));
    assert_eq!(text.trim(), "", "markup leaked");
}

#[test]
fn tool_call_json_streamed_and_stop_string_leaking() {
    let server = serve();
    // A stop string as long as the markup: what is held back must still pass the parser.
    for stop in [json!(null), json!(["a stop string of forty-odd characters ......"])] {
        let fields = with(weather(), json!({"stop": stop}));
        let expected = vec![("get_weather".to_owned(), json!({"city": "Par\"is"}))];
        assert_eq!(whole(&server.chat("x C", fields.clone())), expected);
        let reply = server.chat("x C", with(fields, json!({"stream": true})));
        let (calls, reasons, text) = streamed(&reply);
        assert_eq!(calls.len(), 1);
        assert_eq!(serde_json::from_str::<Value>(&calls[0].2).expect("JSON"), expected[0].1);
        assert_eq!((reasons, text.as_str()), (vec!["tool_calls".to_owned()], ""));
        assert!(!reply.text().contains("tool_call>"), "markup leaked");
    }
}

#[test]
fn tool_choice_none_and_tools_not_given_leave_text_alone() {
    let server = serve();
    for fields in [json!({}), with(weather(), json!({"tool_choice": "none"}))] {
        let choice = server.chat("x C", fields).json()["choices"][0].clone();
        assert_eq!((&choice["message"]["content"], &choice["finish_reason"]), (&json!(ONE_CALL), &json!("stop")));
        assert!(choice["message"].get("tool_calls").is_none());
    }
}

#[test]
fn empty_content_and_tool_calls_null() {
    let server = serve();
    let call = json!({"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let assistant = json!({"role": "assistant", "tool_calls": [call]});
    let answer = |assistant: Value| {
        let messages = json!([{"role": "user", "content": "q"}, assistant,
            {"role": "tool", "tool_call_id": "call_1", "content": "42"}, {"role": "user", "content": "x B"}]);
        let reply = server.post("/v1/chat/completions", &json!({"model": MODEL, "messages": messages}));
        assert_eq!(reply.status, 200, "{}", reply.text());
        let json = reply.json();
        assert_eq!(json["choices"][0]["message"]["content"], "alpha beta gamma delta");
        json["usage"]["prompt_tokens"].as_u64()
    };
    // The template shows contents only: a `None` or `null` in the prompt would show in the count.
    let expected = Some("q42x B".len() as u64);
    assert_eq!(answer(with(assistant.clone(), json!({"content": null}))), expected);
    assert_eq!(answer(assistant.clone()), expected);
    assert_eq!(answer(with(assistant, json!({"content": ""}))), expected);
}
