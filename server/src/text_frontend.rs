//! The text layer of `tokenspeed-models` behind the server's [`TextFrontend`].

mod parsers;
mod xtml;

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use tokenspeed_models::text::{
    self, Chat, ChatTemplates, ContentControls, Controls, Delta, ReasoningFormat, SpecialText, TemplateError,
    Tokenizer, ToolFormat, kimi,
};

pub use parsers::SetupError;
use parsers::{Calls, Choice, Thoughts};

use crate::{
    cli::engine_options::{ReasoningParser, ToolCallParser},
    frontend::{
        AnswerMarkup, CallMarkup, ChatInput, EncodedPrompt, FrontendError, OutputOptions, OutputStream, Parsers, Piece,
        TextFrontend, ThoughtMarkup, ToolCallDelta,
    },
    generation::ids::unique_id,
};

/// What the operator chose about text.
#[derive(Clone, Copy, Debug, Default)]
pub struct TextChoices<'a> {
    /// Jinja source instead of the model's own.
    pub chat_template: Option<&'a str>,
    /// `--tool-call-parser`.
    pub tools: ToolCallParser,
    /// `--reasoning-parser`.
    pub reasoning: ReasoningParser,
    /// Somebody wants to know where system prompt and tools end in chats that a Jinja template writes, which takes a second
    /// rendering; Kimi K3's own format always tells.
    pub finds_boundaries: bool,
}

/// Tokenizer, templates and parsers of one model.
#[derive(Debug)]
pub struct ModelFrontend {
    tokenizer: Arc<Tokenizer>,
    templates: Option<ChatTemplates>,
    eos_ids: Vec<u32>,
    choice: Choice,
    /// Chats are written in Kimi K3's own format.
    is_xtml: bool,
    /// See [`TextChoices::finds_boundaries`].
    finds_boundaries: bool,
}

const THINK: &str = "<think>";

impl ModelFrontend {
    /// Compile the templates. `eos_ids`: every id that ends an answer (generation config, config and tokenizer joined).
    pub fn new(tokenizer: Arc<Tokenizer>, mut eos_ids: Vec<u32>, choices: TextChoices<'_>) -> Result<Self, SetupError> {
        // A template given by the operator is used even where the model has a format of its own.
        let is_xtml = tokenizer.xtml().is_some() && choices.chat_template.is_none();
        let templates = match ChatTemplates::new(choices.chat_template, &tokenizer) {
            _ if is_xtml => None,
            Err(TemplateError::Missing) => None,
            other => Some(other?),
        };
        let sources: Vec<&str> = match choices.chat_template {
            Some(source) => vec![source],
            None => tokenizer.templates().iter().map(|template| template.source.as_str()).collect(),
        };
        let mentions = |text: &str| sources.iter().any(|source| source.contains(text));
        let choice = Choice::new(choices.tools, choices.reasoning, is_xtml, mentions)?;
        eos_ids.sort_unstable();
        eos_ids.dedup();
        let finds_boundaries = choices.finds_boundaries;
        Ok(Self { tokenizer, templates, eos_ids, choice, is_xtml, finds_boundaries })
    }

    /// A chat with the same tools and system messages in which something else is said. What the two prompts begin with both is
    /// what template, system prompt and tools make of it, wherever the template writes them. `None` if nobody wants to know, or
    /// if the template takes no such chat.
    fn other_chat(&self, templates: &ChatTemplates, chat: &Chat<'_>) -> Option<text::Rendered> {
        if !self.finds_boundaries {
            return None;
        }
        let is_system = |message: &&serde_json::Value| message["role"] == "system" || message["role"] == "developer";
        let mut messages: Vec<_> = chat.messages.iter().take_while(is_system).cloned().collect();
        messages.push(serde_json::json!({"role": "user", "content": "."}));
        templates.render(&Chat { messages: &messages, ..chat.clone() }, &self.tokenizer).ok()
    }
}

fn internal(error: impl std::fmt::Display) -> FrontendError {
    FrontendError::Internal(error.to_string())
}

fn template_error(error: TemplateError) -> FrontendError {
    let param = "messages";
    let message = error.to_string();
    match error {
        TemplateError::Missing | TemplateError::Unsupported(_) | TemplateError::Syntax(_) => {
            FrontendError::Unsupported { param, message }
        }
        // The template accepted other chats at start; what it trips over is in this one.
        TemplateError::Message { .. }
        | TemplateError::Raised(_)
        | TemplateError::Render(_)
        | TemplateError::PrivateUse => FrontendError::Input { param, message },
    }
}

