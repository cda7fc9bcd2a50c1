//! The sentences that K3's chat format puts around tools, thinking effort, tool choice and response format.
//!
//! They are Moonshot's, under the licence of the checkpoint, so they are read from the checkpoint's own
//! `encoding_k3.py` and never shipped here. The file is not run: its string literals are read ([`super::python_strings`])
//! and told apart by what the format fixes (`thinking_effort=…`, a fence before the JSON, …); the published digests
//! confirm each. A text with another digest is used, with a warning: checkpoints may change their words. A text that is
//! not found makes requests that need it an error, and nothing else.

use std::{collections::HashMap, path::Path};

use sha2::{Digest, Sha256};

use super::python_strings::{Part, Token, tokens};
use crate::text::{error::TokenizerError, folder::read_optional};

/// The file's name.
pub const ENCODING_FILE: &str = "encoding_k3.py";

/// What JSON in a prompt is fenced with.
const FENCE: &str = "```json\n";

/// How much to think.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effort {
    /// Little.
    Low,
    /// Much.
    High,
    /// As much as it takes.
    Max,
}

impl Effort {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Low, Self::High, Self::Max];

    /// As requests spell it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::High => "high",
            Self::Max => "max",
        }
    }
}

/// One of the texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Slot {
    /// Thinking effort, whole.
    Effort(Effort),
    /// Tools of the request, up to and including the opening fence.
    Tools,
    /// Tools added later, likewise.
    MoreTools,
    /// `tool_choice: "required"`, whole.
    ToolsRequired,
    /// `tool_choice: "none"`, whole.
    ToolsForbidden,
    /// A JSON answer, whole.
    JsonObject,
    /// A JSON answer after a schema, up to and including the opening fence.
    JsonSchema,
}

impl Slot {
    /// Every slot.
    pub const ALL: [Self; 9] = [
        Self::Effort(Effort::Low),
        Self::Effort(Effort::High),
        Self::Effort(Effort::Max),
        Self::Tools,
        Self::MoreTools,
        Self::ToolsRequired,
        Self::ToolsForbidden,
        Self::JsonObject,
        Self::JsonSchema,
    ];

    /// What it is about, for messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Effort(Effort::Low) => "thinking effort low",
            Self::Effort(Effort::High) => "thinking effort high",
            Self::Effort(Effort::Max) => "thinking effort max",
            Self::Tools => "tools",
            Self::MoreTools => "tools in a system message",
            Self::ToolsRequired => "tool_choice required",
            Self::ToolsForbidden => "tool_choice none",
            Self::JsonObject => "response_format json_object",
            Self::JsonSchema => "response_format json_schema",
        }
    }

    /// SHA-256 of the published text.
    fn digest(self) -> &'static str {
        match self {
            Self::Effort(Effort::Low) => "003035f6bf61ffe6180f4bd5e5a12df1a7cc0cf4550ef78f5591ce8a4537f5fe",
            Self::Effort(Effort::High) => "a8513c631231c09d25027f0e0439194e4290e755fb20932c9f49dd7fa9d6ffc0",
            Self::Effort(Effort::Max) => "20389202b5a9e0b3b556c90431fb62dc2f1bdb13a6e23fb7b516a3c2da848580",
            Self::Tools => "bbd0773d27b2a814a023a7a142c098958b170dbad77e461b286844512b5b74e7",
            Self::MoreTools => "b5f3063ffeff6dab49436f59a41291fbdc826cc76653f98f26c514cd7cf7b74a",
            Self::ToolsRequired => "e2c3dc236d94164ab96601b3ff7891ad44cdc7d6b38583ab552be33a6bff5f53",
            Self::ToolsForbidden => "efabd595d24633a14929fd64b8c21542cb13e3e6637ced319c5bec433900a2bb",
            Self::JsonObject => "a88696fd119e35cae2c9cb15ed5a8230bedb9f46e07231f9f85e893e0f993b84",
            Self::JsonSchema => "35c44c528f6c1e2254d8f2e06a68b56506c231c2f4f0ce19617255a8102ebabe",
        }
    }
}

