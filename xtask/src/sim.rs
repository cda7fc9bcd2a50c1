//! `cargo xtask sim`: the simulation with more seeds, or with one of them again.

use crate::{command, workspace};

/// Seeds of the stage in `cargo xtask test`: always the same, so that a failure is a change's and not a new draw's.
const STAGE_SEEDS: u32 = 13_000;
const PACKAGE: &str = "tokenspeed-sim";

/// Runs the simulator with its own options.
pub fn run(arguments: &[&str]) -> Result<(), String> {
    // Debug assertions are on in this profile, which the seeded bugs need. Of the workspace: with the features that everything
    // else was built with, so that nothing is built again.
    command::run(command::cargo().args(["build", "--quiet", "--workspace", "--bin", PACKAGE]))?;
    let mut sim = std::process::Command::new(workspace::target_folder()?.join("debug").join(PACKAGE));
    command::run(sim.args(arguments))
}

/// The stage of `cargo xtask test`: a fixed range of seeds.
pub fn stage() -> Result<(), String> {
    run(&["--from", "0", "--seeds", &STAGE_SEEDS.to_string()])
}
