//! A tokenizer from a model folder: `tokenizer.json`, with `tokenizer_config.json` and `special_tokens_map.json` beside it.
//!
//! `truncation` and `padding` of tokenizer.json are training settings and are switched off: a prompt is never cut here.
//! Whether BOS is added follows the post-processor of tokenizer.json, except for the Llama and Gemma tokenizer classes,
//! whose `add_bos_token`/`add_eos_token` in tokenizer_config.json overrule it (that is how those classes behave).

use std::path::Path;

use serde_json::Value;
use tokenizers::AddedToken;

use super::{
    error::TokenizerError,
    library_decoder::PieceDecoder,
    special::{SpecialToken, SpecialTokens},
    tokenizer::{Encoder, NamedIds, NamedTemplate, Tokenizer},
    vocabulary::{SpacePrefix, TokenKind, Vocabulary},
};

/// The parsed files a tokenizer is built from.
#[derive(Clone, Debug, Default)]
pub struct TokenizerFiles {
    /// `tokenizer.json`.
    pub tokenizer: Value,
    /// `tokenizer_config.json`, or null.
    pub config: Value,
    /// `special_tokens_map.json`, or null.
    pub special_map: Value,
    /// `chat_template.jinja`; wins over the one in `config`.
    pub chat_template: Option<String>,
}

const LIBRARY: &str = "tokenizer.json";

pub(crate) fn read_optional(path: &Path) -> Result<Option<String>, TokenizerError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(TokenizerError::Read { path: path.into(), source }),
    }
}

pub(crate) fn read_json(path: &Path) -> Result<Value, TokenizerError> {
    let Some(text) = read_optional(path)? else { return Ok(Value::Null) };
    serde_json::from_str(&text).map_err(|error| TokenizerError::malformed(path.display().to_string(), error))
}

impl TokenizerFiles {
    /// Read what a model folder has; only `tokenizer.json` must exist.
    pub fn read(folder: &Path) -> Result<Self, TokenizerError> {
        let path = folder.join(LIBRARY);
        let tokenizer = read_json(&path)?;
        if tokenizer.is_null() {
            return Err(TokenizerError::malformed(
                path.display().to_string(),
                "missing; a model folder needs it, or tiktoken.model (a folder with only tokenizer.model must be converted first)",
            ));
        }
        Ok(Self {
            tokenizer,
            config: read_json(&folder.join("tokenizer_config.json"))?,
            special_map: read_json(&folder.join("special_tokens_map.json"))?,
            chat_template: read_optional(&folder.join("chat_template.jinja"))?,
        })
    }

    /// A token named in the configuration: a string, or an object with `content`.
    fn named(&self, key: &str) -> Option<String> {
        [&self.config, &self.special_map].iter().find_map(|file| token_string(file.get(key)?))
    }

    pub(crate) fn templates(&self) -> Result<Vec<NamedTemplate>, TokenizerError> {
        let default = |source: &str| vec![NamedTemplate { name: "default".into(), source: source.into() }];
        if let Some(source) = &self.chat_template {
            return Ok(default(source));
        }
        match self.config.get("chat_template") {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(Value::String(source)) => Ok(default(source)),
            Some(Value::Array(list)) => list.iter().map(named_template).collect(),
            Some(_) => Err(bad_template()),
        }
    }
}

fn bad_template() -> TokenizerError {
    TokenizerError::malformed(
        "tokenizer_config.json",
        "chat_template must be a string or a list of {\"name\", \"template\"}",
    )
}

fn named_template(entry: &Value) -> Result<NamedTemplate, TokenizerError> {
    let text = |key| entry.get(key).and_then(Value::as_str).map(str::to_owned).ok_or_else(bad_template);
    Ok(NamedTemplate { name: text("name")?, source: text("template")? })
}

fn token_string(value: &Value) -> Option<String> {
    value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_owned)
}

