//! The engine thread on a device that does what a test says.

use std::{
    sync::{Arc, Condvar, Mutex},
    thread::sleep,
    time::Duration,
};

use tokenspeed_backend_api::backend::Load;

use crate::{
    cache::copies::CopyOrder,
    client::Engine,
    driver::{CopyError, DriverConfig, EngineHandle, StepRunner},
    engine::{EngineConfig, Pass},
    request::{Event, Request, SamplingParams},
    speculation::SpeculationConfig,
    step::StepReader,
};

const VOCAB: u32 = 50;

/// What a device and the test that drives it share.
#[derive(Default)]
struct Switches {
    /// No pass ends until this is off.
    holds: bool,
    /// One that waits for it.
    is_held: bool,
    /// The next pass that computes whole chunks fails.
    fails: bool,
    n_copies: u32,
    /// What it says when it is asked what steps take.
    forecast: Option<Result<u64, String>>,
    n_asked: u32,
    /// Tokens of the steps so far.
    n_tokens: Vec<u32>,
    /// What the host takes for a step once the device is done.
    sampling: Duration,
}

/// Says token 7 for ever.
#[derive(Clone, Default)]
struct Device {
    switches: Arc<(Mutex<Switches>, Condvar)>,
    logits: Vec<f32>,
}

impl Device {
    fn switch(&self, act: impl FnOnce(&mut Switches)) {
        act(&mut self.switches.0.lock().unwrap());
        self.switches.1.notify_all();
    }
}

impl StepRunner for Device {
    fn run(&mut self, _: Pass, step: &[u8], n_logit_rows: u32) -> Result<(), String> {
        let n_tokens = StepReader::read(step).expect("sound").tokens.len() as u32;
        self.logits = vec![0.0; (n_logit_rows * VOCAB) as usize];
        self.logits.chunks_mut(VOCAB as usize).for_each(|row| row[7] = 30.0);
        self.switch(|switches| {
            switches.is_held = switches.holds;
            switches.n_tokens.push(n_tokens);
        });
        let mut switches = self.switches.1.wait_while(self.switches.0.lock().unwrap(), |s| s.holds).unwrap();
        if n_tokens >= CHUNK && std::mem::take(&mut switches.fails) { Err("refused".into()) } else { Ok(()) }
    }

    fn logits(&self, _: Pass) -> &[f32] {
        sleep(self.switches.0.lock().unwrap().sampling);
        &self.logits
    }

    fn copy(&mut self, _: &CopyOrder) -> Result<(), CopyError> {
        self.switch(|switches| switches.n_copies += 1);
        Ok(())
    }

    fn forecast(&self, _: Pass, _: &Load) -> Result<Option<u64>, String> {
        let mut switches = self.switches.0.lock().unwrap();
        switches.n_asked += 1;
        switches.forecast.clone().transpose()
    }

    fn status(&self) -> Result<(), String> {
        Ok(())
    }
}

const PAGE: u32 = 8;
const CHUNK: u32 = 16;

/// Pages for one conversation and a half, and host memory for several.
fn engine(device: &Device) -> Arc<EngineHandle> {
    let mut config = EngineConfig::paged(160, PAGE, 1 + 30, VOCAB);
    (config.max_num_seqs, config.table_rows, config.host_pages) = (3, 3, 100);
    (config.chunked_prefill_size, config.max_batch_tokens) = (CHUNK, CHUNK);
    EngineHandle::start(config, DriverConfig::default(), Box::new(device.clone())).expect("a sound configuration")
}

fn ask(salt: u32, n: u32, max_tokens: u32) -> Request {
    let sampling = SamplingParams { max_tokens, temperature: 0.0, ignore_eos: true, ..SamplingParams::default() };
    let prompt = (0..n).map(|i| (i * i + salt * 7 + i / 3) % VOCAB).collect();
    Request { prompt, sampling, ..Request::default() }
}

