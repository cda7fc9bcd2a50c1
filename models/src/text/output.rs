//! From generated token ids to what a client sees: text, thinking, tool calls.
//!
//! One path for streamed and whole answers: ids → text ([`super::detokenizer`]) → stop strings ([`super::stop`]) →
//! thinking ([`super::reasoning`]) → tool calls ([`super::tool_call`], or the sections of [`super::kimi`]). Kimi K3's
//! answers are one format for both, read by one parser instead of those two. What is held back at the end goes through the
//! same path, never round it. Stop strings look at the raw text, thinking and markup included. A whole answer is the sum
//! of the deltas ([`Message::absorb`]), so both forms agree by construction.
//!
//! Markers that are control tokens are shown to the parsers although control tokens are hidden from the client.

use std::sync::Arc;

use super::{
    detokenizer::{Detokenizer, SpecialText},
    error::UnknownId,
    kimi::{self, XtmlOptions},
    reasoning::{Part, ReasoningFormat, ReasoningParser},
    stop::{EmptyStop, StopMatcher},
    tokenizer::Tokenizer,
    tool_call::{ToolParser, ToolPart},
};

/// How one answer is to be read.
#[derive(Clone, Debug, Default)]
pub struct OutputOptions {
    /// Whether control tokens are shown.
    pub special_text: SpecialText,
    /// Stop strings.
    pub stop: Vec<String>,
    /// The answer ends with the stop string instead of before it.
    pub include_stop: bool,
    /// Stop strings do not count before this many tokens.
    pub min_tokens: u32,
    /// Ids that end generation; they add no text, control tokens or not.
    pub end_ids: Vec<u32>,
    /// Split off a thinking part.
    pub reasoning: Option<ReasoningFormat>,
    /// `Some(prefix)`: read tool calls; call k gets the id prefix + k. The prefix must differ between answers.
    pub tool_call_ids: Option<String>,
    /// How tool calls are written.
    pub tool_format: ToolFormat,
    /// The answer is XTML: thinking and tool calls are parts of it, and `reasoning` and `tool_format` do not count.
    pub xtml: Option<XtmlOptions>,
}

/// How tool calls are written in answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolFormat {
    /// `<tool_call>` with JSON inside.
    #[default]
    Hermes,
    /// Sections of Kimi K2 and Kimi Linear, whose ids name functions among these.
    Sections(Vec<String>),
}

/// What reads tool calls.
#[derive(Clone, Debug)]
enum Tools {
    Hermes(ToolParser),
    Sections(kimi::SectionCalls),
}

impl Tools {
    fn calls(&self) -> u32 {
        match self {
            Self::Hermes(parser) => parser.calls(),
            Self::Sections(parser) => parser.calls(),
        }
    }

    fn push(&mut self, text: &str, out: &mut Vec<ToolPart>) {
        match self {
            Self::Hermes(parser) => parser.push(text, out),
            Self::Sections(parser) => parser.push(text, out),
        }
    }

    fn finish(&mut self, out: &mut Vec<ToolPart>) {
        match self {
            Self::Hermes(parser) => parser.finish(out),
            Self::Sections(parser) => parser.finish(out),
        }
    }
}

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta {
    /// More of the answer.
    Content(String),
    /// More of the thinking part.
    Reasoning(String),
    /// A tool call begins; its arguments follow.
    ToolCall {
        /// 0, 1, …
        index: u32,
        /// Unique.
        id: String,
        /// Function.
        name: String,
    },
    /// More of a call's arguments, as JSON text.
    ToolArguments {
        /// Which call.
        index: u32,
        /// JSON text.
        fragment: String,
    },
}

/// A token none of whose text is held back any more by a stop string or an unfinished character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettledToken {
    /// Its id.
    pub id: u32,
    /// Characters of raw text before it (for `text_offset`).
    pub text_offset: usize,
}

/// What one push gives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// New pieces, in order.
    pub deltas: Vec<Delta>,
    /// Tokens settled now, in order; every pushed token settles exactly once. Log-probabilities travel with these.
    pub tokens: Vec<SettledToken>,
    /// The index of the stop string that ended the answer.
    pub stopped_by: Option<usize>,
}

