//! A tokenizer rebuilt from the `tokenizer.*` keys of a GGUF file.
//!
//! Kind `gpt2` is byte-level BPE with merges and goes through the `tokenizers` crate; kind `llama` is SentencePiece BPE
//! with scores ([`super::spm`]). Everything else is refused by name. Source: the GGUF specification's tokenizer keys.
//!
//! Bytes that a byte-level vocabulary lacks add no token, as everywhere (SmolLM2 has none for six control characters).
//! The `qwen2` kind normalises to NFC, as that model's own tokenizer does; llama.cpp does not.

use std::collections::HashMap;

use tokenizers::{AddedToken, ModelWrapper, models::bpe::BPE};

use super::{
    byte_map,
    error::TokenizerError,
    pre_tokenizer,
    spm::{PieceUse, Spm},
    tokenizer::{Encoder, NamedIds, NamedTemplate, Tokenizer, is_boundary, plain_specials},
    vocabulary::{SpacePrefix, TokenKind, Vocabulary},
};

/// The values of the GGUF keys a tokenizer needs; `None` where the file has no such key.
#[derive(Clone, Debug, Default)]
pub struct GgufTokenizerMeta {
    /// `tokenizer.ggml.model`: `gpt2` or `llama`.
    pub model: String,
    /// `tokenizer.ggml.pre`.
    pub pre: Option<String>,
    /// `tokenizer.ggml.tokens`; the index is the id.
    pub tokens: Vec<String>,
    /// `tokenizer.ggml.scores`; needed for `llama`.
    pub scores: Option<Vec<f32>>,
    /// `tokenizer.ggml.token_type`: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
    pub token_types: Option<Vec<i32>>,
    /// `tokenizer.ggml.merges`, each "left right"; needed for `gpt2`.
    pub merges: Option<Vec<String>>,
    /// `tokenizer.ggml.bos_token_id`.
    pub bos: Option<u32>,
    /// `tokenizer.ggml.eos_token_id`.
    pub eos: Option<u32>,
    /// `tokenizer.ggml.unknown_token_id`.
    pub unk: Option<u32>,
    /// `tokenizer.ggml.padding_token_id`.
    pub pad: Option<u32>,
    /// `tokenizer.ggml.add_bos_token`.
    pub add_bos: Option<bool>,
    /// `tokenizer.ggml.add_eos_token`.
    pub add_eos: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix`; only `llama` has a use for it (byte-level BPE writes its spaces itself).
    pub add_space_prefix: Option<bool>,
    /// `tokenizer.chat_template`.
    pub chat_template: Option<String>,
}

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

fn bad(key: &str, cause: impl ToString) -> TokenizerError {
    TokenizerError::malformed(format!("tokenizer.ggml.{key}"), cause)
}

fn byte_piece(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (hex.len() == 2).then(|| u8::from_str_radix(hex, 16).ok())?
}

impl GgufTokenizerMeta {
    /// The type of a token. What begins or ends a sequence is a control token even where the file calls it visible:
    /// otherwise user text could end a turn.
    fn kind(&self, id: usize) -> i32 {
        let written = self.token_types.as_ref().map_or(NORMAL, |types| types[id]);
        let is_end = written == USER_DEFINED
            && ([self.bos, self.eos].contains(&Some(id as u32)) || is_boundary(&self.tokens[id]));
        if is_end { CONTROL } else { written }
    }

    fn validate(&self) -> Result<(), TokenizerError> {
        let count = self.tokens.len();
        if count == 0 || u32::try_from(count).is_err() {
            return Err(bad("tokens", format!("{count} entries; expected at least one and fewer than 2^32")));
        }
        let lengths =
            [("scores", self.scores.as_ref().map(Vec::len)), ("token_type", self.token_types.as_ref().map(Vec::len))];
        for (key, length) in lengths {
            if let Some(length) = length.filter(|&length| length != count) {
                return Err(bad(key, format!("{length} entries for {count} tokens")));
            }
        }
        for id in 0..count {
            if !(NORMAL..=BYTE).contains(&self.kind(id)) {
                return Err(bad("token_type", format!("token {id} has type {}; expected 1 to 6", self.kind(id))));
            }
        }
        let named = [("bos", self.bos), ("eos", self.eos), ("unknown", self.unk), ("padding", self.pad)];
        for (key, id) in named {
            if let Some(id) = id.filter(|&id| id as usize >= count) {
                return Err(bad(&format!("{key}_token_id"), format!("{id} is not below the {count} tokens")));
            }
        }
        Ok(())
    }

    fn controls(&self) -> impl Iterator<Item = (&str, u32)> {
        self.of_kind(|kind| kind == CONTROL || kind == UNKNOWN)
    }

    fn visible(&self) -> impl Iterator<Item = (&str, u32)> {
        self.of_kind(|kind| kind == USER_DEFINED)
    }

    fn of_kind(&self, wanted: impl Fn(i32) -> bool) -> impl Iterator<Item = (&str, u32)> {
        let wanted = move |id: usize| wanted(self.kind(id));
        let tokens = self.tokens.iter().enumerate();
        tokens.filter(move |&(id, _)| wanted(id)).map(|(id, token)| (token.as_str(), id as u32))
    }

    fn vocabulary(&self, bytes_of: impl Fn(usize, &str) -> Vec<u8>) -> Vocabulary {
        let known = self.tokens.iter().enumerate().filter(|&(id, _)| self.kind(id) != UNUSED);
        let tokens = known.map(|(id, token)| match self.kind(id) {
            CONTROL | UNKNOWN => (id as u32, token.clone().into_bytes(), TokenKind::Special),
            USER_DEFINED => (id as u32, token.clone().into_bytes(), TokenKind::Added),
            _ => (id as u32, bytes_of(id, token), TokenKind::Normal),
        });
        Vocabulary::new(tokens.collect())
    }
}

impl Tokenizer {
    /// A stand-in for models without a tokenizer (random weights): byte b is id b, every other id is the text `⟨id⟩`.
    /// `vocab_size` below 256 leaves out the bytes that have no id.
    pub fn stand_in(vocab_size: u32) -> Result<Self, TokenizerError> {
        let token = |id: u32| match u8::try_from(id) {
            Ok(byte) => byte_map::char_of_byte(byte).to_string(),
            Err(_) => format!("⟨{id}⟩").bytes().map(byte_map::char_of_byte).collect(),
        };
        Self::from_gguf(&GgufTokenizerMeta {
            model: "gpt2".into(),
            pre: Some("gpt-2".into()),
            tokens: (0..vocab_size).map(token).collect(),
            merges: Some(Vec::new()),
            ..Default::default()
        })
    }

    /// Rebuild the tokenizer of a GGUF file.
    pub fn from_gguf(meta: &GgufTokenizerMeta) -> Result<Self, TokenizerError> {
        meta.validate()?;
        let is_spm = match meta.model.as_str() {
            "gpt2" => false,
            "llama" => true,
            other => return Err(TokenizerError::UnknownKind(other.to_owned())),
        };
        // Files of the `llama` kind may leave these out; their values are fixed by the SentencePiece convention.
        let or_default = |id: Option<u32>, default: u32| id.or(is_spm.then_some(default));
        let named = NamedIds {
            bos: or_default(meta.bos, 1),
            eos: or_default(meta.eos, 2),
            unk: or_default(meta.unk, 0),
            pad: meta.pad,
        };
        let (encoder, vocabulary, space_prefix, add_bos) = if is_spm { spm(meta, named)? } else { byte_level(meta)? };
        let ends = |wanted: bool, id: Option<u32>, key: &str| match (wanted, id) {
            (false, _) => Ok(Vec::new()),
            (true, Some(id)) => Ok(vec![id]),
            (true, None) => Err(bad(key, "missing, but the file asks to add this token")),
        };
        Ok(Tokenizer {
            encoder,
            vocabulary,
            controls: plain_specials(meta.controls()),
            space_prefix,
            prefix: ends(meta.add_bos.unwrap_or(add_bos), named.bos, "bos_token_id")?,
            suffix: ends(meta.add_eos.unwrap_or(false), named.eos, "eos_token_id")?,
            named,
            templates: meta
                .chat_template
                .iter()
                .map(|source| NamedTemplate { name: "default".into(), source: source.clone() })
                .collect(),
            xtml: None,
        })
    }
}

type Built = (Encoder, Vocabulary, SpacePrefix, bool);

fn byte_level(meta: &GgufTokenizerMeta) -> Result<Built, TokenizerError> {
    let recipe = pre_tokenizer::recipe(meta.pre.as_deref())?;
    let merges = meta.merges.as_ref().ok_or_else(|| bad("merges", "missing; a gpt2 tokenizer needs them"))?;
    let merges = merges.iter().enumerate().map(|(rank, merge)| {
        // The left side is never empty, so a separator is looked for from the second character.
        let skip = merge.chars().next().map_or(0, char::len_utf8);
        match merge.get(skip..).and_then(|rest| rest.split_once(' ')) {
            Some((left, right)) => Ok((format!("{}{left}", &merge[..skip]), right.to_owned())),
            None => Err(bad("merges", format!("entry {rank} is {merge:?}; expected two pieces and a space between"))),
        }
    });
    let merges = merges.collect::<Result<Vec<_>, _>>()?;
    let mut ids: HashMap<String, u32> = HashMap::with_capacity(meta.tokens.len());
    for (id, token) in meta.tokens.iter().enumerate() {
        ids.entry(token.clone()).or_insert(id as u32);
    }
    let model = BPE::builder()
        .vocab_and_merges(
            ids.into_iter().collect::<Vec<_>>().into_iter().collect::<tokenizers::models::bpe::Vocab>(),
            merges,
        )
        .ignore_merges(recipe.ignore_merges)
        .build()
        .map_err(|error| bad("merges", error))?;
    let mut library = tokenizers::Tokenizer::new(ModelWrapper::BPE(model));
    library.with_pre_tokenizer(Some(recipe.pre_tokenizer));
    if let Some(normalizer) = recipe.normalizer {
        library.with_normalizer(Some(normalizer)).map_err(|error| bad("pre", error))?;
    }
    let added = |special: bool| move |(token, _): (&str, u32)| AddedToken::from(token, special).normalized(false);
    let tokens: Vec<AddedToken> = meta.controls().map(added(true)).chain(meta.visible().map(added(false))).collect();
    library.add_tokens(tokens).map_err(|error| bad("tokens", error))?;
    library.set_encode_special_tokens(true);
    let vocabulary =
        meta.vocabulary(|_, token| byte_map::bytes_of_token(token).unwrap_or_else(|| token.to_owned().into_bytes()));
    let encoder = Encoder::Library { first: Box::new(library), later: None };
    Ok((encoder, vocabulary, SpacePrefix::Never, recipe.add_bos))
}

fn spm(meta: &GgufTokenizerMeta, named: NamedIds) -> Result<Built, TokenizerError> {
    let scores = meta.scores.as_ref().ok_or_else(|| bad("scores", "missing; a llama tokenizer needs them"))?;
    if let Some(id) = scores.iter().position(|score| score.is_nan()) {
        return Err(bad("scores", format!("token {id} has no number as its score")));
    }
    for id in [named.bos, named.eos, named.unk].into_iter().flatten() {
        if id as usize >= meta.tokens.len() {
            return Err(bad(
                "tokens",
                format!("the usual special id {id} is missing from {} tokens", meta.tokens.len()),
            ));
        }
    }
    let mut bytes = [None; 256];
    for (id, token) in meta.tokens.iter().enumerate().filter(|&(id, _)| meta.kind(id) == BYTE) {
        let byte = byte_piece(token)
            .ok_or_else(|| bad("tokens", format!("token {id} is of byte type but is {token:?}; expected <0xXX>")))?;
        bytes[byte as usize] = Some(id as u32);
    }
    let usable = meta.tokens.iter().enumerate().filter_map(|(id, token)| {
        let usage = match meta.kind(id) {
            NORMAL | USER_DEFINED => PieceUse::Normal,
            UNUSED => PieceUse::Intermediate,
            _ => return None,
        };
        Some((token.clone(), id as u32, scores[id], usage))
    });
    let model = Spm::new(usable, bytes, named.unk.unwrap_or(0));
    let vocabulary = meta.vocabulary(|id, token| match byte_piece(token).filter(|_| meta.kind(id) == BYTE) {
        Some(byte) => vec![byte],
        None => token.replace('▁', " ").into_bytes(),
    });
    let mut ids = HashMap::with_capacity(meta.tokens.len());
    for (id, token) in meta.tokens.iter().enumerate() {
        ids.entry(token.clone()).or_insert(id as u32);
    }
    let prefix = if meta.add_space_prefix.unwrap_or(true) { SpacePrefix::EachSegment } else { SpacePrefix::Never };
    Ok((Encoder::Spm { model, visible: plain_specials(meta.visible()), ids }, vocabulary, prefix, true))
}
