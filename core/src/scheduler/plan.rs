//! Choosing a step: tokens for running requests first, then admissions, within the token, row and page budgets.
//!
//! * Every decoding request gets its token; what the step's budget leaves goes to prefill chunks, at least one chunk on
//!   the page grid, so neither kind starves the other.
//! * Pages run out: the request last in order of service loses its memory, but never to one behind it; a request that
//!   is last itself just waits a step. The first in order can always go on, hence so does everything, in the end.
//! * No thrash: a preempted request comes back first, and only when all its tokens, and a page for every request that
//!   runs, fit. A new one needs room for its next chunk (and its first generated token), with the same margin.
//! * Admission is strictly in the order of the [`Policy`]: a request that does not fit is not overtaken. A policy other
//!   than first come, first served also decides whose prompt tokens a step computes (see [`Turns`]); what its favourites
//!   could not use goes to the others in order of arrival.
//! * What was decided about whom, and why, is left in [`Scheduler::decisions`].
//! * A step can be planned ahead, while the one before it runs: what is in flight counts as done (see
//!   [`super::outlook`]), nobody loses memory, and what could not be given then is given when the step in flight has been
//!   taken in. The block is written after the ids are known, so the row of a request that turned out to have ended is left
//!   out; where the device relays ids, the block is written and run before that ([`behind`]).

mod admit;
mod behind;
mod guess;
mod limits;

pub use limits::StepLimits;
use tokenspeed_backend_api::abi::ts_table_delta;

use super::{
    decision::{Decisions, What, Why},
    marks,
    outlook::Outlook,
    policy::{Policy, Waiter, turns::Turns},
    queue::{Queues, Running, Waiting, present},
    sequence::{Active, Body, Share},
};
use crate::{
    bug::seeded,
    cache::{copies::LoadId, lease::Lease, memory::Memory},
    request::RequestId,
    speculation::{
        looks::Looks,
        width::{self, Offer, StepCost},
    },
};

/// Chooses steps; remembers only why the head of the queue could not be admitted.
pub struct Scheduler {
    limits: StepLimits,
    /// Wanted tokens per step, from the caller's cost model.
    step_tokens: u32,
    /// The waiting request that did not fit, and the release count then: no use trying before it changed.
    blocked: Option<(RequestId, u64)>,
    offers: Vec<Offer>,
    /// What came of prompt lookup; whoever runs steps tells it.
    pub looks: Looks,
    policy: Box<dyn Policy>,
    turns: Turns,
    /// Plans made, to look again at one waiting request now and then.
    n_plans: u64,
    /// Of the last plan.
    pub decisions: Decisions,
    /// Pages that requests which are not the policy's favourites leave free.
    kept_pages: u32,
    /// What a plan made ahead left of the step.
    ahead: Option<Budget>,
    /// `[table row]`: in use, while a plan made ahead is looked through.
    in_use: Vec<bool>,
    /// Changes of block tables that the device has not been told of yet; whoever writes a parameter block clears them.
    pub deltas: Vec<ts_table_delta>,
    /// Requests that lost their memory, since start.
    pub n_preemptions: u64,
    /// Tokens found in the prefix cache and computed again for want of a stored state, since start.
    pub n_cut_tokens: u64,
}

impl std::fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Scheduler({} tokens a step, blocked {:?})", self.step_tokens, self.blocked)
    }
}

/// Times a request waits for pages from host memory, at most.
const LOADS_MAX: u32 = 4;

/// Whether the step before the one being planned has been taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Now,
    Ahead,
}

/// What is left of a step for prefill.
struct Budget {
    tokens: u32,
    /// Rows of prompt logits beyond the one row each request may need anyway.
    prompt_logit_rows: u32,
}

