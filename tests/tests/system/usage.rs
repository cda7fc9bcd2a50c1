//! What the server says about its work: cached tokens, memory, counters; and many requests at once.

use std::{
    io::Write as _,
    task::{Context, Poll, Waker},
    time::Duration,
};

use serde_json::{Value, json};
use tokenspeed_core::request::Event;

use crate::{
    batch_invariance::ids,
    support::{
        Answer, answer,
        client::{self, events, joined},
        finish, greedy, load,
        models::{self, long_tests},
        serving::{MODEL, Serving, with},
        settled, submit,
    },
};

#[test]
fn usage_with_cached_tokens() {
    let folder = models::tiny();
    let server = Serving::start(load(&folder.model(), ""));
    let page = server.engine.limits().prefix_granularity;
    let prompt = ids(3, 200);
    let cached = |server: &Serving, prompt: &[u32]| {
        let usage = server.completion(json!(prompt), json!({"max_tokens": 1, "ignore_eos": true}))["usage"].clone();
        usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0) as u32
    };
    assert_eq!(cached(&server, &prompt), 0);
    let whole_pages = 199 / page * page;
    assert!(whole_pages > 0);
    assert_eq!(cached(&server, &prompt), whole_pages);
    let longer = [prompt.clone(), vec![1, 2, 3, 4, 5]].concat();
    assert_eq!(cached(&server, &longer), whole_pages);
    let mut other = prompt.clone();
    other[page as usize + 1] += 1;
    assert_eq!(cached(&server, &other), page, "only what is equal from the start");
    let off = Serving::start(load(&folder.model(), "--no-prefix-cache"));
    assert_eq!((cached(&off, &prompt), cached(&off, &prompt)), (0, 0));
}

/// Case 88: what one salt computed is not there for another, for none, or for the empty one.
#[test]
fn cache_salts_do_not_share() {
    let server = Serving::start(load(&models::tiny().model(), ""));
    let prompt = ids(3, 200);
    let page = server.engine.limits().prefix_granularity;
    let cached = |salt: Option<&str>| {
        let salt = salt.map_or(json!({}), |salt| json!({"cache_salt": salt}));
        let usage = server.completion(json!(prompt), with(json!({"max_tokens": 1, "ignore_eos": true}), salt));
        usage["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0) as u32
    };
    for salt in [Some("a"), Some("b"), Some(""), None] {
        assert_eq!((cached(salt), cached(salt)), (0, 199 / page * page), "{salt:?}");
    }
}

/// Refused as a whole while anybody is served, done as a whole otherwise.
#[test]
fn flush_cache_is_all_or_nothing() {
    let server = Serving::start(load(&models::tiny().model(), ""));
    let (old, long) = (ids(3, 200), ids(4, 20));
    let cached = |prompt: &[u32]| {
        let usage = server.completion(json!(prompt), json!({"max_tokens": 1, "ignore_eos": true}))["usage"].clone();
        usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0)
    };
    assert_eq!(cached(&old), 0);
    let whole = cached(&old);
    assert!(whole > 0);
    let mut running = submit(&*server.engine, greedy(&long, 200));
    running.blocking_next().expect("it starts");
    let refused = server.post("/flush_cache", &json!({}));
    assert_eq!(refused.status, 409, "{}", refused.text());
    let message = refused.json()["error"]["message"].as_str().unwrap_or_default().to_owned();
    assert!(message.contains("while 1 requests are running or waiting"), "{message}");
    assert_eq!(finish(running).ids.len(), 200, "the request goes on");
    assert_eq!(cached(&old), whole, "a refused flush forgets nothing");
    server.idle_metrics();
    let flushed = server.post("/flush_cache", &json!({}));
    assert_eq!((flushed.status, flushed.json()), (200, json!({"flushed": true})));
    assert_eq!(server.idle_metrics().pages_used, 0);
    assert_eq!(cached(&old), 0);
}

