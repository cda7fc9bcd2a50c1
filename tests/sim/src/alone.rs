//! The oracle: what a request hears when it is alone, from its tokens and nothing else. No scheduler, no cache, no
//! batch, and every count made anew at every token.

use tokenspeed_core::{
    engine::EngineConfig,
    grammar::TokenMask,
    request::{Event, FinishReason, Request, Usage},
    sampler::{History, RowContext, SampleError, Sampler},
};

use crate::{fingerprint, grammar::Grammar, world::Truth};

/// Says what may follow an answer: `None` = anything.
fn mask_of(grammar: Option<&Grammar>, answer: &[u32], n_ids: u32) -> Result<Option<TokenMask>, SampleError> {
    Ok(grammar.map(|grammar| grammar.mask(answer, n_ids)).transpose()?)
}

/// One request alone, token by token. Cached tokens are reported as 0.
#[derive(Debug)]
pub struct Alone {
    /// As submitted.
    pub request: Request,
    grammar: Option<Grammar>,
    truth: Truth,
    n_generated: u32,
    is_started: bool,
    next: std::collections::VecDeque<Event>,
}

impl Alone {
    /// Before its first event.
    pub fn new(request: Request, grammar: Option<Grammar>) -> Self {
        let truth = Truth::new(request.cache_salt.as_deref(), &request.prompt);
        Self { request, grammar, truth, n_generated: 0, is_started: false, next: Default::default() }
    }

    /// Tokens so far.
    pub fn tokens(&self) -> &[u32] {
        &self.truth.tokens
    }

    /// Generated tokens so far.
    pub fn n_generated(&self) -> u32 {
        self.n_generated
    }

    /// Length at which it must end.
    pub fn max_len(&self, config: &EngineConfig) -> u32 {
        (self.request.prompt.len() as u32).saturating_add(self.request.sampling.max_tokens).min(config.max_model_len)
    }

    /// Whether the next event needs logits; if not, it follows from the last token.
    pub fn needs_logits(&self) -> bool {
        self.next.is_empty()
    }

    /// Why the next token cannot be chosen, whatever the logits are.
    pub fn lacks_mask(&self, config: &EngineConfig) -> Option<SampleError> {
        let answer = &self.truth.tokens[self.request.prompt.len()..];
        mask_of(self.grammar.as_ref(), answer, config.tokenizer_vocab_size).err()
    }

    /// The answer is one that its grammar lets nothing follow.
    pub fn is_whole(&self) -> bool {
        let answer = &self.truth.tokens[self.request.prompt.len()..];
        self.grammar.as_ref().is_some_and(|grammar| grammar.is_whole(answer))
    }

    /// The next event.
    pub fn next(&mut self, config: &EngineConfig) -> Event {
        if self.next.is_empty() {
            self.turn(config);
        }
        self.next.pop_front().expect("a turn has an event")
    }

    fn turn(&mut self, config: &EngineConfig) {
        let mut sampler = Sampler::new(config.tokenizer_vocab_size);
        let sampling = self.request.sampling.clone();
        let after = |prefix: u64| {
            let mut row = vec![0.0; config.vocab_size as usize];
            fingerprint::logits(prefix, config.tokenizer_vocab_size as usize, &mut row);
            row
        };
        let (tokens, prompt) = (&self.truth.tokens, &self.request.prompt);
        if self.n_generated >= sampling.max_tokens || tokens.len() >= config.max_model_len as usize {
            self.start(&mut sampler, after);
            return self.end(FinishReason::Length);
        }
        let mut history = History::new(&sampling, prompt, tokens.len());
        tokens[prompt.len()..].iter().for_each(|&id| history.push(id));
        let eos_ids: &[u32] = if sampling.ignore_eos { &[] } else { &config.eos_ids };
        let n_generated = self.n_generated;
        let mask = mask_of(self.grammar.as_ref(), &tokens[prompt.len()..], config.tokenizer_vocab_size);
        let choice = mask.and_then(|mask| {
            let mask = mask.as_ref();
            let context = RowContext { params: &sampling, history: &history, tokens, n_generated, eos_ids, mask };
            sampler.sample(&after(self.truth.last()), &context)
        });
        match choice {
            Err(error) => self.next.push_back(failed(error)),
            Ok(choice) => {
                self.start(&mut sampler, after);
                self.truth.push(choice.id);
                self.n_generated += 1;
                self.next.push_back(Event::Token { id: choice.id, logprobs: choice.logprobs });
                if self.is_whole() || eos_ids.contains(&choice.id) || sampling.stop_token_ids.contains(&choice.id) {
                    self.end(FinishReason::Stop);
                } else if self.truth.tokens.len() as u32 == self.max_len(config) {
                    self.end(FinishReason::Length);
                }
            }
        }
    }

    fn start(&mut self, sampler: &mut Sampler, after: impl Fn(u64) -> Vec<f32>) {
        if std::mem::replace(&mut self.is_started, true) {
            return;
        }
        let prompt = &self.request.prompt;
        let prompt_logprobs = self.request.sampling.prompt_logprobs.map(|k| {
            let mut score = |at: usize| sampler.score(&after(self.truth.prefix[at]), prompt[at], k);
            (1..prompt.len()).map(|at| score(at).expect("the model's logits are finite")).collect()
        });
        self.next.push_back(Event::Started { cached_tokens: 0, prompt_logprobs });
    }

    /// Counts so far; cached tokens are 0.
    pub fn usage(&self) -> Usage {
        let prompt_tokens = self.request.prompt.len() as u32;
        Usage { prompt_tokens, cached_tokens: 0, completion_tokens: self.n_generated }
    }

    fn end(&mut self, reason: FinishReason) {
        let usage = self.usage();
        self.next.push_back(Event::Finished { reason, usage });
    }
}

/// The end of a request whose row cannot be sampled.
pub fn failed(error: SampleError) -> Event {
    Event::Failed { message: error.to_string() }
}
