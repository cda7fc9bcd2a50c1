//! `tokenspeed bench agentic` on the real engine, in this process and through the real server, and what it says when there
//! is nothing to measure.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
};

use clap::Parser as _;
use serde_json::{Value, json};
use tokenspeed_server::{
    cli::{
        Cli, Command,
        bench::{
            BenchCommand,
            agentic::{self, BenchAgenticArgs, report::Report},
        },
    },
    error::CliError,
};

use crate::support::{
    load, models,
    serving::{MODEL, Serving},
};

/// Small sessions, most of whose prompt is history.
const SMALL: &str = "--first-tokens 300 --turn-tokens 40 --output-tokens 9 --turns 3-4 --sessions 5 --forks 0.3";
/// As little as an engine in a test should take.
const ENGINE: &str = "--memory 900MiB --threads 1 --max-num-seqs 8";

fn args(words: &str, more: &[&str]) -> BenchAgenticArgs {
    let line =
        ["tokenspeed", "bench", "agentic"].into_iter().chain(words.split_whitespace()).chain(more.iter().copied());
    match Cli::try_parse_from(line).unwrap_or_else(|e| panic!("{words} {more:?}: {e}")).command {
        Command::Bench(BenchCommand::Agentic(args)) => *args,
        other => panic!("{other:?}"),
    }
}

fn measure(words: &str, more: &[&str]) -> Result<Report, CliError> {
    agentic::measure(&args(words, more))
}

/// Nothing failed, and the cache gave what it could, but for states at branches seen for the first time and a last token
/// that ends a page and is not computed: at most one request in eight.
fn assert_sound(report: &Report) {
    for pass in &report.passes {
        assert_eq!(pass.failures, Vec::<String>::new());
        let hits = pass.hits.expect("ids are known");
        assert!(hits.maximum > pass.prompt_tokens / 3 && pass.requests >= 5 * 3, "{pass:?}");
        assert!(hits.n_short * 8 <= pass.requests, "{hits:?}");
    }
}

#[test]
fn hybrid_sessions_in_this_process_find_what_was_computed() {
    let folder = models::kimi();
    let words = format!("{SMALL} {ENGINE} --shared 0.5 --concurrency 1,3 --half-memory");
    let report = measure(&words, &[&folder.model()]).unwrap_or_else(|e| panic!("{}", e.render()));
    assert_sound(&report);
    let [alone, three] = &report.passes[..] else { panic!("two passes") };
    assert_eq!((alone.requests, alone.answer_tokens), (three.requests, three.answer_tokens), "the same sessions");
    assert_eq!(alone.hits.map(|h| h.n_unknown), Some(0), "ids are exact");
    let half = report.half.as_ref().expect("asked for");
    assert!(half.pages < half.pages_needed && half.found <= half.found_in_enough, "{half:?}");
    assert!(half.belady <= half.maximum && half.found <= half.belady, "nobody beats Belady: {half:?}");
    assert!(report.compared.as_ref().is_some_and(|c| c.second_ms > 0.0 && c.expected_ms > 0.0), "{report:?}");
}

/// Of what an endless cache would have found, a hybrid model finds 99% at every concurrency that there is room for, and one session
/// at a time all that was computed up to a page with a state: the bench says where what sessions share ends, as a chat layer does.
#[test]
fn hybrid_sessions_hit_what_can_be_hit() {
    let folder = models::kimi();
    let sessions = "--first-tokens 1000 --turn-tokens 40 --output-tokens 10 --turns 10-12 --sessions 4 --forks 0.1";
    let concurrency = if models::long_tests() { "1,2,3,4" } else { "1,4" };
    let words = format!("{sessions} {ENGINE} --concurrency {concurrency}");
    let report = measure(&words, &[&folder.model()]).unwrap_or_else(|e| panic!("{}", e.render()));
    for pass in &report.passes {
        assert_eq!(pass.failures, Vec::<String>::new());
        let hits = pass.hits.expect("ids are known");
        assert!(hits.n_unknown == 0 && hits.maximum > pass.prompt_tokens / 2, "{pass:?}");
        assert!(hits.reached <= hits.maximum && hits.share() >= 0.99, "{} of the maximum: {pass:?}", hits.share());
    }
    assert_eq!(report.passes[0].cut_tokens, Some(0), "{:?}", report.passes[0]);
}

#[test]
fn sessions_through_the_server_find_what_was_computed() {
    let folder = models::kimi();
    let server = Serving::start(load(&folder.model(), ""));
    let url = format!("http://{}", server.address);
    let page = server.engine.limits().prefix_granularity.to_string();
    let words = format!("{SMALL} --concurrency 2 --page-tokens {page} --model {MODEL}");
    let report = measure(&words, &["--url", &url]).unwrap_or_else(|e| panic!("{}", e.render()));
    assert!(report.target.contains("answers with token ids"), "{}", report.target);
    assert_eq!(report.passes[0].hits.map(|hits| hits.n_unknown), Some(0), "the server tells the ids of its answers");
    assert_sound(&report);
    let report = measure(&format!("{words} --chat"), &["--url", &url]).unwrap_or_else(|e| panic!("{}", e.render()));
    assert!(report.target.contains("chats of words"), "{}", report.target);
    assert_sound(&report);
}

