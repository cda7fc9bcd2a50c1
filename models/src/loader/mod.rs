//! Opening a model: from a path to config, graph and weights that are known to fit together.
//!
//! [`Model::open`] reads headers and configs only; weights are touched when a backend asks for them. Whatever is
//! missing, surplus or misshapen is found here, by name, before a backend allocates anything.
#![forbid(unsafe_code)]

mod error;
mod llama;
mod place;
mod resolve;
mod sizes;
mod weights;

pub use error::ModelError;
pub use llama::LlamaWeights;
pub use sizes::Sizes;
pub use weights::Weights;

use crate::{
    config::{GenerationDefaults, ModelConfig, from_gguf},
    graph,
    kimi::{GraphOptions, Graphs, KimiWeights, Taps},
    weights::{Checkpoint, gguf::Metadata},
};
use place::Place;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};
use tokenspeed_backend_api::{
    dtype::DType,
    graph::Graph,
    quant::{can_dequantize, can_quantize},
};

/// How to open a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadOptions {
    /// Element format of the KV cache: f32, f16, bf16 or fp8_e4m3.
    pub kv_dtype: DType,
    /// Convert every matrix to this format at load (`--dtype`); `None` uses the stored formats.
    pub dequantize: Option<DType>,
    /// Seed of random weights; unused for real ones.
    pub seed: u64,
    /// Epsilon of a Kimi model's latent normalisations; `None` = 1e-6, as in Moonshot's code. Other families have none.
    pub latent_eps: Option<f64>,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self { kv_dtype: DType::F32, dequantize: None, seed: 0, latent_eps: None }
    }
}

/// Something the user should see, once, at start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The model may not be what its maker meant.
    pub is_warning: bool,
    /// One line.
    pub text: String,
}

/// Where tokenizer and chat template are to be found.
#[derive(Clone, Debug)]
pub enum TextSource {
    /// Files of a folder: tokenizer.json, tokenizer_config.json, chat_template.jinja.
    Folder(PathBuf),
    /// `tokenizer.*` keys.
    Gguf(Arc<Metadata>),
}

/// An opened model.
#[derive(Debug)]
pub struct Model {
    /// Name to serve it under unless the user gives one.
    pub name: String,
    /// What it is.
    pub config: ModelConfig,
    /// The maker's sampling defaults and all end tokens but the tokenizer's own.
    pub generation: GenerationDefaults,
    /// Its ops.
    pub graph: Graph,
    /// Element format of its cache.
    pub kv_dtype: DType,
    /// Its weights.
    pub weights: Weights,
    /// Its text side.
    pub text: TextSource,
    /// What to tell the user.
    pub notices: Vec<Notice>,
}

impl Model {
    /// Open a folder, a `.gguf` or `.safetensors` file with its config beside it, or `dummy:CONFIG.json`.
    pub fn open(path: &Path, options: &LoadOptions) -> Result<Self, ModelError> {
        Self::open_place(place::find(path, false)?, options)
    }

    /// As [`Model::open`], but a folder that has a config and no weights at all will do: the formats are then those the
    /// config names, the weights random. For memory plans.
    pub fn open_to_plan(path: &Path, options: &LoadOptions) -> Result<Self, ModelError> {
        Self::open_place(place::find(path, true)?, options)
    }

    fn open_place(place: Place, options: &LoadOptions) -> Result<Self, ModelError> {
        check_options(options)?;
        let mut notices = place.notices;
        let checkpoint = place.weights.as_deref().map(Checkpoint::open).transpose()?;
        let metadata = checkpoint.as_ref().and_then(|c| c.metadata()).cloned();
        let (config, generation, text) = match (&metadata, &place.config) {
            (Some(metadata), _) => {
                let has = |name: &str| checkpoint.as_ref().is_some_and(|c| c.get(name).is_some());
                let config = ModelConfig::Llama(Box::new(from_gguf(metadata, has)?));
                let generation = GenerationDefaults::of(&config);
                (config, generation, TextSource::Gguf(Arc::clone(metadata)))
            }
            (None, Some(path)) => {
                let config = ModelConfig::read(path, options.latent_eps)?;
                let folder = path.parent().unwrap_or(Path::new(".")).to_owned();
                let file = folder.join("generation_config.json");
                let generation = match file.exists() {
                    true => GenerationDefaults::read(&file, &config)?,
                    false => GenerationDefaults::of(&config),
                };
                (config, generation, TextSource::Folder(folder))
            }
            (None, None) => return Err(ModelError::NoConfig { path: place.path }),
        };
        note_ignored(&config, &generation, &mut notices);
        let (weights, graph) = match &config {
            ModelConfig::Llama(config) => {
                if options.latent_eps.is_some() {
                    return Err(ModelError::NoLatents { architecture: config.architecture.name() });
                }
                let weights = LlamaWeights::resolve(config, checkpoint, options, &mut notices)?;
                let graph = graph::build(config, options.kv_dtype, |name| weights.dtype(name));
                (Weights::Llama(weights), graph)
            }
            ModelConfig::Kimi(config) => {
                weights::refuse_conversion(options.dequantize)?;
                let weights = match checkpoint {
                    None => Weights::RandomKimi { seed: options.seed },
                    Some(checkpoint) => {
                        let weights = KimiWeights::open(checkpoint, config)?;
                        note_unused(&weights, &mut notices);
                        Weights::Kimi(Box::new(weights))
                    }
                };
                let graphs = Graphs::new(config, GraphOptions { latent: options.kv_dtype, ..GraphOptions::EXACT });
                (weights, graphs.forward)
            }
        };
        let kv_dtype = options.kv_dtype;
        Ok(Self { name: place.name, config, generation, graph, kv_dtype, weights, text, notices })
    }

