//! What can go wrong between text and token ids. Every message names the file or field, the cause and the way out.

use std::path::PathBuf;

/// A tokenizer could not be built, or a text could not be encoded.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// A file could not be read.
    #[error("{path}: cannot read: {source}")]
    Read {
        /// File.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// A file is not what it should be.
    #[error("{file}: {cause}")]
    Malformed {
        /// File or metadata key.
        file: String,
        /// What is wrong and what is expected.
        cause: String,
    },
    /// GGUF metadata names a pre-tokenizer that is not known here.
    #[error(
        "tokenizer.ggml.pre: pre-tokenizer {0:?} is not supported (supported: {known}); use the model's tokenizer.json instead",
        known = super::pre_tokenizer::KNOWN.join(", ")
    )]
    UnknownPreTokenizer(String),
    /// GGUF metadata names a tokenizer kind that is not known here.
    #[error("tokenizer.ggml.model: tokenizer kind {0:?} is not supported (supported: gpt2, llama); use tokenizer.json")]
    UnknownKind(String),
    /// tokenizer.json uses a decoder whose text cannot be streamed token by token.
    #[error(
        "tokenizer.json: decoder {0} is not supported (supported: ByteLevel, Metaspace, Replace/ByteFallback/Fuse/Strip)"
    )]
    UnsupportedDecoder(String),
    /// The text could not be encoded.
    #[error("cannot tokenize the text: {0}")]
    Encode(String),
}

impl TokenizerError {
    pub(crate) fn malformed(file: impl Into<String>, cause: impl ToString) -> Self {
        Self::Malformed { file: file.into(), cause: cause.to_string() }
    }
}

/// A token id that the tokenizer does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("token id {id} does not exist (the tokenizer has ids below {vocab_size})")]
pub struct UnknownId {
    /// The id.
    pub id: u32,
    /// See [`super::Vocabulary::size`].
    pub vocab_size: u32,
}
