//! *Health check* and *SSE error handling*: the real driver and server on a device that fails in each way a device can.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use serde_json::json;
#[cfg(debug_assertions)]
use tokenspeed_core::{
    bug,
    grammar::{Constraint, ConstraintError, TokenMask},
    request::Request,
};
use tokenspeed_core::{
    driver::{DriverConfig, EngineHandle, StepRunner},
    engine::{EngineConfig, Pass},
};
use tokenspeed_server::engine_setup::{Loaded, ModelInfo, load_frontend};

use crate::support::{
    client, models,
    serving::{Serving, with},
};
#[cfg(debug_assertions)]
use crate::support::{finish, greedy, submit};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// The step fails, the device is well.
    Step,
    /// The device is lost for good.
    Lost,
    /// The engine thread panics.
    Panic,
    /// The step does not end until released.
    Stuck,
    /// Logits that are no numbers.
    NaN,
}

/// Says token 65 for ever, until `armed`.
struct Runner {
    fault: Fault,
    armed: Arc<AtomicBool>,
    lost: bool,
    logits: Vec<f32>,
    n_logits: usize,
}

const VOCAB: usize = 384;

impl StepRunner for Runner {
    fn run(&mut self, _pass: Pass, _step: &[u8], n_logit_rows: u32) -> Result<(), String> {
        self.n_logits = n_logit_rows as usize * VOCAB;
        let values = &mut self.logits[..self.n_logits];
        values.fill(0.0);
        values.chunks_mut(VOCAB).for_each(|row| row[65] = 30.0);
        std::thread::sleep(Duration::from_millis(1));
        if self.armed.load(Ordering::SeqCst) {
            match self.fault {
                Fault::Step => return Err("the queue was full".into()),
                Fault::Lost => {
                    self.lost = true;
                    return Err("the step did not end".into());
                }
                Fault::Panic => panic!("a test asked for it"),
                Fault::Stuck => {
                    while self.armed.load(Ordering::SeqCst) {
                        std::thread::sleep(Duration::from_millis(2));
                    }
                }
                Fault::NaN => values.fill(f32::NAN),
            }
        }
        Ok(())
    }

    fn logits(&self, _pass: Pass) -> &[f32] {
        &self.logits[..self.n_logits]
    }

    fn status(&self) -> Result<(), String> {
        if self.lost { Err("the device is gone".into()) } else { Ok(()) }
    }
}

/// A server on a faulty device, and the switch of the fault.
fn serve(fault: Fault) -> (Serving, Arc<AtomicBool>) {
    let folder = models::script();
    let mut config = EngineConfig::paged(256, 16, 100, VOCAB as u32);
    (config.max_num_seqs, config.table_rows, config.chunked_prefill_size) = (8, 8, 64);
    (config.max_batch_tokens, config.max_logit_rows) = (64 + 8, 16 + 8);
    let armed = Arc::new(AtomicBool::new(false));
    let runner = Runner { fault, armed: armed.clone(), lost: false, logits: vec![0.0; VOCAB * 24], n_logits: 0 };
    // Printing the backtrace of a panic takes longer than a step may in the test of stuck ones.
    let stuck_after = Duration::from_millis(if fault == Fault::Stuck { 100 } else { 60_000 });
    let driver = DriverConfig { stuck_after, ..DriverConfig::default() };
    let engine = EngineHandle::start(config, driver, Box::new(runner)).expect("starts");
    let frontend = load_frontend(&folder.model()).expect("a tokenizer");
    let info = ModelInfo { name: "faulty".into(), ..ModelInfo::default() };
    (Serving::start(Loaded { engine, frontend, info }), armed)
}

fn health(server: &Serving) -> u16 {
    client::request(server.address, "GET", "/health", &[], b"").status
}

/// Run a stream and a whole request into the fault; both must end, and say so.
fn run_into(server: &Serving, armed: &AtomicBool) {
    let fields = || json!({"max_tokens": 200});
    std::thread::scope(|scope| {
        let whole = scope.spawn(|| server.complete("x", fields()));
        let streamed = scope.spawn(|| server.complete("x", with(fields(), json!({"stream": true}))));
        while server.engine.metrics().running < 2 {
            std::thread::sleep(Duration::from_millis(1));
        }
        armed.store(true, Ordering::SeqCst);
        let whole = whole.join().expect("answered");
        whole.error();
        assert!(whole.status >= 500, "{}", whole.status);
        let events = client::events(&streamed.join().expect("answered"));
        assert!(events.iter().any(|e| e.get("error").is_some()), "{events:?}");
        assert!(client::finishes(&events, 0).is_empty(), "an error must not look like an end");
    });
}

