//! Why a model cannot be opened: one line naming file, tensor or field, and cause.

use crate::{config::ConfigError, kimi::KimiWeightsError, weights::WeightsError};
use std::path::PathBuf;
use tokenspeed_backend_api::dtype::DType;

/// A refused model.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A weight file.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// A config.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A Kimi checkpoint.
    #[error(transparent)]
    Kimi(#[from] KimiWeightsError),
    /// An epsilon for normalisations that the model does not have.
    #[error("--mla-latent-eps is for Kimi models; a {architecture} model has no latent normalisations")]
    NoLatents {
        /// The model's.
        architecture: &'static str,
    },
    /// Nothing is there.
    #[error("{}: no such file or folder; give a model folder, a .gguf file or dummy:CONFIG.json", path.display())]
    NotFound {
        /// What the user gave.
        path: PathBuf,
    },
    /// No config.json.
    #[error("{}: no config.json beside the weights; download the whole model folder", path.display())]
    NoConfig {
        /// The folder or file.
        path: PathBuf,
    },
    /// No usable weight file in the folder.
    #[error("{}: {cause}", folder.display())]
    NoWeights {
        /// The folder.
        folder: PathBuf,
        /// What was found instead and what to do.
        cause: String,
    },
    /// A tensor that does not fit the config.
    #[error("{}: tensor `{tensor}` {cause}", file.display())]
    Tensor {
        /// The file that holds it, or should.
        file: PathBuf,
        /// Its name there.
        tensor: String,
        /// What is wrong.
        cause: TensorMismatch,
    },
    /// An option that cannot be met.
    #[error("{option} {value} is not supported; supported: {supported}")]
    Option {
        /// As the user types it.
        option: &'static str,
        /// The value.
        value: DType,
        /// What would be.
        supported: &'static str,
    },
}

/// How a tensor does not fit.
#[derive(Debug, thiserror::Error)]
pub enum TensorMismatch {
    /// Not there.
    #[error("is missing{others}{hint}")]
    Missing {
        /// ` (and 3 more)`, or nothing.
        others: String,
        /// A probable reason, or nothing.
        hint: String,
    },
    /// There, but the config has no place for it.
    #[error("is not part of the model that the config describes{others}; refusing to ignore it")]
    Unexpected {
        /// ` (nor are 3 more)`, or nothing.
        others: String,
    },
    /// Wrong shape.
    #[error("has shape {actual:?}, but the config needs {expected:?}")]
    Shape {
        /// In the file, outermost first.
        actual: Vec<u64>,
        /// By the config.
        expected: Vec<u64>,
    },
    /// An element type no op reads.
    #[error("is stored as {0}, which this engine cannot compute with; supported: {SUPPORTED}")]
    Format(&'static str),
    /// Rows that do not divide into blocks of the wanted type.
    #[error("has rows of {row} values, which cannot be converted to {dtype} (blocks of {})", dtype.block_len())]
    Blocks {
        /// Values per row.
        row: u64,
        /// Wanted type.
        dtype: DType,
    },
}

const SUPPORTED: &str = "f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q4_k, q5_k, q6_k";
