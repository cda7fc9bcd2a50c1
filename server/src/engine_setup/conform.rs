//! `tokenspeed conform`: the catalogue against a backend.

use tokenspeed_backend_api::conform::{self, Options};

use super::backend;
use crate::{cli::conform::ConformArgs, error::CliError};

/// Check a backend and print the scored table; an error if it fails.
pub fn conform(args: &ConformArgs) -> Result<(), CliError> {
    let found = backend::find(&args.backend)?;
    let device = backend::open(&found, &backend::parse_options(&args.backend_options)?)?;
    let info = found.info();
    println!("{} {} ({}) on {}", found.name(), info.version, found.origin(), device.info().name);
    let options = Options { seed: 1, timing_runs: if args.perf { 20 } else { 0 }, only: args.only.clone() };
    let report = conform::run(&device, info.tiers, info.profiles, &options)
        .map_err(|e| CliError::new(e.to_string(), args.backend.clone(), "the device was lost; the suite stopped"))?;
    print!("{report}");
    if report.passed() {
        return Ok(());
    }
    let (_, _, failed) = report.totals();
    Err(CliError::new(format!("{failed} checks failed"), args.backend.clone(), "each is listed above"))
}
