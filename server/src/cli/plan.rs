//! `tokenspeed plan`: memory and operation support from a config alone.

use clap::Args;

use super::engine_options::EngineOptions;
use crate::{engine_setup, error::CliError};

/// Arguments of `plan`.
#[derive(Clone, Debug, Args)]
pub struct PlanArgs {
    /// Engine options.
    #[command(flatten)]
    pub engine: EngineOptions,
    /// Ranks to split the model over
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub tp: u32,
}

/// Run it.
pub fn run(args: PlanArgs) -> Result<(), CliError> {
    print!("{}", engine_setup::plan(&args.engine, args.tp)?.render());
    Ok(())
}