/// Case 85: a prompt of whole pages that is cached whole, while the first still decodes and after it, beside the answer of an
/// engine that never cached anything.
#[test]
fn prefix_hit_exact_full_prompt() {
    for (folder, mode) in [(models::tiny(), "fast"), (models::small_kimi(), "exact")] {
        let words = format!("--mode {mode} --max-model-len 256 --max-num-seqs 4");
        let engine = load(&folder.model(), &words).engine;
        let cold = load(&folder.model(), &format!("{words} --no-prefix-cache")).engine;
        let page = engine.limits().prefix_granularity as usize;
        for pages in 1..=3 {
            let prompt = ids(pages as u32, pages * page);
            let alone = finish(submit(&*cold, greedy(&prompt, 60)));
            assert_eq!(alone.usage.cached_tokens, 0);
            let equal = |answer: &Answer, n: usize, n_cached: usize, label: &str| {
                let wanted = (&alone.ids[..n], &alone.logprobs[..n], &alone.prompt[..]);
                assert_eq!(answer.numbers(), wanted, "{mode}: {pages} pages, {label}");
                assert_eq!(answer.usage.cached_tokens as usize, n_cached, "{mode}: {pages} pages, {label}");
            };
            // The first may be faster than this thread.
            let decodes_meanwhile = (0..20).any(|_| {
                settled(&*engine);
                let mut first = submit(&*engine, greedy(&prompt, 60));
                // Its prompt is in the cache from its first token on, while it still decodes.
                let mut heard = vec![first.blocking_next().expect("it starts")];
                let during = finish(submit(&*engine, greedy(&prompt, 10)));
                let mut context = Context::from_waker(Waker::noop());
                while let Poll::Ready(Some(event)) = first.poll_next(&mut context) {
                    heard.push(event);
                }
                let decodes = !matches!(heard.last(), Some(Event::Finished { .. }));
                let first = answer(heard.into_iter().chain(std::iter::from_fn(|| first.blocking_next())));
                equal(&first, 60, 0, "the first");
                equal(&during, 10, (pages - 1) * page, "meanwhile, one page is always computed");
                decodes
            });
            assert!(decodes_meanwhile, "{mode}: {pages} pages");
            for n in [30, 1] {
                equal(&finish(submit(&*engine, greedy(&prompt, n))), n as usize, (pages - 1) * page, "after it");
            }
        }
    }
}

/// Case 95.
#[test]
fn abort_frees_blocks() {
    let server = Serving::start(load(&models::script().model(), ""));
    let before = server.idle_metrics();
    for (round, fields) in [json!({"stream": true}), json!({"stream": true, "n": 3}), json!({})]
        .iter()
        .cycle()
        .take(if long_tests() { 100 } else { 30 })
        .enumerate()
    {
        let body = with(json!({"model": MODEL, "prompt": "x E", "max_tokens": 250}), fields.clone()).to_string();
        let head = client::head("POST", "/v1/completions", &[("Content-Type", "application/json")], body.len());
        let begun = server.idle_metrics().prompt_tokens;
        let mut socket = client::connect(server.address);
        socket.write_all((head + &body).as_bytes()).expect("sent");
        // The engine has it: one step and the memory of a prompt.
        wait_for(|| server.engine.metrics().prompt_tokens > begun);
        drop(socket);
        let metrics = server.idle_metrics();
        assert_eq!(metrics.pages_used, metrics.pages_cached, "round {round}: pages are held by nobody");
    }
    let aborted = server.idle_metrics().finished[2];
    assert!(aborted > before.finished[2], "nothing was aborted: every answer was faster than the client's goodbye");
    for _ in 0..20 {
        server.completion("x B", json!({}));
    }
    assert_eq!(server.idle_metrics().finished[2], aborted, "a normal end is no abort");
}

