//! `tokenspeed logits`: one row of logits per prompt position, as JSON.

use std::{io::Write as _, path::PathBuf};

use clap::Args;

use super::engine_options::EngineOptions;
use crate::{engine_setup, error::CliError, log::Log, progress::Terminal};

/// Arguments of `logits`.
#[derive(Clone, Debug, Args)]
pub struct LogitsArgs {
    /// Engine options.
    #[command(flatten)]
    pub engine: EngineOptions,
    /// Token ids of the prompt
    #[arg(long, value_delimiter = ',', required = true, value_name = "1,2,3")]
    pub ids: Vec<u32>,
    /// Where to write {"argmax": […], "logits": [[…]]}; - is standard output
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
}

/// Run it.
pub fn run(args: LogitsArgs) -> Result<(), CliError> {
    let rows = engine_setup::prompt_logits(&args.engine, &args.ids, &mut Terminal::new(Log::default(), false))?;
    let text = render(&rows);
    let failed = |error: std::io::Error| {
        CliError::new(format!("cannot write the logits: {error}"), args.out.display().to_string(), "check --out")
    };
    if args.out.as_os_str() == "-" {
        return std::io::stdout().write_all(text.as_bytes()).map_err(failed);
    }
    std::fs::write(&args.out, text).map_err(failed)
}

/// Ties go to the lower id; logits are written so that they read back to the same 32 bits.
fn render(rows: &[Vec<f32>]) -> String {
    let argmax = |row: &Vec<f32>| {
        let mut best = 0;
        for (id, logit) in row.iter().enumerate() {
            if *logit > row[best] {
                best = id;
            }
        }
        best
    };
    let argmax: Vec<usize> = rows.iter().map(argmax).collect();
    serde_json::json!({ "argmax": argmax, "logits": rows }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_read_back_exactly_and_ties_go_low() {
        let rows = vec![vec![0.1_f32, 0.3, 0.3], vec![-1.0e-30, -2.0, f32::MIN_POSITIVE]];
        let value: serde_json::Value = serde_json::from_str(&render(&rows)).expect("JSON");
        assert_eq!(value["argmax"], serde_json::json!([1, 2]));
        for (row, written) in rows.iter().zip(value["logits"].as_array().expect("rows")) {
            for (logit, written) in row.iter().zip(written.as_array().expect("a row")) {
                assert_eq!(*logit, written.as_f64().expect("a number") as f32);
            }
        }
    }
}
