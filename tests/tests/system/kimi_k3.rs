//! A tiny Kimi K3 as its users meet it: written by the command, served over HTTP with its own tokenizer and chat format.

use serde_json::{Value, json};
use tokenspeed_server::cli::{Cli, Command, tiny};

use crate::support::{
    client::{events, finishes},
    load,
    models::Folder,
    serving::{MODEL, Serving},
    try_load,
};
use clap::Parser as _;

/// What `tokenspeed tiny kimi-k3` writes.
fn written() -> Folder {
    let folder = Folder::new("kimi-k3");
    let line = ["tokenspeed", "tiny", "kimi-k3", "--force", "--layers", "5", "--out", &folder.model()];
    let Command::Tiny(command) = Cli::try_parse_from(line).expect("known options").command else { panic!("tiny") };
    tiny::run(command).expect("written");
    folder
}

fn chat(server: &Serving, fields: Value) -> crate::support::client::Reply {
    let mut body = json!({"model": MODEL, "messages": [{"role": "user", "content": "what is the weather"}],
        "max_tokens": 24, "temperature": 0, "ignore_eos": true});
    body.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    server.post("/v1/chat/completions", &body)
}

/// Thinking, answer and calls, whole or streamed: the same text, and the second request resumes from the first.
#[test]
fn chats_whole_and_streamed() {
    let folder = written();
    let server = Serving::start(load(&folder.model(), "--max-model-len 1024"));
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    let tools = json!([{"type": "function", "function": {"name": "get_weather", "parameters": parameters}}]);
    for fields in [json!({}), json!({"reasoning_effort": "low"}), json!({"tools": tools})] {
        let whole = chat(&server, fields.clone());
        assert_eq!(whole.status, 200, "{}", whole.text());
        let message = &whole.json()["choices"][0]["message"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let expected = text(&message["reasoning_content"]) + &text(&message["content"]);
        assert!(!expected.is_empty(), "{message}");

        let mut streamed = fields;
        streamed["stream"] = true.into();
        let streamed = events(&chat(&server, streamed));
        let deltas = streamed.iter().map(|e| &e["choices"][0]["delta"]);
        let (mut reasoning, mut content) = (String::new(), String::new());
        for delta in deltas {
            reasoning += &text(&delta["reasoning_content"]);
            content += &text(&delta["content"]);
        }
        assert_eq!(reasoning + &content, expected);
        assert_eq!(finishes(&streamed, 0), ["length"]);
    }
    let cached = chat(&server, json!({})).json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    assert!(cached.is_some_and(|n| n >= 64), "a prompt seen before resumes from its stored state: {cached:?}");
}

/// The chat layer tells the engine where system prompt and tools end, so the second conversation resumes there, not at the
/// third use or a rung of the ladder.
#[test]
fn the_second_chat_under_a_system_prompt_finds_all_of_it() {
    let folder = written();
    let server = Serving::start(load(&folder.model(), "--max-model-len 2048"));
    let said = |role: &str, text: &str| json!({"role": role, "content": text});
    let system = said("system", &"answer in a word and then explain yourself. ".repeat(12));
    let tokens = |messages: Value| -> Vec<u64> {
        let reply = server.post("/tokenize", &json!({"model": MODEL, "messages": messages})).json();
        reply["tokens"].as_array().expect("ids").iter().map(|id| id.as_u64().expect("an id")).collect()
    };
    let talks = ["zebras and the way they run", "quick questions about the weather of tomorrow"]
        .map(|text| json!([system, said("user", &text.repeat(6))]));
    let [first, second] = talks.clone().map(tokens);
    let shared = first.iter().zip(&second).take_while(|(a, b)| a == b).count() as u64 / 64 * 64;
    let cached = talks.map(|messages| {
        let usage = chat(&server, json!({"messages": messages, "max_tokens": 2})).json()["usage"].clone();
        usage["prompt_tokens_details"]["cached_tokens"].as_u64()
    });
    assert!(shared >= 128 && first.len() as u64 >= shared + 128, "{shared} of {} tokens", first.len());
    assert_eq!(cached, [Some(0), Some(shared)]);
}

#[test]
fn an_image_is_refused_and_the_server_goes_on() {
    let folder = written();
    let server = Serving::start(load(&folder.model(), "--max-model-len 512"));
    let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}});
    let reply = chat(&server, json!({"messages": [{"role": "user", "content": [image]}]}));
    assert_eq!(reply.status, 400, "{}", reply.text());
    assert!(reply.error()["message"].as_str().expect("text").contains("image"), "{}", reply.text());
    assert_eq!(chat(&server, json!({})).status, 200);
}

#[test]
fn what_is_missing_is_named_in_one_line() {
    for (file, what) in
        [("tiktoken.model", "tokenizer"), ("config.json", "config.json"), ("model.safetensors", "model.safetensors")]
    {
        let folder = written();
        std::fs::remove_file(folder.path().join(file)).expect("it was written");
        let error = try_load(&folder.model(), "").expect_err("incomplete");
        assert!(!error.what.contains('\n') && error.render().contains(what), "{file}: {}", error.render());
    }
}