/// A step that fails while the plan after it has ordered pages back from host memory once ended the engine: a flush refused to
/// forget pages that were to be filled.
#[test]
fn a_failed_step_with_a_load_ordered_meanwhile_ends_requests_only() {
    let device = Device::default();
    let engine = engine(&device);
    let end = |request: Request| {
        let mut stream = engine.submit(request).expect("taken");
        std::iter::from_fn(|| stream.blocking_next()).last().expect("an end")
    };
    for salt in [1, 2] {
        assert!(matches!(end(ask(salt, 130, 4)), Event::Finished { .. }), "{salt} leaves the device for the next");
    }
    let is_stored = || device.switches.0.lock().unwrap().n_copies > 0;
    assert!(is_stored());
    device.switch(|switches| (switches.holds, switches.fails) = (true, true));
    // While a first request keeps the device busy, a prompt comes that takes all of the next step, and behind it somebody
    // whose pages are in host memory.
    let submit = |request| engine.submit(request).expect("taken");
    let first = submit(ask(3, 4, 1));
    drop(device.switches.1.wait_while(device.switches.0.lock().unwrap(), |switches| !switches.is_held).unwrap());
    let streams = [first, submit(ask(4, CHUNK + 4, 4)), submit(ask(1, 130, 4))];
    device.switch(|switches| switches.holds = false);
    let ends = streams.map(|mut stream| std::iter::from_fn(|| stream.blocking_next()).last().expect("an end"));
    let [Event::Finished { .. }, Event::Failed { message: prompt }, Event::Failed { message: load }] = &ends else {
        panic!("{ends:?}");
    };
    assert_eq!([prompt, load], ["refused"; 2]);
    assert!(matches!(end(ask(1, 130, 4)), Event::Finished { .. }), "the engine goes on");
    engine.health().expect("it is well");
}

/// The device is asked before the first request and never again. What it says makes the first guesses as wide as they may be; who is
/// told nothing doubles.
#[test]
fn a_forecast_is_asked_for_at_start_and_goes_into_the_first_guesses() {
    let first_guesses = |forecast: Option<Result<u64, String>>| {
        let device = Device::default();
        device.switch(|switches| switches.forecast = forecast);
        let mut config = EngineConfig::paged(160, PAGE, 1 + 30, VOCAB);
        (config.max_num_seqs, config.table_rows, config.max_logit_rows) = (3, 3, 60);
        config.speculation = Some(SpeculationConfig::default());
        let engine = EngineHandle::start(config, DriverConfig::default(), Box::new(device.clone())).expect("sound");
        let asked = device.switches.0.lock().unwrap().n_asked;
        let sampling =
            SamplingParams { max_tokens: 100, temperature: 0.0, ignore_eos: true, ..SamplingParams::default() };
        let mut stream = engine.submit(Request { prompt: vec![7; 8], sampling, ..Request::default() }).expect("taken");
        assert!(matches!(std::iter::from_fn(|| stream.blocking_next()).last(), Some(Event::Finished { .. })));
        let switches = device.switches.0.lock().unwrap();
        assert_eq!(switches.n_asked, asked, "not while steps run");
        // Behind the prompt.
        (asked, switches.n_tokens[1..].iter().copied().find(|n| *n > 1))
    };
    let (asked, guesses) = first_guesses(Some(Ok(5_000)));
    assert!(asked > 60 && guesses == Some(13), "asked {asked} times, {guesses:?}");
    let (asked, guesses) = first_guesses(None);
    assert!(asked == 1 && guesses == Some(2), "asked {asked} times, {guesses:?}");
}

#[test]
fn a_device_that_fails_to_answer_ends_the_engine() {
    let device = Device::default();
    device.switch(|switches| switches.forecast = Some(Err("out of order".into())));
    let engine = engine(&device);
    assert!(engine.health().unwrap_err().contains("out of order"));
}

/// A target below what the host alone takes leaves prompts the least there is, however quick the device.
#[test]
fn a_step_takes_what_the_host_takes_too() {
    let device = Device::default();
    device.switch(|switches| switches.sampling = Duration::from_millis(4));
    let mut config = EngineConfig::paged(400, PAGE, 1 + 100, VOCAB);
    (config.max_num_seqs, config.table_rows, config.max_batch_tokens, config.chunked_prefill_size) = (3, 3, 64, 64);
    let driver = DriverConfig { step_time_target_ms: Some(2.0), ..DriverConfig::default() };
    let engine = EngineHandle::start(config, driver, Box::new(device.clone())).expect("sound");
    let mut decoding = engine.submit(ask(1, 4, 60)).expect("taken");
    // The first step beside it may have been planned when nobody decoded.
    for _ in 0..3 {
        assert!(decoding.blocking_next().is_some());
    }
    let mut prompt = engine.submit(ask(2, 200, 1)).expect("taken");
    assert!(matches!(std::iter::from_fn(|| prompt.blocking_next()).last(), Some(Event::Finished { .. })));
    assert!(matches!(std::iter::from_fn(|| decoding.blocking_next()).last(), Some(Event::Finished { .. })));
    let steps = &device.switches.0.lock().unwrap().n_tokens;
    let widest = steps[1..].iter().max();
    assert_eq!(widest, Some(&(1 + PAGE)), "beside a decoding token: {steps:?}");
}
