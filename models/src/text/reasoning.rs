//! Splits an answer into what the model thought and what it says: `<think>…</think>` and the like.
//!
//! Works on text, so it sees markers whether they are control tokens or spelled out. A thinking part comes first or not
//! at all: a `<think>` in the middle of an answer is text. White space on both sides of the end marker is kept as it is.

use super::stop::Needle;

/// The markers of a model's thinking part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReasoningFormat {
    /// Opens it.
    pub start: String,
    /// Closes it.
    pub end: String,
    /// True when the prompt has already opened it (or the model always thinks): text before `end` is reasoning even
    /// without `start`, and if `end` never comes all of it is.
    pub starts_inside: bool,
}

impl ReasoningFormat {
    /// `<think>` and `</think>`.
    pub fn think(starts_inside: bool) -> Self {
        Self { start: "<think>".into(), end: "</think>".into(), starts_inside }
    }

    /// The same, inside from the start if `prompt` (the rendered chat) ends by opening the thinking part.
    pub fn opened_by(mut self, prompt: &str) -> Self {
        self.starts_inside |= prompt.trim_end().ends_with(&self.start);
        self
    }
}

/// A piece of text and what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Reasoning(String),
    Content(String),
}

#[derive(Clone, Debug)]
enum State {
    /// White space and possibly the beginning of the start marker.
    Start(String),
    Inside {
        end: Needle,
        held: String,
    },
    After,
}

/// The splitter.
#[derive(Clone, Debug)]
pub(crate) struct ReasoningParser {
    format: ReasoningFormat,
    state: State,
}

fn part(text: String, make: fn(String) -> Part, out: &mut Vec<Part>) {
    if !text.is_empty() {
        out.push(make(text));
    }
}

impl ReasoningParser {
    /// `format`'s markers must not be empty.
    pub(crate) fn new(format: ReasoningFormat) -> Self {
        assert!(!format.start.is_empty() && !format.end.is_empty(), "empty reasoning marker");
        Self { format, state: State::Start(String::new()) }
    }

    fn inside(&self) -> State {
        State::Inside { end: Needle::new(&self.format.end), held: String::new() }
    }

    pub(crate) fn push(&mut self, text: &str, out: &mut Vec<Part>) {
        match &mut self.state {
            State::Start(seen) => {
                seen.push_str(text);
                let word = seen.trim_start();
                let rest = if let Some(rest) = word.strip_prefix(&self.format.start) {
                    let rest = rest.to_owned();
                    self.state = self.inside();
                    rest
                } else if self.format.start.starts_with(word) {
                    return;
                } else {
                    let rest = std::mem::take(seen);
                    self.state = if self.format.starts_inside { self.inside() } else { State::After };
                    rest
                };
                self.push(&rest, out);
            }
            State::Inside { end, held } => {
                for (at, byte) in text.bytes().enumerate() {
                    if end.feed(byte) {
                        held.push_str(&text[..=at]);
                        held.truncate(held.len() - end.len());
                        part(std::mem::take(held), Part::Reasoning, out);
                        self.state = State::After;
                        return part(text[at + 1..].to_owned(), Part::Content, out);
                    }
                }
                held.push_str(text);
                let rest = held.split_off(held.len() - end.open());
                part(std::mem::replace(held, rest), Part::Reasoning, out);
            }
            State::After => part(text.to_owned(), Part::Content, out),
        }
    }

    pub(crate) fn finish(&mut self, out: &mut Vec<Part>) {
        match &mut self.state {
            State::Start(seen) if self.format.starts_inside => part(std::mem::take(seen), Part::Reasoning, out),
            State::Start(seen) => part(std::mem::take(seen), Part::Content, out),
            State::Inside { held, .. } => part(std::mem::take(held), Part::Reasoning, out),
            State::After => {}
        }
    }
}