impl Tokenizer {
    /// Read the tokenizer of a model folder: `tokenizer.json`, or Kimi's rank file.
    pub fn from_folder(folder: &Path) -> Result<Self, TokenizerError> {
        if let Some(rank_file) = super::kimi::rank_file(folder) {
            return Self::from_kimi_folder(folder, &rank_file);
        }
        Self::from_files(&TokenizerFiles::read(folder)?)
    }

    /// Build from parsed files.
    pub fn from_files(files: &TokenizerFiles) -> Result<Self, TokenizerError> {
        let bad = |cause: String| TokenizerError::malformed(LIBRARY, cause);
        let decoder = PieceDecoder::parse(&files.tokenizer)?;
        let mut library: tokenizers::Tokenizer =
            serde_json::from_value(files.tokenizer.clone()).map_err(|error| bad(error.to_string()))?;
        library.with_truncation(None).map_err(|error| bad(error.to_string()))?;
        library.with_padding(None);
        check_declared_ids(&library, &files.tokenizer)?;
        add_configured(&mut library, files)?;
        let (prefix, suffix) = affixes(&library, files)?;
        library.set_encode_special_tokens(true);

        let added = library.get_added_tokens_decoder();
        let mut entries: Vec<(u32, Vec<u8>, TokenKind)> = library
            .get_vocab(false)
            .into_iter()
            .map(|(token, id)| (id, decoder.bytes(&token), TokenKind::Normal))
            .collect();
        for (&id, token) in &added {
            let kind = if token.special { TokenKind::Special } else { TokenKind::Added };
            entries.push((id, decoder.added_bytes(&token.content, token.special), kind));
        }
        let controls = added.iter().filter(|(_, token)| token.special).map(|(&id, token)| SpecialToken {
            content: token.content.clone(),
            id,
            strip_left: token.lstrip,
            strip_right: token.rstrip,
            single_word: token.single_word,
        });
        let controls = SpecialTokens::new(controls);
        let id_of = |key: &str| files.named(key).and_then(|token| library.token_to_id(&token));
        let named = NamedIds {
            bos: id_of("bos_token"),
            eos: id_of("eos_token"),
            unk: id_of("unk_token"),
            pad: id_of("pad_token"),
        };
        let later = decoder.without_first_prefix(&files.tokenizer).map(|json| {
            let mut later: tokenizers::Tokenizer =
                serde_json::from_value(json).map_err(|error| bad(error.to_string()))?;
            later.with_truncation(None).map_err(|error| bad(error.to_string()))?;
            later.with_padding(None);
            add_configured(&mut later, files)?;
            later.set_encode_special_tokens(true);
            Ok(Box::new(later))
        });
        Ok(Self {
            vocabulary: Vocabulary::new(entries),
            controls,
            space_prefix: decoder.space_prefix,
            prefix,
            suffix,
            named,
            templates: files.templates()?,
            encoder: Encoder::Library { first: Box::new(library), later: later.transpose()? },
            xtml: None,
        })
    }
}

/// The library numbers added tokens itself; a file whose ids it would not reproduce must not be served.
fn check_declared_ids(library: &tokenizers::Tokenizer, json: &Value) -> Result<(), TokenizerError> {
    for entry in json.get("added_tokens").and_then(Value::as_array).into_iter().flatten() {
        if let (Some(content), Some(id)) = (entry["content"].as_str(), entry["id"].as_u64())
            && !content.is_empty()
            && library.token_to_id(content).map(u64::from) != Some(id)
        {
            let cause = format!("added token {content:?} says id {id}, but the vocabulary leaves it another one");
            return Err(TokenizerError::malformed(LIBRARY, cause));
        }
    }
    Ok(())
}

