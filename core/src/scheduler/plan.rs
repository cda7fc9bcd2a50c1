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
//!   taken in. Rejected: computing the row of a request that turned out to have ended and ignoring it; the block is
//!   written after the ids are known, so leaving the row out costs nothing.

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
    cache::{copies::LoadId, index::NodeId, lease::Lease, memory::Memory},
    request::RequestId,
    speculation::width::{self, Offer, StepCost},
};

/// Fixed limits of a step.
#[derive(Clone, Debug)]
pub struct StepLimits {
    /// Requests running at once.
    pub max_num_seqs: u32,
    /// Tokens of one step, never exceeded.
    pub max_batch_tokens: u32,
    /// Rows of logits of one step.
    pub max_logit_rows: u32,
    /// Block-table changes of one step.
    pub max_deltas: u32,
    /// Of these, what is left to the second half of a plan made ahead.
    pub late_deltas: u32,
    /// Rows of the block tables.
    pub table_rows: u32,
    /// Most prompt tokens of one request in one step.
    pub chunk_cap: u32,
    /// Chunks that do not complete a prompt end on multiples of this.
    pub chunk_grid: u32,
    /// Tokens of one request.
    pub max_model_len: u32,
    /// Guesses per request, 0 = no speculation.
    pub draft_max: u32,
    /// Rows of side branches in one step.
    pub branch_rows: u32,
    /// Numbers of the paged components.
    pub paged_components: Vec<u32>,
}

impl StepLimits {
    /// Most guesses of a decoding request in its next step.
    pub fn guesses_max(&self, body: &Body, active: &Active, memory: &Memory) -> u32 {
        // The token after the last right guess is always sampled too.
        let most = (body.max_len - body.len()).saturating_sub(1).min(self.draft_max);
        if !memory.has_states() || seeded!(GuessesPassTheBoundary) {
            return most;
        }
        // A turn ends on every page boundary it reaches, so that the state there can be kept.
        let to_boundary = memory.page_tokens() - active.computed % memory.page_tokens();
        most.min(to_boundary - (body.len() - active.computed).min(to_boundary))
    }

    /// Most guesses of all requests together, beside `n_decode` that decode. A chunk on the grid, with logits of all its
    /// tokens, is always left for prefill.
    pub fn guesses_of_all(&self, n_decode: u32) -> u32 {
        let spare = (self.max_logit_rows - self.max_num_seqs).min(self.max_batch_tokens - n_decode);
        spare.saturating_sub(self.chunk_grid)
    }
}

