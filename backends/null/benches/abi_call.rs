//! What crossing the C table costs: `cargo bench -p tokenspeed-null [-- libtokenspeed_null.so]`.
//!
//! With a path the same backend is also measured as a loaded plugin. Medians of batches; the target is 10 ns per call.

use std::{hint::black_box, time::Instant};
use tokenspeed_backend_api::{
    abi::{TS_BIND_STEP, ts_step},
    backend::{ArenaKind, Backend, Bindings, Bucket, StepBuffer},
    loader::{self, SearchPaths},
};
use tokenspeed_null as _;

const BATCH: u32 = 10_000;
const BATCHES: usize = 51;

/// Median nanoseconds of one `body`.
fn time(mut body: impl FnMut()) -> f64 {
    let mut batches: Vec<f64> = (0..BATCHES)
        .map(|_| {
            let start = Instant::now();
            (0..BATCH).for_each(|_| body());
            start.elapsed().as_nanos() as f64 / f64::from(BATCH)
        })
        .collect();
    batches.sort_by(f64::total_cmp);
    batches[BATCHES / 2]
}

fn measure(title: &str, backend: &Backend) {
    let device = backend.open(0, &[]).expect("the null backend opens");
    let (queue, event) = (device.queue_create().expect("a queue"), device.event_create().expect("an event"));
    let query = time(|| {
        black_box(event.query().expect("never fails"));
    });
    let status = time(|| device.status().expect("never fails"));
    let mut bindings = Bindings::new();
    bindings.bind_all(TS_BIND_STEP, &device.arena_alloc(ArenaKind::Step, 4096).expect("memory"));
    let program = device.program_prepare(&[], &bindings, Bucket::default()).expect("an empty program");
    let mut step = StepBuffer::with_capacity(64);
    let header = ts_step { struct_size: 64, bytes: 64, ..Default::default() };
    // SAFETY: the buffer is aligned and as long as the header.
    unsafe { step.bytes_mut().expect("nothing runs").as_mut_ptr().cast::<ts_step>().write(header) };
    let mut value = 0;
    let run = time(|| {
        value += 1;
        device.program_run(&program, &queue, &mut step, &event, value).expect("nothing can fail");
    });
    println!("{title:<9} event_query {query:6.1} ns   device_status {status:6.1} ns   empty program_run {run:6.1} ns");
}

fn main() {
    measure("embedded", &loader::load("null", &SearchPaths::default()).expect("linked in"));
    // Cargo passes `--bench`.
    for path in std::env::args().skip(1).filter(|a| a.ends_with(".so")) {
        let start = Instant::now();
        let backend = loader::load(&path, &SearchPaths::default()).unwrap_or_else(|e| panic!("{e}"));
        println!("load, layout check and negotiation: {:.2} ms", start.elapsed().as_secs_f64() * 1e3);
        measure("plugin", &backend);
    }
}
