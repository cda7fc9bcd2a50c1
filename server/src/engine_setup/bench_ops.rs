//! `tokenspeed bench ops`: the generated cases of the catalogue, timed.

use tokenspeed_backend_api::conform::{self, Options};

use super::backend;
use crate::{cli::bench::BenchOpsArgs, error::CliError};

/// Measure single operations and print the table.
pub fn bench_ops(args: &BenchOpsArgs) -> Result<(), CliError> {
    let found = backend::find(&args.backend)?;
    let mut options = backend::parse_options(&args.backend_options)?;
    options.extend(args.threads.map(|n| ("threads".to_owned(), n.to_string())));
    let device = backend::open(&found, &options)?;
    let info = found.info();
    let options = Options { seed: 1, timing_runs: 50, only: args.only.clone() };
    let report = conform::run(&device, info.tiers, info.profiles, &options)
        .map_err(|e| CliError::new(e.to_string(), args.backend.clone(), "the device was lost; the run stopped"))?;
    if args.json {
        let times = report.lines.iter().flat_map(|l| l.times.iter().map(move |(case, ns)| (l.kind.name(), case, ns)));
        for (op, case, ns) in times {
            println!("{}", serde_json::json!({ "op": op, "case": case, "median_ns": ns }));
        }
    } else {
        print!("{report}");
    }
    Ok(())
}
