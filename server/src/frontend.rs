//! The seam between the server and the text layer: prompts to ids, ids to text.
//!
//! The server sees this trait and never a tokenizer, a template engine or a tool-call grammar, so that its tests run
//! over a byte-level stand-in and a model family can bring its own text rules. Rejected: calling the text layer's types
//! directly, which ties every HTTP test to tokenizer files.

use serde_json::{Map, Value};

/// Why text could not be turned into a prompt, or ids into text.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FrontendError {
    /// The caller's input is at fault; `param` is the request field to name.
    #[error("{message}")]
    Input {
        /// Request field, for example `messages`.
        param: &'static str,
        /// What is wrong and what would be right.
        message: String,
    },
    /// This model cannot do what was asked (no chat template, no tool parser, …).
    #[error("{message}")]
    Unsupported {
        /// Request field, for example `tools`.
        param: &'static str,
        /// What is missing.
        message: String,
    },
    /// Our fault.
    #[error("{0}")]
    Internal(String),
}

/// A conversation to render.
#[derive(Clone, Debug, Default)]
pub struct ChatInput {
    /// Validated messages in the OpenAI shape, with these normalisations: `content` is always a string (parts joined
    /// with nothing between them, `null` and missing become `""`), fields that were `null` are absent, `tool_calls[].function.arguments` is
    /// a string of JSON as the caller sent it. With [`TextFrontend::has_setting_words`] a system message may carry
    /// `tools`.
    pub messages: Vec<Value>,
    /// Tool definitions as the caller sent them, in order; empty = none.
    pub tools: Vec<Value>,
    /// End the prompt where the assistant's answer starts.
    pub add_generation_prompt: bool,
    /// Extra variables of the template.
    pub template_kwargs: Map<String, Value>,
    /// See [`ChatSettings`]; default unless [`TextFrontend::has_setting_words`].
    pub settings: ChatSettings,
}

/// What the caller wants of tools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// No calls.
    None,
    /// At least one call.
    Required,
    /// One call of this tool, which is among those given.
    Named(String),
}

/// The form of the answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum AnswerForm {
    /// Text.
    #[default]
    Text,
    /// JSON of any shape.
    Json,
    /// JSON that fits a schema.
    Schema(Value),
}

/// What some chat formats have words for. The model is told, as it was trained to be; a grammar enforces it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChatSettings {
    /// Whether to call tools. Anything but `Auto` only if there are tools.
    pub tool_choice: ToolChoice,
    /// The form of the answer.
    pub answer_form: AnswerForm,
    /// Think before answering; `None`: the model's default.
    pub thinking: Option<bool>,
    /// How much to think, as the caller spelled it.
    pub effort: Option<String>,
}

/// A prompt ready for the engine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EncodedPrompt {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Lengths of beginnings that other prompts are likely to share, ascending, at most
    /// [`tokenspeed_core::request::BOUNDARIES_MAX`].
    pub boundaries: Vec<u32>,
    /// The prompt ends inside a reasoning block, so the answer starts there.
    pub in_reasoning: bool,
}

impl EncodedPrompt {
    /// A prompt whose first `shared` ids other prompts are likely to begin with; 0: none are known to.
    pub fn sharing(ids: Vec<u32>, shared: usize, in_reasoning: bool) -> Self {
        let boundaries = if shared > 0 { vec![shared as u32] } else { Vec::new() };
        Self { ids, boundaries, in_reasoning }
    }
}

/// How one answer becomes text.
#[derive(Clone, Debug)]
pub struct OutputOptions {
    /// Strings that end the answer; none is empty.
    pub stop: Vec<String>,
    /// Keep the stop string that matched in the text.
    pub include_stop: bool,
    /// Leave special tokens out of the text. Parsers see them all the same.
    pub skip_special_tokens: bool,
    /// No stop string ends the answer before this many tokens.
    pub min_tokens: u32,
    /// Split the answer into reasoning, content and tool calls. `None`: everything is content.
    pub parse: Option<ParseOptions>,
}

impl Default for OutputOptions {
    fn default() -> Self {
        Self { stop: Vec::new(), include_stop: false, skip_special_tokens: true, min_tokens: 0, parse: None }
    }
}

/// What the parsers of a chat answer need to know.
#[derive(Clone, Debug, Default)]
pub struct ParseOptions {
    /// Tools that may be called; empty = tool markup is ordinary text.
    pub tools: Vec<Value>,
    /// See [`EncodedPrompt::in_reasoning`].
    pub in_reasoning: bool,
}

