//! What a step's logits mean for each request: prompt reports, the next token, the end.

use super::{Counters, Deliver, EngineConfig, Replay, Results};
use crate::{
    bug::seeded,
    cache::{memory::Memory, recurrent::StateSlots},
    request::{Event, FinishReason, TokenLogprobs},
    sampler::{Choice, RowContext, SampleError, Sampler},
    scheduler::{
        queue::Running,
        sequence::{Body, Decoding, Ending, Runs, Sequence},
    },
    speculation::branches::Branch,
};

/// Everything needed while a step is taken in.
pub(super) struct Taker<'a, 'd> {
    pub config: &'a EngineConfig,
    pub memory: &'a mut Memory,
    pub sampler: &'a mut Sampler,
    pub counters: &'a mut Counters,
    /// Guesses have a pass of their own.
    pub verifies: bool,
    /// Where guesses are committed.
    pub replay: &'a mut Replay,
    pub results: Results<'a>,
    pub deliver: &'a mut Deliver<'d>,
}

fn row_of<'a>(logits: &'a [f32], config: &EngineConfig, at: u32) -> &'a [f32] {
    let width = config.vocab_size as usize;
    &logits[at as usize * width..][..width]
}

impl Taker<'_, '_> {
    /// Take in one request; `None` once it has ended and no step needs its memory. What it has in the step behind is in
    /// flight from now on.
    pub fn take_in(&mut self, running: Running) -> Option<Running> {
        let mut running = self.take_in_step(running)?;
        running.parts_mut().1.move_up();
        Some(running)
    }

    fn take_in_step(&mut self, running: Running) -> Option<Running> {
        let mut sequence = match running {
            Running::Leaving(_) if seeded!(AbortKeepsPages) => return None,
            Running::Leaving(mut sequence) if sequence.active().behind.is_some() => {
                if sequence.active().planned > 0 {
                    sequence.complete_step(self.memory, 0);
                }
                return Some(Running::Leaving(sequence));
            }
            Running::Leaving(sequence) => {
                sequence.let_go(self.memory).close(self.memory);
                return None;
            }
            _ if running.parts().1.planned == 0 => return Some(running),
            Running::Decoding(sequence) => return self.sample(sequence),
            Running::Prefilling(sequence) => sequence,
        };
        if let Err(error) = self.report_prompt(&mut sequence) {
            return self.fail(sequence, error);
        }
        let (body, active) = sequence.parts_mut();
        if active.computed + active.planned == body.len() && body.len() < body.max_len {
            return self.sample(sequence.complete());
        }
        sequence.complete_step(self.memory, 0);
        let (body, active) = sequence.parts_mut();
        if active.computed < body.len() {
            sequence.publish(self.memory);
            return Some(Running::Prefilling(sequence));
        }
        // Nothing is to be generated: the prompt was only scored.
        self.start(body);
        self.finish(sequence, FinishReason::Length)
    }

    /// Score the prompt tokens that follow this step's prompt rows.
    fn report_prompt<S: Runs>(&mut self, sequence: &mut Sequence<S>) -> Result<(), SampleError> {
        let (body, active) = sequence.parts_mut();
        for at in 0..active.n_prompt_logit_rows {
            let reports = body.prompt_logprobs.as_mut().expect("rows are planned only if asked for");
            let id = body.tokens[reports.len() + 1];
            let k = body.sampling.prompt_logprobs.expect("asked for");
            let Results::Logits(logits) = self.results else {
                unreachable!("the host samples steps that report prompts")
            };
            let row = row_of(logits.forward, self.config, active.first_logit_row + at);
            reports.push(self.sampler.score(row, id, k)?);
        }
        Ok(())
    }

    fn start(&mut self, body: &mut Body) {
        if body.is_started {
            return;
        }
        body.is_started = true;
        let cached_tokens = body.cached_tokens.expect("it was admitted");
        self.counters.prompt_tokens += u64::from(body.prompt_tokens);
        self.counters.cached_tokens += u64::from(cached_tokens);
        let prompt_logprobs: Option<Vec<TokenLogprobs>> = body.prompt_logprobs.take();
        (self.deliver)(body.id, Event::Started { cached_tokens, prompt_logprobs });
    }

