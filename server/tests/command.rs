//! The built command: exit codes and messages that need no model.

use std::{
    net::TcpListener,
    process::{Command, Output},
};

fn tokenspeed(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tokenspeed"))
        .args(arguments)
        .env("TOKENSPEED_HOME", std::env::temp_dir().join("tokenspeed-no-such-home"))
        .output()
        .expect("the command runs")
}

fn errors(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}

#[test]
fn port_in_use_is_known_before_anything_loads() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("an address").port().to_string();
    // The model does not exist either: the port is looked at first.
    let output = tokenspeed(&["serve", "no-such-model", "--port", &port]);
    assert_eq!(output.status.code(), Some(1));
    let text = errors(&output);
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some(format!("error: the address is already in use (127.0.0.1:{port})").as_str()));
    assert!(lines.next().is_some_and(|line| line.starts_with("  hint: ")), "{text}");
    assert_eq!(lines.next(), None);
}

#[test]
fn wrong_usage_is_exit_code_2() {
    for arguments in [
        &["serve"][..],
        &["serve", "m", "--no-such-option"],
        &["serve", "m", "--mode", "slow"],
        &["serve", "m", "--port", "65536"],
        &["serve", "m", "--max-num-seqs", "0"],
        &["serve", "m", "--memory", "lots"],
        &["serve", "m", "--backend-option", "novalue"],
        &["run", "m", "--prompt", "x", "--temperature", "2.5"],
        &["run", "m", "--prompt", "x", "--system", "s"],
        &["serve", "m", "--speculative-ngram", "2"],
        &["run", "m", "--prompt", "x", "--max-overtaken-steps", "2"],
        &["bench", "engine", "m", "--speculative-num-draft-tokens", "2"],
        &["bench", "agentic", "m", "--prefix-snapshots", "2", "--no-prefix-cache"],
        &["serve", "m", "--api-key", " "],
        &["bench", "serve", "--url", "https://x"],
        &["bench", "agentic"],
        &["bench", "agentic", "m", "--url", "http://127.0.0.1:1"],
        &["bench", "agentic", "--no-boundaries", "--url", "http://127.0.0.1:1"],
        &["bench", "agentic", "m", "--turns", "3-2"],
        &["bench", "agentic", "--url", "https://x"],
        &["bench", "agentic", "--conversations", "no-such-file", "m"],
        &["nonsense"],
    ] {
        let output = tokenspeed(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", errors(&output));
        assert!(errors(&output).starts_with("error: "), "{arguments:?}");
    }
}

#[test]
fn pull_says_what_it_knows() {
    let output = tokenspeed(&["pull", "no-such-model"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(errors(&output), "error: no model of that name (no-such-model)\n  hint: known names: smollm2-135m\n");
}

#[test]
fn bench_serve_without_a_server_is_one_clear_line() {
    let free = TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("an address");
    let output = tokenspeed(&["bench", "serve", "--url", &format!("http://{free}"), "--requests", "2"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).contains("every request failed"), "{}", errors(&output));
}
