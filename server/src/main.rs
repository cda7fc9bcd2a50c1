//! The `tokenspeed` command.
#![forbid(unsafe_code)]
use std::process::ExitCode;

use clap::Parser as _;
use tokenspeed_server::cli::{self, Cli};

fn main() -> ExitCode {
    match cli::run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}", error.render());
            ExitCode::from(error.exit_code)
        }
    }
}
