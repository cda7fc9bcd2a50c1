//! One answer on the terminal, for `run` and `chat`.

use std::{
    io,
    time::{Duration, Instant},
};

use tokenspeed_core::request::{Request, SamplingParams};

use crate::{
    engine_setup::Loaded,
    error::CliError,
    frontend::{EncodedPrompt, OutputOptions, ParseOptions},
    generation::{
        answer::{Answer, AnswerRules, Ending, Progress},
        delta::Delta,
    },
};

/// An answer and its figures.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Told {
    /// What was said.
    pub text: String,
    /// What was thought.
    pub reasoning: String,
    /// How it ended; `None` = stopped by the user.
    pub ending: Option<Ending>,
    /// Prompt tokens.
    pub prompt_tokens: u32,
    /// Of these, from the prefix cache.
    pub cached_tokens: u32,
    /// Generated tokens.
    pub completion_tokens: u32,
    /// From submission to the first token.
    pub first_token: Option<Duration>,
    /// From submission to the end.
    pub whole: Duration,
}

impl Told {
    /// Tokens per second after the first one.
    pub fn tokens_per_second(&self) -> Option<f64> {
        let decoding = self.whole.checked_sub(self.first_token?)?.as_secs_f64();
        (self.completion_tokens > 1 && decoding > 0.0).then(|| f64::from(self.completion_tokens - 1) / decoding)
    }

    /// One line for a person.
    pub fn summary(&self) -> String {
        let first = self.first_token.map_or("-".into(), |time| format!("{:.0} ms", time.as_secs_f64() * 1e3));
        let rate = self.tokens_per_second().map_or("-".into(), |rate| format!("{rate:.1}"));
        format!(
            "{} tokens, {rate} tokens/s, time to first token {first}, prompt {} tokens ({} cached)",
            self.completion_tokens, self.prompt_tokens, self.cached_tokens
        )
    }
}

/// Tokens that fit after this prompt, or why none does.
pub fn room(loaded: &Loaded, prompt_tokens: usize) -> Result<u32, CliError> {
    let context = loaded.engine.limits().max_model_len;
    match u32::try_from(prompt_tokens).ok().and_then(|tokens| context.checked_sub(tokens)).filter(|room| *room > 0) {
        Some(_) if prompt_tokens == 0 => Err(CliError::new("the prompt is empty", "", "give it some text")),
        Some(room) => Ok(room),
        None => Err(CliError::new(
            format!("the prompt has {prompt_tokens} tokens and the model's context is {context}"),
            "",
            "shorten the prompt",
        )),
    }
}

/// Generate; `parse` splits reasoning from the answer. Text is written to `out` as it comes. Ctrl-C ends the answer.
pub async fn tell(
    loaded: &Loaded,
    prompt: EncodedPrompt,
    sampling: SamplingParams,
    stop: Vec<String>,
    parse: bool,
    out: &mut dyn io::Write,
) -> Result<Told, CliError> {
    let failed = |message: String| CliError::new(message, "", "");
    let mut terminators = Vec::new();
    if !sampling.ignore_eos {
        terminators.extend_from_slice(loaded.frontend.eos_ids());
        terminators.sort_unstable();
    }
    let parse = parse.then(|| ParseOptions { tools: Vec::new(), in_reasoning: prompt.in_reasoning });
    let options = OutputOptions { stop, parse, ..OutputOptions::default() };
    let output = loaded.frontend.open(&prompt.ids, options).map_err(|error| failed(error.to_string()))?;
    let mut told = Told { prompt_tokens: prompt.ids.len() as u32, ..Told::default() };
    let start = Instant::now();
    let request = Request { prompt: prompt.ids, boundaries: prompt.boundaries, sampling, ..Request::default() };
    let events = loaded.engine.submit(request).map_err(|error| failed(error.to_string()))?;
    let rules = AnswerRules {
        terminators: terminators.into(),
        prompt_only: false,
        single_tool_call: false,
        report_tokens: false,
        tell_ids: false,
    };
    let mut answer = Answer::new(events, output, rules);
    let mut delta = Delta::default();
    let mut interrupt = std::pin::pin!(tokio::signal::ctrl_c());
    // A terminal that is gone (`| head`) ends the answer.
    let mut gone = false;
    while told.ending.is_none() && !gone {
        delta.clear();
        let progress = tokio::select! {
            progress = answer.next(&mut delta) => progress,
            _ = interrupt.as_mut() => break,
        };
        if told.first_token.is_none() && answer.completion_tokens() > 0 {
            told.first_token = Some(start.elapsed());
        }
        match progress {
            Progress::Started { .. } => {}
            Progress::Failed(message) => return Err(failed(message)),
            Progress::Ended(ending) => told.ending = Some(ending),
            Progress::Token => {}
        }
        told.reasoning.push_str(&delta.piece.reasoning);
        told.text.push_str(&delta.piece.content);
        if !delta.piece.is_empty() {
            gone = write!(out, "{}{}", delta.piece.reasoning, delta.piece.content).and_then(|()| out.flush()).is_err();
        }
    }
    told.cached_tokens = answer.cached_tokens();
    told.completion_tokens = answer.completion_tokens();
    told.whole = start.elapsed();
    Ok(told)
}

/// A runtime for commands that run one answer at a time.
pub fn runtime() -> Result<tokio::runtime::Runtime, CliError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::new(format!("cannot start the runtime: {error}"), "", ""))
}
