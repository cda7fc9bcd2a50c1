//! Reads an answer in XTML: channels `think`, `response` and `tools`, and the calls in the last.
//!
//! An answer begins inside the channel that the prompt opened. What models get wrong is put up with: the opening tag
//! repeated at the very start; `think` never closed (the next channel's opening ends it); an answer cut off inside a tag.
//! A tag of no meaning where it stands is text.
//!
//! A call is handed out when its closing tag has come, whole; one that was cut off never is. So nothing has to be taken
//! back, and every cut of the stream gives the same calls. Rejected: streaming arguments as they come, which would leave
//! clients with half an object at `finish_reason: length`.
//!
//! Text is held back only while it may be the beginning of a tag that means something.

use super::{
    xtml_call::{Call, Element},
    xtml_tag::{CLOSE, Look, OPEN, Tag, look, next},
};
use crate::text::output::Delta;

/// What to make of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XtmlOptions {
    /// The prompt ended inside the `think` channel.
    pub starts_thinking: bool,
    /// Tell thinking from the answer; else it is answer text, tags and all.
    pub split_reasoning: bool,
}

#[derive(Clone, Debug)]
enum State {
    /// Nothing has come yet.
    Start,
    Think,
    /// Between channels: white space says nothing, other text is answer.
    Between,
    Response,
    Tools,
    Call(Call),
    Element(Call, Element),
    /// The message is closed.
    Done,
}

/// The reader.
#[derive(Clone, Debug)]
pub(crate) struct XtmlAnswer {
    options: XtmlOptions,
    /// Calls get this and their number as id; `None`: calls are text.
    call_ids: Option<String>,
    state: State,
    /// Text not yet understood.
    held: String,
    /// Bytes of `held` that hold no beginning of a tag of interest.
    scanned: usize,
    /// Inside stray text of `tools`, whose white space counts.
    stray: bool,
    calls: u32,
}

/// One step over the held text.
enum Step {
    /// Something was understood; look again.
    On,
    /// More text is needed.
    Wait,
}

impl XtmlAnswer {
    pub(crate) fn new(options: XtmlOptions, call_ids: Option<String>) -> Self {
        Self { options, call_ids, state: State::Start, held: String::new(), scanned: 0, stray: false, calls: 0 }
    }

    /// Calls handed out.
    pub(crate) fn calls(&self) -> u32 {
        self.calls
    }

    pub(crate) fn push(&mut self, text: &str, out: &mut Vec<Delta>) {
        self.held.push_str(text);
        while let Step::On = self.step(out) {}
    }

    /// The answer has ended.
    pub(crate) fn finish(&mut self, out: &mut Vec<Delta>) {
        let rest = std::mem::take(&mut self.held);
        self.scanned = 0;
        // Markers are single tokens, so a text that stops after one stops inside a tag, and one before it does not.
        let is_cut_tag = rest.starts_with(OPEN) || rest.starts_with(CLOSE);
        let state = std::mem::replace(&mut self.state, State::Done);
        match state {
            _ if is_cut_tag => {}
            State::Start if self.options.starts_thinking => self.thought(rest, out),
            State::Think => self.thought(rest, out),
            State::Start | State::Between | State::Response | State::Tools | State::Done => content(rest, out),
            State::Call(_) | State::Element(..) => {}
        }
    }

    /// Take `bytes` from the front of the held text.
    fn take(&mut self, bytes: usize) -> String {
        self.scanned = 0;
        let rest = self.held.split_off(bytes);
        std::mem::replace(&mut self.held, rest)
    }

    fn thought(&self, text: String, out: &mut Vec<Delta>) {
        if self.options.split_reasoning { reasoning(text, out) } else { content(text, out) }
    }