/// A request needs a text that the checkpoint does not bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{what} needs its text from the checkpoint's {ENCODING_FILE}, {found}; put the published file into the model's folder",
    what = .slot.name(),
    found = if *.file_found { "where it was not found" } else { "which is missing" }
)]
pub struct MissingText {
    /// Which text.
    pub slot: Slot,
    /// The file exists and does not hold it.
    pub file_found: bool,
}

/// The texts of one checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PromptTexts {
    texts: HashMap<Slot, String>,
    file_found: bool,
    warnings: Vec<String>,
}

impl PromptTexts {
    /// Read a folder's file. A folder without one has no texts.
    pub fn of_folder(folder: &Path) -> Result<Self, TokenizerError> {
        let path = folder.join(ENCODING_FILE);
        let Some(source) = read_optional(&path)? else {
            let warning = format!(
                "{} is missing: prompts carry no thinking effort, and tools, tool_choice and response_format are refused",
                path.display()
            );
            return Ok(Self { warnings: vec![warning], ..Self::default() });
        };
        Ok(Self::of_source(&path.display().to_string(), &source))
    }

    /// From the text of the file; `name` is for warnings.
    pub fn of_source(name: &str, source: &str) -> Self {
        let literals = literals(source);
        let mut texts = HashMap::new();
        let (mut other, mut missing) = (Vec::new(), Vec::new());
        for slot in Slot::ALL {
            let candidates = literals.candidates(slot);
            let published = candidates.iter().find(|text| digest(text) == slot.digest());
            match published.or_else(|| guess(slot, &candidates)) {
                Some(text) => {
                    if published.is_none() {
                        other.push(slot.name());
                    }
                    texts.insert(slot, text.clone());
                }
                None => missing.push(slot.name()),
            }
        }
        let mut warnings = Vec::new();
        if !other.is_empty() {
            warnings.push(format!("{name}: other texts than the published ones: {}", other.join(", ")));
        }
        if !missing.is_empty() {
            warnings.push(format!("{name}: no text found, so refused in requests: {}", missing.join(", ")));
        }
        Self { texts, file_found: true, warnings }
    }

    /// One text.
    pub fn get(&self, slot: Slot) -> Result<&str, MissingText> {
        self.texts.get(&slot).map(String::as_str).ok_or(MissingText { slot, file_found: self.file_found })
    }

