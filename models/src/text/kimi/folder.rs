//! A tokenizer from a Kimi folder: `tiktoken.model`, with `tokenizer_config.json` and `config.json` beside it.
//!
//! Nothing is put round a text: the published tokenizer adds no BOS.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{
    prompt_texts::PromptTexts,
    ranks::Ranks,
    sections,
    specials::{RESERVED, SpecialName, specials},
};
use crate::text::{
    error::TokenizerError,
    folder::{read_json, read_optional},
    special::SpecialToken,
    tokenizer::{Encoder, NamedIds, NamedTemplate, Tokenizer},
    vocabulary::{SpacePrefix, TokenKind, Vocabulary},
};

/// Markers without which a tokenizer cannot write K3's chat format.
pub(crate) const XTML_MARKERS: [&str; 4] = ["<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"];

/// The rank file of a folder: `tiktoken.model`, else the only `*.tiktoken`. `None` when the folder has neither, or has a
/// `tokenizer.json`, which then counts.
pub fn rank_file(folder: &Path) -> Option<PathBuf> {
    if folder.join("tokenizer.json").exists() {
        return None;
    }
    let usual = folder.join("tiktoken.model");
    if usual.is_file() {
        return Some(usual);
    }
    let entries = std::fs::read_dir(folder).ok()?;
    let mut found = entries.filter_map(|entry| {
        let path = entry.ok()?.path();
        (path.extension()? == "tiktoken" && path.is_file()).then_some(path)
    });
    found.next().filter(|_| found.next().is_none())
}

/// What `config.json` says of the model.
struct Declared {
    is_k3: bool,
    vocab_size: Option<u32>,
}

fn declared(folder: &Path) -> Result<Declared, TokenizerError> {
    let config = read_json(&folder.join("config.json"))?;
    let text = config.get("text_config").unwrap_or(&config);
    let size = |config: &Value| config.get("vocab_size").and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok());
    Ok(Declared { is_k3: config["model_type"] == "kimi_k3", vocab_size: size(text).or(size(&config)) })
}

impl Tokenizer {
    /// Read a Kimi tokenizer; `rank_file` is the folder's ([`rank_file`]).
    pub(crate) fn from_kimi_folder(folder: &Path, rank_file: &Path) -> Result<Self, TokenizerError> {
        let read = |source| TokenizerError::Read { path: rank_file.into(), source };
        let text = std::fs::read(rank_file).map_err(read)?;
        let name = rank_file.display().to_string();
        let text = std::str::from_utf8(&text)
            .map_err(|_| TokenizerError::malformed(&name, "is not text; expected one `<base64> <rank>` per line"))?;
        let ranks = Ranks::parse(&name, text)?;
        let declared = declared(folder)?;
        let vocab_size = declared.vocab_size.unwrap_or(ranks.len().saturating_add(RESERVED));
        if ranks.len() > vocab_size {
            let cause = format!(
                "has {} tokens, but config.json says vocab_size {vocab_size}; ids past the embedding cannot be served",
                ranks.len()
            );
            return Err(TokenizerError::malformed(name, cause));
        }
        let config = read_json(&folder.join("tokenizer_config.json"))?;
        let names = specials(ranks.len(), vocab_size, &config, declared.is_k3)?;
        let has = |content: &str| names.iter().any(|name| name.content == content);
        let xtml = XTML_MARKERS.iter().all(|marker| has(marker)).then(|| PromptTexts::of_folder(folder)).transpose()?;
        let mut templates = crate::text::folder::TokenizerFiles {
            config: config.clone(),
            chat_template: read_optional(&folder.join("chat_template.jinja"))?,
            ..Default::default()
        }
        .templates()?;
        if templates.is_empty() && xtml.is_none() && sections::CHAT_MARKERS.iter().all(|marker| has(marker)) {
            templates.push(NamedTemplate { name: "default".into(), source: sections::TEMPLATE.into() });
        }
        Ok(build(ranks, &names, &config, templates, xtml))
    }
}

fn build(
    ranks: Ranks,
    names: &[SpecialName],
    config: &Value,
    templates: Vec<NamedTemplate>,
    xtml: Option<PromptTexts>,
) -> Tokenizer {
    let mut entries: Vec<(u32, Vec<u8>, TokenKind)> =
        (0..ranks.len()).map(|id| (id, ranks.token(id).to_vec(), TokenKind::Normal)).collect();
    entries.extend(names.iter().map(|name| {
        let kind = if name.hidden { TokenKind::Special } else { TokenKind::Added };
        (name.id, name.content.clone().into_bytes(), kind)
    }));
    let id_of = |content: &str| names.iter().find(|name| name.content == content).map(|name| name.id);
    let named = |key: &str, usual: &[&str]| {
        let entry = config.get(key);
        let given = entry.and_then(|entry| entry.as_str().or_else(|| entry["content"].as_str()));
        given.and_then(id_of).or_else(|| usual.iter().find_map(|content| id_of(content)))
    };
    Tokenizer {
        vocabulary: Vocabulary::new(entries),
        controls: crate::text::special::SpecialTokens::new(
            names.iter().map(|name| SpecialToken::plain(name.content.clone(), name.id)),
        ),
        space_prefix: SpacePrefix::Never,
        prefix: Vec::new(),
        suffix: Vec::new(),
        named: NamedIds {
            bos: named("bos_token", &["[BOS]"]),
            eos: named("eos_token", &["<|end_of_msg|>", "<|im_end|>", "[EOS]"]),
            unk: named("unk_token", &["[UNK]"]),
            pad: named("pad_token", &["[PAD]"]),
        },
        templates,
        encoder: Encoder::Ranks(Box::new(ranks)),
        xtml,
    }
}
