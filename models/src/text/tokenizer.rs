//! Text to token ids and back, for every supported kind of tokenizer.
//!
//! Decision: control tokens are searched for here, before the encoder sees the text, and the encoder itself never
//! produces one. So a caller chooses per call whether text may contain control tokens, and text that came from a user
//! stays text ([`Tokenizer::encode_rendered`]). Added tokens that are not control tokens always match.
//!
//! BOS: a text gets the tokenizer's prefix (usually one BOS) unless it already begins with it, so a template that writes
//! BOS and a tokenizer that adds it give one, and a template that does not write it loses none.

use std::collections::HashMap;

use super::{
    detokenizer::{Decoding, SpecialText},
    error::{TokenizerError, UnknownId},
    kimi,
    protect::Rendered,
    special::{Segment, SpecialToken, SpecialTokens},
    spm::Spm,
    vocabulary::{SpacePrefix, Vocabulary},
};

/// Whether control tokens written out in a text become control tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Controls {
    /// They do: raw completions and rendered templates.
    Parse,
    /// They stay ordinary text.
    AsText,
}

/// Ids by role, where known. These are what the tokenizer files say; generation may stop at more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamedIds {
    /// Beginning of sequence.
    pub bos: Option<u32>,
    /// End of sequence.
    pub eos: Option<u32>,
    /// Unknown.
    pub unk: Option<u32>,
    /// Padding.
    pub pad: Option<u32>,
}

/// A chat template that came with the tokenizer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedTemplate {
    /// `default`, `tool_use`, ….
    pub name: String,
    /// Jinja source.
    pub source: String,
}

pub(crate) enum Encoder {
    /// The `tokenizers` crate. `later` encodes segments that do not start the text, where the two differ.
    Library { first: Box<tokenizers::Tokenizer>, later: Option<Box<tokenizers::Tokenizer>> },
    /// SentencePiece BPE from GGUF. `visible`: added tokens that are not control tokens.
    Spm { model: Spm, visible: SpecialTokens, ids: HashMap<String, u32> },
    /// Ranks from a tiktoken file, cut by Kimi's pre-tokenizer.
    Ranks(Box<kimi::Ranks>),
}

/// A tokenizer. Immutable; share it between threads behind an `Arc`.
pub struct Tokenizer {
    pub(crate) encoder: Encoder,
    pub(crate) vocabulary: Vocabulary,
    pub(crate) controls: SpecialTokens,
    pub(crate) space_prefix: SpacePrefix,
    pub(crate) prefix: Vec<u32>,
    pub(crate) suffix: Vec<u32>,
    pub(crate) named: NamedIds,
    pub(crate) templates: Vec<NamedTemplate>,
    /// Set when chats are written as XTML, segment by segment, and not by a template.
    pub(crate) xtml: Option<kimi::PromptTexts>,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self.encoder {
            Encoder::Library { .. } => "library",
            Encoder::Spm { .. } => "spm",
            Encoder::Ranks(_) => "ranks",
        };
        write!(f, "Tokenizer({kind}, {} ids)", self.vocabulary.size())
    }
}

impl Tokenizer {
    /// One more than the largest id. Ids at or above it, and holes below it ([`Vocabulary::has`]), must not be sampled.
    pub fn vocab_size(&self) -> u32 {
        self.vocabulary.size()
    }

    /// Bytes and kinds of all ids.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// True for control tokens, which answers hide by default.
    pub fn is_special(&self, id: u32) -> bool {
        self.vocabulary.is_special(id)
    }

    /// Ids by role.
    pub fn named(&self) -> NamedIds {
        self.named
    }

    /// Ids that end an answer: end of sequence, and the control tokens that end a turn in published chat formats. For
    /// models that do not list theirs (generation_config.json does; GGUF files do not).
    pub fn end_ids(&self) -> Vec<u32> {
        let ends =
            self.controls.iter().filter(|token| TURN_ENDS.contains(&token.content.as_str())).map(|token| token.id);
        let mut ids: Vec<u32> = ends.chain(self.named.eos).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// The string of a named id, for templates (`bos_token`, `eos_token`).
    pub fn string_of(&self, id: Option<u32>) -> Option<String> {
        let bytes = self.vocabulary.bytes(id?).ok()?;
        Some(String::from_utf8_lossy(bytes).into_owned())
    }

    /// Chat templates that came with the tokenizer, in order of the file.
    pub fn templates(&self) -> &[NamedTemplate] {
        &self.templates
    }

    /// The texts of Kimi K3's chat format, if that is this tokenizer's ([`kimi::encode_chat`]).
    pub fn xtml(&self) -> Option<&kimi::PromptTexts> {
        self.xtml.as_ref()
    }

    /// See [`SpacePrefix`].
    pub fn space_prefix(&self) -> SpacePrefix {
        self.space_prefix
    }

    /// Control tokens by their strings.
    pub fn controls(&self) -> &SpecialTokens {
        &self.controls
    }

    /// The id whose vocabulary entry or added token is exactly `token`.
    pub fn id_of(&self, token: &str) -> Option<u32> {
        match &self.encoder {
            Encoder::Library { first, .. } => first.token_to_id(token),
            Encoder::Spm { ids, .. } => ids.get(token).copied(),
            Encoder::Ranks(ranks) => {
                let control = self.controls.iter().find(|control| control.content == token).map(|control| control.id);
                control.or_else(|| ranks.id(token.as_bytes()))
            }
        }
    }

    /// Token ids of a raw text. `add_special`: put the tokenizer's own prefix and suffix round it (the prefix only if
    /// it is not there already). An empty text gives the prefix and suffix alone.
    pub fn encode(&self, text: &str, controls: Controls, add_special: bool) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = Vec::with_capacity(text.len() / 3 + 4);
        match controls {
            Controls::Parse => self.encode_segments(&self.controls.split(text), 0, |t| t.into(), &mut ids)?,
            Controls::AsText if text.is_empty() => {}
            Controls::AsText => self.encode_plain(text, true, &mut ids)?,
        }
        if add_special {
            self.add_prefix(&mut ids);
            ids.extend_from_slice(&self.suffix);
        }
        Ok(ids)
    }

