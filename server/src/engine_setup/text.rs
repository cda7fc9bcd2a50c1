//! The text layer of `models` behind the server's [`TextFrontend`].

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use tokenspeed_models::{
    loader::{LoadOptions, Model, TextSource},
    text::{
        Chat, ChatTemplates, Controls, Delta, GgufTokenizerMeta, OutputOptions as TextOptions, OutputStream as TextStream,
        ReasoningFormat, SpecialText, TemplateError, Tokenizer,
    },
    weights::{WeightsError, gguf::Metadata},
};

use super::ids_only::IdsOnly;
use crate::{
    cli::{
        engine_options::{EngineOptions, ReasoningParser, ToolCallParser},
        model_path::{ModelPath, resolve_model},
    },
    error::CliError,
    frontend::{
        ChatInput, EncodedPrompt, FrontendError, OutputOptions, OutputStream, Parsers, Piece, TextFrontend, ToolCallDelta,
    },
    generation::ids::random_u64,
};

/// Text rules alone, without weights.
pub fn load_frontend(model: &str) -> Result<Arc<dyn TextFrontend>, CliError> {
    let place = resolve_model(model)?;
    let path = match &place {
        ModelPath::Dummy(path) => format!("dummy:{}", path.display()).into(),
        ModelPath::Folder(path) | ModelPath::Gguf(path) => path.clone(),
    };
    let fail = |what: String| CliError::new(what, model.to_owned(), "");
    let model = Model::open_to_plan(&path, &LoadOptions::default()).map_err(|e| fail(e.to_string()))?;
    let tokenizer = tokenizer_of(&model)?.ok_or_else(|| fail("the model has no tokenizer".into()))?;
    let choice = Choice { template: None, tools: ToolCallParser::Auto, reasoning: ReasoningParser::Auto };
    Ok(Arc::new(ModelText::new(tokenizer, &model, choice)?))
}

/// The text rules `model` is to be served with. A dummy model without tokenizer files speaks token ids only.
pub(super) fn of_model(model: &Model, options: &EngineOptions) -> Result<Arc<dyn TextFrontend>, CliError> {
    let template = match &options.chat_template {
        None => None,
        Some(path) => Some(std::fs::read_to_string(path).map_err(|e| {
            CliError::new(format!("cannot read the chat template: {e}"), path.display().to_string(), "check --chat-template")
        })?),
    };
    let choice = Choice { template, tools: options.tool_call_parser, reasoning: options.reasoning_parser };
    match tokenizer_of(model)? {
        Some(tokenizer) => Ok(Arc::new(ModelText::new(tokenizer, model, choice)?)),
        None => Ok(Arc::new(IdsOnly::new(model.config.vocab_size as u32, model.generation.eos_ids.clone()))),
    }
}

/// `None` for random weights whose config has no tokenizer beside it.
fn tokenizer_of(model: &Model) -> Result<Option<Tokenizer>, CliError> {
    let fail = |e: String| CliError::new(e, model.name.clone(), "the tokenizer was not loaded");
    match &model.text {
        TextSource::Folder(folder) if !folder.join("tokenizer.json").exists() && model.weights.checkpoint().is_none() => Ok(None),
        TextSource::Folder(folder) => Tokenizer::from_folder(folder).map(Some).map_err(|e| fail(e.to_string())),
        TextSource::Gguf(metadata) => {
            let keys = gguf_keys(metadata).map_err(|e| fail(e.to_string()))?;
            Tokenizer::from_gguf(&keys).map(Some).map_err(|e| fail(e.to_string()))
        }
    }
}

fn gguf_keys(m: &Metadata) -> Result<GgufTokenizerMeta, WeightsError> {
    let id = |key: &str| -> Result<Option<u32>, WeightsError> {
        let Some(value) = m.uint(key)? else { return Ok(None) };
        u32::try_from(value).map(Some).map_err(|_| m.error(key, format!("{value} is not a token id")))
    };
    let types = m.ints("tokenizer.ggml.token_type")?;
    let key = "tokenizer.ggml.tokens";
    Ok(GgufTokenizerMeta {
        model: m.str("tokenizer.ggml.model")?.ok_or_else(|| m.error("tokenizer.ggml.model", "is missing"))?.to_owned(),
        pre: m.str("tokenizer.ggml.pre")?.map(str::to_owned),
        tokens: m.strings(key)?.ok_or_else(|| m.error(key, "is missing"))?.to_vec(),
        scores: m.floats("tokenizer.ggml.scores")?.map(|s| s.iter().map(|v| *v as f32).collect()),
        token_types: types.map(|t| t.into_iter().map(|v| i32::try_from(v).unwrap_or(i32::MAX)).collect()),
        merges: m.strings("tokenizer.ggml.merges")?.map(<[String]>::to_vec),
        bos: id("tokenizer.ggml.bos_token_id")?,
        eos: id("tokenizer.ggml.eos_token_id")?,
        unk: id("tokenizer.ggml.unknown_token_id")?,
        pad: id("tokenizer.ggml.padding_token_id")?,
        add_bos: m.bool("tokenizer.ggml.add_bos_token")?,
        add_eos: m.bool("tokenizer.ggml.add_eos_token")?,
        add_space_prefix: m.bool("tokenizer.ggml.add_space_prefix")?,
        chat_template: m.str("tokenizer.chat_template")?.map(str::to_owned),
    })
}

