//! `tokenspeed conform`: a backend against the operation catalogue.

use clap::Args;

use crate::{engine_setup, error::CliError};

/// Arguments of `conform`.
#[derive(Clone, Debug, Args)]
pub struct ConformArgs {
    /// Backend name, or path of a plugin
    #[arg(value_name = "NAME|PATH")]
    pub backend: String,
    /// Also time each operation, and list what the backend's kernels need and, on an emulated device, what they did
    #[arg(long)]
    pub perf: bool,
    /// Only operations whose name contains this
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Option for the backend
    #[arg(long = "backend-option", value_name = "K=V")]
    pub backend_options: Vec<String>,
}

/// Run it. A backend that fails a check ends with exit code 1.
pub fn run(args: ConformArgs) -> Result<(), CliError> {
    engine_setup::conform(&args)
}
