//! The engine thread allocates nothing while requests decode: an allocator that waits delays every running request.
//!
//! Measured in the real driver with the null backend through its C table. Allocations are counted by the thread that
//! makes them; the engine's is found by its name.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    sync::atomic::{AtomicI32, AtomicU64, Ordering},
};

use clap::Parser as _;
use serde_json::json;
use tokenspeed_backend_api::dtype::DType;
use tokenspeed_core::request::{Event, Request, SamplingParams};
use tokenspeed_models::tiny::Tiny;
use tokenspeed_server::{
    cli::{Cli, Command},
    engine_setup,
    progress::Silent,
};

/// Kernel id of the thread to watch; 0 = none yet.
static WATCHED: AtomicI32 = AtomicI32::new(0);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static ID: Cell<i32> = const { Cell::new(0) };
}

fn count() {
    // Fails only while the thread is torn down.
    let _ = ID.try_with(|id| {
        if id.get() == 0 {
            // SAFETY: takes nothing and cannot fail.
            id.set(unsafe { libc::gettid() });
        }
        if id.get() == WATCHED.load(Ordering::Relaxed) {
            ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        }
    });
}

struct Counting;

// SAFETY: forwards every call unchanged to the system allocator, which upholds the contract; counting touches only
// atomics and a const-initialised thread-local without a destructor, so it allocates nothing itself.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A thread names itself once it runs: one that was just started may still have to, and has its parent's name till then.
fn thread_named(name: &str) -> i32 {
    loop {
        let threads = std::fs::read_dir("/proc/self/task").expect("Linux").flatten();
        let named =
            threads.filter(|t| std::fs::read_to_string(t.path().join("comm")).is_ok_and(|comm| comm.trim() == name));
        let ids: Vec<i32> =
            named.map(|t| t.file_name().to_str().expect("a number").parse().expect("a number")).collect();
        match ids[..] {
            [id] => return id,
            _ => std::thread::yield_now(),
        }
    }
}

#[test]
fn engine_thread_allocates_nothing_while_decoding() {
    // Logits of a ramp are sampled by the host; `sample=best` is the device's choice, two steps at a time.
    for words in [
        "--backend-option logits=ramp",
        "--backend-option logits=ramp --host-cache-bytes 64MiB",
        "--backend-option logits=ramp --scheduling-policy shortest-prefill --prefill-coalescing-ms 5",
        "--backend-option logits=ramp --speculative-algorithm ngram --speculative-num-draft-tokens 3",
        "--backend-option sample=best",
        "--backend-option sample=best --speculative-algorithm ngram --speculative-num-draft-tokens 3",
    ] {
        watch(words);
    }
}

/// Twelve requests with these options, for thousands of tokens.
fn watch(words: &str) {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("host-cost-{}", std::process::id()));
    // The null device's best token is a sum of positions modulo the vocabulary: with a small one texts repeat themselves.
    let vocab_size = if words.contains("ngram") { 64 } else { 1000 };
    let tiny = Tiny::llama().with("vocab_size", json!(vocab_size)).with("max_position_embeddings", json!(8192));
    tiny.write_folder(&folder, DType::F32).expect("written");
    let model = format!("dummy:{}", folder.join("config.json").display());
    let line =
        ["tokenspeed", "plan", &model, "--backend", "null", "--backend-option", "step_us=50", "--memory", "256MiB"];
    let line = line.into_iter().chain(words.split(' '));
    let Command::Plan(args) = Cli::try_parse_from(line).expect("known options").command else { panic!("plan") };
    let engine = engine_setup::load(&args.engine, &mut Silent).expect("loads").engine;
    std::fs::remove_dir_all(&folder).expect("it was there");
    ALLOCATIONS.store(0, Ordering::SeqCst);
    WATCHED.store(thread_named("engine"), Ordering::SeqCst);

    let on_device = words.contains("sample=best");
    let request = |i: u32| {
        let mut sampling = SamplingParams { max_tokens: 6000, ignore_eos: true, seed: 1, ..SamplingParams::default() };
        match i % 3 {
            0 => sampling.temperature = 0.0,
            1 => (sampling.top_k, sampling.top_p) = (40, 0.9),
            _ if on_device => {}
            _ => (sampling.repetition_penalty, sampling.presence_penalty) = (1.1, 0.5),
        }
        Request { prompt: vec![i + 1; 10 + i as usize * 30], sampling, ..Request::default() }
    };
    let mut running: Vec<_> = (0..12).map(|i| engine.submit(request(i)).expect("a good request")).collect();
    let mut read = |tokens: usize| {
        for events in &mut running {
            let is_token = |event: Option<Event>| match event {
                Some(Event::Token { .. }) => true,
                Some(Event::Started { .. }) => false,
                other => panic!("{words}: the request ended: {other:?}"),
            };
            let mut seen = 0;
            while seen < tokens {
                seen += usize::from(is_token(events.blocking_next()));
            }
        }
    };
    read(200);
    let (allocations, before) = (ALLOCATIONS.load(Ordering::SeqCst), engine.metrics());
    assert!(allocations > 0, "{words}: submitting allocates, so a zero means that nothing is counted");
    // Long enough for several pages per request, and for containers that double to do so. In turn, so that nobody's mailbox
    // holds more than there was room made for; guesses make some requests faster than they are read.
    let times = if words.contains("ngram") && !on_device { 10 } else { 25 };
    (0..times).for_each(|_| read(100));
    let (now, metrics) = (ALLOCATIONS.load(Ordering::SeqCst), engine.metrics());
    assert_eq!(metrics.finished, [0; 4], "{words}: the requests must still run");
    let steps = metrics.steps - before.steps;
    assert!(steps > 500, "{words}: {steps} steps were watched");
    assert_eq!(now - allocations, 0, "{words}: allocations of the engine thread in {steps} steps");
    assert_eq!(
        metrics.host_steps == [0; _],
        on_device,
        "{words}: sampled by the host, by reason: {:?}",
        metrics.host_steps
    );
    assert_eq!(metrics.drafts[0] > 0, words.contains("ngram"), "{words}");
    drop(running);
}
