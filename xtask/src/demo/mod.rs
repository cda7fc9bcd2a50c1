//! `cargo xtask demo`: from a checkout to an answer. Builds the command, fetches a small model, serves it on a free
//! port, asks one question over HTTP and prints the answer as it streams, then stops the server.

mod http;
mod server;

use std::{
    io::Write,
    process::Command,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{command, workspace};

const MODEL: &str = "smollm2-135m";
const QUESTION: &str = "What is the capital of France, and what is it known for? Answer in two sentences.";
const MAX_TOKENS: u32 = 120;

/// Runs the demo; any step that does not work ends it with an error and no server left behind.
pub fn run() -> Result<(), String> {
    println!("building the release binary …");
    command::run(command::cargo().args([
        "build",
        "--release",
        "--package",
        "tokenspeed-server",
        "--bin",
        "tokenspeed",
    ]))?;
    let tokenspeed = workspace::target_folder()?.join("release/tokenspeed");
    // The same place as the tests', so that neither fetches what the other has.
    let home = crate::test::home()?;
    command::run(Command::new(&tokenspeed).args(["pull", MODEL]).env("TOKENSPEED_HOME", &home))?;
    let mut serve = Command::new(&tokenspeed);
    serve.args(["serve", MODEL, "--host", "127.0.0.1", "--port", "0"]).env("TOKENSPEED_HOME", &home);
    let server = server::Server::start(&mut serve, Duration::from_secs(120))?;
    println!("\n> {QUESTION}\n");
    ask(server.address())?;
    server.stop(Duration::from_secs(30))?;
    println!("the server stopped cleanly");
    Ok(())
}

fn ask(address: &str) -> Result<(), String> {
    let body = json!({
        "model": MODEL,
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "stream": true,
        "stream_options": {"include_usage": true},
    });
    let start = Instant::now();
    let (mut first, mut last, mut tokens, mut text) = (None, start, 0, String::new());
    http::post_events(address, "/v1/chat/completions", &body.to_string(), |data| {
        let event: Value = serde_json::from_str(data).map_err(|e| format!("an event is no JSON ({e}): {data}"))?;
        if let Some(error) = event.get("error").filter(|e| !e.is_null()) {
            return Err(format!("the server reported {error}"));
        }
        if let Some(count) = event["usage"]["completion_tokens"].as_u64() {
            tokens = count;
        }
        if let Some(delta) = event["choices"][0]["delta"]["content"].as_str().filter(|d| !d.is_empty()) {
            last = Instant::now();
            first.get_or_insert(last);
            text += delta;
            print!("{delta}");
            std::io::stdout().flush().map_err(|e| e.to_string())?;
        }
        Ok(())
    })?;
    println!("\n");
    let first = first.ok_or("the answer was empty")?;
    if tokens < 2 || text.trim().is_empty() {
        return Err(format!("the answer has {tokens} tokens and the text {text:?}"));
    }
    // The first token belongs to the time before it; the others to the time after it.
    let rate = (tokens - 1) as f64 / (last - first).as_secs_f64().max(1e-9);
    let ttft_ms = (first - start).as_secs_f64() * 1e3;
    println!("{tokens} tokens, {rate:.1} tokens/s, first token after {ttft_ms:.0} ms");
    Ok(())
}