impl Scheduler {
    /// With nothing planned.
    pub fn new(limits: StepLimits, max_waiting: u32, policy: Box<dyn Policy>) -> Self {
        Self {
            turns: Turns::new(if policy.is_first_come() { 0 } else { max_waiting }, limits.max_num_seqs),
            policy,
            n_plans: 0,
            decisions: Decisions::new(limits.max_num_seqs),
            step_tokens: limits.max_batch_tokens,
            blocked: None,
            deltas: Vec::with_capacity(limits.max_deltas as usize),
            n_preemptions: 0,
            n_cut_tokens: 0,
            offers: Vec::with_capacity(limits.max_num_seqs as usize),
            looks: Looks::default(),
            kept_pages: 0,
            ahead: None,
            in_use: vec![false; limits.table_rows as usize],
            limits,
        }
    }

    /// As given.
    pub fn limits(&self) -> &StepLimits {
        &self.limits
    }

    /// Tokens wanted per step from now on.
    pub fn set_step_tokens(&mut self, tokens: u32) {
        self.step_tokens = tokens;
    }

    /// Plan a step: sets `planned` of the requests that take part, `deltas` and `decisions`. What was planned ahead is kept,
    /// as far as its requests still run.
    pub fn plan(&mut self, now_ns: u64, queues: &mut Queues, memory: &mut Memory, cost: &StepCost) {
        let left = self.ahead.take();
        self.forget_deltas_of_the_gone(queues);
        if left.is_none() {
            self.decisions.list.clear();
        }
        self.look_again(queues, memory);
        let mut is_begun = false;
        for running in queues.running.iter_mut().flatten() {
            let (_, active) = running.parts_mut();
            assert_eq!(active.planned, 0, "the step before this one has been taken in");
            let share = std::mem::take(&mut active.ahead);
            if share.n_tokens > 0 {
                is_begun = true;
                active.start(share, memory, 0);
            }
            self.announce_renumbered(active, memory);
        }
        let mut budget = match left {
            Some(budget) if is_begun => budget,
            _ => {
                let mut n_decode = count_decoding(queues);
                let n_drafts = if self.limits.draft_max > 0 { self.guess(queues, memory, n_decode, cost) } else { 0 };
                n_decode += n_drafts;
                self.budget(n_decode, n_drafts)
            }
        };
        self.deal(queues, &budget);
        let stopped = self.choose(When::Now, now_ns, queues, memory, &mut budget);
        if !self.policy.is_first_come() {
            self.plan_rest(queues, memory, &mut budget);
            self.turns.count_overtaken(queues);
        }
        (self.decisions.planned_ns, self.decisions.budget_tokens) = (now_ns, self.step_tokens);
        self.decisions.conclude(queues, stopped);
    }

    /// Whether the step after the one in flight can be planned before that has been taken in: what is in flight must not decide
    /// too much. Guesses may be right or wrong, and some policies weigh requests against each other, or against the time.
    pub fn can_plan_ahead(&self, queues: &Queues) -> bool {
        let guesses = |running: &Running| !running.parts().0.drafts.is_empty();
        // Who is admitted now could find pages that are forgotten only when the step in flight has been taken in.
        let decides = |running| guesses(running) || behind::is_in_doubt(running);
        self.ahead.is_none() && self.policy.plans_ahead() && !queues.iter_running().any(decides)
    }

    /// Plan the step after the one in flight, in which nobody guesses, as far as that can be done before it has been taken in.
    ///
    /// # Panics
    /// If that cannot be, see [`Scheduler::can_plan_ahead`].
    pub fn plan_ahead(&mut self, queues: &mut Queues, memory: &mut Memory) {
        assert!(self.can_plan_ahead(queues), "what is in flight decides too much");
        assert!(self.deltas.is_empty(), "the step in flight was told of all changes");
        self.decisions.list.clear();
        let mut budget = self.budget(count_decoding(queues), 0);
        self.choose(When::Ahead, 0, queues, memory, &mut budget);
        self.ahead = Some(budget);
    }

    /// Forget what was planned ahead; its requests are gone.
    pub fn forget_ahead(&mut self) {
        self.ahead = None;
    }

    fn budget(&self, n_decode: u32, n_drafts: u32) -> Budget {
        let limits = &self.limits;
        Budget {
            tokens: self
                .step_tokens
                .saturating_sub(n_decode)
                .max(limits.chunk_grid)
                .min(limits.max_batch_tokens - n_decode),
            prompt_logit_rows: limits.max_logit_rows - limits.max_num_seqs - n_drafts,
        }
    }

