//! Server-sent event chunks, written by hand into one buffer.
//!
//! Everything that is the same in all chunks of a response is serialised once; a token costs a copy of that, its escaped
//! text, and no allocation once the buffer has grown. Rejected: building a `serde_json::Value` per token, about twenty
//! allocations each.

use std::io::Write as _;

use bytes::{BufMut as _, BytesMut};
use serde_json::Value;

use super::{collect::usage_json, error::ApiError, generate::Generation, request::Shape};
use crate::{
    frontend::{Piece, ToolCallDelta},
    generation::answer::Ending,
};

/// Writes the chunks of one response.
#[derive(Debug)]
pub struct ChunkWriter {
    shape: Shape,
    /// Up to and without the list of choices.
    head: Vec<u8>,
    /// After the list of choices.
    tail: &'static [u8],
    /// Chunks have ids.
    tells_ids: bool,
}

/// Ids that a chunk tells, if the request asked for any.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ids<'a> {
    /// Of the prompt, in the first chunk only.
    pub prompt: Option<&'a [u32]>,
    /// Of the tokens that the chunk is about.
    pub answer: &'a [u32],
}

fn escaped(out: &mut BytesMut, text: &str) {
    // Writing a string into a growing buffer cannot fail.
    let _ = serde_json::to_writer(out.writer(), text);
}

fn number(out: &mut BytesMut, number: usize) {
    let _ = write!(out.writer(), "{number}");
}

fn numbers(out: &mut BytesMut, ids: &[u32]) {
    out.put_u8(b'[');
    for (at, id) in ids.iter().enumerate() {
        if at > 0 {
            out.put_u8(b',');
        }
        number(out, *id as usize);
    }
    out.put_u8(b']');
}

fn prompt_ids(out: &mut BytesMut, ids: Option<&[u32]>) {
    if let Some(ids) = ids {
        out.put_slice(b",\"prompt_token_ids\":");
        numbers(out, ids);
    }
}

fn json(out: &mut BytesMut, value: Option<&Value>) {
    match value {
        Some(value) => drop(serde_json::to_writer(out.writer(), value)),
        None => out.put_slice(b"null"),
    }
}

impl ChunkWriter {
    /// For this response.
    pub fn new(generation: &Generation) -> Self {
        let request = &generation.request;
        let object = match request.shape {
            Shape::Chat => "chat.completion.chunk",
            Shape::Completion => "text_completion",
        };
        let mut head = BytesMut::new();
        head.put_slice(b"data: {\"id\":");
        escaped(&mut head, &generation.id);
        head.put_slice(b",\"object\":");
        escaped(&mut head, object);
        head.put_slice(b",\"created\":");
        number(&mut head, generation.created_s as usize);
        head.put_slice(b",\"model\":");
        escaped(&mut head, &request.model);
        head.put_slice(b",\"choices\":[");
        let tail: &[u8] = if request.include_usage { b",\"usage\":null}\n\n" } else { b"}\n\n" };
        Self { shape: request.shape, head: head.to_vec(), tail, tells_ids: request.token_ids }
    }

    fn open(&self, out: &mut BytesMut, choice: usize) {
        out.put_slice(&self.head);
        out.put_slice(b"{\"index\":");
        number(out, choice);
    }

    fn close(&self, out: &mut BytesMut, logprobs: Option<&Value>, ending: Option<Ending>, ids: Ids<'_>) {
        out.put_slice(b",\"logprobs\":");
        json(out, logprobs);
        out.put_slice(b",\"finish_reason\":");
        match ending {
            Some(ending) => escaped(out, ending.name()),
            None => out.put_slice(b"null"),
        }
        if self.tells_ids {
            out.put_slice(b",\"token_ids\":");
            numbers(out, ids.answer);
        }
        // A chat has one prompt, completions may have one per choice.
        let is_chat = self.shape == Shape::Chat;
        if !is_chat {
            prompt_ids(out, ids.prompt);
        }
        out.put_slice(b"}]");
        if is_chat {
            prompt_ids(out, ids.prompt);
        }
        out.put_slice(self.tail);
    }

    /// First chunk of a chat choice.
    pub fn role(&self, out: &mut BytesMut, choice: usize, ids: Ids<'_>) {
        self.open(out, choice);
        out.put_slice(b",\"delta\":{\"role\":\"assistant\",\"content\":\"\"}");
        self.close(out, None, None, ids);
    }

    /// Text of a completions choice.
    pub fn text(&self, out: &mut BytesMut, choice: usize, text: &str, logprobs: Option<&Value>, ids: Ids<'_>) {
        self.open(out, choice);
        out.put_slice(b",\"text\":");
        escaped(out, text);
        self.close(out, logprobs, None, ids);
    }

    /// A piece of an answer.
    pub fn piece(&self, out: &mut BytesMut, choice: usize, piece: &Piece, logprobs: Option<&Value>, ids: Ids<'_>) {
        if self.shape == Shape::Completion {
            return self.text(out, choice, &piece.content, logprobs, ids);
        }
        self.open(out, choice);
        out.put_slice(b",\"delta\":{");
        let mut separator: &[u8] = b"";
        if !piece.reasoning.is_empty() {
            out.put_slice(b"\"reasoning_content\":");
            escaped(out, &piece.reasoning);
            separator = b",";
        }
        if !piece.content.is_empty() || piece.is_empty() {
            out.put_slice(separator);
            out.put_slice(b"\"content\":");
            escaped(out, &piece.content);
            separator = b",";
        }
        if !piece.tool_calls.is_empty() {
            out.put_slice(separator);
            out.put_slice(b"\"tool_calls\":[");
            for (index, call) in piece.tool_calls.iter().enumerate() {
                if index > 0 {
                    out.put_u8(b',');
                }
                tool_call(out, call);
            }
            out.put_u8(b']');
        }
        out.put_u8(b'}');
        self.close(out, logprobs, None, ids);
    }

    /// Last chunk of a choice.
    pub fn finish(&self, out: &mut BytesMut, choice: usize, ending: Ending, ids: Ids<'_>) {
        self.open(out, choice);
        out.put_slice(if self.shape == Shape::Chat { b",\"delta\":{}" } else { b",\"text\":\"\"" });
        self.close(out, None, Some(ending), ids);
    }

    /// The chunk that `include_usage` asks for.
    pub fn usage(&self, out: &mut BytesMut, generation: &Generation) {
        out.put_slice(&self.head);
        out.put_slice(b"],\"usage\":");
        json(out, Some(&usage_json(generation.usage())));
        out.put_slice(b"}\n\n");
    }

    /// What went wrong, instead of an end.
    pub fn error(out: &mut BytesMut, error: &ApiError) {
        out.put_slice(b"data: ");
        out.put_slice(&error.to_json());
        out.put_slice(b"\n\n");
    }

    /// The end of the stream.
    pub fn done(out: &mut BytesMut) {
        out.put_slice(b"data: [DONE]\n\n");
    }
}

fn tool_call(out: &mut BytesMut, call: &ToolCallDelta) {
    out.put_slice(b"{\"index\":");
    number(out, call.index as usize);
    if let Some(id) = &call.id {
        out.put_slice(b",\"id\":");
        escaped(out, id);
        out.put_slice(b",\"type\":\"function\"");
    }
    out.put_slice(b",\"function\":{");
    if let Some(name) = &call.name {
        out.put_slice(b"\"name\":");
        escaped(out, name);
        out.put_u8(b',');
    }
    out.put_slice(b"\"arguments\":");
    escaped(out, &call.arguments);
    out.put_slice(b"}}");
}