/// Chooses steps; remembers only why the head of the queue could not be admitted.
pub struct Scheduler {
    limits: StepLimits,
    /// Wanted tokens per step, from the caller's cost model.
    step_tokens: u32,
    /// The waiting request that did not fit, and the release count then: no use trying before it changed.
    blocked: Option<(RequestId, u64)>,
    path: Vec<NodeId>,
    /// Pages found beyond `path` that cannot be resumed from.
    n_cut_pages: u32,
    offers: Vec<Offer>,
    policy: Box<dyn Policy>,
    turns: Turns,
    /// Plans made, to look again at one waiting request now and then.
    n_plans: u64,
    /// Of the last plan.
    pub decisions: Decisions,
    /// What a plan made ahead left of the step.
    ahead: Option<Budget>,
    /// `[table row]`: in use, while a plan made ahead is looked through.
    in_use: Vec<bool>,
    /// Block-table changes of the step being planned.
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
    pub fn new(limits: StepLimits, blocks_per_row: u32, max_waiting: u32, policy: Box<dyn Policy>) -> Self {
        Self {
            turns: Turns::new(if policy.is_first_come() { 0 } else { max_waiting }, limits.max_num_seqs),
            policy,
            n_plans: 0,
            decisions: Decisions::new(limits.max_num_seqs),
            step_tokens: limits.max_batch_tokens,
            blocked: None,
            path: Vec::with_capacity(blocks_per_row as usize),
            deltas: Vec::with_capacity(limits.max_deltas as usize),
            n_preemptions: 0,
            n_cut_tokens: 0,
            n_cut_pages: 0,
            offers: Vec::with_capacity(limits.max_num_seqs as usize),
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
        if left.is_some() {
            self.forget_deltas_of_the_gone(queues);
        } else {
            self.deltas.clear();
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
        let mut why_not = if budget.tokens < self.limits.chunk_grid { Why::StepBudget } else { Why::NoPages };
        if !self.policy.is_first_come() {
            if why_not == Why::StepBudget {
                why_not = Why::Policy;
            }
            self.plan_rest(queues, memory, &mut budget);
            self.turns.count_overtaken(queues);
        }
        (self.decisions.planned_ns, self.decisions.budget_tokens) = (now_ns, self.step_tokens);
        self.decisions.conclude(queues, why_not, stopped);
    }

    /// Plan the step after the one in flight, as far as that can be done before it has been taken in. False, and nothing
    /// happens, if what is in flight decides too much: guesses may be right or wrong, and some policies weigh requests
    /// against each other, or against the time.
    pub fn plan_ahead(&mut self, queues: &mut Queues, memory: &mut Memory) -> bool {
        if self.ahead.is_some() || !self.policy.plans_ahead() {
            return false;
        }
        let guesses = queues.iter_running().any(|running| !running.parts().0.drafts.is_empty());
        if guesses || self.limits.draft_max > 0 && count_decoding(queues) > 0 {
            return false;
        }
        let n_decode = count_decoding(queues);
        self.deltas.clear();
        self.decisions.list.clear();
        let mut budget = self.budget(n_decode, 0);
        self.choose(When::Ahead, 0, queues, memory, &mut budget);
        self.ahead = Some(budget);
        true
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
        let mut at = 0;
        while at < queues.running.len() && budget.tokens > 0 {
            let running = present(&queues.running[at]);
            if matches!(running, Running::Prefilling(_)) && running.parts().1.planned == 0 {
                self.plan_running(at, When::Now, queues, memory, budget);
            }
            at += 1;
        }
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
    pub fn foresee(&mut self, body: &mut Body, memory: &Memory) {
        self.find_prefix(body, memory);
        body.uncached = body.len() - self.path.len() as u32 * memory.page_tokens();
    }

    /// Let decoding requests guess, as far as it pays and the step has room; returns how many tokens that adds.
    fn guess(&mut self, queues: &mut Queues, memory: &Memory, n_decode: u32, cost: &StepCost) -> u32 {
        let limits = &self.limits;
        self.offers.clear();
        for running in queues.running.iter_mut().flatten() {
            if let Running::Decoding(sequence) = running {
                let (body, active) = sequence.parts_mut();
                body.drafts.propose(&body.tokens, limits.guesses_max(body, active, memory));
                if let Some(guard) = body.guide.guard() {
                    // What the grammar forbids is not worth a row.
                    let n_allowed = guard.count_allowed(&body.drafts.ids);
                    body.drafts.truncate(n_allowed);
                    // Its masks follow the chain.
                    body.drafts.branches.clear();
                }
                let (chance, offered) = (body.drafts.record.chance(), body.drafts.len());
                self.offers.push(Offer { chance, offered, width: 0 });
            }
        }
        let total = limits.guesses_of_all(n_decode);
        width::choose(&mut self.offers, total, cost);
        let mut left = total;
        let mut offers = self.offers.iter();
        for running in queues.running.iter_mut().flatten() {
            if let Running::Decoding(sequence) = running {
                let offer = offers.next().expect("one per decoding request");
                let drafts = &mut sequence.body.drafts;
                let mut width = if drafts.are_paid() { offer.offered } else { offer.width };
                if width == 0 && offer.offered > 0 && drafts.record.is_due() {
                    width = 1;
                }
                drafts.truncate(width.min(left) as usize);
                left -= drafts.len();
            }
        }
        if limits.branch_rows > 0 {
            left -= self.branch(queues, n_decode + total - left, left, cost);
        }
        total - left
    }

    /// Keep the branches that pay, beside `n` tokens that decode and are guessed, with room for `left` more; returns how
    /// many tokens they add.
    fn branch(&self, queues: &mut Queues, n: u32, left: u32, cost: &StepCost) -> u32 {
        let (mut rows, mut tokens) = (0, 0);
        let mut expected = width::expected(&self.offers);
        for running in queues.running.iter_mut().flatten() {
            let Running::Decoding(sequence) = running else { continue };
            let own = sequence.body.len() - sequence.active().computed;
            let drafts = &mut sequence.body.drafts;
            let (mut kept, mut of_request) = (0, 0);
            for (at, branch) in drafts.branches.open().iter().enumerate() {
                let n_tokens = own + branch.depth();
                let gain = drafts.branches.gain(at, drafts.record.chance());
                let fits = rows < self.limits.branch_rows
                    && tokens + n_tokens <= left
                    && drafts.len() + own + of_request + n_tokens <= 2 * (self.limits.draft_max + 1);
                if !fits || !width::pays(gain, n_tokens, n + tokens, expected, cost) {
                    break;
                }
                (rows, tokens, of_request) = (rows + 1, tokens + n_tokens, of_request + n_tokens);
                (kept, expected) = (at + 1, expected + gain);
            }
            drafts.branches.truncate(kept);
        }
        tokens
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
                let held = (active.lease.n_pages() + memory.n_available()) * memory.page_tokens();
                let end = body.next_mark(computed).unwrap_or(wanted);
                // A shorter chunk is better than taking another request's pages, if any fits.
                match self.chunk(computed, end, cap.min(held - computed)) {
                    0 => self.chunk(computed, end, cap),
                    n => n,
                }
            };
            if n_tokens == 0 {
                break;
            }
            let end = computed + n_tokens - u32::from(seeded!(PageAtTheBoundaryIsForgotten));
            let n_branch = body.drafts.branch_tokens(wanted - computed);
            let n_pages = memory.pages_of(with_tail(end, wanted, memory) + n_branch);
            if n_pages - active.lease.n_pages().min(n_pages) <= memory.n_available() {
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
            if at + 1 >= queues.running.len() || when == When::Ahead || keeps {
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
        while active.lease.n_pages() < n_pages {
            let has_grown = active.lease.grow(memory);
            assert!(has_grown, "counted as available");
            self.announce(active, active.lease.n_pages() - 1);
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

    /// Where the next request to admit waits.
    fn next_waiting(&mut self, queues: &Queues) -> Option<usize> {
        if self.policy.is_first_come() {
            (!queues.waiting.is_empty()).then_some(0)
        } else {
            self.turns.next_waiting(queues)
        }
    }

    /// Whether the policy keeps new requests waiting. There must be other work, and no prefill they could go along with.
    fn holds(&self, now_ns: u64, queues: &Queues, budget: &Budget) -> bool {
        let is_prefilling = |r: &Running| matches!(r, Running::Prefilling(_)) && r.parts().1.planned > 0;
        let has_work = queues.iter_running().any(|running| running.parts().1.planned > 0);
        if !has_work || queues.iter_running().any(is_prefilling) {
            return false;
        }
        let mut waiters = queues.waiting.iter().filter_map(|waiting| {
            let Waiting::Queued(sequence) = waiting else { return None };
            let (remaining, waited_ns) = (sequence.body.uncached, now_ns.saturating_sub(sequence.body.submitted_ns));
            Some(Waiter { remaining, waited_ns })
        });
        self.policy.holds(budget.tokens.min(self.limits.chunk_cap), &mut waiters)
    }

    /// Admit waiting requests in order while they fit; says why the next one was not.
    fn admit(
        &mut self,
        when: When,
        now_ns: u64,
        queues: &mut Queues,
        memory: &mut Memory,
        budget: &mut Budget,
    ) -> Option<Why> {
        loop {
            let at = match self.next_waiting(queues) {
                Some(at) => at,
                None => return (!queues.waiting.is_empty()).then_some(Why::NoSeat),
            };
            if queues.running.len() as u32 >= self.limits.max_num_seqs || !memory.has_seat() {
                return Some(Why::NoSeat);
            }
            if budget.tokens == 0 {
                return Some(Why::StepBudget);
            }
            let is_preempted = matches!(queues.waiting[at], Waiting::Preempted(_));
            if !is_preempted && self.holds(now_ns, queues, budget) {
                return Some(Why::Coalescing);
            }
            let head = &mut queues.waiting[at];
            let body = head.body_mut();
            if self.blocked == Some((body.id, memory.releases())) {
                return Some(Why::NoPages);
            }
            self.find_prefix(body, memory);
            if let Some(load) = self.load(body, memory, queues.running.len() as u32) {
                queues.load(load);
                continue;
            }
            let n_found = self.path.len() as u32;
            let computed = if seeded!(HitIsNotCounted) { 0 } else { n_found * memory.page_tokens() };
            let wanted = body.len();
            body.uncached = wanted - computed;
            let cap = self.chunk_cap(budget, body.next_prompt_logits().is_some());
            let n_tokens = self.chunk(computed, body.next_mark(computed).unwrap_or(wanted), cap);
            let n_pages = memory.pages_of(with_tail(computed + n_tokens, wanted, memory));
            let n_deltas = n_pages as usize * self.limits.paged_components.len();
            let late_deltas = if when == When::Ahead { self.limits.late_deltas } else { 0 };
            if n_tokens == 0 || self.deltas.len() + n_deltas > (self.limits.max_deltas - late_deltas) as usize {
                return Some(if n_tokens == 0 { Why::StepBudget } else { Why::StepRoom });
            }
            // Whatever comes next must fit too: the first generated token, and all of a request that comes back.
            let foreseen = if is_preempted || computed + n_tokens == wanted {
                memory.pages_of((wanted + 1).min(self.limits.max_model_len))
            } else {
                n_pages
            };
            let margin = queues.running.len() as u32;
            let (foreseen, room) =
                if seeded!(ReturnNeedsNoRoom) && is_preempted { (n_pages, 0) } else { (foreseen, margin) };
            let n_new = foreseen.max(n_pages) - n_found + room;
            if (margin > 0 || memory.n_loads() > 0) && !memory.has_available_beside(&self.path, n_new) {
                self.blocked = Some((body.id, memory.releases()));
                return Some(Why::NoPages);
            }
            let max_pages = memory.pages_of(body.max_len) as usize;
            self.n_cut_tokens += u64::from(self.n_cut_pages * memory.page_tokens());
            let lease = Lease::open(memory, &self.path, max_pages);
            self.decisions.note(body.id, What::Admitted { cached: computed, returns: is_preempted });
            let mut sequence = match queues.waiting.remove(at).expect("looked at above") {
                Waiting::Queued(sequence) => sequence.admit(lease, computed),
                Waiting::Preempted(sequence) => sequence.admit(lease, computed),
            };
            let (body, active) = sequence.parts_mut();
            active.find_drafted(memory);
            for index in 0..if seeded!(FoundPagesAreNotAnnounced) { 0 } else { n_found } {
                self.announce(active, index);
            }
            self.grow(active, memory, n_pages);
            let (prompt_tokens, next_prompt_logits) = (body.prompt_tokens, body.next_prompt_logits());
            let outlook = Outlook { computed, len: wanted, next_prompt_logits, is_decoding: false, ends: false };
            let share = self.share(&outlook, prompt_tokens, n_tokens, budget);
            budget.tokens -= n_tokens;
            match when {
                When::Now => active.start(share, memory, 0),
                When::Ahead => active.ahead = share,
            }
            queues.run(Running::Prefilling(sequence));
        }
    }

    /// Bring back from host memory what lies beyond `path`. Not for ever: what came back can be evicted again before the
    /// request is admitted.
    fn load(&self, body: &mut Body, memory: &mut Memory, margin: u32) -> Option<LoadId> {
        if !memory.has_host() || body.n_loads == LOADS_MAX || !memory.reuses_prefixes() {
            return None;
        }
        let max_pages = self.reusable_pages(body, memory);
        let load = memory.start_load(&body.namespace, &body.hashes, &body.tokens, max_pages, &self.path, margin)?;
        body.n_loads += 1;
        Some(load)
    }

    /// Whole pages before what a request computes in any case.
    fn reusable_pages(&self, body: &Body, memory: &Memory) -> usize {
        let most = body.len() - u32::from(!seeded!(WholePromptIsReused));
        let reusable = body.next_prompt_logits().unwrap_or(most).min(most);
        (reusable / memory.page_tokens()) as usize
    }

    /// Fill `path` with the cached pages a request can start from: at least its last token is computed again, and
    /// every token whose logits it still needs to report. Decides where its recurrent state is stored from there on.
    fn find_prefix(&mut self, body: &mut Body, memory: &Memory) {
        self.path.clear();
        self.n_cut_pages = 0;
        body.marks.clear();
        if !memory.reuses_prefixes() {
            return;
        }
        let max_pages = self.reusable_pages(body, memory);
        memory.index.hash_pages(&body.namespace, &body.tokens, max_pages, &mut body.hashes);
        memory.index.find(&body.namespace, &body.hashes, &body.tokens, max_pages, &mut self.path);
        let n_seen = self.path.len() as u32;
        memory.cut_to_resumable(&mut self.path);
        self.n_cut_pages = n_seen - self.path.len() as u32;
        if memory.has_states() {
            let (len, page_tokens) = (body.len(), memory.page_tokens());
            marks::place(&mut body.marks, len, self.path.len() as u32 * page_tokens, n_seen, page_tokens);
        }
    }
}

/// A chunk that ends within a page of all that is wanted reserves the rest with it, so that the rest cannot fail.
fn with_tail(end: u32, wanted: u32, memory: &Memory) -> u32 {
    if wanted.saturating_sub(end) < memory.page_tokens() { wanted.max(end) } else { end }
}

/// Requests that decode in the step being planned.
fn count_decoding(queues: &Queues) -> u32 {
    let outlooks = queues.iter_running().map(Outlook::of);
    outlooks.filter(|outlook| outlook.is_decoding && !outlook.ends).count() as u32
}