    /// Choose the next token of a request whose tokens are all computed, and, as long as a guess was right, the one that
    /// follows it.
    fn sample(&mut self, mut sequence: Sequence<Decoding>) -> Option<Running> {
        let is_first = !sequence.body.is_started;
        let mut accepted = 0;
        // The side branch that turned out right.
        let mut side: Option<usize> = None;
        let reason = loop {
            let id = match self.sample_row(&mut sequence, accepted, side) {
                Ok(id) => id,
                Err(error) => return self.fail(sequence, error),
            };
            let body = &sequence.body;
            let is_eos = !body.sampling.ignore_eos && self.config.eos_ids.contains(&id);
            // The answer is whole: an end-of-sequence token would say what is known.
            let is_whole = !is_eos
                && match sequence.body.guide.guard().map(|guard| guard.accept(id)) {
                    None => false,
                    Some(Ok(is_whole)) => is_whole && !seeded!(WholeAnswerGoesOn),
                    Some(Err(error)) => return self.fail(sequence, error.into()),
                };
            let body = &sequence.body;
            let is_hidden = seeded!(LengthHidesStop) && body.len() == body.max_len;
            if (is_eos || is_whole || body.sampling.stop_token_ids.contains(&id)) && !is_hidden {
                break Some(FinishReason::Stop);
            }
            if body.len() == body.max_len {
                break Some(FinishReason::Length);
            }
            let branches = body.drafts.branches.open();
            let guess = match side {
                None => body.drafts.ids.get(accepted as usize),
                Some(at) => branches[at].ids.get((accepted - branches[at].fork) as usize),
            };
            if guess != Some(&id) && !(guess.is_some() && seeded!(WrongGuessIsAccepted)) {
                let leaves = |branch: &Branch| branch.fork == accepted && branch.ids[0] == id;
                let Some(at) = branches.iter().position(leaves).filter(|_| side.is_none()) else { break None };
                side = Some(at);
            }
            accepted += 1;
        };
        self.complete(&mut sequence, accepted, side);
        if let Some(reason) = reason {
            if seeded!(WastedTokenIsHeard) && sequence.active().behind.is_some() {
                (self.deliver)(sequence.body.id, Event::Finished { reason, usage: sequence.body.usage() });
                return Some(Running::Decoding(sequence));
            }
            return self.finish(sequence, reason);
        }
        if is_first {
            // The prompt is whole only now; generated pages follow at the end.
            sequence.publish(self.memory);
        }
        Some(Running::Decoding(sequence))
    }

    /// The step has run and `accepted` of its guesses were right; the others' rows are as if never computed.
    fn complete(&mut self, sequence: &mut Sequence<Decoding>, accepted: u32, side: Option<usize>) {
        let (body, active) = sequence.parts_mut();
        let n_drafts = body.drafts.len();
        let branch = side.map(|at| &body.drafts.branches.open()[at]);
        let (fork, offset) = (branch.map(|branch| branch.fork), branch.map_or(0, |branch| branch.offset));
        let offset = if seeded!(BranchIsNotMoved) { 0 } else { offset };
        if self.verifies && n_drafts > 0 || branch.is_some() {
            let slots = active.lease.state_slots().unwrap_or_default();
            let mut end = active.computed + active.planned - n_drafts + accepted;
            if seeded!(ReplayOneTokenShort) && accepted > 0 {
                end -= 1;
            } else if seeded!(RejectedGuessIsReplayed) && accepted < n_drafts {
                end += 1;
            }
            let ids = &body.tokens[active.computed as usize..end as usize];
            let read = if seeded!(ReplayReadsWhatItWrites) { slots.write } else { slots.read };
            let slots = StateSlots { read, ..slots };
            if !seeded!(ReplayIsSkipped) {
                self.replay.add(active.lease.row(), active.computed, slots, ids, offset);
            }
        }
        self.counters.drafts.iter_mut().take(n_drafts as usize).for_each(|n| *n += 1);
        self.counters.accepted.iter_mut().take(accepted as usize).for_each(|n| *n += 1);
        self.counters.branches[0] += body.drafts.branches.open().len() as u64;
        self.counters.branches[1] += u64::from(fork.is_some());
        body.drafts.observe(accepted, fork);
        sequence.complete_step(self.memory, if seeded!(RejectedGuessCounts) { 0 } else { n_drafts - accepted });
    }