    /// Token ids of a rendered chat. Control tokens written by the template count, those inside protected text do not.
    /// The prefix is added if the template did not write it; a suffix never is, for the answer comes next.
    pub fn encode_rendered(&self, rendered: &Rendered) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = Vec::with_capacity(rendered.marked().len() / 3 + 4);
        self.encode_segments(&self.controls.split(rendered.marked()), 0, |text| rendered.unmark(text), &mut ids)?;
        self.add_prefix(&mut ids);
        Ok(ids)
    }

    /// The same, and how many of the ids the prompt of `other` begins with too, as far as that is known without encoding it: up
    /// to the last control token before the two part, which no merge crosses.
    pub fn encode_rendered_beside(
        &self,
        rendered: &Rendered,
        other: &Rendered,
    ) -> Result<(Vec<u32>, usize), TokenizerError> {
        let (segments, others) = (self.controls.split(rendered.marked()), self.controls.split(other.marked()));
        let is_same = |pair: &(&Segment<'_>, &Segment<'_>)| match *pair {
            (Segment::Token(a), Segment::Token(b)) => a == b,
            (Segment::Text(a), Segment::Text(b)) => rendered.unmark(a) == other.unmark(b),
            _ => false,
        };
        let n_same = segments.iter().zip(&others).take_while(is_same).count();
        let mut ids = Vec::with_capacity(rendered.marked().len() / 3 + 4);
        let text_of = |text| rendered.unmark(text);
        self.encode_segments(&segments[..n_same], 0, text_of, &mut ids)?;
        let same = ids.len();
        self.encode_segments(&segments[n_same..], n_same, text_of, &mut ids)?;
        let n_without = ids.len();
        self.add_prefix(&mut ids);
        let n_prefix = ids.len() - n_without;
        Ok((ids, if same > 0 { same + n_prefix } else { 0 }))
    }

    /// Text of `ids`; equal to what a [`super::Detokenizer`] gives id by id.
    pub fn decode(&self, ids: &[u32], special_text: SpecialText) -> Result<String, UnknownId> {
        let mut decoding = Decoding::new(self);
        let mut text = String::new();
        for &id in ids {
            decoding.push(self, id, special_text, &mut text)?;
        }
        Ok(text)
    }

    fn add_prefix(&self, ids: &mut Vec<u32>) {
        if !ids.starts_with(&self.prefix) {
            ids.splice(0..0, self.prefix.iter().copied());
        }
    }

    fn encode_segments<'a>(
        &self,
        segments: &[Segment<'a>],
        n_before: usize,
        text_of: impl Fn(&'a str) -> std::borrow::Cow<'a, str>,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        for (index, segment) in (n_before..).zip(segments) {
            match *segment {
                Segment::Token(id) => ids.push(id),
                Segment::Text(text) => self.encode_plain(&text_of(text), index == 0, ids)?,
            }
        }
        Ok(())
    }

    fn encode_plain(&self, text: &str, is_first: bool, ids: &mut Vec<u32>) -> Result<(), TokenizerError> {
        match &self.encoder {
            Encoder::Library { first, later } => {
                let library = later.as_ref().filter(|_| !is_first).unwrap_or(first);
                // The regular expression engine gives up by panicking on some pathological texts; a request must not
                // take its thread along.
                let encode = std::panic::AssertUnwindSafe(|| library.encode_fast(text, false));
                let encoding = std::panic::catch_unwind(encode)
                    .map_err(|_| TokenizerError::Encode("the pre-tokenizer gave up on it".into()))?
                    .map_err(|error| TokenizerError::Encode(error.to_string()))?;
                ids.extend_from_slice(encoding.get_ids());
            }
            Encoder::Ranks(ranks) => kimi::encode(ranks, text, ids),
            Encoder::Spm { model, visible, .. } => {
                let mut starts_segment = is_first || self.space_prefix == SpacePrefix::EachSegment;
                for segment in visible.split(text) {
                    match segment {
                        Segment::Token(id) => {
                            ids.push(id);
                            starts_segment = self.space_prefix == SpacePrefix::EachSegment;
                        }
                        Segment::Text(text) => {
                            let space =
                                if starts_segment && self.space_prefix != SpacePrefix::Never { "▁" } else { "" };
                            model.encode(&format!("{space}{}", text.replace(' ', "▁")), ids);
                            starts_segment = false;
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

/// Strings that end sequences and turns in published models.
const TURN_ENDS: &[&str] = &[
    "</s>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|im_end|>",
    "<|end_of_msg|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<end_of_turn>",
];
/// Strings that begin them.
const TURN_STARTS: &[&str] = &["<s>", "<|im_start|>", "<|begin_of_text|>", "<|start_header_id|>", "<start_of_turn>"];

/// True for strings that begin or end a sequence or turn in published models.
pub(crate) fn is_boundary(content: &str) -> bool {
    TURN_ENDS.contains(&content) || TURN_STARTS.contains(&content)
}

/// Every token of `tokens` as something to find in text, without stripping.
pub(crate) fn plain_specials<'a>(tokens: impl IntoIterator<Item = (&'a str, u32)>) -> SpecialTokens {
    SpecialTokens::new(tokens.into_iter().map(|(content, id)| SpecialToken::plain(content, id)))
}
