//! `tokenspeed backends`: what is there, and what a model would run on.

use clap::Args;

use crate::{engine_setup, error::CliError};

/// Arguments of `backends`.
#[derive(Clone, Debug, Args)]
pub struct BackendsArgs {
    /// Show each operation of this model and the kernel that would run it
    #[arg(long, value_name = "MODEL")]
    pub explain: Option<String>,
    /// Only this backend
    #[arg(long, value_name = "NAME|PATH")]
    pub backend: Option<String>,
}

/// Run it.
pub fn run(args: BackendsArgs) -> Result<(), CliError> {
    print!("{}", engine_setup::backends(&args)?.render());
    Ok(())
}