    /// Forward, verify and replay graphs over one cache, for up to `candidates` tokens per request in a verify pass;
    /// `None` for models without recurrent state, whose forward pass checks guesses as it is.
    pub fn verifying(&self, candidates: u32) -> Option<[Graph; 3]> {
        let ModelConfig::Kimi(config) = &self.config else { return None };
        let options = GraphOptions { latent: self.kv_dtype, candidates: candidates.into(), ..GraphOptions::EXACT };
        let graphs = Graphs::new(config, options);
        Some([graphs.forward, graphs.verify?, graphs.replay?])
    }

    /// As [`Model::verifying`], with `taps` for a draft that reads the model's hidden states; `None` for families that have
    /// no such drafts.
    pub fn tapped(&self, candidates: u32, taps: Taps) -> Option<Graphs> {
        let ModelConfig::Kimi(config) = &self.config else { return None };
        let options =
            GraphOptions { latent: self.kv_dtype, candidates: candidates.into(), taps, ..GraphOptions::EXACT };
        Some(Graphs::new(config, options))
    }

    /// Bytes by part, parameters, cache bytes per token.
    pub fn sizes(&self) -> Sizes {
        Sizes::of(self)
    }
}

/// Whether a matrix may be stored so. FP8 has a meaning in f32, but checkpoints keep it with scales, and no op takes those.
fn is_weight_format(dtype: DType) -> bool {
    can_dequantize(dtype) && dtype != DType::F8E4M3
}

fn check_options(options: &LoadOptions) -> Result<(), ModelError> {
    let kv = [DType::F32, DType::F16, DType::BF16, DType::F8E4M3];
    if !kv.contains(&options.kv_dtype) {
        let supported = "f32, f16, bf16, fp8_e4m3";
        return Err(ModelError::Option { option: "--kv-cache-dtype", value: options.kv_dtype, supported });
    }
    match options.dequantize {
        Some(dtype) if !(can_quantize(dtype) && is_weight_format(dtype)) => {
            let supported = "f32, f16, bf16, q8_0, q4_0, q4_1";
            Err(ModelError::Option { option: "--dtype", value: dtype, supported })
        }
        _ => Ok(()),
    }
}

fn note_ignored(config: &ModelConfig, generation: &GenerationDefaults, notices: &mut Vec<Notice>) {
    if !config.ignored_fields().is_empty() {
        let text = format!(
            "config fields not known to {}, ignored: {}",
            config.architecture(),
            config.ignored_fields().join(", ")
        );
        notices.push(Notice { is_warning: true, text });
    }
    if !generation.ignored_fields.is_empty() {
        let text = format!("generation_config.json fields ignored: {}", generation.ignored_fields.join(", "));
        notices.push(Notice { is_warning: true, text });
    }
}

fn note_unused(weights: &KimiWeights, notices: &mut Vec<Notice>) {
    if weights.skipped() > 0 {
        let text = format!("{} tensors of the vision tower are not loaded: text only", weights.skipped());
        notices.push(Notice { is_warning: false, text });
    }
    if weights.copied_expert_bytes() > 0 {
        let text = format!(
            "{} bytes of experts do not lie at a constant pitch in one file and are copied into memory",
            weights.copied_expert_bytes()
        );
        notices.push(Notice { is_warning: true, text });
    }
    if let [first, others @ ..] = weights.unknown() {
        let text = format!("tensors that no part of the model asks for, ignored: {first} (and {} more)", others.len());
        notices.push(Notice { is_warning: true, text });
    }
}
