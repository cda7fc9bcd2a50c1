//! The unstreamed answer: all choices to their ends, then one JSON object.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use serde_json::{Map, Value, json};
use tokenspeed_core::request::TokenLogprobs;

use super::{
    error::ApiError,
    generate::{Generation, ResponseUsage},
    logprobs::{self, CompletionOffsets},
    request::Shape,
};
use crate::{
    frontend::{TextFrontend, ToolCallDelta},
    generation::{
        answer::{Ending, Progress},
        delta::Delta,
    },
};

#[derive(Debug, Default)]
struct Collected {
    delta: Delta,
    prompt_logprobs: Option<Vec<TokenLogprobs>>,
    ending: Option<Ending>,
}

/// Wait for every choice; the response body.
pub async fn collect(mut generation: Generation, frontend: &Arc<dyn TextFrontend>) -> Result<Value, ApiError> {
    let mut collected: Vec<Collected> = (0..generation.len()).map(|_| Collected::default()).collect();
    std::future::poll_fn(|context| poll_all(&mut generation, &mut collected, context)).await?;
    let (object, choices) = match generation.request.shape {
        Shape::Chat => ("chat.completion", chat_choices(&generation, &**frontend, collected)),
        Shape::Completion => ("text_completion", completion_choices(&generation, &**frontend, collected)),
    };
    let mut response = json!({
        "id": generation.id,
        "object": object,
        "created": generation.created_s,
        "model": generation.request.model,
        "choices": choices,
        "usage": usage_json(generation.usage()),
    });
    let request = &generation.request;
    if request.token_ids && request.shape == Shape::Chat {
        response["prompt_token_ids"] = request.prompts[0].ids.as_slice().into();
    }
    Ok(response)
}

fn poll_all(
    generation: &mut Generation,
    collected: &mut [Collected],
    context: &mut Context<'_>,
) -> Poll<Result<(), ApiError>> {
    let mut all_over = true;
    for (index, into) in collected.iter_mut().enumerate() {
        while !generation.is_over(index) {
            match generation.poll_choice(index, context, &mut into.delta) {
                Poll::Pending => {
                    all_over = false;
                    break;
                }
                Poll::Ready(Progress::Started { prompt_logprobs }) => into.prompt_logprobs = prompt_logprobs,
                Poll::Ready(Progress::Token) => {}
                Poll::Ready(Progress::Ended(ending)) => into.ending = Some(ending),
                Poll::Ready(Progress::Failed(message)) => return Poll::Ready(Err(ApiError::internal(message))),
            }
        }
    }
    if all_over {
        return Poll::Ready(Ok(()));
    }
    generation.poll_interruption(context).map(Err)
}

/// The `usage` object.
pub fn usage_json(usage: ResponseUsage) -> Value {
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    })
}

fn finish_reason(ending: Option<Ending>) -> &'static str {
    // Without an ending of its own an answer stopped after its prompt (`max_tokens: 0`).
    ending.unwrap_or(Ending::Length).name()
}

fn chat_choices(generation: &Generation, frontend: &dyn TextFrontend, collected: Vec<Collected>) -> Vec<Value> {
    let request = &generation.request;
    let choice = |(index, answer): (usize, Collected)| {
        let piece = answer.delta.piece;
        let calls = join_calls(piece.tool_calls);
        let mut message = Map::new();
        message.insert("role".into(), "assistant".into());
        let content = if piece.content.is_empty() && !calls.is_empty() { Value::Null } else { piece.content.into() };
        message.insert("content".into(), content);
        message.insert("refusal".into(), Value::Null);
        if !piece.reasoning.is_empty() {
            message.insert("reasoning_content".into(), piece.reasoning.into());
        }
        if !calls.is_empty() {
            message.insert("tool_calls".into(), calls.into());
        }
        let logprobs = request.logprobs.map(|top| logprobs::chat(frontend, &answer.delta.tokens, top));
        let mut choice = json!({
            "index": index,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": finish_reason(answer.ending),
        });
        add_prompt_logprobs(&mut choice, generation, frontend, index, answer.prompt_logprobs.as_deref());
        if request.token_ids {
            choice["token_ids"] = answer.delta.ids.into();
        }
        choice
    };
    collected.into_iter().enumerate().map(choice).collect()
}

fn join_calls(pieces: Vec<ToolCallDelta>) -> Vec<Value> {
    let mut calls: Vec<(String, String, String)> = Vec::new();
    for piece in pieces {
        let index = piece.index as usize;
        if calls.len() <= index {
            calls.resize(index + 1, Default::default());
        }
        let (id, name, arguments) = &mut calls[index];
        if let Some(value) = piece.id {
            *id = value;
        }
        if let Some(value) = piece.name {
            *name = value;
        }
        arguments.push_str(&piece.arguments);
    }
    let json = |(id, name, arguments)| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    calls.into_iter().map(json).collect()
}

fn completion_choices(generation: &Generation, frontend: &dyn TextFrontend, collected: Vec<Collected>) -> Vec<Value> {
    let request = &generation.request;
    let choice = |(index, answer): (usize, Collected)| {
        let prompt = &request.prompts[generation.prompt_index(index)];
        let mut text = prompt.echo.clone().unwrap_or_default();
        text.push_str(&answer.delta.piece.content);
        let prompt_reports = answer.prompt_logprobs.as_deref();
        let logprobs = request.logprobs.map(|top| {
            let echoed = prompt.echo.is_some().then(|| echo_tokens(&prompt.ids, prompt_reports));
            let generated = answer.delta.tokens.iter().map(|token| (token.id, token.logprobs.as_ref()));
            let tokens = echoed.into_iter().flatten().chain(generated);
            CompletionOffsets::default().report(frontend, tokens, top, request.output.skip_special_tokens)
        });
        let mut choice = json!({
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": finish_reason(answer.ending),
        });
        add_prompt_logprobs(&mut choice, generation, frontend, index, prompt_reports);
        if request.token_ids {
            choice["token_ids"] = answer.delta.ids.into();
            choice["prompt_token_ids"] = prompt.ids.as_slice().into();
        }
        choice
    };
    collected.into_iter().enumerate().map(choice).collect()
}

/// Prompt tokens with their reports; the first has none.
pub fn echo_tokens<'a>(
    ids: &'a [u32],
    reports: Option<&'a [TokenLogprobs]>,
) -> impl Iterator<Item = (u32, Option<&'a TokenLogprobs>)> {
    let reports = reports.unwrap_or(&[]);
    ids.iter().enumerate().map(|(index, id)| (*id, index.checked_sub(1).and_then(|index| reports.get(index))))
}

fn add_prompt_logprobs(
    choice: &mut Value,
    generation: &Generation,
    frontend: &dyn TextFrontend,
    index: usize,
    reports: Option<&[TokenLogprobs]>,
) {
    if generation.request.prompt_logprobs {
        let ids = &generation.request.prompts[generation.prompt_index(index)].ids;
        choice["prompt_logprobs"] = logprobs::prompt(frontend, ids, reports.unwrap_or(&[]));
    }
}