/// Reads one answer.
#[derive(Clone, Debug)]
pub struct OutputStream {
    tokenizer: Arc<Tokenizer>,
    detokenizer: Detokenizer,
    stop: StopMatcher,
    reasoning: Option<ReasoningParser>,
    tools: Option<(Tools, String)>,
    xtml: Option<kimi::XtmlAnswer>,
    markers: Vec<u32>,
    end_ids: Vec<u32>,
    special_text: SpecialText,
    min_tokens: u32,
    count: u32,
    characters: usize,
    unsettled: std::collections::VecDeque<(SettledToken, usize)>,
    /// Bytes of raw text made, and bytes past the stop matcher.
    made: usize,
    passed: usize,
    stopped: bool,
}

impl OutputStream {
    /// For the answer to `prompt` (its last ids matter to the first characters).
    pub fn new(tokenizer: Arc<Tokenizer>, prompt: &[u32], mut options: OutputOptions) -> Result<Self, EmptyStop> {
        let xtml = options.xtml.map(|xtml| {
            options.reasoning = None;
            kimi::XtmlAnswer::new(xtml, options.tool_call_ids.take())
        });
        let mut markers: Vec<&str> = Vec::new();
        if let Some(format) = &options.reasoning {
            markers.extend([format.start.as_str(), format.end.as_str()]);
            markers.extend(format.interrupted_by.iter().map(String::as_str));
        }
        match (&options.tool_call_ids, &options.tool_format) {
            (Some(_), ToolFormat::Hermes) => markers.extend(["<tool_call>", "</tool_call>"]),
            (Some(_), ToolFormat::Sections(_)) => kimi::section_markers().for_each(|marker| markers.push(marker)),
            (None, _) => {}
        }
        if xtml.is_some() {
            markers.extend(["<|open|>", "<|close|>", "<|sep|>"]);
        }
        let markers = markers.into_iter().filter_map(|marker| tokenizer.id_of(marker)).collect();
        let tools = match options.tool_format {
            ToolFormat::Hermes => Tools::Hermes(ToolParser::new()),
            ToolFormat::Sections(names) => Tools::Sections(kimi::SectionCalls::new(names)),
        };
        Ok(Self {
            detokenizer: Detokenizer::after(tokenizer.clone(), options.special_text, prompt),
            tokenizer,
            stop: StopMatcher::new(&options.stop, options.include_stop)?,
            reasoning: options.reasoning.map(ReasoningParser::new),
            tools: options.tool_call_ids.map(|prefix| (tools, prefix)),
            xtml,
            markers,
            end_ids: options.end_ids,
            special_text: options.special_text,
            min_tokens: options.min_tokens,
            count: 0,
            characters: 0,
            unsettled: Default::default(),
            made: 0,
            passed: 0,
            stopped: false,
        })
    }

    /// Add a generated id. After a stop string was found nothing more comes out.
    pub fn push(&mut self, id: u32) -> Result<Output, UnknownId> {
        let mut output = Output::default();
        if self.stopped {
            return Ok(output);
        }
        self.count = self.count.saturating_add(1);
        let offset = self.characters;
        let text = if self.end_ids.contains(&id) {
            self.tokenizer.vocabulary().bytes(id)?; // unknown ids are errors all the same
            ""
        } else {
            let special_text = if self.markers.contains(&id) { SpecialText::Keep } else { self.special_text };
            self.detokenizer.push_as(id, special_text)?
        };
        self.characters += text.chars().count();
        self.made += text.len();
        let released = self.stop.push(text, self.count >= self.min_tokens);
        // A token that leaves a character open is settled by the token that closes it.
        let end = self.made + usize::from(self.detokenizer.is_pending());
        self.unsettled.push_back((SettledToken { id, text_offset: offset }, end));
        self.passed += released.text.len();
        output.stopped_by = released.stopped_by;
        self.parse(&released.text, &mut output.deltas);
        if output.stopped_by.is_some() {
            self.stopped = true;
            self.flush(&mut output);
        } else {
            while let Some(&(token, _)) = self.unsettled.front().filter(|(_, end)| *end <= self.passed) {
                output.tokens.push(token);
                self.unsettled.pop_front();
            }
        }
        Ok(output)
    }

