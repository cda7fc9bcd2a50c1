//! Kimi K3's chat format on the wire: a made-up tokenizer in the published layout, and an engine that says what a test
//! tells it to.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex},
};

use serde_json::{Value, json};
use tokenspeed_core::{
    client::{Engine, EventStream, Limits, Mailbox, Metrics, SubmitError},
    request::{Event, FinishReason, Request, RequestId, Usage},
};
use tokenspeed_models::text::{Controls, SpecialText, Tokenizer, kimi};
use tokenspeed_server::{
    engine_setup::{Loaded, ModelInfo},
    text_frontend::{ModelFrontend, TextChoices},
};

use crate::support::{MODEL, Reply, TestServer, config};

/// Says one text, token by token, then ends.
struct Parrot {
    tokenizer: Arc<Tokenizer>,
    answer: Mutex<String>,
    prompts: Mutex<Vec<Vec<u32>>>,
}

impl Engine for Parrot {
    fn submit(&self, request: Request) -> Result<EventStream, SubmitError> {
        let answer = self.answer.lock().expect("not poisoned").clone();
        let mut ids = self.tokenizer.encode(&answer, Controls::Parse, false).expect("encoded");
        ids.extend(self.tokenizer.named().eos);
        let prompt_tokens = request.prompt.len() as u32;
        self.prompts.lock().expect("not poisoned").push(request.prompt);
        let mailbox = Mailbox::new(4096);
        mailbox.push(Event::Started { cached_tokens: 0, prompt_logprobs: None });
        let cut = ids.len() > request.sampling.max_tokens as usize;
        ids.truncate(request.sampling.max_tokens as usize);
        let completion_tokens = ids.len() as u32;
        ids.into_iter().for_each(|id| mailbox.push(Event::Token { id, logprobs: None }));
        let usage = Usage { prompt_tokens, cached_tokens: 0, completion_tokens };
        mailbox.push(Event::Finished { reason: if cut { FinishReason::Length } else { FinishReason::Stop }, usage });
        Ok(EventStream::new(RequestId(0), mailbox, |_| {}))
    }

    fn metrics(&self) -> Metrics {
        Metrics::default()
    }

    fn limits(&self) -> Limits {
        let vocab_size = self.tokenizer.vocab_size();
        Limits { max_model_len: 8192, vocab_size, max_num_seqs: 4, prefix_granularity: 16 }
    }

    fn health(&self) -> Result<(), String> {
        Ok(())
    }

    fn drain(&self) {}

    fn flush_cache(&self) -> Result<(), String> {
        Ok(())
    }
}

struct Kimi {
    server: TestServer,
    engine: Arc<Parrot>,
    folder: PathBuf,
}

