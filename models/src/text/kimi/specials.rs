//! The special tokens above the ranks: 256 ids from the first free one, named by `tokenizer_config.json`.
//!
//! Ids without a name there are `<|reserved_token_ID|>`. Without the file, the published tables below apply. An id at or
//! above the model's vocabulary is left out wherever it comes from: the published configuration lists seven names of an
//! earlier model past the end of the embedding, and sampling or encoding one would read outside it.
//!
//! All of them are control tokens for encoding: only a chat format writes them, never a user's text. Some are flagged
//! `"special": false` ([`SpecialName::hidden`]); that concerns decoding alone, where they stay visible.

use serde_json::Value;

use crate::text::error::TokenizerError;

/// Ids set aside above the ranks.
pub(crate) const RESERVED: u32 = 256;

/// Kimi K3's names, by offset above the ranks.
pub(crate) const K3: &[(u32, &str)] = &[
    (0, "[BOS]"),
    (1, "[EOS]"),
    (2, "<|end_of_msg|>"),
    (3, "<|open|>"),
    (4, "<|close|>"),
    (5, "<|sep|>"),
    (6, "[start_header_id]"),
    (7, "[end_header_id]"),
    (9, "[EOT]"),
    (18, "<|media_begin|>"),
    (19, "<|media_content|>"),
    (20, "<|media_end|>"),
    (21, "<|media_pad|>"),
    (65, "<osagent_mode>"),
    (254, "[UNK]"),
    (255, "[PAD]"),
];

/// Names of Kimi K2 and Kimi Linear, by offset above the ranks.
pub(crate) const K2: &[(u32, &str)] = &[
    (0, "[BOS]"),
    (1, "[EOS]"),
    (2, "<|im_end|>"),
    (3, "<|im_user|>"),
    (4, "<|im_assistant|>"),
    (6, "<|start_header_id|>"),
    (7, "<|end_header_id|>"),
    (9, "[EOT]"),
    (10, "<|im_system|>"),
    (11, "<|tool_calls_section_begin|>"),
    (12, "<|tool_calls_section_end|>"),
    (13, "<|tool_call_begin|>"),
    (14, "<|tool_call_argument_begin|>"),
    (15, "<|tool_call_end|>"),
    (17, "<|im_middle|>"),
    (254, "[UNK]"),
    (255, "[PAD]"),
];

/// Markers of the K3 chat format, which answers show to the parser.
pub(crate) const VISIBLE: &[&str] = &["<|open|>", "<|close|>", "<|sep|>"];

/// One special token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SpecialName {
    pub(crate) id: u32,
    pub(crate) content: String,
    /// Left out of answers by default.
    pub(crate) hidden: bool,
}

fn bad(cause: String) -> TokenizerError {
    TokenizerError::malformed("tokenizer_config.json", cause)
}

/// The special tokens above `base` ranks, in id order, all below `vocab_size`. `config` is tokenizer_config.json or null;
/// `is_k3` picks the table that applies without one.
pub(crate) fn specials(
    base: u32,
    vocab_size: u32,
    config: &Value,
    is_k3: bool,
) -> Result<Vec<SpecialName>, TokenizerError> {
    let end = vocab_size.min(base.saturating_add(RESERVED));
    let mut names: Vec<SpecialName> =
        (base..end).map(|id| SpecialName { id, content: format!("<|reserved_token_{id}|>"), hidden: true }).collect();
    match config.get("added_tokens_decoder").and_then(Value::as_object) {
        Some(listed) => {
            for (id, entry) in listed {
                let id: u32 = id.parse().map_err(|_| bad(format!("added_tokens_decoder: {id:?} is not a token id")))?;
                let content = entry["content"].as_str().filter(|content| !content.is_empty());
                let content = content.ok_or_else(|| bad(format!("added_tokens_decoder: {id} has no content")))?;
                if id < base {
                    return Err(bad(format!(
                        "added_tokens_decoder: {content:?} has id {id}, which is an ordinary token (the first free id is {base})"
                    )));
                }
                if id >= vocab_size {
                    continue;
                }
                let hidden = entry.get("special").and_then(Value::as_bool).unwrap_or(true);
                let name = SpecialName { id, content: content.into(), hidden };
                match names.binary_search_by_key(&id, |name| name.id) {
                    Ok(at) => names[at] = name,
                    Err(at) => names.insert(at, name),
                }
            }
        }
        None => {
            for (offset, content) in if is_k3 { K3 } else { K2 } {
                if let Some(name) = names.get_mut(*offset as usize) {
                    name.content = (*content).into();
                    name.hidden = !VISIBLE.contains(content);
                }
            }
        }
    }
    let mut sorted: Vec<&SpecialName> = names.iter().collect();
    sorted.sort_by(|a, b| a.content.cmp(&b.content));
    match sorted.windows(2).find(|pair| pair[0].content == pair[1].content) {
        None => Ok(names),
        Some(pair) => Err(bad(format!("tokens {} and {} are both {:?}", pair[0].id, pair[1].id, pair[0].content))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tables_put_every_name_at_its_published_id() {
        let id = |is_k3, content: &str| {
            let names = specials(163_584, 163_840, &Value::Null, is_k3).unwrap();
            assert_eq!(names.len(), 256);
            names.iter().find(|name| name.content == content).map(|name| (name.id, name.hidden))
        };
        for (content, want) in [
            ("<|end_of_msg|>", (163_586, true)),
            ("<|open|>", (163_587, false)),
            ("<|close|>", (163_588, false)),
            ("<|sep|>", (163_589, false)),
            ("<|media_pad|>", (163_605, true)),
            ("<osagent_mode>", (163_649, true)),
            ("<|reserved_token_163600|>", (163_600, true)),
            ("[PAD]", (163_839, true)),
        ] {
            assert_eq!(id(true, content), Some(want), "{content}");
        }
        assert_eq!(id(false, "<|im_middle|>"), Some((163_601, true)));
        assert_eq!(id(false, "<|tool_call_argument_begin|>"), Some((163_598, true)));
    }

    #[test]
    fn padded_vocabulary_names_past_the_embedding_are_left_out() {
        let config = json!({"added_tokens_decoder": {
            "300": {"content": "<|x|>", "special": false}, "302": {"content": "[BOS]"}, "310": {"content": "late"},
        }});
        let names = specials(300, 305, &config, true).unwrap();
        let shown: Vec<(u32, &str, bool)> = names.iter().map(|n| (n.id, n.content.as_str(), n.hidden)).collect();
        assert_eq!(
            shown,
            [
                (300, "<|x|>", false),
                (301, "<|reserved_token_301|>", true),
                (302, "[BOS]", true),
                (303, "<|reserved_token_303|>", true),
                (304, "<|reserved_token_304|>", true),
            ]
        );
    }

    #[test]
    fn wrong_entries_are_refused_by_name() {
        let error = |listed: Value| {
            let config = json!({ "added_tokens_decoder": listed });
            specials(300, 400, &config, true).unwrap_err().to_string()
        };
        assert!(error(json!({"x": {"content": "a"}})).contains("\"x\" is not a token id"));
        assert!(error(json!({"300": {}})).contains("300 has no content"));
        assert!(error(json!({"7": {"content": "a"}})).contains("ordinary token"));
        assert!(error(json!({"300": {"content": "a"}, "301": {"content": "a"}})).contains("300 and 301 are both"));
    }
}
