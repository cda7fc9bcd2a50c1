//! Text rules of the scripted model: a token is a byte, but for end-of-sequence and three longer tokens.

use serde_json::Value;
use tokenspeed_server::frontend::{
    AnswerMarkup, CallMarkup, ChatInput, EncodedPrompt, FrontendError, OutputOptions, OutputStream, Parsers, Piece,
    TextFrontend, ToolCallDelta,
};

pub const EOS: u32 = 256;
pub const SECOND_EOS: u32 = 257;
/// Tokens 258, 259, 260.
pub const LONG: [&str; 3] = ["alpha b", "eta ga", "mma delta"];
pub const VOCAB: u32 = 300;

fn bytes(id: u32) -> Vec<u8> {
    match id {
        0..=255 => vec![id as u8],
        EOS => b"<eos>".to_vec(),
        SECOND_EOS => b"<end>".to_vec(),
        258..=260 => LONG[id as usize - 258].as_bytes().to_vec(),
        _ => Vec::new(),
    }
}

pub struct ByteFrontend;

impl TextFrontend for ByteFrontend {
    fn encode(&self, text: &str, _add_special: bool) -> Result<Vec<u32>, FrontendError> {
        assert!(!text.contains("PANIC"), "asked to panic");
        Ok(text.bytes().map(u32::from).collect())
    }

    fn encode_chat(&self, chat: &ChatInput) -> Result<EncodedPrompt, FrontendError> {
        let mut text = String::new();
        for tool in &chat.tools {
            text.push_str(tool["function"]["name"].as_str().expect("validated"));
            text.push('\n');
        }
        for message in &chat.messages {
            text.push_str(message["content"].as_str().expect("always a string"));
            for call in message.get("tool_calls").and_then(Value::as_array).into_iter().flatten() {
                text.push_str(call["function"]["arguments"].as_str().expect("always a string"));
            }
        }
        Ok(EncodedPrompt { ids: self.encode(&text, false)?, ..EncodedPrompt::default() })
    }

    fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let kept = ids.iter().filter(|id| !(skip_special && self.is_special(**id)));
        String::from_utf8_lossy(&kept.flat_map(|id| bytes(*id)).collect::<Vec<u8>>()).into_owned()
    }

    fn token_bytes(&self, id: u32, out: &mut Vec<u8>) {
        out.extend(bytes(id));
    }

    fn is_special(&self, id: u32) -> bool {
        id == EOS || id == SECOND_EOS
    }

    fn open(&self, _prompt: &[u32], options: OutputOptions) -> Result<Box<dyn OutputStream>, FrontendError> {
        Ok(Box::new(ByteStream { options, raw: Vec::new(), text: String::new(), tokens: 0, markup: String::new() }))
    }

    fn word_sequences(&self, word: &str) -> Result<Vec<Vec<u32>>, FrontendError> {
        Ok(vec![self.encode(word, false)?, self.encode(&format!(" {word}"), false)?])
    }

    fn vocab_size(&self) -> u32 {
        VOCAB
    }

    fn eos_ids(&self) -> &[u32] {
        &[EOS, SECOND_EOS]
    }

    fn has_chat_template(&self) -> bool {
        true
    }

    fn answer_markup(&self) -> AnswerMarkup {
        AnswerMarkup { calls: CallMarkup::Hermes, ..AnswerMarkup::default() }
    }

    fn parsers(&self) -> Parsers {
        Parsers { tools: true, reasoning: false }
    }
}

struct ByteStream {
    options: OutputOptions,
    /// Bytes that are no whole character yet.
    raw: Vec<u8>,
    /// Text that may be the beginning of a stop string.
    text: String,
    tokens: u32,
    /// Text kept back while tools may be called.
    markup: String,
}

impl ByteStream {
    fn parses_tools(&self) -> bool {
        self.options.parse.as_ref().is_some_and(|parse| !parse.tools.is_empty())
    }

    fn emit(&mut self, text: &str, piece: &mut Piece) {
        if self.parses_tools() { self.markup.push_str(text) } else { piece.content.push_str(text) }
    }

    fn calls(&mut self, piece: &mut Piece) {
        let markup = std::mem::take(&mut self.markup);
        let mut rest = markup.as_str();
        let mut index = 0;
        while let Some((before, after)) = rest.split_once("<tool_call>") {
            piece.content.push_str(before);
            let (call, tail) = after.split_once("</tool_call>").unwrap_or((after, ""));
            if let Ok(call) = serde_json::from_str::<Value>(call) {
                let delta = |id: Option<String>, name: Option<String>, arguments: &str| ToolCallDelta {
                    index,
                    id,
                    name,
                    arguments: arguments.into(),
                };
                let arguments = call["arguments"].to_string();
                let middle = arguments.floor_char_boundary(arguments.len() / 2);
                let (first, second) = arguments.split_at(middle);
                let name = call["name"].as_str().map(str::to_owned);
                piece.tool_calls.push(delta(Some(format!("call_{index}")), name, first));
                piece.tool_calls.push(delta(None, None, second));
            }
            index += 1;
            rest = tail;
        }
        piece.content.push_str(rest);
    }
}

impl OutputStream for ByteStream {
    fn push(&mut self, id: u32, piece: &mut Piece) {
        self.tokens += 1;
        if self.options.skip_special_tokens && ByteFrontend.is_special(id) {
            return;
        }
        self.raw.extend(bytes(id));
        let whole = match std::str::from_utf8(&self.raw) {
            Ok(text) => text.len(),
            Err(error) => error.valid_up_to(),
        };
        self.text.push_str(std::str::from_utf8(&self.raw[..whole]).expect("checked"));
        self.raw.drain(..whole);
        let text = std::mem::take(&mut self.text);
        if self.tokens >= self.options.min_tokens {
            let found = self.options.stop.iter().filter_map(|stop| Some((text.find(stop.as_str())?, stop.len()))).min();
            if let Some((at, length)) = found {
                let end = if self.options.include_stop { at + length } else { at };
                self.emit(&text[..end], piece);
                piece.stopped = true;
                return;
            }
        }
        let held = (0..=text.len())
            .filter(|at| text.is_char_boundary(*at))
            .find(|at| self.options.stop.iter().any(|stop| stop.starts_with(&text[*at..]) && *at < text.len()))
            .unwrap_or(text.len());
        self.emit(&text[..held], piece);
        self.text = text[held..].to_owned();
    }

    fn finish(&mut self, piece: &mut Piece) {
        let mut rest = std::mem::take(&mut self.text);
        if !self.raw.is_empty() {
            rest.push('\u{FFFD}');
        }
        self.emit(&rest, piece);
        self.calls(piece);
    }
}