/// What the user chose.
struct Choice {
    template: Option<String>,
    tools: ToolCallParser,
    reasoning: ReasoningParser,
}

/// Marks by which a template shows that its model calls tools in this form.
const HERMES: &str = "<tool_call>";
const THINK: &str = "<think>";

struct ModelText {
    tokenizer: Arc<Tokenizer>,
    templates: Result<ChatTemplates, TemplateError>,
    eos_ids: Vec<u32>,
    tools: bool,
    reasoning: bool,
}

impl ModelText {
    fn new(tokenizer: Tokenizer, model: &Model, choice: Choice) -> Result<Self, CliError> {
        let sources: Vec<&str> = match &choice.template {
            Some(source) => vec![source],
            None => tokenizer.templates().iter().map(|t| t.source.as_str()).collect(),
        };
        let mentions = |mark: &str| sources.iter().any(|s| s.contains(mark));
        let tools = match choice.tools {
            ToolCallParser::Auto => mentions(HERMES),
            ToolCallParser::Hermes => true,
            ToolCallParser::None => false,
        };
        let reasoning = match choice.reasoning {
            ReasoningParser::Auto => mentions(THINK),
            ReasoningParser::Think => true,
            ReasoningParser::None => false,
        };
        let templates = match ChatTemplates::new(choice.template.as_deref(), &tokenizer) {
            // A model for raw completions is a good model; a broken template is found now, not at the first chat.
            Ok(templates) => Ok(templates),
            Err(TemplateError::Missing) => Err(TemplateError::Missing),
            Err(error) => {
                let hint = "give another one with --chat-template";
                return Err(CliError::new(error.to_string(), model.name.clone(), hint));
            }
        };
        let mut eos_ids = model.generation.eos_ids.clone();
        eos_ids.extend(tokenizer.named().eos);
        eos_ids.sort_unstable();
        eos_ids.dedup();
        eos_ids.retain(|id| *id < tokenizer.vocab_size());
        Ok(Self { tokenizer: Arc::new(tokenizer), templates, eos_ids, tools, reasoning })
    }

    /// The prompt leaves a thinking part open.
    fn ends_in_reasoning(&self, ids: &[u32]) -> bool {
        // The marker is a handful of tokens at most, whatever the tokenizer.
        let tail = &ids[ids.len().saturating_sub(16)..];
        let text = self.tokenizer.decode(tail, SpecialText::Keep).unwrap_or_default();
        self.reasoning && text.trim_end().ends_with(THINK)
    }
}

fn internal(error: impl std::fmt::Display) -> FrontendError {
    FrontendError::Internal(error.to_string())
}

fn template_error(error: &TemplateError) -> FrontendError {
    let message = error.to_string();
    match error {
        TemplateError::Missing | TemplateError::Unsupported(_) => {
            FrontendError::Unsupported { param: "messages", message }
        }
        TemplateError::Syntax(_) => FrontendError::Internal(message),
        _ => FrontendError::Input { param: "messages", message },
    }
}

impl TextFrontend for ModelText {
    fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, FrontendError> {
        self.tokenizer.encode(text, Controls::Parse, add_special).map_err(internal)
    }

