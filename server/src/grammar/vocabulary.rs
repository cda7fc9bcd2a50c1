//! The served vocabulary as the library wants it: bytes per token, special tokens marked.
//!
//! Works for every tokenizer that can say what bytes a token adds. Special tokens are no text, and neither are added ones
//! that stay visible (tags of tool calls, of channels): grammars reach both by id only. A token without bytes (a hole, a padding id) can never be sampled under a grammar, and neither can one that
//! starts with byte 0xFF, which no UTF-8 text contains and which the library uses as its mark.

use std::sync::Arc;

use llguidance::{
    ParserFactory,
    toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie},
};

use super::GrammarError;
use crate::frontend::TextFrontend;

/// Bytes and special ids, for writing grammars.
#[derive(Debug, Default)]
pub struct Specials {
    /// (spelling, id), ascending by spelling.
    by_text: Vec<(String, u32)>,
}

impl Specials {
    /// The special token that is spelt so.
    pub fn id_of(&self, text: &str) -> Option<u32> {
        let at = self.by_text.binary_search_by(|(known, _)| known.as_str().cmp(text)).ok()?;
        Some(self.by_text[at].1)
    }
}

/// Everything that compiling needs to know of a model.
pub struct Vocabulary {
    /// Makes parsers.
    pub factory: ParserFactory,
    /// Special tokens by spelling.
    pub specials: Specials,
    /// Ids that end an answer, ascending.
    pub eos_ids: Vec<u32>,
}

impl std::fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Vocabulary({} special)", self.specials.by_text.len())
    }
}

impl Vocabulary {
    /// Read all tokens; a fraction of a second for the largest vocabularies.
    pub fn new(frontend: &dyn TextFrontend) -> Result<Self, GrammarError> {
        let mut eos_ids = frontend.eos_ids().to_vec();
        eos_ids.sort_unstable();
        let Some(&first_eos) = eos_ids.first() else {
            let why = "this model has no end-of-sequence token, so an answer cannot end where its grammar does";
            return Err(GrammarError::Unsupported(why.into()));
        };
        let mut by_text = Vec::new();
        let words: Vec<Vec<u8>> = (0..frontend.vocab_size())
            .map(|id| {
                let mut bytes = Vec::new();
                frontend.token_bytes(id, &mut bytes);
                let is_special = frontend.is_markup(id) || eos_ids.binary_search(&id).is_ok();
                if is_special && !bytes.is_empty() {
                    by_text.push((String::from_utf8_lossy(&bytes).into_owned(), id));
                    bytes.insert(0, TokTrie::SPECIAL_TOKEN_MARKER);
                } else if bytes.first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER) {
                    bytes.clear();
                }
                bytes
            })
            .collect();
        by_text.sort_unstable();
        let info = TokRxInfo::new(frontend.vocab_size(), first_eos);
        let trie = TokTrie::from(&info, &words).with_eos_tokens(&eos_ids);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        // Strings are most of what is generated: tokens that are plain text are one slice, walked once.
        let slices = llguidance::earley::SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
            .map_err(|e| GrammarError::Unsupported(format!("this vocabulary cannot be used with grammars: {e}")))?;
        factory.quiet();
        let limits = factory.limits_mut();
        limits.verbose_errors = false;
        // Below the defaults: what compiling may cost, at some 50 units per microsecond, and what one answer may hold.
        limits.initial_lexer_fuel = 400_000;
        limits.max_grammar_size = 200_000;
        limits.max_lexer_states = 50_000;
        Ok(Self { factory, specials: Specials { by_text }, eos_ids })
    }
}
