//! Reads one tool call, `{"name": …, "arguments": …}`, from a stream of characters.
//!
//! The arguments are passed on as the model wrote them, character by character, as soon as the name is known; they are
//! never re-serialised, so numbers and key order stay the model's. Keys may come in any order; others are skipped.
//! Arguments written as a string holding JSON (a common slip) are unwrapped once complete.

/// What a reader has found in the characters fed since the last look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CallProgress {
    /// The function's name, given once and before any arguments.
    pub(crate) name: Option<String>,
    /// More of the arguments' JSON text.
    pub(crate) arguments: String,
}

/// Where a character left the reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    More,
    /// The object has ended with this character.
    Done,
    /// This is no tool call.
    Malformed,
}

#[derive(Clone, Debug, PartialEq)]
enum State {
    BeforeObject,
    /// Before a key, a comma or the end.
    BeforeKey,
    Key(Quoted),
    BeforeColon(String),
    BeforeValue(String),
    Value {
        key: String,
        value: ValueScanner,
    },
    End,
}

/// A JSON string with its quotes, being collected.
#[derive(Clone, Debug, Default, PartialEq)]
struct Quoted {
    raw: String,
    escaped: bool,
}

impl Quoted {
    /// True when `c` closes the string. The opening quote is fed first.
    fn feed(&mut self, c: char) -> bool {
        let opens = self.raw.is_empty();
        self.raw.push(c);
        let closes = c == '"' && !self.escaped && !opens;
        self.escaped = c == '\\' && !self.escaped;
        closes
    }

    fn decode(&self) -> Option<String> {
        serde_json::from_str(&self.raw).ok()
    }
}

/// Finds the end of any JSON value.
#[derive(Clone, Debug, PartialEq)]
enum ValueScanner {
    Text(Quoted),
    /// Object or array: the closing brackets awaited, whether inside a string, and after a backslash there.
    Nested {
        awaited: Vec<char>,
        quoted: bool,
        escaped: bool,
    },
    Scalar(String),
}

/// Reads one call.
#[derive(Clone, Debug)]
pub(crate) struct CallReader {
    state: State,
    name: Option<String>,
    /// The name has been handed out; arguments may follow.
    started: bool,
    has_arguments: bool,
    progress: CallProgress,
}

fn is_arguments(key: &str) -> bool {
    matches!(key, "arguments" | "parameters")
}

impl CallReader {
    pub(crate) fn new() -> Self {
        Self {
            state: State::BeforeObject,
            name: None,
            started: false,
            has_arguments: false,
            progress: CallProgress::default(),
        }
    }

    /// True once name and arguments can be handed out: the call can no longer be taken back. Depends on the characters
    /// alone, not on when [`take`](Self::take) was called, so that every cut of the stream gives the same.
    pub(crate) fn is_started(&self) -> bool {
        self.started || (self.name.is_some() && !self.progress.arguments.is_empty())
    }

    /// What is new since the last call of this; arguments wait until the name is known.
    pub(crate) fn take(&mut self) -> CallProgress {
        if !self.is_started() {
            return CallProgress::default();
        }
        let name = if self.started { None } else { self.name.clone() };
        self.started = true;
        CallProgress { name, arguments: std::mem::take(&mut self.progress.arguments) }
    }

    pub(crate) fn feed(&mut self, c: char) -> Step {
        let blank = matches!(c, ' ' | '\t' | '\n' | '\r');
        let state = std::mem::replace(&mut self.state, State::End);
        self.state = match state {
            State::BeforeObject if c == '{' => State::BeforeKey,
            State::BeforeObject if blank => State::BeforeObject,
            State::BeforeKey if blank || c == ',' => State::BeforeKey,
            State::BeforeKey if c == '}' => return self.close(),
            State::BeforeKey if c == '"' => {
                let mut key = Quoted::default();
                key.feed(c);
                State::Key(key)
            }
            State::Key(mut key) => match key.feed(c) {
                false => State::Key(key),
                true => match key.decode() {
                    Some(key) => State::BeforeColon(key),
                    None => return Step::Malformed,
                },
            },
            State::BeforeColon(key) if blank => State::BeforeColon(key),
            State::BeforeColon(key) if c == ':' => State::BeforeValue(key),
            State::BeforeValue(key) if blank => State::BeforeValue(key),
            State::BeforeValue(key) if !matches!(c, ',' | '}' | ']' | ':') => return self.start_value(key, c),
            State::Value { key, value } => return self.feed_value(key, value, c),
            _ => return Step::Malformed,
        };
        Step::More
    }

    fn start_value(&mut self, key: String, c: char) -> Step {
        if is_arguments(&key) && self.has_arguments {
            return Step::Malformed; // two values cannot be one
        }
        let value = match c {
            '"' => ValueScanner::Text(Quoted::default()),
            '{' | '[' => ValueScanner::Nested { awaited: Vec::new(), quoted: false, escaped: false },
            _ => ValueScanner::Scalar(String::new()),
        };
        self.feed_value(key, value, c)
    }

    fn feed_value(&mut self, key: String, mut value: ValueScanner, c: char) -> Step {
        let wanted = is_arguments(&key);
        let done = match &mut value {
            ValueScanner::Text(text) => text.feed(c),
            ValueScanner::Nested { awaited, quoted, escaped } => {
                let was_escaped = std::mem::take(escaped);
                match c {
                    '\\' if *quoted => *escaped = !was_escaped,
                    '"' if !was_escaped => *quoted = !*quoted,
                    _ if *quoted => {}
                    '{' => awaited.push('}'),
                    '[' => awaited.push(']'),
                    '}' | ']' if awaited.pop() != Some(c) => return Step::Malformed,
                    _ => {}
                }
                if wanted {
                    self.has_arguments = true;
                    self.progress.arguments.push(c);
                }
                awaited.is_empty()
            }
            ValueScanner::Scalar(text) => match c {
                ',' | '}' | ' ' | '\t' | '\n' | '\r' => {
                    let (text, ok) = (std::mem::take(text), key != "name");
                    if !ok || serde_json::from_str::<serde_json::Value>(&text).is_err() {
                        return Step::Malformed;
                    }
                    if wanted && text != "null" {
                        self.has_arguments = true;
                        self.progress.arguments.push_str(&text);
                    }
                    self.state = State::BeforeKey;
                    return if c == '}' { self.close() } else { Step::More };
                }
                _ => {
                    text.push(c);
                    false
                }
            },
        };
        if !done {
            self.state = State::Value { key, value };
            return Step::More;
        }
        self.state = State::BeforeKey;
        match value {
            ValueScanner::Text(text) => self.end_text(&key, &text),
            _ if key == "name" => Step::Malformed,
            _ => Step::More,
        }
    }

    fn end_text(&mut self, key: &str, text: &Quoted) -> Step {
        let Some(decoded) = text.decode() else { return Step::Malformed };
        if key == "name" {
            if decoded.is_empty() || self.name.is_some() {
                return Step::Malformed;
            }
            self.name = Some(decoded);
        } else if is_arguments(key) {
            let is_json = serde_json::from_str::<serde_json::Value>(&decoded).is_ok();
            self.has_arguments = !decoded.trim().is_empty();
            if self.has_arguments {
                self.progress.arguments.push_str(if is_json { &decoded } else { &text.raw });
            }
        }
        Step::More
    }

    /// The object is complete. A call without arguments has the empty object, never an empty string.
    fn close(&mut self) -> Step {
        self.state = State::End;
        if self.name.is_none() {
            return Step::Malformed;
        }
        if !self.has_arguments {
            self.progress.arguments.push_str("{}");
        }
        Step::Done
    }
}
