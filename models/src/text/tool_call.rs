//! Hermes-style tool calls in a text stream: `<tool_call>{"name": …, "arguments": …}</tool_call>`, any number of them.
//!
//! White space just before a call and between calls is no content; other text stays content. What looks like a call and
//! is none (bad JSON, no name) goes back to content whole, marker included, unless part of it was already sent: then
//! the rest of it is passed over. A call whose closing marker is missing counts once its JSON is complete.

use super::{
    call_json::{CallReader, Step},
    stop::Needle,
};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// What the parser finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ToolPart {
    Content(String),
    /// Call `index` begins.
    Name {
        index: u32,
        name: String,
        /// The model's own id of the call, when its format has one.
        id: Option<String>,
    },
    /// More of the arguments of call `index`.
    Arguments {
        index: u32,
        fragment: String,
    },
}

#[derive(Clone, Debug)]
enum State {
    Content,
    /// Inside a call; `raw` is everything since the marker while it may still have to go back to content.
    Call {
        reader: CallReader,
        raw: String,
    },
    /// The JSON has ended; white space and the closing marker may follow.
    AfterJson {
        close: usize,
        seen: String,
    },
    /// A call that went wrong after it was begun: nothing more of it is shown.
    Broken(Needle),
}

/// The parser.
#[derive(Clone, Debug)]
pub(crate) struct ToolParser {
    state: State,
    /// Content that may turn out to be white space before a call, or the beginning of a marker.
    held: String,
    calls: u32,
}

/// Length of the longest end of `text` that begins `marker` without completing it.
fn open_suffix(text: &str, marker: &str) -> usize {
    let longest = text.len().min(marker.len() - 1);
    (1..=longest).rev().find(|&n| text.as_bytes().ends_with(&marker.as_bytes()[..n])).unwrap_or(0)
}

impl ToolParser {
    pub(crate) fn new() -> Self {
        Self { state: State::Content, held: String::new(), calls: 0 }
    }

    /// Calls begun so far.
    pub(crate) fn calls(&self) -> u32 {
        self.calls
    }

    pub(crate) fn push(&mut self, text: &str, out: &mut Vec<ToolPart>) {
        let mut rest = text;
        while !rest.is_empty() {
            rest = match &mut self.state {
                State::Content => self.content(rest, out),
                State::Call { .. } => self.call(rest, out),
                State::AfterJson { .. } => self.after_json(rest),
                State::Broken(close) => match rest.bytes().position(|byte| close.feed(byte)) {
                    Some(at) => {
                        self.state = State::Content;
                        &rest[at + 1..]
                    }
                    None => "",
                },
            };
        }
    }

    fn emit_content(text: String, out: &mut Vec<ToolPart>) {
        match out.last_mut() {
            _ if text.is_empty() => {}
            Some(ToolPart::Content(last)) => last.push_str(&text),
            _ => out.push(ToolPart::Content(text)),
        }
    }

    fn content<'a>(&mut self, text: &'a str, out: &mut Vec<ToolPart>) -> &'a str {
        let before = self.held.len();
        self.held.push_str(text);
        if let Some(at) = self.held.find(OPEN) {
            // The marker ends inside `text`: had it ended before, it would have been found then.
            let used = at + OPEN.len() - before;
            self.held.truncate(at);
            let content = std::mem::take(&mut self.held);
            Self::emit_content(content.trim_end().to_owned(), out);
            self.state = State::Call { reader: CallReader::new(), raw: OPEN.to_owned() };
            return &text[used..];
        }
        let marker = self.held.len() - open_suffix(&self.held, OPEN);
        let keep = self.held[..marker].trim_end().len();
        let rest = self.held.split_off(keep);
        Self::emit_content(std::mem::replace(&mut self.held, rest), out);
        ""
    }

    fn call<'a>(&mut self, text: &'a str, out: &mut Vec<ToolPart>) -> &'a str {
        let State::Call { reader, raw } = &mut self.state else { return text };
        let (mut step, mut last, mut used) = (Step::More, ' ', text.len());
        for (at, c) in text.char_indices() {
            step = reader.feed(c);
            if step != Step::More {
                (last, used) = (c, at + c.len_utf8());
                break;
            }
        }
        if step != Step::Malformed || reader.is_started() {
            let progress = reader.take();
            if let Some(name) = progress.name {
                out.push(ToolPart::Name { index: self.calls, name, id: None });
                self.calls += 1;
            }
            if !progress.arguments.is_empty() {
                out.push(ToolPart::Arguments { index: self.calls - 1, fragment: progress.arguments });
            }
        }
        let started = reader.is_started();
        if !started {
            raw.push_str(&text[..used]);
        }
        match step {
            Step::More => {}
            Step::Done => self.state = State::AfterJson { close: 0, seen: String::new() },
            Step::Malformed if started => {
                let mut close = Needle::new(CLOSE);
                if last == '<' {
                    close.feed(b'<'); // what broke it may begin the closing marker
                }
                self.state = State::Broken(close);
            }
            Step::Malformed => {
                let raw = std::mem::take(raw);
                Self::emit_content(raw, out);
                self.state = State::Content;
            }
        }
        &text[used..]
    }

    /// Pass over white space and the closing marker; anything else is content again.
    fn after_json<'a>(&mut self, text: &'a str) -> &'a str {
        let State::AfterJson { close, seen } = &mut self.state else { return text };
        for (at, c) in text.char_indices() {
            if CLOSE.as_bytes()[*close..].starts_with(c.encode_utf8(&mut [0; 4]).as_bytes()) {
                *close += 1;
                seen.push(c);
                if *close == CLOSE.len() {
                    self.state = State::Content;
                    return &text[at + 1..];
                }
            } else if *close == 0 && c.is_whitespace() {
                seen.push(c);
            } else {
                // What was taken for the marker's beginning is content; it holds no opening marker, so order is kept.
                self.held = std::mem::take(seen);
                self.state = State::Content;
                return &text[at..];
            }
        }
        ""
    }

    pub(crate) fn finish(&mut self, out: &mut Vec<ToolPart>) {
        let held = std::mem::take(&mut self.held);
        if self.calls == 0 || !held.trim().is_empty() {
            Self::emit_content(held, out);
        }
        if let State::Call { reader, raw } = &mut self.state
            && !reader.is_started()
        {
            Self::emit_content(std::mem::take(raw), out);
        }
    }
}