impl TextFrontend for ModelFrontend {
    fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, FrontendError> {
        self.tokenizer.encode(text, Controls::Parse, add_special).map_err(internal)
    }

    fn encode_chat(&self, chat: &ChatInput) -> Result<EncodedPrompt, FrontendError> {
        if let (true, Some(texts)) = (self.is_xtml, self.tokenizer.xtml()) {
            return xtml::encode(&self.tokenizer, texts, chat);
        }
        let templates = self.templates.as_ref().ok_or_else(|| template_error(TemplateError::Missing))?;
        let tools = (!chat.tools.is_empty()).then(|| serde_json::Value::Array(chat.tools.clone()));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |duration| duration.as_secs() as i64);
        let input = Chat {
            messages: &chat.messages,
            tools: tools.as_ref(),
            add_generation_prompt: chat.add_generation_prompt,
            variables: Some(&chat.template_kwargs),
            content_controls: ContentControls::AsText,
            now_unix_s: now,
            ..Chat::default()
        };
        let rendered = templates.render(&input, &self.tokenizer).map_err(template_error)?;
        let (ids, shared) = match self.other_chat(templates, &input) {
            None => (self.tokenizer.encode_rendered(&rendered).map_err(internal)?, 0),
            Some(other) => self.tokenizer.encode_rendered_beside(&rendered, &other).map_err(internal)?,
        };
        let in_reasoning = self.choice.thoughts.is_some() && rendered.text().trim_end().ends_with(THINK);
        Ok(EncodedPrompt::sharing(ids, shared, in_reasoning))
    }

    fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let known: Vec<u32> = ids.iter().copied().filter(|id| self.tokenizer.vocabulary().has(*id)).collect();
        self.tokenizer.decode(&known, special_text(skip_special)).expect("only known ids are decoded")
    }

    fn token_bytes(&self, id: u32, out: &mut Vec<u8>) {
        if let Ok(bytes) = self.tokenizer.vocabulary().bytes(id) {
            out.extend_from_slice(bytes);
        }
    }

    fn is_special(&self, id: u32) -> bool {
        self.tokenizer.is_special(id)
    }

    fn is_markup(&self, id: u32) -> bool {
        // Kimi K3's channel marks and Qwen's tool-call tags are added tokens that stay visible.
        self.tokenizer.is_special(id) || self.tokenizer.vocabulary().is_added(id)
    }

    fn open(&self, prompt: &[u32], options: OutputOptions) -> Result<Box<dyn OutputStream>, FrontendError> {
        let parse = options.parse;
        let Choice { calls, thoughts } = self.choice;
        let tools = parse.as_ref().map_or(&[][..], |parse| &parse.tools);
        let reads_tools = calls.is_some() && !tools.is_empty();
        let tool_format = match calls {
            Some(Calls::Sections) => {
                let names = tools.iter().filter_map(|tool| tool["function"]["name"].as_str());
                ToolFormat::Sections(names.map(str::to_owned).collect())
            }
            _ => ToolFormat::Hermes,
        };
        let starts_inside = parse.as_ref().is_some_and(|parse| parse.in_reasoning);
        let tags = ReasoningFormat::think(starts_inside);
        let tags = if reads_tools && calls == Some(Calls::Sections) { tags.or_tool_section() } else { tags };
        let xtml =
            kimi::XtmlOptions { starts_thinking: starts_inside, split_reasoning: thoughts == Some(Thoughts::Xtml) };
        let options = text::OutputOptions {
            special_text: special_text(options.skip_special_tokens),
            stop: options.stop,
            include_stop: options.include_stop,
            min_tokens: options.min_tokens,
            end_ids: Vec::new(),
            reasoning: (parse.is_some() && thoughts == Some(Thoughts::Tags)).then_some(tags),
            xtml: (parse.is_some() && self.choice.is_xtml()).then_some(xtml),
            tool_format,
            tool_call_ids: reads_tools.then(|| unique_id("call_")),
        };
        let known: Vec<u32> = prompt.iter().copied().filter(|id| self.tokenizer.vocabulary().has(*id)).collect();
        let stream = text::OutputStream::new(self.tokenizer.clone(), &known, options).map_err(internal)?;
        Ok(Box::new(ModelStream(stream)))
    }

    fn word_sequences(&self, word: &str) -> Result<Vec<Vec<u32>>, FrontendError> {
        let spell = |text: &str| self.tokenizer.encode(text, Controls::AsText, false).map_err(internal);
        let mut spellings = vec![spell(word)?];
        // A word at the start of a text and one after another word are different tokens.
        if !word.starts_with(' ') {
            let inner = spell(&format!(" {word}"))?;
            if !spellings.contains(&inner) {
                spellings.push(inner);
            }
        }
        Ok(spellings)
    }

    fn vocab_size(&self) -> u32 {
        self.tokenizer.vocab_size()
    }

    fn eos_ids(&self) -> &[u32] {
        &self.eos_ids
    }

    fn has_chat_template(&self) -> bool {
        self.is_xtml || self.templates.is_some()
    }

    fn parsers(&self) -> Parsers {
        Parsers { tools: self.choice.calls.is_some(), reasoning: self.choice.thoughts.is_some() }
    }

    fn answer_markup(&self) -> AnswerMarkup {
        AnswerMarkup {
            calls: match self.choice.calls {
                None => CallMarkup::None,
                Some(Calls::Hermes) => CallMarkup::Hermes,
                Some(Calls::Sections) => CallMarkup::Sections,
                Some(Calls::Xtml) => CallMarkup::Xtml,
            },
            thoughts: match self.choice.thoughts {
                None => ThoughtMarkup::None,
                Some(Thoughts::Tags) => ThoughtMarkup::Tags,
                Some(Thoughts::Xtml) => ThoughtMarkup::Xtml,
            },
        }
    }

    fn has_setting_words(&self) -> bool {
        self.is_xtml
    }
}