/// Tokens that tokenizer_config.json adds, and those it names in a special role.
fn add_configured(library: &mut tokenizers::Tokenizer, files: &TokenizerFiles) -> Result<(), TokenizerError> {
    let bad = |cause: String| TokenizerError::malformed("tokenizer_config.json", cause);
    let mut listed: Vec<(u64, &Value)> = Vec::new();
    for (id, entry) in files.config.get("added_tokens_decoder").and_then(Value::as_object).into_iter().flatten() {
        let id = id.parse().map_err(|_| bad(format!("added_tokens_decoder: {id:?} is not a token id")))?;
        listed.push((id, entry));
    }
    listed.sort_by_key(|entry| entry.0); // the library numbers new tokens in the order they are added
    for (id, entry) in listed {
        let content = entry["content"].as_str().unwrap_or_default();
        if content.is_empty() || library.token_to_id(content).is_some() {
            continue;
        }
        let flag = |key: &str| entry.get(key).and_then(Value::as_bool).unwrap_or(false);
        let token = AddedToken::from(content, flag("special"))
            .normalized(flag("normalized"))
            .lstrip(flag("lstrip"))
            .rstrip(flag("rstrip"))
            .single_word(flag("single_word"));
        library.add_tokens([token]).map_err(|error| bad(error.to_string()))?;
        if library.token_to_id(content).map(u64::from) != Some(id) {
            return Err(bad(format!(
                "added_tokens_decoder: {content:?} cannot have id {id}; tokenizer.json ends elsewhere"
            )));
        }
    }
    // An ordinary word is sometimes named as padding; it must not vanish from answers.
    let mut special: Vec<(String, bool)> =
        [("bos_token", true), ("eos_token", true), ("pad_token", false), ("unk_token", false)]
            .iter()
            .filter_map(|&(key, even_ordinary)| Some((files.named(key)?, even_ordinary)))
            .collect();
    for file in [&files.config, &files.special_map] {
        let list = file.get("additional_special_tokens").and_then(Value::as_array);
        special.extend(list.into_iter().flatten().filter_map(token_string).map(|token| (token, true)));
    }
    let added = library.get_added_tokens_decoder();
    for (content, even_ordinary) in special {
        let Some(id) = library.token_to_id(&content).filter(|id| even_ordinary || added.contains_key(id)) else {
            continue;
        };
        let mut token = added.get(&id).cloned().unwrap_or_else(|| AddedToken::from(content, true).normalized(false));
        if !token.special || !added.contains_key(&id) {
            token.special = true;
            library.add_special_tokens([token]).map_err(|error| bad(error.to_string()))?;
        }
    }
    Ok(())
}

/// What the tokenizer puts before and after a text.
fn affixes(library: &tokenizers::Tokenizer, files: &TokenizerFiles) -> Result<(Vec<u32>, Vec<u32>), TokenizerError> {
    let encode = |special: bool| match library.encode_fast("a", special) {
        Ok(encoding) => Ok(encoding.get_ids().to_vec()),
        Err(error) => Err(TokenizerError::malformed(LIBRARY, error)),
    };
    let (bare, full) = (encode(false)?, encode(true)?);
    let at = (0..=full.len().saturating_sub(bare.len())).find(|&at| full[at..].starts_with(&bare));
    let at =
        at.ok_or_else(|| TokenizerError::malformed(LIBRARY, "the post-processor changes the text's own tokens"))?;
    let (mut prefix, mut suffix) = (full[..at].to_vec(), full[at + bare.len()..].to_vec());
    let class = files.config.get("tokenizer_class").and_then(Value::as_str).unwrap_or_default();
    if ["LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer"].iter().any(|family| class.starts_with(family)) {
        let overrule =
            |affix: &mut Vec<u32>, switch: &str, name: &str| match files.config.get(switch).and_then(Value::as_bool) {
                Some(false) => affix.clear(),
                Some(true) => *affix = files.named(name).and_then(|t| library.token_to_id(&t)).into_iter().collect(),
                None => {}
            };
        overrule(&mut prefix, "add_bos_token", "bos_token");
        overrule(&mut suffix, "add_eos_token", "eos_token");
    }
    Ok((prefix, suffix))
}

impl PieceDecoder {
    /// For tokenizers that add a space at the start of the text only: the same tokenizer without it.
    fn without_first_prefix(&self, json: &Value) -> Option<Value> {
        (self.space_prefix == SpacePrefix::First).then(|| {
            let mut json = json.clone();
            super::library_decoder::drop_metaspace_prefix(&mut json["pre_tokenizer"]);
            json
        })
    }
}
