//! Where a backend, a model and the engine are put together for the commands.
//!
//! Everything in `cli/` and `http/` works on [`Loaded`]; only this file knows how one comes about.

mod backend;
mod bench_ops;
mod conform;
mod draft;
mod experts;
mod explain;
mod ids_only;
mod kernel_table;
mod kimi_plan;
mod kimi_report;
mod launch_counts;
mod logits;
mod prepare;
mod reads;
mod sampling;
mod text;

pub use bench_ops::bench_ops;
pub use conform::conform;
pub use experts::summary as expert_summary;
pub use explain::{backends, plan};
pub use kimi_plan::{KimiReport, config_file, kimi_config, kimi_plan};
pub use logits::prompt_logits;
pub use reads::DecodeReads;
pub use text::load_frontend;

use std::{path::PathBuf, sync::Arc, time::Duration};

use tokenspeed_backend_api::backend::DeviceMonitor;
use tokenspeed_core::{
    client::Engine,
    driver::{DriverConfig, EngineHandle, StepRunner},
    engine::EngineConfig,
    load::DeviceProgram,
};

use crate::{
    cli::{engine_options::EngineOptions, model_path::resolve_model},
    error::CliError,
    frontend::TextFrontend,
    progress::{Preflight, Progress},
};
use prepare::{Prepared, Shape};

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
    /// What decoding must read.
    pub reads: DecodeReads,
    /// The device computes in this machine's memory.
    pub host_memory: bool,
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
    load_watched(options, progress).map(|(loaded, _)| loaded)
}

/// As [`load`], with an eye on the device.
pub fn load_watched(options: &EngineOptions, progress: &mut dyn Progress) -> Result<(Loaded, DeviceMonitor), CliError> {
    start(options, Shape::Serve, progress, Box::new(|program| Box::new(program)))
}

/// As [`load`], with something between the engine and the device: what it makes of the loaded program runs the steps.
pub fn load_between(
    options: &EngineOptions,
    progress: &mut dyn Progress,
    between: Box<dyn FnOnce(DeviceProgram) -> Box<dyn StepRunner>>,
) -> Result<Loaded, CliError> {
    start(options, Shape::Serve, progress, between).map(|(loaded, _)| loaded)
}

/// As [`load`], for prompts of token ids: a model without a tokenizer can be measured too.
pub fn load_ids_only(options: &EngineOptions, progress: &mut dyn Progress) -> Result<Loaded, CliError> {
    start(options, Shape::ServeIds, progress, Box::new(|program| Box::new(program))).map(|(loaded, _)| loaded)
}

/// The same without an engine thread: the configuration of the state machine and the program that runs its steps, to be
/// driven by hand. The host samples.
pub fn load_parts(
    options: &EngineOptions,
    progress: &mut dyn Progress,
) -> Result<(EngineConfig, DeviceProgram), CliError> {
    let prepared = Prepared::new(&EngineOptions { host_sampling: true, ..options.clone() }, Shape::Serve)?;
    let config = prepared.engine.clone();
    Ok((config, prepared.load(progress)?))
}

fn start(
    options: &EngineOptions,
    shape: Shape,
    progress: &mut dyn Progress,
    between: Box<dyn FnOnce(DeviceProgram) -> Box<dyn StepRunner>>,
) -> Result<(Loaded, DeviceMonitor), CliError> {
    let prepared = Prepared::new(options, shape)?;
    let place = resolve_model(&options.model)?;
    let info = ModelInfo {
        name: place.default_name(),
        path: place.path().to_owned(),
        defaults: prepared.defaults(options),
        preflight: prepared.preflight(options),
        reads: DecodeReads::of(&prepared.model),
        host_memory: prepared.device.host_mapped(),
    };
    progress.preflight(&info.preflight);
    let (config, driver, frontend) = (prepared.engine.clone(), driver_config(options), Arc::clone(&prepared.frontend));
    let monitor = prepared.device.monitor();
    let program = prepared.load(progress)?;
    let engine = EngineHandle::start(config, driver, between(program)).map_err(|e| {
        CliError::new(e.to_string(), "", "change --max-model-len, --max-num-seqs, --chunked-prefill-size or --memory")
    })?;
    Ok((Loaded { engine, frontend, info }, monitor))
}

fn driver_config(options: &EngineOptions) -> DriverConfig {
    let delay_ms = options.max_queue_delay_ms;
    DriverConfig {
        step_time_target_ms: options.step_time_target_ms,
        max_queue_delay: (delay_ms > 0).then(|| Duration::from_millis(delay_ms.into())),
        overlap: !options.disable_overlap_schedule,
        warm_up: !options.skip_server_warmup,
        ..DriverConfig::default()
    }
}