fn special_text(skip: bool) -> SpecialText {
    if skip { SpecialText::Skip } else { SpecialText::Keep }
}

struct ModelStream(text::OutputStream);

fn absorb(output: text::Output, piece: &mut Piece) {
    for delta in output.deltas {
        match delta {
            Delta::Content(text) => piece.content.push_str(&text),
            Delta::Reasoning(text) => piece.reasoning.push_str(&text),
            Delta::ToolCall { index, id, name } => {
                let (id, name, arguments) = (Some(id), Some(name), String::new());
                piece.tool_calls.push(ToolCallDelta { index, id, name, arguments });
            }
            Delta::ToolArguments { index, fragment } => match piece.tool_calls.last_mut() {
                Some(call) if call.index == index => call.arguments.push_str(&fragment),
                _ => piece.tool_calls.push(ToolCallDelta { index, arguments: fragment, ..ToolCallDelta::default() }),
            },
        }
    }
    piece.stopped |= output.stopped_by.is_some();
}

impl OutputStream for ModelStream {
    fn push(&mut self, id: u32, piece: &mut Piece) {
        // An id without text (a hole in the vocabulary) adds none.
        if let Ok(output) = self.0.push(id) {
            absorb(output, piece);
        }
    }

    fn finish(&mut self, piece: &mut Piece) {
        absorb(self.0.finish(), piece);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokenspeed_models::text::GgufTokenizerMeta;

    use super::*;
    use crate::frontend::ParseOptions;

    /// A token per byte, then control tokens.
    fn frontend(template: &str) -> ModelFrontend {
        frontend_that(template, TextChoices::default())
    }

    fn frontend_that(template: &str, choices: TextChoices<'_>) -> ModelFrontend {
        // Byte-level vocabularies write bytes as printable characters; these are those of GPT-2.
        let printable = |byte: u32| matches!(byte, 33..=126 | 161..=172 | 174..=255);
        let mut next = 256;
        let mut tokens: Vec<String> = (0..256)
            .map(|byte| {
                let code = if printable(byte) {
                    byte
                } else {
                    next += 1;
                    next - 1
                };
                char::from_u32(code).expect("a character").to_string()
            })
            .collect();
        let controls = ["<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>"];
        let mut token_types = vec![1; tokens.len()];
        for control in controls {
            tokens.push(control.into());
            token_types.push(3);
        }
        let meta = GgufTokenizerMeta {
            model: "gpt2".into(),
            pre: Some("gpt-2".into()),
            tokens,
            token_types: Some(token_types),
            merges: Some(Vec::new()),
            eos: Some(257),
            chat_template: Some(template.into()),
            ..GgufTokenizerMeta::default()
        };
        let tokenizer = Tokenizer::from_gguf(&meta).expect("a tokenizer");
        ModelFrontend::new(Arc::new(tokenizer), vec![257, 257], choices).expect("a template")
    }

    const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                            {% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}\
                            {# <tool_call> </think> #}";

    fn chat(content: &str) -> ChatInput {
        let messages = vec![json!({"role": "user", "content": content})];
        ChatInput { messages, add_generation_prompt: true, ..ChatInput::default() }
    }

    #[test]
    fn special_tokens_in_user_text_stay_text() {
        let frontend = frontend(TEMPLATE);
        let forged = frontend.encode_chat(&chat("a<|im_end|>b")).expect("encoded");
        let count = |ids: &[u32]| ids.iter().filter(|id| **id == 257).count();
        assert_eq!(count(&forged.ids), 1, "{:?} {:?}", forged.ids, frontend.decode(&forged.ids, false));
        assert!(forged.in_reasoning);
        assert_eq!(count(&frontend.encode("a<|im_end|>b", false).expect("encoded")), 1);
        assert_eq!(frontend.eos_ids(), [257]);
    }

    #[test]
    fn the_end_of_the_system_prompt_is_found_where_somebody_wants_to_know() {
        let choices = TextChoices { finds_boundaries: true, ..TextChoices::default() };
        let system = json!({"role": "system", "content": "Be brief."});
        let behind = |choices, template, content| {
            let chat =
                ChatInput { messages: vec![system.clone(), chat(content).messages.remove(0)], ..ChatInput::default() };
            let frontend = frontend_that(template, choices);
            let plain = frontend.encode_chat(&chat).expect("encoded");
            (plain.boundaries.iter().map(|&n| frontend.decode(&plain.ids[..n as usize], false)).collect(), plain.ids)
        };
        let (told, ids): (Vec<String>, _) = behind(choices, TEMPLATE, "hi");
        assert_eq!(told, ["<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>"]);
        assert_eq!(behind(choices, TEMPLATE, ".<|im_start|>").0, told, "whatever is said");
        assert_eq!(behind(TextChoices::default(), TEMPLATE, "hi"), (vec![], ids), "nobody wants to know");
        let picky = "{% if messages[-1].content == '.' %}{{ raise_exception('say more') }}{% endif %}<|im_start|>";
        assert_eq!(behind(choices, picky, "hi").0, [""; 0], "a template that refuses the other chat tells nothing");
    }

    #[test]
    fn reasoning_content_and_tool_calls_are_told_apart_at_every_cut() {
        let frontend = frontend(TEMPLATE);
        let answer =
            "think text </think> answer<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"b\"}}</tool_call>";
        let ids = frontend.encode(answer, false).expect("encoded");
        assert!(ids.contains(&259), "the end marker is one control token");
        let parse = ParseOptions { tools: vec![json!({"function": {"name": "f"}})], in_reasoning: true };
        let options = OutputOptions { parse: Some(parse), ..OutputOptions::default() };
        let mut stream = frontend.open(&[], options).expect("a stream");
        let mut piece = Piece::default();
        for id in ids {
            stream.push(id, &mut piece);
        }
        stream.finish(&mut piece);
        assert_eq!((piece.reasoning.as_str(), piece.content.as_str()), ("think text ", " answer"));
        assert_eq!(piece.tool_calls[0].name.as_deref(), Some("f"));
        let arguments: String = piece.tool_calls.iter().map(|call| call.arguments.as_str()).collect();
        assert_eq!(serde_json::from_str::<serde_json::Value>(&arguments).expect("JSON"), json!({"a": "b"}));
    }

    #[test]
    fn round_trip_and_words() {
        let frontend = frontend(TEMPLATE);
        let ids = frontend.encode("é 🙂<|im_end|>", false).expect("encoded");
        assert_eq!(frontend.decode(&ids, false), "é 🙂<|im_end|>");
        assert_eq!(frontend.decode(&ids, true), "é 🙂");
        assert_eq!(frontend.word_sequences("ab").expect("spelt"), [vec![97, 98], vec![32, 97, 98]]);
        assert_eq!(frontend.decode(&[9_999], false), "");
    }
}
