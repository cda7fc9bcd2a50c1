//! 429 from predicted waiting time, and what `/debug/steps` tells, with the real engine on a device that takes its time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokenspeed_core::{
    client::Engine,
    driver::{DriverConfig, EngineHandle, StepRunner},
    engine::{EngineConfig, Pass},
    request::{Request, SamplingParams},
};
use tokenspeed_server::{
    engine_setup::{Loaded, ModelInfo},
    step_trace_file::StepTraceFile,
};

use super::support::{TestServer, client, config, frontend};

/// Steps take a millisecond; while `held`, they take until they are let go.
struct Runner {
    held: Arc<AtomicBool>,
    logits: Vec<f32>,
}

impl StepRunner for Runner {
    fn run(&mut self, _pass: Pass, _step: &[u8], n_logit_rows: u32) -> Result<(), String> {
        std::thread::sleep(Duration::from_millis(1));
        while self.held.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.logits = vec![0.0; (n_logit_rows * frontend::VOCAB) as usize];
        Ok(())
    }

    fn logits(&self, _pass: Pass) -> &[f32] {
        &self.logits
    }

    fn status(&self) -> Result<(), String> {
        Ok(())
    }
}

fn serve(max_queue_delay: Option<Duration>) -> (TestServer, Arc<EngineHandle>, Arc<AtomicBool>) {
    let mut engine_config = EngineConfig::paged(256, 16, 1000, frontend::VOCAB);
    (engine_config.max_num_seqs, engine_config.table_rows) = (2, 2);
    (engine_config.chunked_prefill_size, engine_config.max_batch_tokens) = (16, 18);
    engine_config.max_logit_rows = 18;
    let held = Arc::new(AtomicBool::new(false));
    let runner = Runner { held: held.clone(), logits: Vec::new() };
    let driver = DriverConfig { max_queue_delay, ..DriverConfig::default() };
    let engine = EngineHandle::start(engine_config, driver, Box::new(runner)).expect("starts");
    let server = TestServer::loading(config());
    let info = ModelInfo { name: "slow".into(), ..ModelInfo::default() };
    server.state.set_ready(Loaded { engine: engine.clone(), frontend: Arc::new(frontend::ByteFrontend), info });
    (server, engine, held)
}

fn wait_until(what: impl Fn() -> bool) {
    while !what() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn whoever_would_wait_too_long_is_told_to_come_back() {
    let (server, engine, held) = serve(Some(Duration::from_micros(500)));
    // Nothing is measured yet, so the first is taken; it teaches what prompt tokens cost.
    assert_eq!(server.complete(&"long ".repeat(20), r#","max_tokens":3"#).status, 200);
    wait_until(|| engine.metrics().running == 0);
    held.store(true, Ordering::SeqCst);
    let prompt = |n: u32| Request {
        prompt: (0..200).map(|i| (i * 7 + n) % 200).collect(),
        sampling: SamplingParams { max_tokens: 2, ..SamplingParams::default() },
        ..Request::default()
    };
    // Two hundred tokens are twelve steps of a millisecond at least: one such request ahead is too much.
    let mut streams = vec![engine.submit(prompt(0)).expect("nobody is ahead")];
    wait_until(|| !engine.last_steps(1)[0].decisions.list.is_empty() && engine.last_steps(1)[0].ended_ns.is_none());
    let reply = server.complete("x", "");
    assert_eq!(reply.status, 429, "{}", reply.text());
    let seconds: u32 = reply.header("retry-after").expect("given").parse().expect("seconds");
    assert!((1..=600).contains(&seconds));
    assert!(reply.text().contains("retry in"), "{}", reply.text());
    held.store(false, Ordering::SeqCst);
    streams.drain(..).for_each(|mut stream| while stream.blocking_next().is_some() {});
    // The engine reports that nobody is ahead any more.
    wait_until(|| server.complete("x", "").status == 200);
}

#[test]
fn without_a_bound_everybody_is_queued() {
    let (server, engine, held) = serve(None);
    assert_eq!(server.complete(&"long ".repeat(20), r#","max_tokens":3"#).status, 200);
    held.store(true, Ordering::SeqCst);
    let request = |n: u32| Request { prompt: vec![n % 200; 200], ..Request::default() };
    let mut streams: Vec<_> = (0..20).map(|n| engine.submit(request(n)).expect("queued")).collect();
    held.store(false, Ordering::SeqCst);
    streams.drain(..).for_each(|mut stream| while stream.blocking_next().is_some() {});
    assert_eq!(engine.metrics().finished[3], 0, "nobody failed");
    drop(server);
}

#[test]
fn debug_steps_tell_who_ran_and_who_waited_for_what() {
    let (server, engine, held) = serve(None);
    assert_eq!(server.complete("x", r#","max_tokens":3"#).status, 200);
    held.store(true, Ordering::SeqCst);
    let request = |n: u32| Request { prompt: vec![n; 30], ..Request::default() };
    let mut streams: Vec<_> = (0..5).map(|n| engine.submit(request(n)).expect("queued")).collect();
    wait_until(|| engine.last_steps(1)[0].ended_ns.is_none());
    held.store(false, Ordering::SeqCst);
    streams.drain(..).for_each(|mut stream| while stream.blocking_next().is_some() {});
    let reply = server.get("/debug/steps?last=4000");
    assert_eq!(reply.status, 200, "{}", reply.text());
    let json = reply.json();
    let steps = json["data"].as_array().expect("a list");
    let said = |what: &str, why: Option<&str>| {
        let mut decisions = steps.iter().flat_map(|step| step["decisions"].as_array().expect("a list"));
        decisions.any(|d| d["what"] == what && why.is_none_or(|why| d["why"] == why))
    };
    for (what, why) in [("admitted", None), ("prefill", None), ("decode", None), ("waits", Some("no seat"))] {
        assert!(said(what, why), "{what} {why:?}: {json}");
    }
    assert!(steps.iter().all(|step| step["duration_us"].as_f64().is_some_and(|us| us >= 1000.0)), "{json}");
    assert_eq!(server.get("/debug/steps?last=2").json()["data"].as_array().expect("a list").len(), 2);
    for wrong in ["last=0", "last=x", "last=5000", "first=1", "last"] {
        assert_eq!(server.get(&format!("/debug/steps?{wrong}")).status, 400, "{wrong}");
    }
    assert_eq!(client::request(server.address, "POST", "/debug/steps", &[], b"").status, 405);
}

#[test]
fn the_trace_file_has_every_step() {
    let path = std::env::temp_dir().join(format!("tokenspeed-step-trace-{}.json", std::process::id()));
    let (server, engine, _held) = serve(None);
    let trace = StepTraceFile::create(&path).expect("writable");
    trace.follow(engine.clone());
    assert_eq!(server.complete("hello", r#","max_tokens":40"#).status, 200);
    wait_until(|| engine.metrics().running == 0);
    trace.finish();
    let events: Vec<serde_json::Value> =
        serde_json::from_slice(&std::fs::read(&path).expect("written")).expect("valid");
    std::fs::remove_file(&path).expect("it was there");
    let steps = events.iter().filter(|event| event["name"] == "step").count() as u64;
    assert_eq!(steps, engine.metrics().steps);
    assert!(StepTraceFile::create(std::path::Path::new("/nowhere/at/all.json")).is_err());
}
