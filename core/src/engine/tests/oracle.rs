//! What a request must hear, from its tokens alone: no scheduler, no cache, no batch.

use super::fake;
use crate::{
    engine::EngineConfig,
    grammar::TokenMask,
    request::{Event, FinishReason, Request, Usage},
    sampler::{History, RowContext, SampleError, Sampler},
};

/// All events; `cached_tokens` is 0.
pub fn alone(request: &Request, config: &EngineConfig) -> Vec<Event> {
    let mut sampler = Sampler::new(config.tokenizer_vocab_size);
    let sampling = &request.sampling;
    let after = |tokens: &[u32]| {
        let mut row = Vec::new();
        fake::logits(tokens.iter().fold(fake::EMPTY, |f, &t| fake::mix(f, t)), config, &mut row);
        row
    };
    let prompt_logprobs = sampling.prompt_logprobs.map(|k| {
        let score = |at: usize| sampler.score(&after(&request.prompt[..at]), request.prompt[at], k).unwrap();
        (1..request.prompt.len()).map(score).collect()
    });
    let mut events = vec![Event::Started { cached_tokens: 0, prompt_logprobs }];
    let mut tokens = request.prompt.clone();
    let mut history = History::new(sampling, &tokens, 1);
    let mut n_generated = 0;
    let mut reason = FinishReason::Length;
    let mut constraint = request.constraint.clone();
    let mut mask = TokenMask::new(config.tokenizer_vocab_size);
    while n_generated < sampling.max_tokens && tokens.len() < config.max_model_len as usize {
        let eos_ids: &[u32] = if sampling.ignore_eos { &[] } else { &config.eos_ids };
        let context =
            RowContext { params: sampling, history: &history, tokens: &tokens, n_generated, eos_ids, mask: None };
        let sampled = match &mut constraint {
            None => sampler.sample(&after(&tokens), &context),
            Some(constraint) => {
                mask.clear();
                let made = constraint.mask(&mut mask).map_err(SampleError::from);
                made.and_then(|()| sampler.sample(&after(&tokens), &RowContext { mask: Some(&mask), ..context }))
            }
        };
        match sampled {
            Ok(choice) => {
                n_generated += 1;
                tokens.push(choice.id);
                history.push(choice.id);
                events.push(Event::Token { id: choice.id, logprobs: choice.logprobs });
                if eos_ids.contains(&choice.id) || sampling.stop_token_ids.contains(&choice.id) {
                    reason = FinishReason::Stop;
                    break;
                }
                if let Some(constraint) = &mut constraint {
                    constraint.accept(choice.id).unwrap();
                    if constraint.is_complete() {
                        reason = FinishReason::Stop;
                        break;
                    }
                }
            }
            Err(error) => {
                if n_generated == 0 {
                    events.clear();
                }
                events.push(Event::Failed { message: error.to_string() });
                return events;
            }
        }
    }
    let prompt_tokens = request.prompt.len() as u32;
    events.push(Event::Finished {
        reason,
        usage: Usage { prompt_tokens, cached_tokens: 0, completion_tokens: n_generated },
    });
    events
}

/// The same events with `cached_tokens` set to 0, and what it was.
pub fn without_cached_tokens(events: &[Event]) -> (Vec<Event>, u32) {
    let mut events = events.to_vec();
    let mut cached = 0;
    for event in &mut events {
        match event {
            Event::Started { cached_tokens, .. } => cached = std::mem::take(cached_tokens),
            Event::Finished { usage, reason } if *reason != FinishReason::Abort => {
                assert_eq!(std::mem::take(&mut usage.cached_tokens), cached, "both reports agree");
            }
            _ => {}
        }
    }
    (events, cached)
}