    /// Where a tag leads from a channel; `None`: it is text there.
    fn channel(&self, tag: &Tag) -> Option<State> {
        let to = match (tag.opens, tag.name.as_str()) {
            (true, "think") => State::Think,
            (true, "response") => State::Response,
            (true, "tools") if self.call_ids.is_some() => State::Tools,
            (false, "think" | "response" | "tools") => State::Between,
            (false, "message") => State::Done,
            _ => return None,
        };
        let has_meaning = match self.state {
            State::Start => tag.opens,
            State::Think => !tag.is(true, "think") && !tag.is(false, "response") && !tag.is(false, "tools"),
            State::Response => tag.is(false, "response") || tag.is(true, "tools") || tag.is(false, "message"),
            State::Between => tag.opens || tag.name == "message",
            _ => false,
        };
        (has_meaning && tag.attributes.is_empty()).then_some(to)
    }

    fn step(&mut self, out: &mut Vec<Delta>) -> Step {
        match self.state {
            State::Start => self.start(),
            State::Between => self.between(),
            State::Think | State::Response => self.text(out),
            State::Tools | State::Call(_) => self.element(out),
            State::Element(..) => self.body(out),
            State::Done => {
                let text = self.take(self.held.len());
                content(text, out);
                Step::Wait
            }
        }
    }

    fn start(&mut self) -> Step {
        match look(&self.held) {
            _ if self.held.is_empty() => return Step::Wait,
            Look::Unfinished if self.may_mean_something(0) => return Step::Wait,
            Look::Tag(tag, length) => match self.channel(&tag) {
                Some(State::Think) if !self.options.split_reasoning => self.state = State::Think,
                Some(to) => {
                    self.take(length);
                    self.state = to;
                }
                None => self.state = self.first(),
            },
            _ => self.state = self.first(),
        }
        Step::On
    }

    fn first(&self) -> State {
        if self.options.starts_thinking { State::Think } else { State::Response }
    }

    fn between(&mut self) -> Step {
        let blank = self.held.len() - self.held.trim_start().len();
        self.take(blank);
        match look(&self.held) {
            _ if self.held.is_empty() => return Step::Wait,
            Look::Unfinished if self.may_mean_something(0) => return Step::Wait,
            Look::Tag(tag, length) => match self.channel(&tag) {
                Some(to) => {
                    self.take(length);
                    self.state = to;
                }
                None => self.state = State::Response,
            },
            _ => self.state = State::Response,
        }
        Step::On
    }

    /// An unfinished tag at `at` may still become one of a channel: those are few and have no attributes.
    fn may_mean_something(&self, at: usize) -> bool {
        let rest = &self.held[at..];
        let tags = ["think", "response", "tools", "message"];
        tags.iter().any(|name| [OPEN, CLOSE].iter().any(|marker| format!("{marker}{name}<|sep|>").starts_with(rest)))
    }

    /// Text of `think` or `response`, up to a tag that ends it.
    fn text(&mut self, out: &mut Vec<Delta>) -> Step {
        let thinking = matches!(self.state, State::Think);
        let mut from = 0;
        let (end, found) = loop {
            let Some(at) = next(&self.held, from) else { break (self.held.len(), None) };
            match look(&self.held[at..]) {
                Look::Unfinished if self.may_mean_something(at) => break (at, None),
                Look::Tag(tag, length) => match self.channel(&tag) {
                    Some(to) => break (at, Some((to, length))),
                    None => from = at + 1,
                },
                _ => from = at + 1,
            }
        };
        let text = self.take(end);
        if thinking {
            self.thought(text, out)
        } else {
            content(text, out)
        }
        let Some((to, length)) = found else { return Step::Wait };
        let tag = self.take(length);
        if thinking && !self.options.split_reasoning {
            content(tag, out);
        }
        self.state = to;
        Step::On
    }

