//! One answer in the making: engine events in, deltas out.
//!
//! Pull-based: whoever owns the answer polls it, and dropping it aborts the request in the engine. So a client that goes
//! away needs no bookkeeping, and a slow client holds back only itself. Rejected: a task and a channel per answer, which
//! cost an allocation and a context switch per token and need their own cancellation.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use tokenspeed_core::{
    client::EventStream,
    request::{Event, FinishReason, TokenLogprobs},
};

use crate::{
    frontend::OutputStream,
    generation::delta::{Delta, TokenReport},
};

/// How an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// End-of-sequence, a stop token or a stop string.
    Stop,
    /// Token limit or context length.
    Length,
    /// The answer holds at least one tool call and ended by itself.
    ToolCalls,
}

impl Ending {
    /// The value of `finish_reason`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
        }
    }
}

/// What polling an answer yields; text and tokens are in the delta.
#[derive(Debug, PartialEq)]
pub enum Progress {
    /// Prefill is done.
    Started {
        /// One entry per prompt token after the first, if asked for.
        prompt_logprobs: Option<Vec<TokenLogprobs>>,
    },
    /// One more token was looked at.
    Token,
    /// Over. The delta holds the last text.
    Ended(Ending),
    /// Over, badly. The message is for the user.
    Failed(String),
}

/// What an answer needs to know beyond its two streams.
#[derive(Clone, Debug)]
pub struct AnswerRules {
    /// Ids that may end the answer: end-of-sequence ids (unless ignored) and stop token ids, sorted.
    pub terminators: Arc<[u32]>,
    /// End right after prefill (`max_tokens: 0` with `echo`).
    pub prompt_only: bool,
    /// End before a second tool call (`parallel_tool_calls: false`).
    pub single_tool_call: bool,
    /// Keep token reports in deltas.
    pub report_tokens: bool,
    /// Keep ids in deltas, also of tokens that end the answer: all in all as many as are counted.
    pub tell_ids: bool,
}

/// One answer in the making.
pub struct Answer {
    events: Option<EventStream>,
    output: Box<dyn OutputStream>,
    rules: AnswerRules,
    /// A token that ends the answer if `Finished(Stop)` follows, and is text otherwise.
    held: Option<TokenReport>,
    tool_called: bool,
    cached_tokens: u32,
    completion_tokens: u32,
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Answer({} tokens)", self.completion_tokens)
    }
}

impl Answer {
    /// Pair a submitted request with its text stream.
    pub fn new(events: EventStream, output: Box<dyn OutputStream>, rules: AnswerRules) -> Self {
        let (held, tool_called) = (None, false);
        Self { events: Some(events), output, rules, held, tool_called, cached_tokens: 0, completion_tokens: 0 }
    }

    /// Prompt tokens that came from the prefix cache, once started.
    pub fn cached_tokens(&self) -> u32 {
        self.cached_tokens
    }

    /// Tokens generated so far, a final end-of-sequence token included.
    pub fn completion_tokens(&self) -> u32 {
        self.completion_tokens
    }

    /// No more progress will come.
    pub fn is_over(&self) -> bool {
        self.events.is_none()
    }

    /// Next progress; what it adds is appended to `delta`. Must not be called once over.
    pub fn poll(&mut self, context: &mut Context<'_>, delta: &mut Delta) -> Poll<Progress> {
        let events = self.events.as_mut().expect("an answer is not polled after its end");
        match events.poll_next(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(event)) => Poll::Ready(self.take(event, delta)),
            Poll::Ready(None) => Poll::Ready(self.fail("the engine closed the request without a result".into())),
        }
    }

    /// Next progress, asynchronously.
    pub async fn next(&mut self, delta: &mut Delta) -> Progress {
        std::future::poll_fn(|context| self.poll(context, delta)).await
    }

    fn take(&mut self, event: Event, delta: &mut Delta) -> Progress {
        match event {
            Event::Started { cached_tokens, prompt_logprobs } => {
                self.cached_tokens = cached_tokens;
                if self.rules.prompt_only {
                    // The engine was asked for one token, which nobody wants; what is returned is the prompt's report.
                    self.events = None;
                }
                Progress::Started { prompt_logprobs }
            }
            Event::Token { id, logprobs } => {
                self.completion_tokens += 1;
                let report = TokenReport { id, logprobs };
                let may_end = self.rules.terminators.binary_search(&id).is_ok();
                let before = self.held.take();
                if self.rules.tell_ids {
                    // Of a token that is held, once it is known to be text or the end. Whatever counts is told, also behind an end.
                    delta.ids.extend(before.iter().map(|held| held.id).chain((!may_end).then_some(id)));
                }
                let now = if may_end {
                    self.held = Some(report);
                    None
                } else {
                    Some(report)
                };
                for report in before.into_iter().chain(now) {
                    if let Some(end) = self.push(report, delta) {
                        return end;
                    }
                }
                Progress::Token
            }
            Event::Finished { reason, usage } => {
                self.completion_tokens = usage.completion_tokens;
                if self.rules.tell_ids {
                    delta.ids.extend(self.held.iter().map(|held| held.id));
                }
                match reason {
                    FinishReason::Stop => self.held = None,
                    FinishReason::Abort => return self.fail("the request was aborted by the server".into()),
                    FinishReason::Length => {
                        if let Some(held) = self.held.take()
                            && let Some(end) = self.push(held, delta)
                        {
                            return end;
                        }
                    }
                }
                self.end(if reason == FinishReason::Stop { Ending::Stop } else { Ending::Length }, delta)
            }
            Event::Failed { message } => self.fail(message),
        }
    }

    /// Hand a token to the text layer; `Some` when that ends the answer.
    fn push(&mut self, report: TokenReport, delta: &mut Delta) -> Option<Progress> {
        let calls_before = delta.piece.tool_calls.len();
        self.output.push(report.id, &mut delta.piece);
        if self.rules.report_tokens {
            delta.tokens.push(report);
        }
        self.tool_called |= delta.piece.tool_calls.len() > calls_before;
        if delta.piece.stopped {
            // Dropping the event stream aborts what the engine would still generate.
            self.events = None;
            return Some(Progress::Ended(self.ending(Ending::Stop)));
        }
        if self.rules.single_tool_call && drop_second_call(delta) {
            self.events = None;
            return Some(Progress::Ended(Ending::ToolCalls));
        }
        None
    }

    fn end(&mut self, ending: Ending, delta: &mut Delta) -> Progress {
        self.events = None;
        self.output.finish(&mut delta.piece);
        self.tool_called |= !delta.piece.tool_calls.is_empty();
        if self.rules.single_tool_call {
            drop_second_call(delta);
        }
        Progress::Ended(self.ending(ending))
    }

    fn ending(&self, ending: Ending) -> Ending {
        if self.tool_called && ending == Ending::Stop { Ending::ToolCalls } else { ending }
    }

    fn fail(&mut self, message: String) -> Progress {
        self.events = None;
        Progress::Failed(message)
    }
}

/// True if there was a second call to drop.
fn drop_second_call(delta: &mut Delta) -> bool {
    let before = delta.piece.tool_calls.len();
    delta.piece.tool_calls.retain(|call| call.index == 0);
    delta.piece.tool_calls.len() < before
}
