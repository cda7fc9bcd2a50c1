//! Log-probability reports in the three shapes of the API: chat, completions, and `prompt_logprobs`.
//!
//! JSON has no infinities, so a masked token's log-probability is reported as -9999. A token that is no whole character
//! is spelt `bytes:\xNN…`, as the OpenAI API does.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};
use tokenspeed_core::request::TokenLogprobs;

use crate::{frontend::TextFrontend, generation::delta::TokenReport};

const FLOOR: f32 = -9999.0;

fn finite(logprob: f32) -> f64 {
    // Through the shortest decimal form: 0.1f32 is written 0.1, not 0.10000000149011612.
    let logprob = if logprob.is_nan() { FLOOR } else { logprob.clamp(FLOOR, 0.0) };
    logprob.to_string().parse().unwrap_or(f64::from(logprob))
}

fn bytes_of(frontend: &dyn TextFrontend, id: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    frontend.token_bytes(id, &mut bytes);
    bytes
}

fn spelling(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => {
            let mut text = String::from("bytes:");
            for byte in bytes {
                let _ = write!(text, "\\x{byte:02x}");
            }
            text
        }
    }
}

/// Chat shape: the list `logprobs.content`. `top` likely tokens per position.
pub fn chat(frontend: &dyn TextFrontend, tokens: &[TokenReport], top: u32) -> Value {
    let entry = |id: u32, logprob: f32| {
        let bytes = bytes_of(frontend, id);
        let mut map = Map::new();
        map.insert("token".into(), spelling(&bytes).into());
        map.insert("logprob".into(), finite(logprob).into());
        map.insert("bytes".into(), bytes.into());
        map
    };
    let content: Vec<Value> = tokens
        .iter()
        .filter_map(|token| {
            let report = token.logprobs.as_ref()?;
            let mut map = entry(token.id, report.logprob);
            let likely = report.top.iter().take(top as usize);
            let likely: Vec<Value> = likely.map(|(id, logprob)| Value::Object(entry(*id, *logprob))).collect();
            map.insert("top_logprobs".into(), likely.into());
            Some(Value::Object(map))
        })
        .collect();
    json!({ "content": content, "refusal": null })
}

/// Completions shape, four lists of equal length. Keeps where the next token's text starts.
#[derive(Clone, Copy, Debug, Default)]
pub struct CompletionOffsets {
    characters: usize,
}

impl CompletionOffsets {
    /// Report `tokens`; the first of a prompt has no log-probability.
    pub fn report<'t>(
        &mut self,
        frontend: &dyn TextFrontend,
        tokens: impl Iterator<Item = (u32, Option<&'t TokenLogprobs>)>,
        top: u32,
        skip_special: bool,
    ) -> Value {
        let (mut spellings, mut chosen, mut likely, mut offsets) = (vec![], vec![], vec![], vec![]);
        for (id, report) in tokens {
            let bytes = bytes_of(frontend, id);
            offsets.push(self.characters);
            if !(skip_special && frontend.is_special(id)) {
                // Count characters where they start, so that one split over tokens counts once.
                self.characters += bytes.iter().filter(|byte| **byte & 0xC0 != 0x80).count();
            }
            spellings.push(Value::from(spelling(&bytes)));
            chosen.push(report.map_or(Value::Null, |report| finite(report.logprob).into()));
            likely.push(report.map_or(Value::Null, |report| {
                let mut map = Map::new();
                for (id, logprob) in report.top.iter().take(top as usize) {
                    // Two ids can have one spelling; the more likely one comes first and stays.
                    map.entry(spelling(&bytes_of(frontend, *id))).or_insert_with(|| finite(*logprob).into());
                }
                map.entry(spelling(&bytes)).or_insert_with(|| finite(report.logprob).into());
                Value::Object(map)
            }));
        }
        json!({ "tokens": spellings, "token_logprobs": chosen, "top_logprobs": likely, "text_offset": offsets })
    }
}

/// `prompt_logprobs` of a choice: `null` for the first token, then `{id: {logprob, rank, decoded_token}}`.
pub fn prompt(frontend: &dyn TextFrontend, ids: &[u32], reports: &[TokenLogprobs]) -> Value {
    let entry = |id: u32, logprob: f32, rank: u32| json!({"logprob": finite(logprob), "rank": rank, "decoded_token": spelling(&bytes_of(frontend, id))});
    let mut list = vec![Value::Null];
    for (id, report) in ids.iter().skip(1).zip(reports) {
        let mut map = Map::new();
        for (rank, (top_id, logprob)) in report.top.iter().enumerate() {
            map.insert(top_id.to_string(), entry(*top_id, *logprob, rank as u32 + 1));
        }
        map.insert(id.to_string(), entry(*id, report.logprob, report.rank));
        list.push(Value::Object(map));
    }
    list.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logprobs_shape_infinities_become_a_floor() {
        assert_eq!(finite(f32::NEG_INFINITY), -9999.0);
        assert_eq!(finite(f32::NAN), -9999.0);
        assert_eq!(finite(-0.1), -0.1);
        assert_eq!(finite(1e-7), 0.0);
    }

    #[test]
    fn part_of_a_character_is_spelt_in_bytes() {
        assert_eq!(spelling(b"ok"), "ok");
        assert_eq!(spelling(&[0xf0, 0x9f]), "bytes:\\xf0\\x9f");
    }
}
