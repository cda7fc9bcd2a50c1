//! `cargo xtask …`: everything a contributor or CI runs, in one small program.
//!
//! Plain argument matching and few dependencies, so that it builds in seconds from a clean checkout. Rejected: shell scripts
//! (no unit tests, one more language) and clap (five subcommands with one flag each do not need it).
#![forbid(unsafe_code)]

mod bench_scheduler;
mod command;
mod demo;
mod header;
mod kernels;
mod kimi_vocabulary;
mod ops_document;
mod python;
mod rust_text;
mod sim;
mod test;
mod tidy;
mod tree;
mod vectors;
mod vendor_check;
mod workspace;

use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask <task>
  tidy              formatting, clippy, layering, forbidden words, dead files, unsafe code, header drift
  test [--long]     install what tests need, build, run every test
  sim [--seeds N] [--minutes M] [--from SEED] [--jobs J]
                    simulate the engine on a device that verifies what it is given
  demo              build, fetch a small model, serve it, ask it one question
  bench-scheduler [options]
                    race the scheduler against the public C++ one; benches/vs_cpp_scheduler says how
  header [--check]  write (or compare) what is generated: the C header and docs/ops.md
  vendor-check      compare declarations of a vendor's runtime with a binding crate, over our emulator of it
  kernels [--verify]
                    compile the backends' device kernels, without a device; --verify: twice, and compare
  kimi-vocabulary   make the rank file and texts that a long test compares with
  vectors [--write] run the numpy scripts; show that they reproduce (or rewrite) the committed vectors";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        ["tidy"] => tidy::run(),
        ["test"] => test::run(false),
        ["test", "--long"] => test::run(true),
        ["sim", options @ ..] => sim::run(options),
        ["bench-scheduler", options @ ..] => bench_scheduler::run(options),
        ["demo"] => demo::run(),
        ["header"] => header::run(false).and_then(|()| ops_document::run(false)),
        ["header", "--check"] => header::run(true).and_then(|()| ops_document::run(true)),
        ["vendor-check"] => kernels::run(None).and_then(|k| vendor_check::run(&k.ok_or("no backend has kernels")?)),
        ["kernels"] => kernels::run(None).map(drop),
        ["kernels", "--verify"] => kernels::run(Some(1)).map(drop),
        ["kimi-vocabulary"] => kimi_vocabulary::run(),
        ["vectors"] => vectors::run(false),
        ["vectors", "--write"] => vectors::run(true),
        [] | ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            Ok(())
        }
        other => Err(format!("unknown task `{}`\n{USAGE}", other.join(" "))),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}
