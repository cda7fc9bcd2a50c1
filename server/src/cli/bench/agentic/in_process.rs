//! The engine in this process as a target: ids go in and come out, so everything about them is exact.

use std::time::Instant;

use serde_json::{Map, Value};
use tokenspeed_core::request::{Event, Request, SamplingParams};

use super::target::{Answer, Ask, EngineCounters, Prompt, Target};
use crate::{
    engine_setup::Loaded,
    frontend::EncodedPrompt,
    http::{request::RequestContext, tokenize},
};

/// A loaded model.
#[derive(Debug)]
pub struct InProcess {
    loaded: Loaded,
    pool: Vec<u32>,
}

impl InProcess {
    /// Over this model. Prompts are made of all ids but the lowest, where vocabularies keep their special ones, as far as
    /// there are others.
    pub fn new(loaded: Loaded) -> Self {
        let vocab = loaded.engine.limits().vocab_size.max(1);
        let is_ordinary = |id: &u32| !loaded.frontend.is_special(*id);
        let pool: Vec<u32> = (3.min(vocab - 1)..vocab).filter(is_ordinary).collect();
        Self { loaded, pool }
    }

    /// The model has recurrent states.
    pub fn has_states(&self) -> bool {
        self.loaded.engine.metrics().states_total > 0
    }

    fn encode_chat(&self, messages: &[Value], tools: &[Value]) -> Result<EncodedPrompt, String> {
        let mut body = Map::new();
        body.insert("messages".into(), messages.into());
        if !tools.is_empty() {
            body.insert("tools".into(), tools.into());
        }
        let limits = self.loaded.engine.limits();
        let names = [self.loaded.info.name.clone()];
        let context = RequestContext {
            frontend: &*self.loaded.frontend,
            limits: &limits,
            defaults: self.loaded.info.defaults,
            seed: None,
            model_names: &names,
        };
        // The server's own route, so that a conversation is encoded and refused exactly as over HTTP.
        tokenize::encode(body, context).map_err(|error| error.message)
    }

    /// Forget all cached prefixes.
    pub fn flush(&self) -> Result<(), String> {
        self.loaded.engine.flush_cache()
    }
}

impl Target for InProcess {
    fn ask(&self, ask: Ask) -> Result<Answer, String> {
        let (prompt, boundaries) = match ask.prompt {
            Prompt::Ids(ids) => (ids, ask.shared.into_iter().collect()),
            Prompt::Chat { messages, tools } => {
                let EncodedPrompt { ids, boundaries, .. } = self.encode_chat(&messages, &tools)?;
                (ids, boundaries)
            }
        };
        let sampling = SamplingParams {
            temperature: if ask.seed.is_some() { 1.0 } else { 0.0 },
            seed: ask.seed.unwrap_or(0),
            max_tokens: ask.max_tokens,
            ignore_eos: true,
            ..SamplingParams::default()
        };
        let cache_salt = Some(ask.salt);
        let request = Request { prompt: prompt.clone(), sampling, cache_salt, boundaries, ..Request::default() };
        let start = Instant::now();
        let mut events = self.loaded.engine.submit(request).map_err(|error| error.to_string())?;
        let mut answer = Answer { prompt: Some(prompt), is_exact: true, ..Answer::default() };
        let mut ids = Vec::with_capacity(ask.max_tokens as usize);
        loop {
            match events.blocking_next() {
                Some(Event::Started { .. }) => {}
                Some(Event::Token { id, .. }) => {
                    if ids.is_empty() {
                        answer.first = start.elapsed();
                    }
                    ids.push(id);
                }
                Some(Event::Finished { usage, .. }) => {
                    answer.whole = start.elapsed();
                    answer.prompt_tokens = usage.prompt_tokens.into();
                    answer.cached_tokens = Some(usage.cached_tokens.into());
                    answer.answer_tokens = usage.completion_tokens.into();
                    answer.ids = Some(ids);
                    return Ok(answer);
                }
                Some(Event::Failed { message }) => return Err(message),
                None => return Err("the engine closed the request without a result".into()),
            }
        }
    }

    fn pool(&self) -> Option<&[u32]> {
        Some(&self.pool)
    }

    fn encode(&self, prompt: &Prompt) -> Result<Option<Vec<u32>>, String> {
        match prompt {
            Prompt::Ids(ids) => Ok(Some(ids.clone())),
            Prompt::Chat { messages, tools } => Ok(Some(self.encode_chat(messages, tools)?.ids)),
        }
    }

    fn counters(&self) -> Option<EngineCounters> {
        let metrics = self.loaded.engine.metrics();
        Some(EngineCounters {
            preemptions: metrics.preemptions,
            cut_tokens: metrics.cut_tokens,
            steps: metrics.steps,
            pages: metrics.pages_total,
        })
    }

    fn page_tokens(&self) -> u32 {
        self.loaded.engine.limits().prefix_granularity
    }

    fn max_tokens(&self) -> Option<u32> {
        Some(self.loaded.engine.limits().max_model_len)
    }

    fn describe(&self) -> String {
        format!("{} in this process, token ids in and out", self.loaded.info.name)
    }
}

/// A list of ids; `None` if it is no such list.
pub fn ids_of(value: &Value) -> Option<Vec<u32>> {
    value.as_array()?.iter().map(|id| u32::try_from(id.as_u64()?).ok()).collect()
}
