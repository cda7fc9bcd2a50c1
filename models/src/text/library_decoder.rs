//! What a `tokenizer.json` decoder does, reduced to "bytes of one vocabulary entry" and a rule about leading spaces.
//!
//! Every decoder of a generating model can be put this way; those that cannot (word pieces, CTC) are refused by name.

use serde_json::Value;

use super::{byte_map, error::TokenizerError, vocabulary::SpacePrefix};

/// Turns vocabulary entries into bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct PieceDecoder {
    byte_level: bool,
    byte_fallback: bool,
    replace: Vec<(String, String)>,
    /// When encoding adds a space that decoding removes.
    pub space_prefix: SpacePrefix,
}

/// All steps of a component, sequences flattened.
fn steps(value: &Value) -> Vec<&Value> {
    let inner = ["decoders", "pretokenizers", "normalizers"].iter().find_map(|key| value.get(*key)?.as_array());
    match inner {
        Some(list) => list.iter().flat_map(steps).collect(),
        None if value.is_null() => Vec::new(),
        None => vec![value],
    }
}

fn kind(step: &Value) -> &str {
    step.get("type").and_then(Value::as_str).unwrap_or("of unknown type")
}

fn metaspace_scheme(step: &Value) -> &str {
    let old_style_off = step.get("add_prefix_space").and_then(Value::as_bool) == Some(false);
    if old_style_off { "never" } else { step.get("prepend_scheme").and_then(Value::as_str).unwrap_or("always") }
}

/// Make every Metaspace step of a pre-tokenizer add no space.
pub(super) fn drop_metaspace_prefix(pre_tokenizer: &mut Value) {
    if let Some(list) = pre_tokenizer.get_mut("pretokenizers").and_then(Value::as_array_mut) {
        list.iter_mut().for_each(drop_metaspace_prefix);
    } else if kind(pre_tokenizer) == "Metaspace" {
        pre_tokenizer["prepend_scheme"] = "never".into();
        if let Some(step) = pre_tokenizer.as_object_mut() {
            step.remove("add_prefix_space");
        }
    }
}

impl PieceDecoder {
    /// Read the `decoder` of a parsed tokenizer.json, and from its normalizer and pre-tokenizer when spaces are added.
    pub fn parse(json: &Value) -> Result<Self, TokenizerError> {
        let mut this =
            Self { byte_level: false, byte_fallback: false, replace: Vec::new(), space_prefix: SpacePrefix::Never };
        let mut strips = false;
        let decoders = steps(&json["decoder"]);
        if decoders.is_empty() {
            return Err(TokenizerError::UnsupportedDecoder("null".into()));
        }
        for step in decoders {
            let refuse = || TokenizerError::UnsupportedDecoder(step.to_string());
            match kind(step) {
                "ByteLevel" => this.byte_level = true,
                "ByteFallback" => this.byte_fallback = true,
                "Fuse" => {}
                "Replace" => {
                    let pattern = step["pattern"]["String"].as_str().ok_or_else(refuse)?;
                    this.replace.push((pattern.into(), step["content"].as_str().ok_or_else(refuse)?.into()));
                }
                "Metaspace" => {
                    let replacement = step["replacement"].as_str().unwrap_or("▁");
                    this.replace.push((replacement.into(), " ".into()));
                    strips |= metaspace_scheme(step) != "never";
                }
                "Strip" if step["content"] == " " && step["stop"] == 0 && step["start"] == 1 => strips = true,
                "Strip" if step["stop"] == 0 && step["start"] == 0 => {}
                _ => return Err(refuse()),
            }
        }
        if strips {
            let prepends = steps(&json["normalizer"]).into_iter().any(|step| kind(step) == "Prepend");
            let pre_tokenizer = steps(&json["pre_tokenizer"]);
            let metaspace = pre_tokenizer.into_iter().find(|step| kind(step) == "Metaspace").map(metaspace_scheme);
            this.space_prefix = match (prepends, metaspace) {
                (true, _) | (_, Some("always")) => SpacePrefix::EachSegment,
                // A decoder that strips although nothing is added still strips at the start.
                _ => SpacePrefix::First,
            };
        }
        Ok(this)
    }

    /// Bytes of a learned vocabulary entry.
    pub fn bytes(&self, token: &str) -> Vec<u8> {
        if self.byte_level {
            return byte_map::bytes_of_token(token).unwrap_or_else(|| token.as_bytes().to_vec());
        }
        let hex = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>')).filter(|hex| hex.len() == 2);
        if let (true, Some(Ok(byte))) = (self.byte_fallback, hex.map(|hex| u8::from_str_radix(hex, 16))) {
            return vec![byte];
        }
        let mut text = token.to_owned();
        for (from, to) in &self.replace {
            text = text.replace(from, to);
        }
        text.into_bytes()
    }

    /// Bytes of an added token: its own string. Not through the byte alphabet, which would turn an `Ö` it contains into
    /// one broken byte. Visible ones still have their `▁` replaced: some vocabularies keep runs of spaces that way.
    pub fn added_bytes(&self, content: &str, special: bool) -> Vec<u8> {
        if special || self.byte_level { content.as_bytes().to_vec() } else { self.bytes(content) }
    }
}
