//! `tokenspeed conform`: the catalogue against a backend.

use std::path::PathBuf;

use tokenspeed_backend_api::conform::{self, Options};

use super::{backend, kernel_table::KernelTable, launch_counts};
use crate::{cli::conform::ConformArgs, error::CliError};

/// Check a backend and print the scored table; an error if it fails.
pub fn conform(args: &ConformArgs) -> Result<(), CliError> {
    let found = backend::find(&args.backend)?;
    let device = backend::open(&found, &backend::parse_options(&args.backend_options)?)?;
    let info = found.info();
    println!("{} {} ({}) on {}", found.name(), info.version, found.origin(), device.info().name);
    // A device that logs what its launches did is emulated: its times would say nothing.
    let log = std::env::var_os(launch_counts::VARIABLE).filter(|p| args.perf && !p.is_empty()).map(PathBuf::from);
    let timing_runs = if args.perf && log.is_none() { 20 } else { 0 };
    let options = Options { seed: 1, timing_runs, only: args.only.clone() };
    let report = conform::run(&device, info.tiers, info.profiles, &options)
        .map_err(|e| CliError::new(e.to_string(), args.backend.clone(), "the device was lost; the suite stopped"))?;
    print!("{report}");
    if args.perf {
        match KernelTable::read(found.name(), found.origin(), log.as_deref()) {
            Ok(table) => print!("{table}"),
            Err(error) => println!("no table of kernels: {error}"),
        }
    }
    if report.passed() {
        return Ok(());
    }
    let (_, _, failed) = report.totals();
    Err(CliError::new(format!("{failed} checks failed"), args.backend.clone(), "each is listed above"))
}
