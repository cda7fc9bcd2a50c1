//! Requests come, wait for others to end, and are given up.

use tokenspeed_core::{engine::SubmitError, request::Request};

use super::Simulation;
use crate::{
    alone::Alone,
    check::{Check, Failure, ensure},
    ears::{Asked, EarlyEnd},
    scenario::{Arrival, Origin},
    world::{Truth, Wishes},
};

/// Steps that a request may need, whatever its length: where texts are longer than this, so are the chunks of every step.
const STEPS_MAX: u32 = 20_000;

impl<'s> Simulation<'s> {
    pub(super) fn arrive(&mut self) -> Result<(), Failure> {
        while let Some(arrival) = self.scenario.arrivals.get(self.next_arrival).filter(|a| a.tick <= self.tick) {
            self.next_arrival += 1;
            self.held_back.push(arrival);
        }
        for arrival in std::mem::take(&mut self.held_back) {
            if self.must_wait(arrival) { self.held_back.push(arrival) } else { self.submit(arrival)? }
        }
        Ok(())
    }

    /// A turn that waits for the end of another, which is here and has not ended or is still to come.
    pub(super) fn must_wait(&self, arrival: &Arrival) -> bool {
        let Origin::Turn { of, waits: true } = arrival.text.origin else { return false };
        match self.ids.get(&of) {
            Some(id) => !self.ears.asked[id].is_over,
            None => self.held_back.iter().any(|other| other.label == of),
        }
    }

    /// Tokens that a request must find in either tier by what a router knows: if nobody disturbs it, and host memory has
    /// room for all that may go there meanwhile.
    fn must_load(&self, request: &Request) -> Option<u32> {
        let metrics = self.engine.metrics();
        let has_room = metrics.host_pages[0] + metrics.pages_total <= metrics.host_pages[1];
        let is_quiet = self.engine.is_idle() && self.wire.is_empty() && self.scenario.wire.trouble == 0;
        let is_plain = !self.promises.has_state() && self.scenario.faults.is_empty();
        if !(has_room && is_quiet && is_plain && self.is_looked_through() && request.sampling.prompt_logprobs.is_none())
        {
            return None;
        }
        let [here, anywhere] = self.told.known(request, &request.prompt, self.scenario.config.block_tokens);
        (anywhere > here).then_some(anywhere)
    }

    pub(super) fn submit(&mut self, arrival: &'s Arrival) -> Result<(), Failure> {
        let config = &self.scenario.config;
        let origin = match arrival.text.origin {
            Origin::Base(number) => self.scenario.base(number),
            Origin::Turn { of, .. } => match self.ids.get(&of) {
                Some(id) => self.ears.asked[id].alone.tokens().to_vec(),
                None => self.scenario.base(0),
            },
        };
        let max = config.max_model_len - u32::from(arrival.sampling.max_tokens > 0);
        let prompt = arrival.text.resolve(origin, config.tokenizer_vocab_size, max);
        let boundaries = arrival.text.boundaries(&prompt, &arrival.boundaries);
        let request = Request {
            prompt,
            boundaries,
            sampling: arrival.sampling.clone(),
            priority: arrival.priority,
            cache_salt: arrival.salt.clone(),
            constraint: arrival.grammar.as_ref().map(|g| g.constraint(config.tokenizer_vocab_size, &config.eos_ids)),
        };
        if let Some(door) = &mut self.door
            && !door.asks(request.priority, request.prompt.len() as u32)?
        {
            self.outcome.tally.early_refusals += 1;
            return Ok(());
        }
        let must_load = self.must_load(&request);
        let waiting = self.engine.metrics().waiting;
        let id = match self.engine.submit(request.clone(), self.now_ns) {
            Ok(id) => id,
            Err(SubmitError::QueueFull { .. }) if waiting >= u64::from(config.max_waiting) => {
                self.outcome.tally.refused += 1;
                return Ok(());
            }
            Err(error) => {
                return Err(Failure::new(Check::Heard, format!("request {} was refused: {error}", arrival.label)));
            }
        };
        // Whoever else comes may take the memory it needs.
        self.ears.asked.values_mut().for_each(|asked| asked.must_load = None);
        let alone = Alone::new(request, arrival.grammar.clone());
        // One for nothing, where the step behind was under way when it ended.
        self.steps_left += u64::from(alone.max_len(config).min(STEPS_MAX)) + 1 + u64::from(config.relay);
        let truth = Truth::new(arrival.salt.as_deref(), &alone.request.prompt);
        let sampling = alone.request.sampling.clone();
        let eos_ids = if sampling.ignore_eos { Vec::new() } else { config.eos_ids.clone() };
        let (prompt_tokens, grammar) = (alone.request.prompt.len(), arrival.grammar.clone());
        let wishes = Wishes { sampling, prompt_tokens, eos_ids, grammar };
        let mut world = self.registered.world.lock();
        world.truths.insert(id, truth);
        world.wishes.insert(id, wishes);
        drop(world);
        let asked = Asked {
            label: arrival.label,
            must_hit: self.promises.must_hit(&alone.request),
            must_load,
            submitted_ns: self.now_ns,
            alone,
            is_over: false,
            is_whole: false,
            tick: self.tick,
            abort: arrival.abort,
            cached_tokens: None,
            heard: Vec::new(),
        };
        self.ids.insert(arrival.label, id);
        self.ears.asked.insert(id, asked);
        self.outcome.tally.requests += 1;
        self.conserve()
    }

    pub(super) fn give_up(&mut self, in_flight: bool) -> Result<(), Failure> {
        let tick = self.tick;
        let is_due = |asked: &&Asked| {
            asked.abort.is_some_and(|abort| abort.in_flight == in_flight && tick >= asked.tick + abort.after)
        };
        let due: Vec<_> = self.ears.asked.iter().filter(|(_, asked)| is_due(asked)).map(|(id, _)| *id).collect();
        for id in due {
            let asked = self.ears.asked.get_mut(&id).expect("just found");
            asked.abort = None;
            let was_open = !asked.is_over;
            self.outcome.tally.loads_aborted += u64::from(self.engine.loading().any(|other| other == id));
            self.ears.early = Some(EarlyEnd::Abort(id));
            let ears = &mut self.ears;
            let mut deliver = |id, event| ears.hear(id, event);
            let (first, second) = (self.engine.abort(id, &mut deliver), self.engine.abort(id, &mut deliver));
            self.ears.early = None;
            ensure((first, second) == (was_open, false), Check::Heard, || {
                format!("aborting {id:?} (not ended: {was_open}) twice said {first} and {second}")
            })?;
            ensure(self.ears.asked[&id].is_over, Check::Heard, || format!("{id:?} did not hear its abort"))?;
            self.outcome.tally.aborts += u64::from(was_open);
            self.heard()?;
            self.conserve()?;
        }
        Ok(())
    }
}