    /// Says why the next waiting request was not admitted.
    fn choose(
        &mut self,
        when: When,
        now_ns: u64,
        queues: &mut Queues,
        memory: &mut Memory,
        budget: &mut Budget,
    ) -> Option<Why> {
        let n_preemptions = self.n_preemptions;
        let mut at = 0;
        // Preemption shortens the list behind `at`.
        while at < queues.running.len() {
            self.plan_running(at, when, queues, memory, budget);
            at += 1;
        }
        // Whoever lost memory in this plan returns in a later one; the policy's order does not know of it yet.
        if !self.policy.is_first_come() && self.n_preemptions > n_preemptions {
            return (!queues.waiting.is_empty()).then_some(Why::NoPages);
        }
        self.admit(when, now_ns, queues, memory, budget)
    }

    /// A table row may get another owner in the very step, and each entry changes at most once.
    fn forget_deltas_of_the_gone(&mut self, queues: &Queues) {
        if self.deltas.is_empty() {
            return;
        }
        self.in_use.fill(false);
        for running in queues.iter_running() {
            self.in_use[running.parts().1.lease.row() as usize] = true;
        }
        let in_use = &self.in_use;
        self.deltas.retain(|delta| in_use[delta.table_row as usize] && !seeded!(PlannedAheadIsNotAnnounced));
    }

    /// Tell the device of pages that turned out to be cached already.
    fn announce_renumbered(&mut self, active: &mut Active, memory: &Memory) {
        active.recheck_drafted(memory);
        while let Some(index) = active.lease.next_renumbered() {
            if !seeded!(RenumberedPageIsNotAnnounced) {
                self.announce(active, index);
            }
        }
    }

    /// Let the policy, if it does not go by arrival, say how many prompt tokens each running request may have.
    fn deal(&mut self, queues: &Queues, budget: &Budget) {
        if self.policy.is_first_come() {
            return;
        }
        let mut turns = std::mem::replace(&mut self.turns, Turns::new(0, 0));
        let n_free_seats = self.limits.max_num_seqs as usize - queues.running.len();
        turns.deal(&*self.policy, queues, budget.tokens, self.limits.chunk_cap, n_free_seats, |running, most| {
            let (body, active) = running.parts();
            self.chunk(active.computed, body.next_mark(active.computed).unwrap_or(body.len()), most)
        });
        self.turns = turns;
    }

    /// Give what the policy's favourites could not use to the others, in order of arrival.
    fn plan_rest(&mut self, queues: &mut Queues, memory: &mut Memory, budget: &mut Budget) {
        self.turns.lift();
        // Whoever was admitted in this step counts on a page for each that runs.
        let is_busy = queues.iter_running().any(|running| running.parts().1.planned > 0);
        let kept = queues.running.len() as u32;
        self.kept_pages = if is_busy && !seeded!(RestTakesEveryPage) { kept } else { 0 };
        let mut at = 0;
        while at < queues.running.len() && budget.tokens > 0 {
            let running = present(&queues.running[at]);
            if matches!(running, Running::Prefilling(_)) && running.parts().1.planned == 0 {
                self.plan_running(at, When::Now, queues, memory, budget);
            }
            at += 1;
        }
        self.kept_pages = 0;
    }

    /// How much of one of the waiting prompts is cached by now; each has its turn.
    fn look_again(&mut self, queues: &mut Queues, memory: &Memory) {
        const EVERY: u64 = 8;
        self.n_plans += 1;
        let n = queues.waiting.len() as u64;
        if n > 0 && self.n_plans.is_multiple_of(EVERY) {
            self.foresee(queues.waiting[(self.n_plans / EVERY % n) as usize].body_mut(), memory);
        }
    }

    /// Note how many tokens of a waiting request the cache does not have.
    pub fn foresee(&self, body: &mut Body, memory: &Memory) {
        let n_found = self.find_prefix(body, memory) as u32;
        body.uncached = body.len() - n_found * memory.page_tokens();
    }