/// A piece of a tool call. The first piece of each call carries `id` and `name`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolCallDelta {
    /// Which call, from 0.
    pub index: u32,
    /// Unique id, first piece only.
    pub id: Option<String>,
    /// Function name, first piece only.
    pub name: Option<String>,
    /// Piece of the JSON text of the arguments.
    pub arguments: String,
}

/// What one or more tokens added to an answer. Reused between calls, so that a token costs no allocation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Piece {
    /// Text for the user.
    pub content: String,
    /// Text of the reasoning block.
    pub reasoning: String,
    /// Tool-call pieces in order.
    pub tool_calls: Vec<ToolCallDelta>,
    /// A stop string matched: nothing more will come.
    pub stopped: bool,
}

impl Piece {
    /// Nothing to tell the client.
    pub fn is_empty(&self) -> bool {
        self.content.is_empty() && self.reasoning.is_empty() && self.tool_calls.is_empty()
    }

    /// Empty it, keeping capacity.
    pub fn clear(&mut self) {
        self.content.clear();
        self.reasoning.clear();
        self.tool_calls.clear();
        self.stopped = false;
    }
}

/// One answer on its way from ids to text.
pub trait OutputStream: Send {
    /// Append what this token makes final to `piece`. After `piece.stopped` no further call is made.
    fn push(&mut self, id: u32, piece: &mut Piece);
    /// The answer is over: append whatever was held back (an incomplete character becomes U+FFFD).
    fn finish(&mut self, piece: &mut Piece);
}

/// Which parsers are in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parsers {
    /// Tool calls can be recognised in answers.
    pub tools: bool,
    /// Reasoning can be told from content.
    pub reasoning: bool,
}

/// How tool calls are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CallMarkup {
    /// Not recognised.
    #[default]
    None,
    /// `<tool_call>{"name": …, "arguments": …}</tool_call>`.
    Hermes,
    /// Kimi K2's sections of special tokens.
    Sections,
    /// Kimi K3's channels.
    Xtml,
}

/// How thinking is told from the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ThoughtMarkup {
    /// It is not.
    #[default]
    None,
    /// `<think>` and `</think>`.
    Tags,
    /// Kimi K3's channels.
    Xtml,
}

/// The markup that an answer may have, for grammars.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnswerMarkup {
    /// Of tool calls.
    pub calls: CallMarkup,
    /// Of thinking.
    pub thoughts: ThoughtMarkup,
}

/// Text rules of the served model. All calls are thread-safe and take time proportional to their input.
pub trait TextFrontend: Send + Sync {
    /// Encode raw text. `add_special`: add BOS and the like as the tokenizer's own rules say. Special tokens spelt out in
    /// the text become special ids.
    fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, FrontendError>;

    /// Render a conversation and encode it. Text of messages never yields special ids.
    fn encode_chat(&self, chat: &ChatInput) -> Result<EncodedPrompt, FrontendError>;

    /// Decode whole. Ids without text (holes, ids past the end) add none.
    fn decode(&self, ids: &[u32], skip_special: bool) -> String;

    /// The bytes a token contributes to text (special tokens: their spelling). Appends to `out`.
    fn token_bytes(&self, id: u32, out: &mut Vec<u8>);

    /// The token is special, so hidden by default.
    fn is_special(&self, id: u32) -> bool;

    /// The token stands for markup and not for text, hidden or not: text under a grammar never contains it.
    fn is_markup(&self, id: u32) -> bool {
        self.is_special(id)
    }

    /// Start turning the answer to `prompt` into text (its last ids matter to the first characters).
    fn open(&self, prompt: &[u32], options: OutputOptions) -> Result<Box<dyn OutputStream>, FrontendError>;

    /// Every token sequence that spells `word`, with and without a leading blank.
    fn word_sequences(&self, word: &str) -> Result<Vec<Vec<u32>>, FrontendError>;

    /// Ids at or above this do not exist.
    fn vocab_size(&self) -> u32;

    /// Ids that end an answer.
    fn eos_ids(&self) -> &[u32];

    /// A chat template exists.
    fn has_chat_template(&self) -> bool;

    /// Parsers in force.
    fn parsers(&self) -> Parsers;

    /// What the parsers read.
    fn answer_markup(&self) -> AnswerMarkup {
        AnswerMarkup::default()
    }

    /// The chat format has words for [`ChatSettings`], and for tools in system messages.
    fn has_setting_words(&self) -> bool {
        false
    }
}
