//! Token ids to text, one by one, never cutting a character.
//!
//! Bytes go in; a character comes out when it is whole. Bytes that can no longer become a character come out as U+FFFD,
//! by the same rule as `String::from_utf8_lossy` (one mark per maximal invalid run). What is still incomplete at the
//! end is dropped: half a character is no text, and its bytes remain visible in the log-probability report.
//! `clean_up_tokenization_spaces` is not applied: it rewrites text already sent ("a ." to "a."), which a stream cannot.

use std::sync::Arc;

use super::{error::UnknownId, tokenizer::Tokenizer, vocabulary::SpacePrefix};

/// What to do with control tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpecialText {
    /// They add no text.
    #[default]
    Skip,
    /// They add their own string.
    Keep,
}

/// State of a growing text, apart from its tokenizer.
#[derive(Clone, Debug)]
pub(crate) struct Decoding {
    /// Bytes of a character that is not whole yet: at most 3 between calls.
    pending: Vec<u8>,
    /// The next ordinary token loses one leading space, which encoding had put there.
    strip_space: bool,
}

impl Decoding {
    pub(crate) fn new(tokenizer: &Tokenizer) -> Self {
        Self { pending: Vec::with_capacity(8), strip_space: tokenizer.space_prefix() != SpacePrefix::Never }
    }

    /// Append what `id` completes to `out`.
    pub(crate) fn push(
        &mut self,
        tokenizer: &Tokenizer,
        id: u32,
        special_text: SpecialText,
        out: &mut String,
    ) -> Result<(), UnknownId> {
        let vocabulary = tokenizer.vocabulary();
        let mut bytes = vocabulary.bytes(id)?;
        if vocabulary.is_added(id) {
            let hidden = vocabulary.is_special(id) && special_text == SpecialText::Skip;
            if hidden {
                bytes = &[];
            }
            // A hidden token at the very start leaves the start where it is.
            self.strip_space = match tokenizer.space_prefix() {
                SpacePrefix::EachSegment => true,
                _ => self.strip_space && hidden,
            };
        } else if self.strip_space && !bytes.is_empty() {
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
            self.strip_space = false;
        }
        self.pending.extend_from_slice(bytes);
        let mut done = 0;
        for chunk in self.pending.utf8_chunks() {
            out.push_str(chunk.valid());
            done += chunk.valid().len();
            let invalid = chunk.invalid();
            let at_end = done + invalid.len() == self.pending.len();
            if at_end && is_incomplete(invalid) {
                break;
            }
            if !invalid.is_empty() {
                out.push('\u{FFFD}');
                done += invalid.len();
            }
        }
        self.pending.drain(..done);
        Ok(())
    }
}

/// True when more bytes could make `bytes` one character.
fn is_incomplete(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

/// Text of a growing sequence of token ids. O(bytes of the token) per id.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    special_text: SpecialText,
    decoding: Decoding,
    delta: String,
}

/// Longest part of a character that can be pending, in tokens of at least one byte, and some hidden ones between.
const CONTEXT_TOKENS: usize = 8;

impl Detokenizer {
    /// For a text that begins here.
    pub fn new(tokenizer: Arc<Tokenizer>, special_text: SpecialText) -> Self {
        let decoding = Decoding::new(&tokenizer);
        Self { tokenizer, special_text, decoding, delta: String::new() }
    }

    /// For the continuation of a prompt: its text followed by this one's is the text of all ids together, so the first
    /// word keeps its space and a character begun by the prompt is finished here.
    pub fn after(tokenizer: Arc<Tokenizer>, special_text: SpecialText, prompt: &[u32]) -> Self {
        let mut this = Self::new(tokenizer, special_text);
        this.decoding.strip_space &= prompt.is_empty();
        for &id in &prompt[prompt.len().saturating_sub(CONTEXT_TOKENS)..] {
            // An unknown id in a prompt is refused where prompts are checked; here it only means "no context".
            let _ = this.push(id);
        }
        this
    }

    /// Add one id; the text it completes, possibly empty.
    pub fn push(&mut self, id: u32) -> Result<&str, UnknownId> {
        self.push_as(id, self.special_text)
    }

    /// Like [`push`](Self::push) with another choice for this id alone: markers that a parser must see are kept.
    pub fn push_as(&mut self, id: u32, special_text: SpecialText) -> Result<&str, UnknownId> {
        self.delta.clear();
        self.decoding.push(&self.tokenizer, id, special_text, &mut self.delta)?;
        Ok(&self.delta)
    }

    /// True while a character is incomplete.
    pub fn is_pending(&self) -> bool {
        !self.decoding.pending.is_empty()
    }
}
