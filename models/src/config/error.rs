//! Why a config is refused: file, field, value.

use crate::weights::WeightsError;
use std::path::{Path, PathBuf};

/// A refused config.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A JSON config.
    #[error("{}: {fault}", file.display())]
    At {
        /// The file at fault.
        file: PathBuf,
        /// What is wrong with it.
        fault: ConfigFault,
    },
    /// A GGUF key of the wrong type.
    #[error(transparent)]
    Metadata(#[from] WeightsError),
}

/// What is wrong.
#[derive(Debug, thiserror::Error)]
pub enum ConfigFault {
    /// The file system refused.
    #[error("cannot be read: {0}")]
    Io(#[source] std::io::Error),
    /// Not JSON, or not an object.
    #[error("is not a JSON object: {0}")]
    NotJson(String),
    /// A required field is absent.
    #[error("field `{0}` is missing")]
    Missing(String),
    /// A field has the wrong type.
    #[error("field `{field}` is {value}, but {wanted} is needed")]
    WrongType {
        /// Its name.
        field: String,
        /// What it is.
        value: String,
        /// What it should be.
        wanted: &'static str,
    },
    /// A field has a value that no model can have.
    #[error("field `{field}` is {value}: {why}")]
    Invalid {
        /// Its name.
        field: String,
        /// Its value.
        value: String,
        /// Why it cannot be.
        why: String,
    },
    /// A field asks for something this engine does not do.
    #[error("field `{field}` = {value} is not supported; supported: {supported}")]
    Unsupported {
        /// Its name.
        field: String,
        /// Its value.
        value: String,
        /// What would be.
        supported: String,
    },
}

impl ConfigError {
    pub(crate) fn at(file: &Path, fault: ConfigFault) -> Self {
        ConfigError::At { file: file.to_owned(), fault }
    }
}