#[test]
fn health_check_of_a_dead_engine() {
    for (fault, why) in [(Fault::Lost, "the device is gone"), (Fault::Panic, "a test asked for it")] {
        let (server, armed) = serve(fault);
        assert_eq!(health(&server), 200);
        run_into(&server, &armed);
        assert_eq!(health(&server), 503, "{fault:?}");
        let reply = server.complete("x", json!({}));
        reply.error();
        assert_eq!(reply.status, 503, "refused at once: {fault:?}");
        let said = server.engine.health().expect_err("dead");
        assert!(said.contains(why), "{said}");
        server.engine.flush_cache().expect_err("an engine that is gone flushes nothing");
    }
}

#[test]
fn one_failed_step_fails_its_requests_only() {
    for fault in [Fault::Step, Fault::NaN] {
        let (server, armed) = serve(fault);
        run_into(&server, &armed);
        armed.store(false, Ordering::SeqCst);
        assert_eq!(health(&server), 200, "{fault:?}");
        assert_eq!(server.completion("x", json!({"max_tokens": 3}))["choices"][0]["text"], "AAA");
        let metrics = server.idle_metrics();
        assert_eq!((metrics.finished[3], metrics.pages_used), (2, metrics.pages_cached), "{fault:?}: {metrics:?}");
    }
}

#[test]
fn health_check_of_a_stuck_step() {
    let (server, stuck) = serve(Fault::Stuck);
    stuck.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let late = scope.spawn(|| server.completion("x", json!({"max_tokens": 2})));
        while health(&server) == 200 {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(health(&server), 503);
        stuck.store(false, Ordering::SeqCst);
        assert_eq!(late.join().expect("answered")["choices"][0]["text"], "AA");
    });
    assert_eq!(health(&server), 200, "it was slow, not dead");
}

/// A grammar that allows everything. Its first token switches on, in the engine's thread, the bug that loses pages.
#[cfg(debug_assertions)]
#[derive(Debug)]
struct Saboteur;

#[cfg(debug_assertions)]
impl Constraint for Saboteur {
    fn mask(&mut self, mask: &mut TokenMask) -> Result<(), ConstraintError> {
        (0..mask.vocab_size()).for_each(|id| mask.allow(id));
        Ok(())
    }
    fn accept(&mut self, _id: u32) -> Result<(), ConstraintError> {
        bug::switch_on(Some(bug::Bug::DuplicatePageIsLost));
        Ok(())
    }
    fn roll_back(&mut self, _n: usize) -> Result<(), ConstraintError> {
        Ok(())
    }
    fn count_allowed(&mut self, ids: &[u32]) -> Result<usize, ConstraintError> {
        Ok(ids.len())
    }
    fn is_complete(&self) -> bool {
        false
    }
    fn fresh(&self) -> Box<dyn Constraint> {
        Box::new(Self)
    }
}

/// A page that is lost is noticed when the engine comes to rest. It says which, everywhere, and answers nothing more.
#[cfg(debug_assertions)]
#[test]
fn memory_that_is_not_accounted_for_ends_the_engine() {
    let (server, _) = serve(Fault::Step);
    let constraint: Box<dyn Constraint> = Box::new(Saboteur);
    let mut first = Request { constraint: Some(constraint), ..greedy(&[3; 5], 4) };
    first.sampling.ignore_eos = false;
    finish(submit(&*server.engine, first));
    let mut why = String::new();
    for n in 0..10_000 {
        // Equal prompts that are computed beside each other: the second one's pages are the first one's in the end.
        let twins: Result<Vec<_>, _> = (0..2).map(|_| server.engine.submit(greedy(&[n % 300; 40], 2))).collect();
        match twins {
            Ok(twins) => twins.into_iter().for_each(|mut events| while events.blocking_next().is_some() {}),
            Err(refusal) => {
                why = refusal.to_string();
                break;
            }
        }
    }
    assert!(why.contains("memory is not accounted for") && why.contains("page") && why.contains("is lost"), "{why}");
    assert_eq!(health(&server), 503);
    let reply = server.complete("x", json!({}));
    assert_eq!(reply.status, 503, "refused at once");
    let said = server.engine.health().expect_err("dead");
    assert!(why.contains(&said), "{said}");
}
