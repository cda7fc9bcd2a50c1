//! The pre-tokenizers that GGUF files name in `tokenizer.ggml.pre`, as `tokenizers` pipelines.
//!
//! A GGUF file holds the name only; the split rules are facts of each model family (their tokenizer.json states them). An
//! unknown name is an error: a default split gives fluent but wrong ids, which nobody would notice.

use tokenizers::{
    NormalizerWrapper, PreTokenizerWrapper, SplitDelimiterBehavior,
    normalizers::NFC,
    pre_tokenizers::{
        byte_level::ByteLevel,
        digits::Digits,
        sequence::Sequence,
        split::{Split, SplitPattern},
    },
};

use super::error::TokenizerError;

/// Names understood, for error messages.
pub const KNOWN: &[&str] = &["default", "gpt-2", "smollm", "llama-bpe", "llama3", "llama-v3", "qwen2"];

/// What a pre-tokenizer name stands for.
#[derive(Debug)]
pub struct Recipe {
    /// Unicode normalisation before anything else.
    pub normalizer: Option<NormalizerWrapper>,
    /// Cuts the text into words and maps bytes to characters.
    pub pre_tokenizer: PreTokenizerWrapper,
    /// A whole word that is in the vocabulary is taken without merging.
    pub ignore_merges: bool,
    /// Whether a text starts with BOS when the file does not say.
    pub add_bos: bool,
}

/// Contractions, then words with one leading non-letter, up to `digits` digits, punctuation with its line ends, white space.
fn tiktoken_pattern(digits: &str) -> String {
    let words = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+";
    let rest = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    format!("{words}|{digits}|{rest}")
}

fn split(pattern: &str) -> Result<PreTokenizerWrapper, TokenizerError> {
    let split = Split::new(SplitPattern::Regex(pattern.to_owned()), SplitDelimiterBehavior::Isolated, false)
        .map_err(|e| TokenizerError::malformed("tokenizer.ggml.pre", e))?;
    Ok(split.into())
}

/// Look a name up. `None` (a file from before names were written) is `default`.
pub fn recipe(name: Option<&str>) -> Result<Recipe, TokenizerError> {
    // `ByteLevel`'s own regular expression is GPT-2's.
    let bytes = |use_regex| PreTokenizerWrapper::from(ByteLevel::new(false, true, use_regex));
    let sequence = |steps| PreTokenizerWrapper::from(Sequence::new(steps));
    let plain = |pre_tokenizer| Recipe { normalizer: None, pre_tokenizer, ignore_merges: false, add_bos: false };
    Ok(match name.unwrap_or("default") {
        "gpt-2" => plain(bytes(true)),
        "smollm" => plain(sequence(vec![Digits::new(true).into(), bytes(true)])),
        "default" => {
            let punctuation = split(r"[\p{P}\$\+<=>\^~\|]+")?;
            let words = split(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)")?;
            plain(sequence(vec![punctuation, words, split(r"\p{N}+")?, split("[0-9][0-9][0-9]")?, bytes(false)]))
        }
        "llama-bpe" | "llama3" | "llama-v3" => Recipe {
            ignore_merges: true,
            add_bos: true,
            ..plain(sequence(vec![split(&tiktoken_pattern(r"\p{N}{1,3}"))?, bytes(false)]))
        },
        "qwen2" => Recipe {
            normalizer: Some(NFC.into()),
            ..plain(sequence(vec![split(&tiktoken_pattern(r"\p{N}"))?, bytes(false)]))
        },
        other => return Err(TokenizerError::UnknownPreTokenizer(other.to_owned())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_pre_tokenizer_is_refused_by_name_and_known_ones_build() {
        let error = recipe(Some("mystery")).unwrap_err().to_string();
        assert!(error.contains("\"mystery\"") && error.contains("smollm"), "{error}");
        for name in KNOWN {
            recipe(Some(name)).unwrap();
        }
        recipe(None).unwrap();
    }
}
