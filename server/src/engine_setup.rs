//! Where a backend, a model and the engine are put together for the commands.
//!
//! Everything in `cli/` and `http/` works on [`Loaded`]; only this file knows how one comes about.

use std::{path::PathBuf, sync::Arc};

use tokenspeed_core::client::Engine;

use crate::{
    cli::{backends::BackendsArgs, bench::BenchOpsArgs, conform::ConformArgs, engine_options::EngineOptions},
    error::CliError,
    frontend::TextFrontend,
    progress::{Preflight, Progress},
};

/// Sampling values that a model's own files recommend. They apply where a request is silent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GenerationDefaults {
    /// Range [0, 2].
    pub temperature: Option<f32>,
    /// Range (0, 1].
    pub top_p: Option<f32>,
    /// 0 = off.
    pub top_k: Option<u32>,
    /// Range [0, 1].
    pub min_p: Option<f32>,
    /// Range (0, 10].
    pub repetition_penalty: Option<f32>,
}

impl std::fmt::Display for GenerationDefaults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut separator = "";
        let mut item = |f: &mut std::fmt::Formatter<'_>, name: &str, value: Option<String>| match value {
            Some(value) => {
                let result = write!(f, "{separator}{name}={value}");
                separator = ", ";
                result
            }
            None => Ok(()),
        };
        item(f, "temperature", self.temperature.map(|v| v.to_string()))?;
        item(f, "top_p", self.top_p.map(|v| v.to_string()))?;
        item(f, "top_k", self.top_k.map(|v| v.to_string()))?;
        item(f, "min_p", self.min_p.map(|v| v.to_string()))?;
        item(f, "repetition_penalty", self.repetition_penalty.map(|v| v.to_string()))?;
        if *self == Self::default() { f.write_str("none") } else { Ok(()) }
    }
}

/// What there is to tell about a loaded model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelInfo {
    /// Name it is served under unless `--served-model-name` says otherwise.
    pub name: String,
    /// Where it was read from.
    pub path: PathBuf,
    /// From the model's generation config; all `None` with `--generation-config none`.
    pub defaults: GenerationDefaults,
    /// The lines printed before loading, kept for the debug endpoint.
    pub preflight: Preflight,
}

/// A model that can answer.
#[derive(Clone)]
pub struct Loaded {
    /// The running engine.
    pub engine: Arc<dyn Engine>,
    /// Its text rules.
    pub frontend: Arc<dyn TextFrontend>,
    /// What there is to tell.
    pub info: ModelInfo,
}

impl std::fmt::Debug for Loaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loaded").field("info", &self.info).finish_non_exhaustive()
    }
}

/// Resolve, check, print the preflight table, load, start the engine. Blocks for as long as the weights take.
pub fn load(options: &EngineOptions, progress: &mut dyn Progress) -> Result<Loaded, CliError> {
    let _ = (options, progress);
    Err(no_backend())
}

/// Text rules alone, without weights.
pub fn load_frontend(model: &str) -> Result<Arc<dyn TextFrontend>, CliError> {
    let _ = model;
    Err(no_backend())
}

/// One row of logits per position of `ids`, vocabulary wide.
pub fn prompt_logits(
    options: &EngineOptions,
    ids: &[u32],
    progress: &mut dyn Progress,
) -> Result<Vec<Vec<f32>>, CliError> {
    let _ = (options, ids, progress);
    Err(no_backend())
}

/// The table that `tokenspeed backends` prints.
pub fn backends(args: &BackendsArgs) -> Result<Preflight, CliError> {
    let _ = args;
    Err(no_backend())
}

/// Check a backend and print the scored table; an error if it fails.
pub fn conform(args: &ConformArgs) -> Result<(), CliError> {
    let _ = args;
    Err(no_backend())
}

/// The table that `tokenspeed plan` prints.
pub fn plan(options: &EngineOptions, ranks: u32) -> Result<Preflight, CliError> {
    let _ = (options, ranks);
    Err(no_backend())
}

/// Measure single operations and print the table.
pub fn bench_ops(args: &BenchOpsArgs) -> Result<(), CliError> {
    let _ = args;
    Err(no_backend())
}

fn no_backend() -> CliError {
    CliError::new("no backend is linked into this build", "", "build the tokenspeed command with a backend")
}