    /// Between the elements of `tools` or of a call.
    fn element(&mut self, out: &mut Vec<Delta>) -> Step {
        let in_call = matches!(self.state, State::Call(_));
        if !self.stray {
            let blank = self.held.len() - self.held.trim_start().len();
            self.take(blank);
        }
        if self.held.is_empty() {
            return Step::Wait;
        }
        match look(&self.held) {
            Look::Unfinished => Step::Wait,
            Look::Tag(tag, length) => {
                let text = self.take(length);
                self.stray = false;
                self.tag(&tag, text, out);
                Step::On
            }
            Look::Text => {
                // Stray text: answer text between calls, nothing inside one.
                let first = self.held.chars().next().map_or(0, char::len_utf8);
                let end = next(&self.held, first).unwrap_or(self.held.len());
                let text = self.take(end);
                self.stray = true;
                if !in_call {
                    content(text, out);
                }
                Step::On
            }
        }
    }

    /// A tag inside `tools`; `text` is the tag as it was written.
    fn tag(&mut self, tag: &Tag, text: String, out: &mut Vec<Delta>) {
        let state = std::mem::replace(&mut self.state, State::Tools);
        self.state = match (tag.opens, tag.name.as_str(), state) {
            (true, "call", state) => match Call::begin(tag) {
                Some(call) => State::Call(call),
                None => {
                    content(text, out);
                    if matches!(state, State::Call(_)) { State::Tools } else { state }
                }
            },
            (false, "tools", _) => State::Between,
            (false, "message", _) => State::Done,
            (true, _, State::Call(call)) => match Element::begin(tag) {
                Some(element) => State::Element(call, element),
                None => State::Call(call),
            },
            (false, "call", State::Call(call)) => {
                self.hand_out(call, out);
                State::Tools
            }
            (_, _, State::Call(call)) => State::Call(call),
            (_, _, state) => {
                content(text, out);
                state
            }
        };
    }

    /// Inside an argument: everything up to its closing tag, or up to a tag that shows that it was forgotten.
    fn body(&mut self, out: &mut Vec<Delta>) -> Step {
        let State::Element(call, element) = &mut self.state else { return Step::On };
        let mut from = self.scanned;
        loop {
            let Some(at) = next(&self.held, from) else {
                self.scanned = self.held.len();
                return Step::Wait;
            };
            match look(&self.held[at..]) {
                Look::Unfinished => {
                    self.scanned = at;
                    return Step::Wait;
                }
                Look::Tag(tag, length) if element.ends_with(&tag) => {
                    let (mut call, element) = (std::mem::take(call), std::mem::take(element));
                    call.add(element, &self.held[..at]);
                    self.state = State::Call(call);
                    self.take(at + length);
                    return Step::On;
                }
                Look::Tag(tag, _) if tag.is(false, "call") => {
                    let (mut call, element) = (std::mem::take(call), std::mem::take(element));
                    call.add(element, &self.held[..at]);
                    self.state = State::Call(call);
                    self.take(at);
                    return Step::On;
                }
                // The call was never closed: it is dropped.
                Look::Tag(tag, length)
                    if tag.is(false, "tools") || tag.is(false, "message") || tag.is(true, "call") =>
                {
                    self.state = State::Tools;
                    self.take(at);
                    let text = self.take(length);
                    self.tag(&tag, text, out);
                    return Step::On;
                }
                _ => from = at + 1,
            }
        }
    }

    fn hand_out(&mut self, call: Call, out: &mut Vec<Delta>) {
        let index = self.calls;
        self.calls += 1;
        let prefix = self.call_ids.as_deref().unwrap_or_default();
        let (name, arguments) = call.end();
        out.push(Delta::ToolCall { index, id: format!("{prefix}{index}"), name });
        out.push(Delta::ToolArguments { index, fragment: arguments });
    }
}

fn content(text: String, out: &mut Vec<Delta>) {
    match out.last_mut() {
        _ if text.is_empty() => {}
        Some(Delta::Content(last)) => last.push_str(&text),
        _ => out.push(Delta::Content(text)),
    }
}

fn reasoning(text: String, out: &mut Vec<Delta>) {
    match out.last_mut() {
        _ if text.is_empty() => {}
        Some(Delta::Reasoning(last)) => last.push_str(&text),
        _ => out.push(Delta::Reasoning(text)),
    }
}

#[cfg(test)]
mod tests;