    /// Sample the row behind `n` right guesses, the last of them on a side branch if there is one, and deliver its token.
    fn sample_row(
        &mut self,
        sequence: &mut Sequence<Decoding>,
        n: u32,
        side: Option<usize>,
    ) -> Result<u32, SampleError> {
        let config = self.config;
        let (body, active) = sequence.parts_mut();
        let is_verified = self.verifies && !body.drafts.is_empty();
        let n_before = if seeded!(PromptRowsShiftTheSample) { 0 } else { active.n_prompt_logit_rows };
        let branch = side.filter(|_| !seeded!(BranchLogitsAreTheChains)).map(|at| &body.drafts.branches.open()[at]);
        let at = match branch {
            None => active.first_logit_row + n_before + n,
            Some(branch) => branch.first_logit_row + n - branch.fork - 1,
        };
        let logits = match self.results {
            Results::Logits(logits) if is_verified => logits.verify,
            Results::Logits(logits) => logits.forward,
            Results::Sampled(sampled) => {
                assert_eq!(active.n_prompt_logit_rows, 0, "the host samples steps that report prompts");
                // Without a mask, what was sampled counts for nothing.
                body.guide.guard().map(|guard| guard.mask(n).map(drop)).transpose()?;
                let sampled = if is_verified { sampled.verify } else { sampled.forward };
                let reports = body.sampling.logprobs.is_some();
                let mut choice = sampled.token(at, config.tokenizer_vocab_size, reports)?;
                if seeded!(LogprobsOfTheFirstRowForAll) {
                    let first = sampled.token(active.first_logit_row, config.tokenizer_vocab_size, reports)?;
                    choice.logprobs = first.logprobs;
                }
                return Ok(self.say(&mut sequence.body, choice));
            }
        };
        let n_generated = body.n_generated();
        let mask = body.guide.guard().map(|guard| guard.mask(n)).transpose()?;
        let context = RowContext {
            mask,
            params: &body.sampling,
            history: &body.history,
            tokens: &body.tokens,
            n_generated,
            eos_ids: if body.sampling.ignore_eos { &[] } else { &config.eos_ids },
        };
        let row = row_of(logits, config, at);
        let choice = self.sampler.sample(row, &context)?;
        Ok(self.say(&mut sequence.body, choice))
    }

    /// A token has been sampled.
    fn say(&mut self, body: &mut Body, choice: Choice) -> u32 {
        let is_first = !body.is_started;
        self.start(body);
        body.tokens.push(choice.id);
        if !(is_first && seeded!(FirstTokenIsNotPenalised)) {
            body.history.push(choice.id);
        }
        self.counters.generation_tokens += 1;
        (self.deliver)(body.id, Event::Token { id: choice.id, logprobs: choice.logprobs });
        choice.id
    }

    fn finish<S: Runs>(&mut self, sequence: Sequence<S>, reason: FinishReason) -> Option<Running> {
        let (id, usage) = (sequence.body.id, sequence.body.usage());
        self.counters.finish(reason);
        (self.deliver)(id, Event::Finished { reason, usage });
        if sequence.active().behind.is_none() || seeded!(FreedBeforeTheStepBehind) {
            sequence.finish(self.memory).close(self.memory);
            return None;
        }
        // It is computed once for nothing; what it said is known, and can be found, now.
        Some(Running::Leaving(sequence.finish_behind(self.memory)))
    }

    /// A row that cannot be sampled ends its own request, and what it published is not trusted.
    fn fail<S: Runs>(&mut self, mut sequence: Sequence<S>, error: SampleError) -> Option<Running> {
        self.counters.fail();
        (self.deliver)(sequence.body.id, Event::Failed { message: error.to_string() });
        let ending = match error {
            SampleError::NotFinite { .. } | SampleError::Device { .. } if !seeded!(DoubtfulPagesStayCached) => {
                Ending::Discard
            }
            SampleError::NotFinite { .. }
            | SampleError::Device { .. }
            | SampleError::NothingLeft
            | SampleError::Constraint(_) => Ending::Release,
        };
        if sequence.active().behind.is_some() {
            sequence.complete_step(self.memory, 0);
            return Some(Running::Leaving(sequence.leave(ending)));
        }
        match ending {
            Ending::Discard => sequence.discard(self.memory),
            Ending::Release => sequence.drop_memory(self.memory),
        }
        .close(self.memory);
        None
    }
}
