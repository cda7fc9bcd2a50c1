//! Shares of a step's prompt tokens by policy, and how often each request was overtaken.
//!
//! Used by policies that do not go by arrival. Before a step is planned, everybody who could compute prompt tokens in it
//! is put in the policy's order: the running ones, and as many waiting ones as there are free seats. Tokens are dealt out in
//! that order; what is dealt to waiting ones is kept from the running ones. Cost: O(running + waiting) a step, and
//! no allocation; the default policy does not pay it.

use super::{Policy, Prefill};
use crate::{
    bug::seeded,
    request::RequestId,
    scheduler::{
        queue::{Queues, Running, Waiting},
        sequence::{Body, Rank},
    },
};

/// Smaller goes first.
type Key = (i32, u64, u64);

#[derive(Clone, Copy, Debug)]
struct Contender {
    key: Key,
    /// Most tokens it can use.
    most: u32,
    /// Where in the list of running requests; `None` = it waits.
    running: Option<u32>,
    rank: Rank,
    id: RequestId,
}

/// Order and shares of one step. Reused.
#[derive(Debug)]
pub struct Turns {
    contenders: Vec<Contender>,
    /// Next contender to look at for admission.
    next: usize,
    /// By place in the list of running requests.
    shares: Vec<u32>,
    /// Per class, the last arrival that computes prompt tokens.
    latest: Vec<Rank>,
}

fn key(policy: &dyn Policy, body: &Body, remaining: u32, returns: bool) -> Key {
    let prefill = Prefill { remaining, overtaken_steps: body.overtaken_steps };
    let place = if returns && !seeded!(NewGoesBeforeReturning) { 0 } else { 1 + policy.place(&prefill) };
    (body.rank.0, place, body.rank.1)
}

impl Turns {
    /// Room for everybody is reserved.
    pub fn new(max_waiting: u32, max_running: u32) -> Self {
        let (waiting, running) = (max_waiting as usize, max_running as usize);
        Self {
            contenders: Vec::with_capacity(waiting + 2 * running),
            next: 0,
            shares: Vec::with_capacity(running),
            latest: Vec::with_capacity(running),
        }
    }

    /// Deal out `tokens`, at most `cap` to each request. `chunk` says how many of a running request's tokens a chunk of at
    /// most so many would take: (computed, end, most).
    pub fn deal(
        &mut self,
        policy: &dyn Policy,
        queues: &Queues,
        tokens: u32,
        cap: u32,
        n_free_seats: usize,
        chunk: impl Fn(&Running, u32) -> u32,
    ) {
        self.contenders.clear();
        self.shares.clear();
        self.next = 0;
        if n_free_seats > 0 {
            self.contenders.extend(queues.waiting.iter().map(|waiting| {
                let body = waiting.body();
                let key = key(policy, body, body.uncached, matches!(waiting, Waiting::Preempted(_)));
                Contender { key, most: body.uncached.min(cap), running: None, rank: body.rank, id: body.id }
            }));
            if self.contenders.len() > n_free_seats {
                self.contenders.select_nth_unstable_by_key(n_free_seats, |contender| contender.key);
                self.contenders.truncate(n_free_seats);
            }
        }
        for (at, running) in queues.iter_running().enumerate() {
            self.shares.push(0);
            if matches!(running, Running::Prefilling(_)) {
                let (body, active) = running.parts();
                let remaining = body.len() - active.computed;
                let key = key(policy, body, remaining, false);
                let running = Some(at as u32);
                self.contenders.push(Contender { key, most: cap, running, rank: body.rank, id: body.id });
            }
        }
        self.contenders.sort_unstable_by_key(|contender| contender.key);
        let mut left = tokens;
        for contender in &self.contenders {
            let most = contender.most.min(left);
            left -= match contender.running {
                None => most,
                Some(at) => {
                    let running = crate::scheduler::queue::present(&queues.running[at as usize]);
                    let share = chunk(running, most);
                    self.shares[at as usize] = share;
                    share
                }
            };
        }
    }

    /// Most prompt tokens of the running request at `at`.
    pub fn share(&self, at: usize) -> u32 {
        self.shares.get(at).copied().unwrap_or(u32::MAX)
    }

    /// From now on nobody is limited.
    pub fn lift(&mut self) {
        self.shares.clear();
    }

    /// Where the next request to admit waits.
    pub fn next_waiting(&mut self, queues: &Queues) -> Option<usize> {
        while let Some(contender) = self.contenders.get(self.next) {
            if contender.running.is_none() {
                let at = queues.waiting.partition_point(|waiting| waiting.body().rank < contender.rank);
                if queues.waiting.get(at).is_some_and(|waiting| waiting.body().id == contender.id) {
                    return Some(at);
                }
            }
            self.next += 1;
        }
        None
    }

    /// The step is planned: note who had to wait while a later request of its class computed prompt tokens.
    pub fn count_overtaken(&mut self, queues: &mut Queues) {
        self.latest.clear();
        for running in queues.running.iter().flatten() {
            let (body, active) = running.parts();
            if matches!(running, Running::Prefilling(_)) && active.planned > 0 {
                // Ascending ranks: the last of each class stays.
                match self.latest.last_mut() {
                    Some(latest) if latest.0 == body.rank.0 => *latest = body.rank,
                    _ => self.latest.push(body.rank),
                }
            }
        }
        let latest = &self.latest;
        let is_overtaken = |rank: Rank| latest.iter().any(|later| later.0 == rank.0 && later.1 > rank.1);
        for running in queues.running.iter_mut().flatten() {
            let is_prefilling = matches!(running, Running::Prefilling(_));
            let (body, active) = running.parts_mut();
            body.overtaken_steps += u32::from(is_prefilling && active.planned == 0 && is_overtaken(body.rank));
        }
        if !latest.is_empty() {
            for waiting in &mut queues.waiting {
                let body = waiting.body_mut();
                body.overtaken_steps += u32::from(is_overtaken(body.rank));
            }
        }
    }
}
