//! Small tokenizers for the tests: byte-level, and two SentencePiece-like ones as published tokenizer.json files are laid out.
#![allow(dead_code)]

use std::sync::Arc;

use serde_json::{Map, Value, json};
use tokenspeed_models::text::{Tokenizer, TokenizerFiles};

/// A random source that tests can repeat.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }

    pub fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }

    /// Text of many scripts, spaces, control strings and broken-looking pieces.
    pub fn text(&mut self, length: usize) -> String {
        let pieces = [
            "hello",
            " ",
            "  ",
            "   ",
            "\n",
            "\t",
            ".",
            "    .",
            "Ö",
            "ığdır",
            "नमस्ते",
            "こんにちは",
            "🙂",
            "👨‍👩‍👧",
            "e\u{301}",
            "12",
            "▁",
            "<|im_end|>",
            "<|im_",
            "<s>",
            "if x:\n        y",
            "| a | b |",
            "\u{FFFD}",
            "don't",
            "<0x41>",
            "Ġ",
            "\u{200B}",
        ];
        (0..length).map(|_| self.pick(&pieces)).collect()
    }
}

/// The byte alphabet, by its rule.
pub fn alphabet() -> Vec<char> {
    let mut next = 255;
    let of_byte = (0..256u32).map(|byte| match byte {
        33..=126 | 161..=172 | 174..=255 => char::from_u32(byte).unwrap(),
        _ => {
            next += 1;
            char::from_u32(next).unwrap()
        }
    });
    of_byte.collect()
}

pub fn added(id: u32, content: &str, special: bool) -> Value {
    json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": special})
}

pub const CONTROLS: [&str; 5] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"];

/// Bytes 0–255, `CONTROLS` from 256, then `pieces`; no merges, so text is encoded byte by byte.
pub fn byte_level_json(pieces: &[&[u8]]) -> Value {
    let alphabet = alphabet();
    let text = |bytes: &[u8]| bytes.iter().map(|&byte| alphabet[byte as usize]).collect::<String>();
    let mut vocab: Map<String, Value> = (0..=255u8).map(|byte| (text(&[byte]), Value::from(byte))).collect();
    let mut controls = Vec::new();
    for (at, content) in CONTROLS.iter().enumerate() {
        vocab.insert(content.to_string(), (256 + at).into());
        controls.push(added(256 + at as u32, content, true));
    }
    for piece in pieces {
        let id = vocab.len();
        let before = vocab.insert(text(piece), id.into());
        assert!(before.is_none(), "pieces must be new: {piece:?}");
    }
    json!({
        "version": "1.0", "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": null, "added_tokens": controls, "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                  "vocab": vocab, "merges": []},
    })
}

pub fn build(tokenizer: Value, config: Value) -> Tokenizer {
    Tokenizer::from_files(&TokenizerFiles { tokenizer, config, ..Default::default() }).unwrap()
}

pub fn byte_level(pieces: &[&[u8]]) -> Arc<Tokenizer> {
    let config = json!({"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"});
    Arc::new(build(byte_level_json(pieces), config))
}

/// Where a SentencePiece-like tokenizer.json puts its leading space.
#[derive(Clone, Copy, Debug)]
pub enum Layout {
    /// `Prepend` normalizer: every segment gets one.
    Prepend,
    /// `Metaspace` with `first`.
    MetaspaceFirst,
    /// `Metaspace` with `always`.
    MetaspaceAlways,
}

/// `<unk> <s> </s>`, 256 byte pieces, a few words; BOS by post-processor.
pub fn spm_json(layout: Layout) -> Value {
    let controls = ["<unk>", "<s>", "</s>", "<|im_end|>"];
    let mut vocab: Map<String, Value> = controls.iter().enumerate().map(|(id, t)| (t.to_string(), id.into())).collect();
    for byte in 0..256 {
        vocab.insert(format!("<0x{byte:02X}>"), vocab.len().into());
    }
    let merges = ["▁ h", "▁h e", "l l", "▁he ll", "▁hell o", "▁ ▁", "▁▁ ▁▁", "i f", "▁ ."];
    for piece in ["▁", ".", "e", "f", "h", "i", "l", "o", "x", "Ö", "|"] {
        vocab.insert(piece.into(), vocab.len().into());
    }
    for merge in merges {
        vocab.insert(merge.replace(' ', ""), vocab.len().into());
    }
    let metaspace =
        |scheme: &str| json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": false});
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let (normalizer, pre_tokenizer) = match layout {
        Layout::Prepend => {
            (json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace]}), Value::Null)
        }
        Layout::MetaspaceFirst => (Value::Null, metaspace("first")),
        Layout::MetaspaceAlways => (Value::Null, metaspace("always")),
    };
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": controls.iter().enumerate().map(|(id, t)| added(id as u32, t, true)).collect::<Vec<_>>(),
        "normalizer": normalizer, "pre_tokenizer": pre_tokenizer,
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
                  "vocab": vocab, "merges": merges},
    })
}

pub fn spm(layout: Layout) -> Arc<Tokenizer> {
    Arc::new(build(spm_json(layout), json!({"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"})))
}
