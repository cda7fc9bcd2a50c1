//! What `run`, `chat` and `bench serve` stand on, over the scripted engine.

use std::{sync::Arc, time::Duration};

use serde_json::json;
use tokenspeed_core::request::SamplingParams;
use tokenspeed_server::{
    cli::{
        bench::client::{Target, stream},
        session,
    },
    engine_setup::{Loaded, ModelInfo},
    frontend::{EncodedPrompt, TextFrontend as _},
    generation::answer::Ending,
};

use crate::support::{MODEL, ScriptEngine, TestServer, frontend::ByteFrontend};

fn loaded() -> Loaded {
    Loaded { engine: Arc::new(ScriptEngine::default()), frontend: Arc::new(ByteFrontend), info: ModelInfo::default() }
}

fn tell(prompt: &str, stop: &[&str]) -> Result<(session::Told, String), String> {
    let loaded = loaded();
    let ids = ByteFrontend.encode(prompt, true).map_err(|error| error.to_string())?;
    let room = session::room(&loaded, ids.len()).map_err(|error| error.render())?;
    let sampling = SamplingParams { max_tokens: room, ..SamplingParams::default() };
    let stop = stop.iter().map(|stop| (*stop).to_owned()).collect();
    let mut out = Vec::new();
    let prompt = EncodedPrompt { ids, ..EncodedPrompt::default() };
    let answer = session::tell(&loaded, prompt, sampling, stop, false, &mut out);
    let told = session::runtime().and_then(|runtime| runtime.block_on(answer)).map_err(|error| error.render())?;
    Ok((told, String::from_utf8(out).expect("UTF-8")))
}

#[test]
fn an_answer_is_written_as_it_comes_and_counted() {
    let (told, written) = tell("x B", &[]).expect("an answer");
    assert_eq!((told.text.as_str(), written.as_str()), ("alpha beta gamma delta", "alpha beta gamma delta"));
    assert_eq!((told.ending, told.prompt_tokens, told.completion_tokens), (Some(Ending::Stop), 3, 4));
    assert!(told.summary().starts_with("4 tokens, "), "{}", told.summary());
    let (told, _) = tell("x B", &["gamma"]).expect("an answer");
    assert_eq!((told.text.as_str(), told.ending), ("alpha beta ", Some(Ending::Stop)));
}

#[test]
fn failures_and_impossible_prompts_are_one_line() {
    assert_eq!(tell("x X", &[]), Err("error: the device was lost".into()));
    assert!(tell("", &[]).expect_err("empty").contains("the prompt is empty"));
    assert!(tell(&"p".repeat(256), &[]).expect_err("long").contains("256"));
}

#[test]
fn bench_client_reads_streams_and_errors() {
    let server = TestServer::start();
    let target = Target::parse(&format!("http://{}", server.address), None).expect("a URL");
    let runtime = session::runtime().expect("a runtime");
    let send =
        |body: serde_json::Value| runtime.block_on(stream(&target, "/v1/completions", &body, Duration::from_secs(20)));
    let mut body = json!({"model": MODEL, "prompt": "x E", "max_tokens": 9, "stream": true, "stream_options": {"include_usage": true}});
    let sample = send(body.clone()).expect("answered");
    assert_eq!((sample.prompt_tokens, sample.completion_tokens), (3, 9));
    assert!(sample.first_token.is_some_and(|first| first <= sample.whole));
    body["prompt"] = "x X".into();
    assert_eq!(send(body.clone()).expect_err("fails"), "the device was lost");
    body["temperature"] = 9.into();
    assert!(send(body).expect_err("refused").contains("status 400"));
}