    /// What an operator should know, a line each.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

fn digest(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Without the published text: the likeliest candidate. Of two tool headings the longer one is about added tools.
fn guess(slot: Slot, candidates: &[String]) -> Option<&String> {
    match slot {
        Slot::Tools => candidates.iter().min_by_key(|text| text.len()),
        Slot::MoreTools if candidates.len() < 2 => None,
        Slot::MoreTools => candidates.iter().max_by_key(|text| text.len()),
        _ => candidates.first(),
    }
}

/// The strings of a file that may be texts, and the names assigned to strings.
struct Literals {
    strings: Vec<Vec<Part>>,
    /// `name = "…"`, if it happens once.
    names: HashMap<String, Option<String>>,
    /// `name = "A" if … "word" … else "B"`: (name, word, A, B).
    choices: Vec<(String, String, String, String)>,
}

fn plain(parts: &[Part]) -> Option<String> {
    parts.iter().map(|part| if let Part::Text(text) = part { Some(text.as_str()) } else { None }).collect()
}

/// Statements that raise hold error messages, which mention the same words; a string on its own is a comment.
fn literals(source: &str) -> Literals {
    let mut out = Literals { strings: Vec::new(), names: HashMap::new(), choices: Vec::new() };
    let tokens = tokens(source);
    for statement in tokens.split(|token| *token == Token::LineEnd) {
        let is_word = |token: &Token, word: &str| matches!(token, Token::Word(found) if found == word);
        let is_error = statement.iter().any(|token| is_word(token, "raise") || is_word(token, "assert"));
        if is_error || matches!(statement, [Token::Text(_)]) {
            continue;
        }
        let texts =
            statement.iter().filter_map(|token| if let Token::Text(parts) = token { Some(parts) } else { None });
        out.strings.extend(texts.clone().cloned());
        let [Token::Word(name), Token::Sign('='), value @ ..] = statement else { continue };
        let value: Vec<&Token> = value.iter().filter(|token| !matches!(token, Token::Sign('(' | ')'))).collect();
        match value.as_slice() {
            [Token::Text(parts)] => {
                let text = plain(parts);
                out.names.entry(name.clone()).and_modify(|known| *known = None).or_insert(text);
            }
            [Token::Text(yes), condition @ .., Token::Text(no)]
                if condition.first().is_some_and(|token| is_word(token, "if"))
                    && condition.last().is_some_and(|token| is_word(token, "else")) =>
            {
                let word =
                    condition.iter().find_map(|token| if let Token::Text(parts) = token { plain(parts) } else { None });
                if let (Some(yes), Some(word), Some(no)) = (plain(yes), word, plain(no)) {
                    out.choices.push((name.clone(), word, yes, no));
                }
            }
            _ => {}
        }
    }
    out
}

impl Literals {
    /// The value of a hole when the setting it speaks of is `word`.
    fn fill(&self, expression: &str, word: &str) -> Option<String> {
        if let Some((_, when, yes, no)) = self.choices.iter().find(|choice| choice.0 == expression) {
            return Some(if when == word { yes.clone() } else { no.clone() });
        }
        self.names.get(expression).cloned().flatten()
    }

    /// The string with its holes filled: the one after `key=` is `word`, others are what their names say.
    fn whole(&self, parts: &[Part], key: &str, word: &str) -> Option<String> {
        let (mut text, mut setting) = (String::new(), None);
        for part in parts {
            match part {
                Part::Text(more) => text.push_str(more),
                Part::Hole(expression) if text.ends_with(&format!("{key}=")) || setting == Some(expression) => {
                    setting = Some(expression);
                    text.push_str(word);
                }
                Part::Hole(expression) => text.push_str(&self.fill(expression, word)?),
            }
        }
        // The setting must be spoken of by the string itself, not by what fills its holes.
        let says = |part: &Part| matches!(part, Part::Text(text) if text.contains(&format!("{key}={word}")));
        (setting.is_some() || parts.iter().any(says)).then(|| text.trim().to_owned())
    }

    /// The string up to the JSON it fences.
    fn fenced(&self, parts: &[Part]) -> Option<String> {
        let mut text = String::new();
        for part in parts {
            match part {
                Part::Text(more) => text.push_str(more),
                Part::Hole(_) if text.ends_with(FENCE) => break,
                Part::Hole(expression) => text.push_str(&self.fill(expression, "")?),
            }
        }
        text.ends_with(FENCE).then(|| text.trim_start().to_owned())
    }

    fn candidates(&self, slot: Slot) -> Vec<String> {
        let whole = |key: &str, word: &str| -> Vec<String> {
            self.strings.iter().filter_map(|parts| self.whole(parts, key, word)).collect()
        };
        let about_schemas = |text: &String| text.contains("response_format");
        let fenced = || self.strings.iter().filter_map(|parts| self.fenced(parts));
        match slot {
            Slot::Effort(effort) => whole("thinking_effort", effort.word()),
            Slot::ToolsRequired => whole("tool_choice", "required"),
            Slot::ToolsForbidden => whole("tool_choice", "none"),
            Slot::JsonObject => whole("response_format", "json_object"),
            Slot::Tools | Slot::MoreTools => fenced().filter(|text| !about_schemas(text) && text != FENCE).collect(),
            Slot::JsonSchema => fenced().filter(about_schemas).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made up, in the ways such files are written.
    const CONDITIONAL: &str = r#"
"""thinking_effort=max in a comment"""
def build(tools, effort, tool_choice, schema, dynamic):
    if effort not in VALID:
        raise ValueError(f"bad thinking_effort={effort!r}")
    add("thinking-effort", "Ponder as told.\n"
        f"Told `thinking_effort={effort}`.")
    if dynamic:
        body = ("A bag of further tools arrives now.\n\n" f"```json\n{compact(tools)}\n```")
    else:
        body = ("Bag of tools:\n" f"```json\n{compact(tools)}\n```")
    order = ("use a tool" if tool_choice == "required" else "use no tool")
    add("tool-choice", f"Set `tool_choice={tool_choice}`.\nPlease {order}.")
    add("response-format", "Set `response_format=json_object`.\nJSON please, no fence (```json).")
    add("response-format", "Set `response_format=json_schema`.\nLike so:\n" f"```json\n{compact(schema)}\n```")
"#;
    const CONSTANTS: &str = r#"
_MORE = "A bag of further tools arrives now.\n\n"
_HEAD = "Bag of tools:\n"
def f(tools):
    a = f"{_MORE}```json\n{compact(tools)}\n```"
    b = f"{_HEAD}```json\n{compact(tools)}\n```"
    if c == "required":
        add("Set `tool_choice=required`.\nPlease use a tool.")
    elif c == "none":
        add("Set `tool_choice=none`.\nPlease use no tool.")
"#;

    #[test]
    fn texts_are_found_however_the_file_puts_them_together() {
        let texts = PromptTexts::of_source("f", CONDITIONAL);
        let get = |slot| texts.get(slot).unwrap();
        assert_eq!(get(Slot::Effort(Effort::Low)), "Ponder as told.\nTold `thinking_effort=low`.");
        assert_eq!(get(Slot::Tools), "Bag of tools:\n```json\n");
        assert_eq!(get(Slot::MoreTools), "A bag of further tools arrives now.\n\n```json\n");
        assert_eq!(get(Slot::ToolsRequired), "Set `tool_choice=required`.\nPlease use a tool.");
        assert_eq!(get(Slot::ToolsForbidden), "Set `tool_choice=none`.\nPlease use no tool.");
        assert_eq!(get(Slot::JsonObject), "Set `response_format=json_object`.\nJSON please, no fence (```json).");
        assert_eq!(get(Slot::JsonSchema), "Set `response_format=json_schema`.\nLike so:\n```json\n");
        assert_eq!(texts.warnings().len(), 1, "{:?}", texts.warnings());
        assert!(texts.warnings()[0].starts_with("f: other texts than the published ones: thinking effort low,"));

        let constants = PromptTexts::of_source("f", CONSTANTS);
        for slot in [Slot::Tools, Slot::MoreTools, Slot::ToolsRequired, Slot::ToolsForbidden] {
            assert_eq!(constants.get(slot), texts.get(slot));
        }
    }

    #[test]
    fn what_is_missing_is_refused_by_name_and_what_is_not_stays() {
        let texts = PromptTexts::of_source("f", r#"add("Told `thinking_effort=max`.")"#);
        assert_eq!(texts.get(Slot::Effort(Effort::Max)), Ok("Told `thinking_effort=max`."));
        let error = texts.get(Slot::Tools).unwrap_err().to_string();
        assert!(
            error.starts_with("tools needs its text from the checkpoint's encoding_k3.py, where it was not"),
            "{error}"
        );
        assert_eq!(texts.warnings().len(), 2);
        let none = PromptTexts::of_folder(Path::new("/nonexistent")).unwrap();
        let error = none.get(Slot::ToolsRequired).unwrap_err().to_string();
        assert!(error.contains("encoding_k3.py, which is missing"), "{error}");
    }

    #[test]
    fn only_the_published_texts_have_the_published_digests() {
        // The digests were taken from the published file; each names another text.
        let mut digests: Vec<&str> = Slot::ALL.iter().map(|slot| slot.digest()).collect();
        digests.sort_unstable();
        digests.dedup();
        assert!(digests.len() == 9 && digests.iter().all(|digest| digest.len() == 64));
        assert_eq!(digest("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
}
