//! Which text rules a model is served with: its tokenizer from a folder or from GGUF keys, or none.

use std::sync::Arc;

use tokenspeed_models::{
    loader::{LoadOptions, Model, TextSource},
    text::{GgufTokenizerMeta, Tokenizer, kimi},
    weights::{WeightsError, gguf::Metadata},
};

use super::ids_only::IdsOnly;
use crate::{
    cli::{
        engine_options::EngineOptions,
        model_path::{ModelPath, resolve_model},
    },
    error::CliError,
    frontend::TextFrontend,
    log::Log,
    text_frontend::{ModelFrontend, TextChoices},
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
    frontend(tokenizer, &model, TextChoices::default())
}

/// The text rules `model` is to be served with. A dummy model without tokenizer files speaks token ids only.
pub(super) fn of_model(
    model: &Model,
    options: &EngineOptions,
    has_state: bool,
) -> Result<Arc<dyn TextFrontend>, CliError> {
    let template = match &options.chat_template {
        None => None,
        Some(path) => Some(std::fs::read_to_string(path).map_err(|e| {
            CliError::new(
                format!("cannot read the chat template: {e}"),
                path.display().to_string(),
                "check --chat-template",
            )
        })?),
    };
    let choices = TextChoices {
        chat_template: template.as_deref(),
        tools: options.tool_call_parser,
        reasoning: options.reasoning_parser,
        // Pages can be resumed anywhere.
        finds_boundaries: has_state && !options.no_prefix_cache,
    };
    match tokenizer_of(model)? {
        Some(tokenizer) => frontend(tokenizer, model, choices),
        None => Ok(ids_only(model)),
    }
}

/// No text rules at all.
pub(super) fn ids_only(model: &Model) -> Arc<dyn TextFrontend> {
    Arc::new(IdsOnly::new(model.config.vocab_size() as u32, model.generation.eos_ids.clone()))
}

/// A broken template is found now, not at the first chat.
fn frontend(tokenizer: Tokenizer, model: &Model, choices: TextChoices<'_>) -> Result<Arc<dyn TextFrontend>, CliError> {
    let mut eos_ids = model.generation.eos_ids.clone();
    eos_ids.extend(tokenizer.named().eos);
    eos_ids.retain(|id| *id < tokenizer.vocab_size());
    // Once per load, for the operator: what requests will be refused, or answered in other words.
    for warning in tokenizer.xtml().map_or(&[][..], kimi::PromptTexts::warnings) {
        Log::default().event("warning", &[("message", warning)]);
    }
    let hint = "change --chat-template, --tool-call-parser or --reasoning-parser";
    let frontend = ModelFrontend::new(Arc::new(tokenizer), eos_ids, choices)
        .map_err(|e| CliError::new(e.to_string(), model.name.clone(), hint))?;
    Ok(Arc::new(frontend))
}

/// `None` for random weights whose config has no tokenizer beside it.
pub(super) fn tokenizer_of(model: &Model) -> Result<Option<Tokenizer>, CliError> {
    let fail = |e: String| CliError::new(e, model.name.clone(), "the tokenizer was not loaded");
    match &model.text {
        TextSource::Folder(folder)
            if !folder.join("tokenizer.json").exists()
                && kimi::rank_file(folder).is_none()
                && model.weights.checkpoint().is_none() =>
        {
            Ok(None)
        }
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