    fn encode_chat(&self, chat: &ChatInput) -> Result<EncodedPrompt, FrontendError> {
        let templates = self.templates.as_ref().map_err(template_error)?;
        if chat.continue_final_message {
            let message = "continue_final_message is not supported; send the conversation up to the last user turn".into();
            return Err(FrontendError::Unsupported { param: "continue_final_message", message });
        }
        let tools = serde_json::Value::Array(chat.tools.clone());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64);
        let rendered = templates
            .render(
                &Chat {
                    messages: &chat.messages,
                    tools: (!chat.tools.is_empty()).then_some(&tools),
                    add_generation_prompt: chat.add_generation_prompt,
                    variables: Some(&chat.template_kwargs),
                    now_unix_s: now,
                    ..Chat::default()
                },
                &self.tokenizer,
            )
            .map_err(|e| template_error(&e))?;
        let ids = self.tokenizer.encode_rendered(&rendered).map_err(internal)?;
        Ok(EncodedPrompt { in_reasoning: self.ends_in_reasoning(&ids), ids })
    }

    fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        // Ids are below the vocabulary by contract; holes in it have no text.
        let known: Vec<u32> = ids.iter().copied().filter(|id| self.tokenizer.vocabulary().has(*id)).collect();
        self.tokenizer.decode(&known, special(skip_special)).unwrap_or_default()
    }

    fn token_bytes(&self, id: u32, out: &mut Vec<u8>) {
        if let Ok(bytes) = self.tokenizer.vocabulary().bytes(id) {
            out.extend_from_slice(bytes);
        }
    }

    fn is_special(&self, id: u32) -> bool {
        self.tokenizer.is_special(id)
    }

    fn open(&self, prompt: &[u32], options: OutputOptions) -> Result<Box<dyn OutputStream>, FrontendError> {
        let parse = options.parse.as_ref();
        let reads_tools = self.tools && parse.is_some_and(|p| !p.tools.is_empty());
        let stream = TextStream::new(
            Arc::clone(&self.tokenizer),
            prompt,
            TextOptions {
                special_text: special(options.skip_special_tokens),
                stop: options.stop,
                include_stop: options.include_stop,
                min_tokens: options.min_tokens,
                end_ids: if options.skip_special_tokens { self.eos_ids.clone() } else { Vec::new() },
                reasoning: parse.filter(|_| self.reasoning).map(|p| ReasoningFormat::think(p.in_reasoning)),
                tool_call_ids: reads_tools.then(|| format!("call_{:016x}_", random_u64())),
            },
        );
        let stream = stream.map_err(|e| FrontendError::Input { param: "stop", message: e.to_string() })?;
        Ok(Box::new(Stream(stream)))
    }

    fn word_sequences(&self, word: &str) -> Result<Vec<Vec<u32>>, FrontendError> {
        let mut all = Vec::new();
        for text in [word.to_owned(), format!(" {}", word.trim_start())] {
            let ids = self.tokenizer.encode(&text, Controls::AsText, false).map_err(internal)?;
            if !ids.is_empty() && !all.contains(&ids) {
                all.push(ids);
            }
        }
        Ok(all)
    }

    fn vocab_size(&self) -> u32 {
        self.tokenizer.vocab_size()
    }

    fn eos_ids(&self) -> &[u32] {
        &self.eos_ids
    }

    fn has_chat_template(&self) -> bool {
        self.templates.is_ok()
    }

    fn parsers(&self) -> Parsers {
        Parsers { tools: self.tools, reasoning: self.reasoning }
    }
}

fn special(skip: bool) -> SpecialText {
    if skip { SpecialText::Skip } else { SpecialText::Keep }
}

struct Stream(TextStream);

impl OutputStream for Stream {
    fn push(&mut self, id: u32, piece: &mut Piece) {
        // The engine samples ids of the tokenizer only, so an unknown one has no text to add.
        let Ok(output) = self.0.push(id) else { return };
        append(output.deltas, piece);
        piece.stopped |= output.stopped_by.is_some();
    }

    fn finish(&mut self, piece: &mut Piece) {
        append(self.0.finish().deltas, piece);
    }
}

fn append(deltas: Vec<Delta>, piece: &mut Piece) {
    for delta in deltas {
        match delta {
            Delta::Content(text) => piece.content.push_str(&text),
            Delta::Reasoning(text) => piece.reasoning.push_str(&text),
            Delta::ToolCall { index, id, name } => piece.tool_calls.push(ToolCallDelta {
                index,
                id: Some(id),
                name: Some(name),
                arguments: String::new(),
            }),
            Delta::ToolArguments { index, fragment } => match piece.tool_calls.last_mut() {
                Some(last) if last.index == index => last.arguments.push_str(&fragment),
                _ => piece.tool_calls.push(ToolCallDelta { index, arguments: fragment, ..ToolCallDelta::default() }),
            },
        }
    }
}