    fn plan_running(&mut self, at: usize, when: When, queues: &mut Queues, memory: &mut Memory, budget: &mut Budget) {
        let running = present(&queues.running[at]);
        let outlook = Outlook::of(running);
        let has_its_part = when == When::Now && running.parts().1.planned > 0;
        if outlook.ends || has_its_part {
            return;
        }
        // Moved out while others may be preempted; put back below.
        let mut running = queues.running[at].take().expect("no request is changing state");
        loop {
            let (body, active) = running.parts_mut();
            let Outlook { computed, len: wanted, .. } = outlook;
            let n_free = memory.n_available().saturating_sub(self.kept_pages);
            let n_tokens = if outlook.is_decoding {
                // A guess is never worth another request's pages: one is left for each request behind this one.
                let n_behind = (queues.running.len() - at - 1) as u32;
                let n_kept = if seeded!(GuessesTakeOthersPages) { 0 } else { n_behind };
                let n_spare = memory.n_available().saturating_sub(n_kept);
                let room = (active.lease.n_pages() + n_spare) * memory.page_tokens();
                body.drafts.truncate(room.saturating_sub(wanted) as usize);
                let n_branch = body.drafts.branch_tokens(wanted - computed);
                let most = room.min(memory.pages_of(body.max_len) * memory.page_tokens());
                if wanted + body.drafts.len() + n_branch > most {
                    body.drafts.branches.clear();
                }
                let is_left = budget.tokens > 0 || !seeded!(DecodingWaitsForPrefill);
                if is_left { wanted - computed + body.drafts.len() } else { 0 }
            } else {
                let cap = self.chunk_cap(budget, outlook.next_prompt_logits.is_some()).min(self.turns.share(at));
                let held = (active.lease.n_pages() + n_free) * memory.page_tokens();
                let end = body.next_mark(computed).unwrap_or(wanted);
                // A shorter chunk is better than taking another request's pages, if any fits.
                let n_tokens = match self.chunk(computed, end, cap.min(held - computed)) {
                    0 if self.kept_pages == 0 => self.chunk(computed, end, cap),
                    n => n,
                };
                active.lacks = match n_tokens {
                    0 if self.chunk(computed, end, cap) == 0 => {
                        self.lacking(computed, end, budget.tokens.min(self.turns.share(at)))
                    }
                    _ => Why::NoPages,
                };
                n_tokens
            };
            if n_tokens == 0 {
                break;
            }
            let end = computed + n_tokens - u32::from(seeded!(PageAtTheBoundaryIsForgotten));
            let n_branch = body.drafts.branch_tokens(wanted - computed);
            let n_pages = memory.pages_of(with_tail(end, wanted, memory) + n_branch);
            if n_pages - active.lease.n_pages().min(n_pages) <= n_free {
                self.grow(active, memory, n_pages);
                let share = self.share(&outlook, body.prompt_tokens, n_tokens, budget);
                if !outlook.is_decoding {
                    budget.tokens -= n_tokens;
                }
                match when {
                    When::Now => active.start(share, memory, body.drafts.len()),
                    When::Ahead => active.ahead = share,
                }
                break;
            }
            // Those behind may be in flight: whoever lacks pages then waits until that is over. Whoever goes first by policy
            // keeps its memory in this step.
            let is_planned = |slot: &Option<Running>| slot.as_ref().is_some_and(|other| other.parts().1.planned > 0);
            let keeps = !self.policy.is_first_come() && queues.running.last().is_some_and(is_planned);
            if at + 1 >= queues.running.len() || when == When::Ahead || keeps || self.kept_pages > 0 {
                break;
            }
            let last = if seeded!(NextInOrderIsPreempted) { at + 1 } else { queues.running.len() - 1 };
            let victim = queues.running.remove(last).expect("present: only slot `at` is empty");
            self.decisions.note(victim.parts().0.id, What::Preempted { by: body.id });
            self.preempt(victim, queues, memory);
        }
        queues.running[at] = Some(running);
    }

