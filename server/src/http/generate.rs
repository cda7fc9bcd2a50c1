//! A request on its way through the engine: all its choices, the watch over them, and the counting when it is over.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use tokio::time::Sleep;

use super::{
    error::ApiError,
    metrics::{Outcome, Record},
    request::{GenerationRequest, Shape},
    state::{ActiveRequest, Ready, ServerState, unix_seconds},
};
use crate::{
    frontend::OutputOptions,
    generation::{
        answer::{Answer, AnswerRules, Progress},
        delta::Delta,
        ids::unique_id,
    },
};

/// How often a waiting request looks whether the engine still lives. An engine thread that died sends no event.
const WATCH_INTERVAL: Duration = Duration::from_millis(250);

#[derive(Debug)]
struct Choice {
    answer: Answer,
    record: Record,
}

/// All choices of one request. Dropping it aborts what is still running.
#[derive(Debug)]
pub struct Generation {
    /// What was asked.
    pub request: GenerationRequest,
    /// `id` of the response.
    pub id: String,
    /// `created` of the response.
    pub created_s: u64,
    choices: Vec<Choice>,
    state: Arc<ServerState>,
    watch: Pin<Box<Sleep>>,
    _active: ActiveRequest,
}

/// Token counts of a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResponseUsage {
    /// Every prompt once, whatever `n`.
    pub prompt_tokens: u64,
    /// Of these, from the prefix cache (for the first choice of each prompt).
    pub cached_tokens: u64,
    /// Of all choices.
    pub completion_tokens: u64,
}

impl Generation {
    /// Submit every choice. If one is refused, none runs.
    pub fn start(
        state: &Arc<ServerState>,
        ready: &Ready,
        request: GenerationRequest,
        active: ActiveRequest,
        start: Instant,
    ) -> Result<Self, ApiError> {
        let loaded = &ready.loaded;
        let mut terminators = request.sampling.stop_token_ids.clone();
        if !request.sampling.ignore_eos {
            terminators.extend_from_slice(loaded.frontend.eos_ids());
        }
        terminators.sort_unstable();
        let rules = AnswerRules {
            terminators: terminators.into(),
            prompt_only: request.prompt_only,
            single_tool_call: request.single_tool_call,
            report_tokens: request.logprobs.is_some(),
            tell_ids: request.token_ids,
        };
        let mut choices = Vec::with_capacity(request.prompts.len() * request.n as usize);
        for (index, prompt) in request.prompts.iter().enumerate() {
            for k in 0..request.n {
                let mut options: OutputOptions = request.output.clone();
                if let Some(parse) = &mut options.parse {
                    parse.in_reasoning = prompt.in_reasoning;
                }
                let output = loaded.frontend.open(&prompt.ids, options)?;
                let events = loaded.engine.submit(request.engine_request(index, k))?;
                choices.push(Choice { answer: Answer::new(events, output, rules.clone()), record: Record::new(start) });
            }
        }
        let id = unique_id(match request.shape {
            Shape::Chat => "chatcmpl-",
            Shape::Completion => "cmpl-",
        });
        Ok(Self {
            request,
            id,
            created_s: unix_seconds(),
            choices,
            state: state.clone(),
            watch: Box::pin(tokio::time::sleep(WATCH_INTERVAL)),
            _active: active,
        })
    }

    /// Number of choices.
    pub fn len(&self) -> usize {
        self.choices.len()
    }

    /// Never true: a request has a prompt and a choice.
    pub fn is_empty(&self) -> bool {
        self.choices.is_empty()
    }

    /// The prompt a choice belongs to.
    pub fn prompt_index(&self, choice: usize) -> usize {
        choice / self.request.n as usize
    }

    /// That choice has ended.
    pub fn is_over(&self, choice: usize) -> bool {
        self.choices[choice].answer.is_over()
    }

    /// Progress of one choice that is not over; see [`Answer::poll`].
    pub fn poll_choice(&mut self, choice: usize, context: &mut Context<'_>, delta: &mut Delta) -> Poll<Progress> {
        let Choice { answer, record } = &mut self.choices[choice];
        let polled = answer.poll(context, delta);
        if let Poll::Ready(progress) = &polled {
            record.tokens(answer.completion_tokens());
            match progress {
                Progress::Ended(ending) => record.end(Outcome::Ended(*ending)),
                Progress::Failed(_) => record.end(Outcome::Error),
                Progress::Started { .. } if self.request.prompt_only => {
                    record.end(Outcome::Ended(crate::generation::answer::Ending::Length));
                }
                Progress::Started { .. } | Progress::Token => {}
            }
        }
        polled
    }

    /// Ready with the reason when the request cannot go on. Also arranges to be woken to look again.
    pub fn poll_interruption(&mut self, context: &mut Context<'_>) -> Poll<ApiError> {
        while self.watch.as_mut().poll(context).is_ready() {
            if let Some(error) = self.state.interruption() {
                for choice in self.choices.iter_mut().filter(|choice| !choice.answer.is_over()) {
                    choice.record.end(Outcome::Error);
                }
                return Poll::Ready(error);
            }
            self.watch.as_mut().reset(tokio::time::Instant::now() + WATCH_INTERVAL);
        }
        Poll::Pending
    }

    /// Counts so far.
    pub fn usage(&self) -> ResponseUsage {
        let per_prompt = self.choices.iter().step_by(self.request.n as usize);
        ResponseUsage {
            prompt_tokens: self.request.prompts.iter().map(|prompt| prompt.ids.len() as u64).sum(),
            cached_tokens: per_prompt.map(|choice| u64::from(choice.answer.cached_tokens())).sum(),
            completion_tokens: self.choices.iter().map(|choice| u64::from(choice.answer.completion_tokens())).sum(),
        }
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        let usage = self.usage();
        self.state.metrics.prompt(usage.prompt_tokens as u32, usage.cached_tokens as u32);
        for choice in &self.choices {
            choice.record.count(&self.state.metrics);
        }
    }
}