#[test]
fn recorded_conversations_in_this_process_and_through_the_server() {
    let folder = models::kimi();
    let conversation = |name: &str| {
        let say = |role: &str, n: usize| json!({"role": role, "content": format!("{name} {role} ").repeat(n)});
        json!({"messages": [say("system", 20), say("user", 10), say("assistant", 2), say("user", 3), say("assistant", 1)]})
    };
    let file = folder.write("c.jsonl", format!("{}\n\n{}\n", conversation("a"), conversation("b")));
    let words = format!("{ENGINE} --output-tokens 5 --concurrency 1");
    let more = [&folder.model()[..], "--conversations", &file];
    let here = measure(&words, &more).unwrap_or_else(|e| panic!("{}", e.render()));
    let server = Serving::start(load(&folder.model(), ""));
    let more = ["--url", &format!("http://{}", server.address), "--conversations", &file];
    let words = "--output-tokens 5 --concurrency 1";
    let there = measure(words, &more).unwrap_or_else(|e| panic!("{}", e.render()));
    let figures = |report: &Report| {
        let pass = &report.passes[0];
        (pass.requests, pass.prompt_tokens, pass.answer_tokens, pass.hits.map(|h| h.maximum))
    };
    assert_eq!(figures(&here), figures(&there), "the same ids either way");
    assert_eq!((here.passes[0].requests, here.passes[0].answer_tokens), (4, 20));
    assert!(here.passes[0].hits.is_some_and(|hits| hits.maximum > 0 && hits.n_short == 0), "{:?}", here.passes[0]);
}

/// A server that answers each request with what `answer` makes of its path, until it is dropped with the process.
fn stub(answer: fn(&str) -> (u16, String)) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let reply = move |socket: TcpStream| -> std::io::Result<()> {
        let mut reader = BufReader::new(socket.try_clone()?);
        let (mut first, mut line, mut length) = (String::new(), String::new(), 0u64);
        reader.read_line(&mut first)?;
        while line != "\r\n" {
            line.clear();
            reader.read_line(&mut line)?;
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap_or(0);
            }
        }
        std::io::copy(&mut reader.take(length), &mut std::io::sink())?;
        let (status, body) = answer(first.split(' ').nth(1).unwrap_or(""));
        let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
        (&socket).write_all((head + &body).as_bytes())
    };
    std::thread::spawn(move || listener.incoming().flatten().for_each(|socket| drop(reply(socket))));
    url
}

fn fails(url: &str) -> String {
    let error = measure(&format!("{SMALL} --concurrency 1"), &["--url", url]).expect_err("nothing to measure");
    let text = error.render();
    assert!(text.lines().count() <= 2, "{text}");
    text
}

#[test]
fn servers_that_cannot_be_measured_are_told_in_a_line() {
    let free = TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("an address");
    assert!(fails(&format!("http://{free}")).contains(&free.to_string()));

    let silent = |path: &str| match path {
        "/v1/models" => (200, r#"{"data":[{"id":"m"}]}"#.to_owned()),
        "/v1/chat/completions" => {
            let event: Value = json!({"choices": [{"delta": {"content": "hi"}}]});
            (200, format!("data: {event}\n\ndata: [DONE]\n\n"))
        }
        _ => (404, String::new()),
    };
    assert!(fails(&stub(silent)).contains("no usage figures"));

    let refusing = |path: &str| match path {
        "/v1/models" => (200, r#"{"data":[{"id":"m"}]}"#.to_owned()),
        _ => (404, "gone".to_owned()),
    };
    assert!(fails(&stub(refusing)).contains("status 404: gone"));
    assert!(fails(&stub(|_| (200, "{}".to_owned()))).contains("names no model"));
    assert!(fails(&stub(|_| (200, "<html>".to_owned()))).contains("not JSON"));
}

#[test]
fn a_server_without_tokenizer_has_figures_and_no_maximum() {
    let plain = |path: &str| match path {
        "/v1/models" => (200, r#"{"data":[{"id":"m"}]}"#.to_owned()),
        "/v1/chat/completions" => {
            let text = json!({"choices": [{"delta": {"content": "hi"}}]});
            let usage = json!({"choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 9}});
            (200, format!("data: {text}\n\ndata: {text}\n\ndata: {usage}\n\ndata: [DONE]\n\n"))
        }
        _ => (404, String::new()),
    };
    let report = measure(&format!("{SMALL} --concurrency 2 --plain"), &["--url", &stub(plain)]);
    let report = report.unwrap_or_else(|e| panic!("{}", e.render()));
    let pass = &report.passes[0];
    assert_eq!((pass.hits, pass.cached_tokens, pass.prompt_tokens), (None, None, pass.requests as u64 * 100));
    assert!(pass.tpot.is_some() && report.to_json()["passes"][0]["hit_rate"].is_null());
    assert!(report.target.contains("the maximum is unknown"), "{}", report.target);
}