fn wait_for(happened: impl Fn() -> bool) {
    for _ in 0..2000 {
        if happened() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("nothing happened for 10 s");
}

/// Case 97.
#[test]
fn concurrency() {
    let folder = models::tiny();
    let server = Serving::start(load(&folder.model(), ""));
    let ask = |i: usize, stream: bool| -> String {
        let fields = json!({"max_tokens": 1 + i % 30, "ignore_eos": true, "temperature": 0});
        let prompt = json!(ids(i as u32, 1 + i * 3));
        if stream {
            joined(&events(&server.complete(prompt, with(fields, json!({"stream": true})))), 0)
        } else {
            server.completion(prompt, fields)["choices"][0]["text"].as_str().expect("text").to_owned()
        }
    };
    let solo: Vec<String> = (0..64).map(|i| ask(i, false)).collect();
    for n in [2, 3, 17, 64] {
        std::thread::scope(|scope| {
            let ask = &ask;
            let spawn = |i| {
                if long_tests() {
                    std::thread::sleep(Duration::from_millis(5));
                }
                scope.spawn(move || ask(i, i % 2 == 1))
            };
            let threads: Vec<_> = (0..n).map(spawn).collect();
            for (i, thread) in threads.into_iter().enumerate() {
                assert_eq!(thread.join().expect("answered"), solo[i], "{i} of {n}");
            }
        });
    }
    // Simply the second one; and one after long idleness.
    assert_eq!([ask(9, false), ask(9, true)], [&solo[9][..]; 2]);
    if long_tests() {
        std::thread::sleep(Duration::from_secs(60));
    }
    assert_eq!(ask(9, false), solo[9]);
}

/// The value of a line of /metrics.
fn metric(page: &str, name: &str) -> f64 {
    let line = page.lines().find(|l| l.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')));
    let value = line.and_then(|l| l.rsplit(' ').next()).and_then(|v| v.parse().ok());
    value.unwrap_or_else(|| panic!("no {name} in {page}"))
}

#[test]
fn metrics_wrong() {
    let server = Serving::start(load(&models::script().model(), ""));
    let (mut prompt_tokens, mut completion_tokens) = (0.0, 0.0);
    let mut take = |answer: Value| {
        prompt_tokens += answer["usage"]["prompt_tokens"].as_f64().expect("a count");
        completion_tokens += answer["usage"]["completion_tokens"].as_f64().expect("a count");
    };
    for _ in 0..10 {
        take(server.completion("x B", json!({})));
        take(server.completion("x E", json!({"max_tokens": 5})));
        take(server.completion("x B", json!({"stop": "gamma"})));
        assert_eq!(server.complete("x B", json!({"max_tokens": -1})).status, 400);
    }
    let metrics = server.idle_metrics();
    assert_eq!((metrics.finished[3], metrics.preemptions), (0, 0));
    assert_eq!(metrics.finished.iter().sum::<u64>(), 30, "{metrics:?}");
    // A stop string is found in the layer above, by when the engine may have come to the end on its own.
    assert_eq!((metrics.finished[0] + metrics.finished[2], metrics.finished[1]), (20, 10), "{metrics:?}");
    let page = client::request(server.address, "GET", "/metrics", &[], b"").text();
    assert_eq!(metric(&page, r#"tokenspeed_choices_finished_total{reason="stop"}"#), 20.0);
    assert_eq!(metric(&page, r#"tokenspeed_choices_finished_total{reason="length"}"#), 10.0);
    assert_eq!(metric(&page, r#"tokenspeed_choices_finished_total{reason="abort"}"#), 0.0);
    assert_eq!(metric(&page, "tokenspeed_prompt_tokens_total"), prompt_tokens);
    assert_eq!(metric(&page, "tokenspeed_generation_tokens_total"), completion_tokens);
    assert_eq!(metric(&page, "tokenspeed_request_seconds_count"), 30.0);
    for gauge in ["tokenspeed_requests_running", "tokenspeed_requests_waiting"] {
        assert_eq!(metric(&page, gauge), 0.0);
    }
    assert_eq!(metric(&page, "tokenspeed_kv_pages_used"), metric(&page, "tokenspeed_kv_pages_cached"));
}
