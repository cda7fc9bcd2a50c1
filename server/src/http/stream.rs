//! The streamed answer: a response body that polls the choices when the connection can take more.
//!
//! No task and no channel stand between engine and socket. The connection drops this body when the client goes away,
//! which drops the choices, which aborts them.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use bytes::{Bytes, BytesMut};

use super::{
    chunk::{ChunkWriter, Ids},
    collect::echo_tokens,
    error::ApiError,
    generate::Generation,
    logprobs::{self, CompletionOffsets},
    request::Shape,
};
use crate::{
    frontend::TextFrontend,
    generation::{
        answer::{Ending, Progress},
        delta::Delta,
    },
};

/// One frame is sent once it has this size, however much more is ready.
const FRAME_BYTES_MAX: usize = 64 << 10;

/// A streamed response.
pub struct EventBody {
    generation: Option<Generation>,
    frontend: Arc<dyn TextFrontend>,
    writer: ChunkWriter,
    offsets: Vec<CompletionOffsets>,
    delta: Delta,
    out: BytesMut,
    begun: bool,
    /// By choice: the ids of its prompt are wanted and were not told yet.
    untold: Vec<bool>,
}

/// The ids of a choice's prompt, the first time.
fn prompt_once<'g>(untold: &mut [bool], generation: &'g Generation, choice: usize) -> Option<&'g [u32]> {
    let is_untold = std::mem::take(&mut untold[choice]);
    is_untold.then(|| &generation.request.prompts[generation.prompt_index(choice)].ids[..])
}

impl std::fmt::Debug for EventBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "EventBody({:?})", self.generation)
    }
}

impl EventBody {
    /// Stream these choices.
    pub fn new(generation: Generation, frontend: Arc<dyn TextFrontend>) -> Self {
        let writer = ChunkWriter::new(&generation);
        let offsets = vec![CompletionOffsets::default(); generation.len()];
        let (delta, out) = (Delta::default(), BytesMut::with_capacity(4096));
        let mut untold = vec![generation.request.token_ids; generation.len()];
        if generation.request.shape == Shape::Chat {
            // The prompt is everybody's.
            untold[1..].fill(false);
        }
        Self { generation: Some(generation), frontend, writer, offsets, delta, out, begun: false, untold }
    }

    /// The last frame has been handed out.
    pub fn is_over(&self) -> bool {
        self.generation.is_none() && self.out.is_empty()
    }

    /// All that is ready, or `None` at the end.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let Some(mut generation) = self.generation.take() else { return Poll::Ready(None) };
        if !self.begun {
            self.begun = true;
            if generation.request.shape == Shape::Chat {
                for choice in 0..generation.len() {
                    let prompt = prompt_once(&mut self.untold, &generation, choice);
                    self.writer.role(&mut self.out, choice, Ids { prompt, answer: &[] });
                }
            }
        }
        match self.poll_choices(&mut generation, context) {
            Ok(true) => {
                if generation.request.include_usage {
                    self.writer.usage(&mut self.out, &generation);
                }
                ChunkWriter::done(&mut self.out);
            }
            Ok(false) => {
                self.generation = Some(generation);
                if self.out.is_empty() {
                    return Poll::Pending;
                }
            }
            Err(error) => {
                // The error stands where the finish would, so that a cut answer cannot look complete.
                ChunkWriter::error(&mut self.out, &error);
                ChunkWriter::done(&mut self.out);
            }
        }
        Poll::Ready(Some(self.out.split().freeze()))
    }

    /// True when every choice has ended. Leaves early, with more to come, when the frame is full.
    fn poll_choices(&mut self, generation: &mut Generation, context: &mut Context<'_>) -> Result<bool, ApiError> {
        let mut all_over = true;
        for choice in 0..generation.len() {
            while !generation.is_over(choice) {
                if self.out.len() >= FRAME_BYTES_MAX {
                    return Ok(false);
                }
                self.delta.clear();
                match generation.poll_choice(choice, context, &mut self.delta) {
                    Poll::Pending => {
                        all_over = false;
                        break;
                    }
                    Poll::Ready(progress) => self.write(generation, choice, progress)?,
                }
            }
        }
        if !all_over
            && self.out.is_empty()
            && let Poll::Ready(error) = generation.poll_interruption(context)
        {
            return Err(error);
        }
        Ok(all_over)
    }

    fn write(&mut self, generation: &Generation, choice: usize, progress: Progress) -> Result<(), ApiError> {
        let request = &generation.request;
        let skip_special = request.output.skip_special_tokens;
        match progress {
            Progress::Failed(message) => return Err(ApiError::internal(message)),
            Progress::Started { prompt_logprobs } => {
                let prompt = &request.prompts[generation.prompt_index(choice)];
                if let Some(echo) = &prompt.echo {
                    let report = request.logprobs.map(|top| {
                        let tokens = echo_tokens(&prompt.ids, prompt_logprobs.as_deref());
                        self.offsets[choice].report(&*self.frontend, tokens, top, skip_special)
                    });
                    let ids = Ids { prompt: prompt_once(&mut self.untold, generation, choice), answer: &[] };
                    self.writer.text(&mut self.out, choice, echo, report.as_ref(), ids);
                }
                if request.prompt_only {
                    self.writer.finish(&mut self.out, choice, Ending::Length, Ids::default());
                }
                return Ok(());
            }
            Progress::Token | Progress::Ended(_) => {}
        }
        let mut answer = &self.delta.ids[..];
        // An end that nobody sees goes into the last chunk.
        let is_whole = matches!(progress, Progress::Ended(_)) || answer.is_empty();
        if !self.delta.says_nothing() || !is_whole {
            let report = request.logprobs.filter(|_| !self.delta.tokens.is_empty()).map(|top| match request.shape {
                Shape::Chat => logprobs::chat(&*self.frontend, &self.delta.tokens, top),
                Shape::Completion => {
                    let tokens = self.delta.tokens.iter().map(|token| (token.id, token.logprobs.as_ref()));
                    self.offsets[choice].report(&*self.frontend, tokens, top, skip_special)
                }
            });
            let prompt = prompt_once(&mut self.untold, generation, choice);
            let ids = Ids { prompt, answer: std::mem::take(&mut answer) };
            self.writer.piece(&mut self.out, choice, &self.delta.piece, report.as_ref(), ids);
        }
        if let Progress::Ended(ending) = progress {
            let prompt = prompt_once(&mut self.untold, generation, choice);
            self.writer.finish(&mut self.out, choice, ending, Ids { prompt, answer });
        }
        Ok(())
    }
}
