//! A small made-up tokenizer in the published layout, for tiny checkpoints, tests and demos.
//!
//! Every byte is a token, then come a few merges of common words, then the special tokens under their published names
//! (not at their published ids, which lie far above a small vocabulary). The words and the sentences of the made-up
//! `encoding_k3.py` are ours.

use std::path::{Path, PathBuf};

use serde_json::{Map, json};

use super::{
    prompt_texts::ENCODING_FILE,
    specials::{K2, K3, RESERVED, VISIBLE},
};

/// Ids of the made-up tokenizer that a model's configuration names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TinyTokenizer {
    /// `[BOS]`.
    pub bos: u32,
    /// Ends an answer: `<|end_of_msg|>`, or `<|im_end|>` for Kimi Linear.
    pub eos: u32,
    /// `[PAD]`.
    pub pad: u32,
}

/// The files could not be written.
#[derive(Debug, thiserror::Error)]
pub enum TinyTokenizerError {
    /// No room for the bytes and the special tokens.
    #[error("vocab_size {0} is too small for a tokenizer; it needs at least {least}", least = 256 + K2.len().max(K3.len()))]
    VocabularyTooSmall(u32),
    /// A file could not be written.
    #[error("{path}: cannot write: {source}")]
    Write {
        /// File.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
}

const WORDS: &[&str] = &[
    " the",
    " and",
    " weather",
    " answer",
    " question",
    " number",
    " hello",
    " world",
    "message",
    "think",
    "response",
    "tools",
    "call",
    "argument",
    "name",
    "city",
    " is",
    " of",
    " to",
    " in",
    "tion",
    "ing",
    "er",
    "the",
    "你好",
    "é",
];

const ENCODING: &str = r#"# Made-up prompt texts for a tiny model.


def texts(effort, tools, tool_choice, schema):
    ponder = f"Effort of this turn.\nIt runs with `thinking_effort={effort}`."
    tool_list = "The tools at hand:\n" f"```json\n{tools}\n```"
    more_tools = "From here on these tools are at hand as well:\n" f"```json\n{tools}\n```"
    choice = "a tool call" if tool_choice == "required" else "no tool call"
    order = f"It runs with `tool_choice={tool_choice}`.\nThe next message has {choice}."
    any_json = "It runs with `response_format=json_object`.\nAnswer with one JSON object."
    some_json = "It runs with `response_format=json_schema`.\nAnswer with JSON like this:\n" f"```json\n{schema}\n```"
    return ponder, tool_list, more_tools, order, any_json, some_json
"#;

/// Write `tiktoken.model`, `tokenizer_config.json` and a made-up `encoding_k3.py` of a Kimi K3 tokenizer with ids below
/// `vocab_size` into `folder`. The same seed gives the same files.
pub fn tiny_tokenizer(folder: &Path, vocab_size: u32, seed: u64) -> Result<TinyTokenizer, TinyTokenizerError> {
    let tokenizer = write(folder, vocab_size, seed, K3, "<|end_of_msg|>")?;
    put(folder, ENCODING_FILE, ENCODING)?;
    Ok(tokenizer)
}

/// The same for Kimi Linear, whose chats need no texts.
pub fn tiny_linear_tokenizer(folder: &Path, vocab_size: u32, seed: u64) -> Result<TinyTokenizer, TinyTokenizerError> {
    write(folder, vocab_size, seed, K2, "<|im_end|>")
}

fn put(folder: &Path, name: &str, text: &str) -> Result<(), TinyTokenizerError> {
    let path = folder.join(name);
    std::fs::write(&path, text).map_err(|source| TinyTokenizerError::Write { path, source })
}

fn write(
    folder: &Path,
    vocab_size: u32,
    seed: u64,
    names: &[(u32, &str)],
    eos: &str,
) -> Result<TinyTokenizer, TinyTokenizerError> {
    let room = vocab_size.checked_sub(256 + names.len() as u32);
    let merges = merges(room.ok_or(TinyTokenizerError::VocabularyTooSmall(vocab_size))? as usize, seed);
    let tokens = (0..=255u8).map(|byte| vec![byte]).chain(merges);
    let lines: Vec<String> = tokens.enumerate().map(|(id, token)| format!("{} {id}\n", base64(&token))).collect();
    let base = lines.len() as u32;
    put(folder, "tiktoken.model", &lines.concat())?;

    // Packed from the first free id, but for the last two, which stand at the end as published.
    let (first, last) = names.split_at(names.len() - 2);
    let end = vocab_size.min(base + RESERVED);
    let ids = (base..).zip(first).chain((end - 2..).zip(last));
    let ids: Vec<(u32, &str)> = ids.map(|(id, (_, content))| (id, *content)).collect();
    let mut decoder = Map::new();
    for (id, content) in &ids {
        let entry = json!({
            "content": content, "lstrip": false, "normalized": false, "rstrip": false, "single_word": false,
            "special": !VISIBLE.contains(content),
        });
        decoder.insert(id.to_string(), entry);
    }
    let config = json!({
        "added_tokens_decoder": decoder, "bos_token": "[BOS]", "eos_token": eos, "unk_token": "[UNK]",
        "pad_token": "[PAD]", "tokenizer_class": "TikTokenTokenizer",
    });
    put(folder, "tokenizer_config.json", &format!("{config:#}\n"))?;
    let id = |wanted: &str| ids.iter().find(|(_, content)| *content == wanted).expect("the tables hold it").0;
    Ok(TinyTokenizer { bos: id("[BOS]"), eos: id(eos), pad: id("[PAD]") })
}

/// Beginnings of the words, each one byte longer than another token, so that merging can reach them.
fn merges(room: usize, seed: u64) -> Vec<Vec<u8>> {
    let mut words: Vec<&str> = WORDS.to_vec();
    let mut state = seed;
    for at in (1..words.len()).rev() {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        words.swap(at, (state >> 33) as usize % (at + 1));
    }
    let mut merges: Vec<Vec<u8>> = Vec::new();
    for word in words {
        for length in 2..=word.len() {
            let token = &word.as_bytes()[..length];
            if merges.len() < room && !merges.iter().any(|merge| merge == token) {
                merges.push(token.to_vec());
            }
        }
    }
    merges
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().chain(&[0; 2]).take(3).fold(0u32, |word, byte| word << 8 | u32::from(*byte));
        for place in 0..4 {
            let digit = DIGITS[(word >> (18 - 6 * place)) as usize & 63];
            out.push(if place <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::{Controls, SpecialText, Tokenizer};

    #[test]
    fn what_is_written_is_read_and_ids_stay_below_the_vocabulary() {
        let folder = std::env::temp_dir().join(format!("tokenspeed-tiny-tokenizer-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for vocab_size in [273, 300, 512, 2000] {
            for (k3, eos) in [(true, "<|end_of_msg|>"), (false, "<|im_end|>")] {
                let write = if k3 { tiny_tokenizer } else { tiny_linear_tokenizer };
                let ids = write(&folder, vocab_size, 7).unwrap();
                std::fs::write(folder.join("config.json"), json!({ "vocab_size": vocab_size }).to_string()).unwrap();
                let tokenizer = Tokenizer::from_folder(&folder).unwrap();
                assert!(
                    tokenizer.vocab_size() <= vocab_size && (vocab_size > 512 || tokenizer.vocab_size() == vocab_size)
                );
                assert_eq!(tokenizer.named().bos, Some(ids.bos));
                assert_eq!((tokenizer.named().eos, tokenizer.named().pad), (Some(ids.eos), Some(ids.pad)));
                assert_eq!(tokenizer.id_of(eos), Some(ids.eos));
                assert_eq!(tokenizer.xtml().is_some(), k3);
                assert_eq!(tokenizer.templates().len(), usize::from(!k3));
                let text = "the weather message é 你好 🙂<|open|>";
                let plain = tokenizer.encode(text, Controls::AsText, true).unwrap();
                assert_eq!(tokenizer.decode(&plain, SpecialText::Skip).unwrap(), text);
                assert!(vocab_size < 512 || plain.len() < text.len() * 3 / 4, "merges are used: {}", plain.len());
                assert!((0..tokenizer.vocab_size()).all(|id| tokenizer.vocabulary().has(id)), "no holes");
            }
        }
        let first = std::fs::read(folder.join("tiktoken.model")).unwrap();
        tiny_linear_tokenizer(&folder, 2000, 8).unwrap();
        assert_ne!(first, std::fs::read(folder.join("tiktoken.model")).unwrap(), "the seed matters");
        assert!(matches!(tiny_tokenizer(&folder, 271, 1), Err(TinyTokenizerError::VocabularyTooSmall(271))));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