    /// The generation ended: everything still held back.
    pub fn finish(&mut self) -> Output {
        let mut output = Output::default();
        if !self.stopped {
            self.stopped = true;
            let rest = self.stop.finish();
            self.parse(&rest, &mut output.deltas);
            self.flush(&mut output);
        }
        output
    }

    /// Tool calls found; more than none makes the finish reason `tool_calls`.
    pub fn tool_calls(&self) -> u32 {
        let in_xtml = self.xtml.as_ref().map_or(0, kimi::XtmlAnswer::calls);
        in_xtml + self.tools.as_ref().map_or(0, |(parser, _)| parser.calls())
    }

    fn flush(&mut self, output: &mut Output) {
        if let Some(xtml) = &mut self.xtml {
            xtml.finish(&mut output.deltas);
        }
        let mut parts = Vec::new();
        if let Some(reasoning) = &mut self.reasoning {
            reasoning.finish(&mut parts);
        }
        self.sort(parts, &mut output.deltas);
        if let Some((tools, prefix)) = &mut self.tools {
            let mut parts = Vec::new();
            tools.finish(&mut parts);
            output.deltas.extend(parts.into_iter().map(|part| to_delta(part, prefix)));
        }
        output.tokens.extend(self.unsettled.drain(..).map(|(token, _)| token));
    }

    fn parse(&mut self, text: &str, deltas: &mut Vec<Delta>) {
        if text.is_empty() {
            return;
        }
        if let Some(xtml) = &mut self.xtml {
            return xtml.push(text, deltas);
        }
        let mut parts = Vec::new();
        match &mut self.reasoning {
            Some(reasoning) => reasoning.push(text, &mut parts),
            None => parts.push(Part::Content(text.to_owned())),
        }
        self.sort(parts, deltas);
    }

    fn sort(&mut self, parts: Vec<Part>, deltas: &mut Vec<Delta>) {
        for part in parts {
            match (part, &mut self.tools) {
                (Part::Reasoning(text), _) => deltas.push(Delta::Reasoning(text)),
                (Part::Content(text), None) => deltas.push(Delta::Content(text)),
                (Part::Content(text), Some((tools, prefix))) => {
                    let mut parts = Vec::new();
                    tools.push(&text, &mut parts);
                    deltas.extend(parts.into_iter().map(|part| to_delta(part, prefix)));
                }
            }
        }
    }
}

fn to_delta(part: ToolPart, prefix: &str) -> Delta {
    match part {
        ToolPart::Content(text) => Delta::Content(text),
        ToolPart::Name { index, name, id } => {
            Delta::ToolCall { index, id: id.unwrap_or_else(|| format!("{prefix}{index}")), name }
        }
        ToolPart::Arguments { index, fragment } => Delta::ToolArguments { index, fragment },
    }
}

/// One tool call of a whole answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolCall {
    /// Unique.
    pub id: String,
    /// Function.
    pub name: String,
    /// JSON text.
    pub arguments: String,
}

/// A whole answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// What it says.
    pub content: String,
    /// What it thought.
    pub reasoning: String,
    /// What it calls.
    pub tool_calls: Vec<ToolCall>,
}

impl Message {
    /// Add the next piece.
    pub fn absorb(&mut self, delta: &Delta) {
        match delta {
            Delta::Content(text) => self.content.push_str(text),
            Delta::Reasoning(text) => self.reasoning.push_str(text),
            Delta::ToolCall { id, name, .. } => {
                self.tool_calls.push(ToolCall { id: id.clone(), name: name.clone(), arguments: String::new() });
            }
            Delta::ToolArguments { index, fragment } => {
                if let Some(call) = self.tool_calls.get_mut(*index as usize) {
                    call.arguments.push_str(fragment);
                }
            }
        }
    }
}
