//! Host cost of scheduling, without a device: what `benches/vs_cpp_scheduler` measures of this engine.
//!
//! `cargo run --release -p tokenspeed-core --example scheduler_cost -- WORKLOAD [--name value]...`
//!
//! * `steps`: requests come, decode and go at a steady rate; per step the time of `submit`, `plan` (parameter block
//!   included) and `advance`, and a digest of what each parameter block tells the device to compute.
//! * `admission`: one long prompt after the other, mostly cached, into an idle engine.
//! * `queue`: a full engine with many requests waiting: submitting, planning, looking and aborting beside them.
//! * `ring`: decoding steps with the ring of decisions and without it, in turn.
//!
//! One JSON object on stdout; times in nanoseconds, every sample. Rows have 16 logits, so sampling is next to nothing.
//! Rejected: timing inside the engine, whose clock would then be part of what is measured.

mod admission;
mod bench;
mod options;
mod queue;
mod ring;
mod steps;
mod trace;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let workload = arguments.next().unwrap_or_default();
    let result = options::Options::parse(arguments).and_then(|options| match workload.as_str() {
        "steps" => steps::run(&options),
        "admission" => admission::run(&options),
        "queue" => queue::run(&options),
        "ring" => ring::run(&options),
        other => Err(format!("unknown workload `{other}`: steps, admission, queue or ring")),
    });
    match result {
        Ok(measured) => {
            println!("{measured}");
            ExitCode::SUCCESS
        }
        Err(message) => {
            eprintln!("scheduler_cost: {message}");
            ExitCode::FAILURE
        }
    }
}

/// A JSON array of numbers.
fn numbers<N: ToString>(values: impl IntoIterator<Item = N>) -> String {
    let values: Vec<String> = values.into_iter().map(|value| value.to_string()).collect();
    format!("[{}]", values.join(","))
}

/// Nanoseconds that `work` takes, and what it returns.
fn timed<R>(work: impl FnOnce() -> R) -> (u64, R) {
    let start = std::time::Instant::now();
    let result = work();
    (u64::try_from(start.elapsed().as_nanos()).expect("a run takes less than 500 years"), result)
}