    fn preempt(&mut self, mut victim: Running, queues: &mut Queues, memory: &mut Memory) {
        let (_, active) = victim.parts_mut();
        // It may have been planned ahead; no step is in flight.
        active.planned = 0;
        let row = active.lease.row();
        self.deltas.retain(|delta| delta.table_row != row);
        let mut preempted = match victim {
            Running::Prefilling(sequence) => sequence.preempt(memory),
            Running::Decoding(sequence) => sequence.preempt(memory),
            Running::Leaving(_) => unreachable!("requests leave when the step in flight ends"),
        };
        self.foresee(&mut preempted.body, memory);
        self.n_preemptions += 1;
        queues.wait(Waiting::Preempted(preempted));
    }

    /// Most tokens of a request's next chunk.
    fn chunk_cap(&self, budget: &Budget, wants_prompt_logits: bool) -> u32 {
        let cap = self.limits.chunk_cap.min(budget.tokens);
        if wants_prompt_logits { cap.min(budget.prompt_logit_rows) } else { cap }
    }

    /// What a request lacks that gets no chunk, of `tokens` at most, though there are pages.
    fn lacking(&self, computed: u32, end: u32, tokens: u32) -> Why {
        if self.chunk(computed, end, self.limits.chunk_cap.min(tokens)) > 0 {
            // Tokens there are, so it was rows of logits.
            Why::StepRoom
        } else if self.policy.is_first_come() {
            Why::StepBudget
        } else {
            Why::Policy
        }
    }

    /// A chunk of at most `cap` tokens: all that is wanted, or up to the grid; possibly nothing.
    fn chunk(&self, computed: u32, wanted: u32, cap: u32) -> u32 {
        if wanted - computed <= cap {
            return wanted - computed;
        }
        let end = (computed + cap) / self.limits.chunk_grid * self.limits.chunk_grid;
        end.saturating_sub(computed) + u32::from(seeded!(ChunkEndsOffTheGrid))
    }

    /// Add pages up to `n_pages`, which are available.
    fn grow(&mut self, active: &mut Active, memory: &mut Memory, n_pages: u32) {
        let n_before = active.lease.n_pages();
        if n_before < n_pages {
            active.lease.grow_to(memory, n_pages);
            self.announce_from(active, n_before);
        }
    }

    /// Tell the device of the pages from `first` on.
    fn announce_from(&mut self, active: &Active, first: u32) {
        let table_row = active.lease.row();
        for &component in &self.limits.paged_components {
            let pages = (first..).zip(active.lease.pages_from(first));
            self.deltas.extend(pages.map(|(index, block)| ts_table_delta { component, table_row, index, block }));
        }
    }

    /// Tell the device of the page at `index`.
    fn announce(&mut self, active: &Active, index: u32) {
        for &component in &self.limits.paged_components {
            let (table_row, block) = (active.lease.row(), active.lease.page(index));
            self.deltas.push(ts_table_delta { component, table_row, index, block });
        }
    }

    /// A request's part in the step, its rows of prompt logits taken from the budget.
    fn share(&self, outlook: &Outlook, prompt_tokens: u32, n_tokens: u32, budget: &mut Budget) -> Share {
        let end = outlook.computed + n_tokens;
        // The logits at position p score prompt token p + 1.
        let n_prompt_logit_rows = outlook
            .next_prompt_logits
            .map_or(0, |next| end.min(prompt_tokens - 1).saturating_sub(next.max(outlook.computed)));
        budget.prompt_logit_rows -= n_prompt_logit_rows;
        Share { n_tokens, n_prompt_logit_rows }
    }
}

/// A chunk that ends within a page of all that is wanted reserves the rest with it, so that the rest cannot fail.
fn with_tail(end: u32, wanted: u32, memory: &Memory) -> u32 {
    let is_tail = wanted.saturating_sub(end) < memory.page_tokens() && !seeded!(TailIsNotReserved);
    if is_tail { wanted.max(end) } else { end }
}

/// Requests that decode in the step being planned.
fn count_decoding(queues: &Queues) -> u32 {
    queues.iter_running().filter(|running| Outlook::of(running).generates()).count() as u32
}
