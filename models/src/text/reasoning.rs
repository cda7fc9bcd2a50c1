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
    /// Markers that end it too, and belong to what follows: a tool call needs no closing of the thinking before it.
    pub interrupted_by: Vec<String>,
}

impl ReasoningFormat {
    /// `<think>` and `</think>`.
    pub fn think(starts_inside: bool) -> Self {
        Self { start: "<think>".into(), end: "</think>".into(), starts_inside, interrupted_by: Vec::new() }
    }

    /// The same format, also ended by the beginning of a tool section of Kimi K2.
    pub fn or_tool_section(mut self) -> Self {
        self.interrupted_by = super::kimi::SECTION_BEGIN.map(str::to_owned).to_vec();
        self
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
        /// The end marker, then the interrupting ones.
        ends: Vec<Needle>,
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
        let ends = std::iter::once(&self.format.end).chain(&self.format.interrupted_by);
        State::Inside { ends: ends.map(|end| Needle::new(end)).collect(), held: String::new() }
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
            State::Inside { ends, held } => {
                for (at, byte) in text.bytes().enumerate() {
                    // Every needle is fed, so that none loses step.
                    let mut found = None;
                    for (index, end) in ends.iter_mut().enumerate() {
                        if end.feed(byte) {
                            found = found.or(Some((index, end.len())));
                        }
                    }
                    if let Some((index, length)) = found {
                        held.push_str(&text[..=at]);
                        let marker = held.split_off(held.len() - length);
                        part(std::mem::take(held), Part::Reasoning, out);
                        self.state = State::After;
                        let rest = if index == 0 { text[at + 1..].to_owned() } else { marker + &text[at + 1..] };
                        return part(rest, Part::Content, out);
                    }
                }
                held.push_str(text);
                let open = ends.iter().map(Needle::open).max().unwrap_or(0);
                let rest = held.split_off(held.len() - open);
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