impl Drop for Kimi {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Kimi {
    fn start(name: &str, with_texts: bool) -> Self {
        let folder = std::env::temp_dir().join(format!("tokenspeed-http-kimi-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let ids = kimi::tiny_tokenizer(&folder, 512, 3).expect("written");
        if !with_texts {
            std::fs::remove_file(folder.join(kimi::ENCODING_FILE)).expect("removed");
        }
        let tokenizer = Arc::new(Tokenizer::from_folder(&folder).expect("read"));
        let frontend =
            ModelFrontend::new(tokenizer.clone(), vec![ids.eos], TextChoices::default()).expect("a frontend");
        let engine = Arc::new(Parrot { tokenizer, answer: Mutex::default(), prompts: Mutex::default() });
        let server = TestServer::loading(config());
        let (frontend, info) = (Arc::new(frontend), ModelInfo::default());
        server.state.set_ready(Loaded { engine: engine.clone(), frontend, info });
        Self { server, engine, folder }
    }

    fn chat(&self, fields: Value) -> Reply {
        let mut body = json!({"model": MODEL, "messages": [{"role": "user", "content": "hi"}]});
        for (key, value) in fields.as_object().expect("fields") {
            body[key] = value.clone();
        }
        self.server.post("/v1/chat/completions", &body.to_string())
    }

    /// The last prompt, with short marks for the markers.
    fn prompt(&self) -> String {
        let prompts = self.engine.prompts.lock().expect("not poisoned");
        let text = self.engine.tokenizer.decode(prompts.last().expect("a prompt"), SpecialText::Keep).expect("text");
        let open = text.replace("<|open|>", "<").replace("<|close|>", "</").replace("<|end_of_msg|>", "|");
        open.replace("<|sep|>", ">")
    }

    /// The next answer; `<#tag>` opens and `</tag>` closes.
    fn say(&self, text: &str) -> &Self {
        let text = text.replace("</", "<|close|>").replace("<#", "<|open|>").replace('>', "<|sep|>");
        *self.engine.answer.lock().expect("not poisoned") = text.replace("|<|sep|>", "|>");
        self
    }
}

fn weather() -> Value {
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    json!([{"type": "function", "function": {"name": "get_weather", "parameters": parameters}}])
}

const CALL: &str = "Look.</think><#response>One moment.</response><#tools><#call tool=\"get_weather\" index=\"1\">\
                    <#argument key=\"city\" type=\"string\">Par\"is</argument><#argument key=\"days\" type=\"number\">2</argument>\
                    </call><#call tool=\"get_weather\" index=\"2\"></call></tools></message>";

/// What the deltas of a stream add up to: (reasoning, content, [(id, name, arguments)], finish reason).
fn joined(reply: &Reply) -> (String, String, Vec<(String, String, String)>, String) {
    let (mut reasoning, mut content, mut finish) = (String::new(), String::new(), String::new());
    let mut calls: Vec<(String, String, String)> = Vec::new();
    for line in reply.text().lines().filter_map(|line| line.strip_prefix("data: ").map(str::to_owned)) {
        let Ok(chunk) = serde_json::from_str::<Value>(&line) else { continue };
        let choice = &chunk["choices"][0];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        reasoning.push_str(&text(&choice["delta"]["reasoning_content"]));
        content.push_str(&text(&choice["delta"]["content"]));
        for call in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().expect("an index") as usize;
            if index == calls.len() {
                calls.push((text(&call["id"]), text(&call["function"]["name"]), String::new()));
            }
            calls[index].2 += &text(&call["function"]["arguments"]);
        }
        finish = choice["finish_reason"].as_str().map_or(finish, str::to_owned);
    }
    (reasoning, content, calls, finish)
}

#[test]
fn thinking_text_and_tool_calls_are_told_apart_streamed_and_not() {
    let kimi = Kimi::start("calls", true);
    kimi.say(CALL);
    let whole = kimi.chat(json!({"tools": weather()}));
    assert_eq!(whole.status, 200, "{}", whole.text());
    let choice = &whole.json()["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["message"]["reasoning_content"], "Look.");
    assert_eq!(choice["message"]["content"], "One moment.");
    let calls = choice["message"]["tool_calls"].as_array().expect("calls");
    let arguments = |call: &Value| call["function"]["arguments"].as_str().expect("a string").to_owned();
    let parsed: Value = serde_json::from_str(&arguments(&calls[0])).expect("JSON");
    assert_eq!(parsed, json!({"city": "Par\"is", "days": 2}));
    assert_eq!(arguments(&calls[1]), "{}");
    assert_ne!(calls[0]["id"], calls[1]["id"]);

    let streamed = joined(&kimi.chat(json!({"tools": weather(), "stream": true})));
    assert_eq!((streamed.0.as_str(), streamed.1.as_str()), ("Look.", "One moment."));
    assert_eq!(streamed.2[0].1, "get_weather");
    assert_eq!((&streamed.2[0].2, streamed.2[1].2.as_str()), (&arguments(&calls[0]), "{}"));
    assert_eq!(streamed.3, "tool_calls");

    // Without tools, or with tools forbidden, markup is no call.
    for fields in [json!({}), json!({"tools": weather(), "tool_choice": "none"})] {
        let reply = kimi.chat(fields).json();
        let message = &reply["choices"][0];
        assert_eq!(message["finish_reason"], "stop");
        assert!(message["message"].get("tool_calls").is_none_or(Value::is_null), "{message}");
        assert_eq!(message["message"]["reasoning_content"], "Look.");
    }
    // An answer cut off inside a call gives none, and says why it ended.
    let cut = kimi.chat(json!({"tools": weather(), "max_tokens": 60}));
    assert_eq!(cut.json()["choices"][0]["finish_reason"], "length");
    assert!(!cut.text().contains("<|"), "{}", cut.text());
    // A stop string that never comes holds nothing of a marker back into the text.
    let reply = joined(&kimi.chat(json!({"stream": true, "stop": ["a stop string of forty-odd characters"]})));
    assert_eq!(reply.0, "Look.");
}

#[test]
fn settings_reach_the_prompt_in_the_words_of_the_format() {
    let kimi = Kimi::start("settings", true);
    kimi.say("</think><#response>ok</response></message>");
    let prompt = |fields: Value| {
        let reply = kimi.chat(fields);
        assert_eq!(reply.status, 200, "{}", reply.text());
        kimi.prompt()
    };
    let plain = prompt(json!({}));
    assert!(
        plain.contains("`thinking_effort=max`") && plain.ends_with("<message role=\"assistant\"><think>"),
        "{plain}"
    );
    assert!(prompt(json!({"reasoning_effort": "low"})).contains("`thinking_effort=low`"));
    assert!(prompt(json!({"chat_template_kwargs": {"thinking_effort": "high"}})).contains("`thinking_effort=high`"));
    for off in [
        json!({"thinking": {"type": "disabled"}}),
        json!({"chat_template_kwargs": {"enable_thinking": false}}),
        json!({"reasoning_effort": "none"}),
    ] {
        let text = prompt(off);
        assert!(
            text.ends_with("<message role=\"assistant\"><response>") && !text.contains("thinking_effort"),
            "{text}"
        );
    }
    let text =
        prompt(json!({"tools": weather(), "tool_choice": "required", "response_format": {"type": "json_object"}}));
    let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("no {part} in {text}"));
    assert!(at("get_weather") < at("thinking_effort") && at("thinking_effort") < at("role=\"user\""));
    assert!(at("role=\"user\"") < at("tool_choice=required") && at("tool_choice=required") < at("json_object"));
    let schema = json!({"type": "json_schema", "json_schema": {"schema": {"b": 1, "a": 2}}});
    assert!(prompt(json!({"response_format": schema})).contains("{\"a\":2,\"b\":1}\n```"));
    // With choice none the tools stay where they were.
    let text = prompt(json!({"tools": weather(), "tool_choice": "none"}));
    assert!(text.contains("get_weather") && text.contains("tool_choice=none"), "{text}");
    let text = prompt(json!({"messages": [
        {"role": "system", "tools": weather()},
        {"role": "user", "content": "hi", "name": "Ada"},
        {"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": "{\"city\": \"X\"}"}}]},
        {"role": "tool", "tool_call_id": "a", "content": "42"},
    ]}));
    assert!(text.contains("as well:\n```json\n[{\"function\""), "{text}");
    assert!(text.contains("<message role=\"user\" name=\"Ada\">hi</message>|"), "{text}");
    assert!(
        text.contains(
            "<think>hm</think><response></response><tools><call tool=\"get_weather\" index=\"1\">\
         <argument key=\"city\" type=\"string\">X</argument></call></tools></message>|\
         <message role=\"tool\" tool=\"get_weather\" index=\"1\">42</message>|"
        ),
        "{text}"
    );
    // The count that /tokenize gives is the one that is charged.
    let body = json!({"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "reasoning_effort": "low"});
    let count = kimi.server.post("/tokenize", &body.to_string()).json()["count"].clone();
    assert_eq!(kimi.chat(json!({"reasoning_effort": "low"})).json()["usage"]["prompt_tokens"], count);
}

#[test]
fn what_cannot_be_said_is_refused_by_field() {
    let kimi = Kimi::start("refusals", true);
    let image = json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]);
    for (fields, param) in [
        (json!({"reasoning_effort": "medium"}), "reasoning_effort"),
        (json!({"chat_template_kwargs": {"thinking": "yes"}}), "chat_template_kwargs"),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"response_format": {"type": "grammar"}}), "response_format.type"),
        (json!({"messages": image}), "messages[0].content[0].type"),
        (json!({"messages": [{"role": "user", "content": "hi", "tools": []}]}), "messages[0].tools"),
        (json!({"messages": [{"role": "system", "tools": [{"type": "x"}]}]}), "messages[0].tools[0].type"),
    ] {
        kimi.chat(fields).assert_refused(400, param);
    }
}

#[test]
fn without_the_checkpoints_texts_only_what_needs_them_is_refused() {
    let kimi = Kimi::start("bare", false);
    kimi.say("w</think><#response>ok</response></message>");
    let reply = kimi.chat(json!({}));
    assert_eq!(reply.json()["choices"][0]["message"]["content"], "ok", "{}", reply.text());
    assert_eq!(kimi.prompt(), "<message role=\"user\">hi</message>|<message role=\"assistant\"><think>");
    for (fields, param) in [
        (json!({"tools": weather()}), "tools"),
        (json!({"reasoning_effort": "low"}), "reasoning_effort"),
        (json!({"response_format": {"type": "json_object"}}), "response_format"),
        (json!({"messages": [{"role": "system", "tools": weather()}, {"role": "user", "content": "x"}]}), "messages"),
    ] {
        let reply = kimi.chat(fields);
        assert_eq!((reply.status, &reply.error()["param"]), (400, &json!(param)), "{}", reply.text());
        assert!(reply.text().contains("encoding_k3.py, which is missing"), "{}", reply.text());
    }
}
