//! `tokenspeed run`: one prompt, its answer streamed, then what it took.

use std::io::{Read as _, Write as _};

use clap::Args;
use serde_json::json;

use super::{engine_options::EngineOptions, sampling_options::SamplingOptions, session};
use crate::{
    engine_setup,
    error::CliError,
    frontend::{ChatInput, EncodedPrompt},
    log::Log,
    progress::{Progress, Silent, Terminal},
};

/// Arguments of `run`.
#[derive(Clone, Debug, Args)]
pub struct RunArgs {
    /// Engine options.
    #[command(flatten)]
    pub engine: EngineOptions,
    /// The prompt; - reads it from standard input
    #[arg(long, short, value_name = "TEXT")]
    pub prompt: String,
    /// Send the prompt as a user's message through the chat template
    #[arg(long)]
    pub chat: bool,
    /// System message, with --chat
    #[arg(long, requires = "chat", value_name = "TEXT")]
    pub system: Option<String>,
    /// Sampling options.
    #[command(flatten)]
    pub sampling: SamplingOptions,
    /// Print one JSON object instead of streaming
    #[arg(long)]
    pub json: bool,
}

/// A conversation in the shape the text layer takes.
pub fn chat_input(messages: &[(&str, &str)]) -> ChatInput {
    let messages = messages.iter().map(|(role, content)| json!({"role": role, "content": content})).collect();
    ChatInput { messages, add_generation_prompt: true, ..ChatInput::default() }
}

/// Run it.
pub fn run(args: RunArgs) -> Result<(), CliError> {
    let prompt = if args.prompt == "-" {
        let mut text = String::new();
        std::io::stdin()
            .read_to_string(&mut text)
            .map_err(|error| CliError::new(format!("cannot read the prompt: {error}"), "standard input", ""))?;
        text
    } else {
        args.prompt.clone()
    };
    let mut progress: Box<dyn Progress> =
        if args.json { Box::new(Silent) } else { Box::new(Terminal::new(Log::default(), false)) };
    let (loaded, monitor) = engine_setup::load_watched(&args.engine, &mut *progress)?;
    let failed = |error: crate::frontend::FrontendError| CliError::new(error.to_string(), "", "");
    let encoded = if args.chat {
        let mut messages = Vec::new();
        messages.extend(args.system.as_deref().map(|system| ("system", system)));
        messages.push(("user", prompt.as_str()));
        loaded.frontend.encode_chat(&chat_input(&messages)).map_err(failed)?
    } else {
        EncodedPrompt { ids: loaded.frontend.encode(&prompt, true).map_err(failed)?, ..EncodedPrompt::default() }
    };
    let room = session::room(&loaded, encoded.ids.len())?;
    let sampling = args.sampling.params(loaded.info.defaults, args.engine.seed, room);
    let mut out: Box<dyn std::io::Write> =
        if args.json { Box::new(std::io::sink()) } else { Box::new(std::io::stdout()) };
    let answer = session::tell(&loaded, encoded, sampling, args.sampling.stop, args.chat, &mut *out);
    let told = session::runtime()?.block_on(answer)?;
    // Counting is a courtesy; a device that cannot be asked has said so elsewhere.
    let counters = monitor.counters().unwrap_or_default();
    let computed = told.prompt_tokens - told.cached_tokens + told.completion_tokens;
    if !args.json {
        let _ = writeln!(out);
        eprintln!("\n{}", told.summary());
        if let Some(experts) = engine_setup::expert_summary(&counters, computed.into()) {
            eprintln!("{experts}");
        }
        return Ok(());
    }
    let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
    let report = json!({
        "model": loaded.info.name,
        "text": told.text,
        "reasoning": if told.reasoning.is_empty() { None } else { Some(told.reasoning.as_str()) },
        "finish_reason": told.ending.map_or("interrupted", |ending| ending.name()),
        "prompt_tokens": told.prompt_tokens,
        "cached_tokens": told.cached_tokens,
        "completion_tokens": told.completion_tokens,
        "time_to_first_token_ms": told.first_token.map(ms),
        "total_ms": ms(told.whole),
        "tokens_per_second": told.tokens_per_second(),
        "device_counters": counters.into_iter().collect::<std::collections::BTreeMap<_, _>>(),
    });
    println!("{report}");
    Ok(())
}
