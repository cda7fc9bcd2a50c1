//! `cargo xtask bench-scheduler`: the race of schedulers, `benches/vs_cpp_scheduler`, with all that it needs.

use std::process::Command;

use crate::{command, python, workspace};

const REQUIREMENTS: &str = "benches/cpp_scheduler_requirements.txt";
const SCRIPT: &str = "benches/vs_cpp_scheduler";
const CONTENDER: &str = "scheduler_cost";

/// Builds the contender, installs the peer, and starts the script with its own options.
pub fn run(options: &[&str]) -> Result<(), String> {
    let peer = python::interpreter_of(REQUIREMENTS)?;
    let package = ["build", "--quiet", "--release", "--package", "tokenspeed-core", "--example", CONTENDER];
    command::run(command::cargo().args(package))?;
    let target = workspace::target_folder()?;
    let mut script = Command::new(peer);
    script.arg(workspace::root().join(SCRIPT)).arg("--ours").arg(target.join("release/examples").join(CONTENDER));
    script.arg("--out").arg(target.join("bench-scheduler")).args(options);
    command::run(&mut script)
}
