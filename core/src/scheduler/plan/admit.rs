//! Admission: who may start or come back, from which cached prefix, and who waits for pages from host memory.

use super::*;

impl Scheduler {
    /// Where the next request to admit waits.
    pub(super) fn next_waiting(&mut self, queues: &Queues) -> Option<usize> {
        if self.policy.is_first_come() {
            (!queues.waiting.is_empty()).then_some(0)
        } else {
            self.turns.next_waiting(queues)
        }
    }

    /// Whether the policy keeps new requests waiting. There must be other work, and no prefill they could go along with.
    pub(super) fn holds(&self, now_ns: u64, queues: &Queues, budget: &Budget) -> bool {
        // Also one that has no part in the step yet: it gets what the policy's favourites leave.
        let is_prefilling = |running: &Running| matches!(running, Running::Prefilling(_));
        let has_work = queues.iter_running().any(|running| running.parts().1.planned > 0);
        if (!has_work || queues.iter_running().any(is_prefilling)) && !seeded!(CoalescingHoldsWithoutWork) {
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
    pub(super) fn admit(
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
            let n_found = self.find_prefix(body, memory);
            if let Some(load) = self.load(body, n_found, memory, queues.running.len() as u32) {
                queues.load(at, load);
                continue;
            }
            let path = &body.found.nodes()[..n_found];
            let (n_found, n_cut) = (n_found as u32, (body.found.nodes().len() - n_found) as u32);
            let computed = if seeded!(HitIsNotCounted) { 0 } else { n_found * memory.page_tokens() };
            let wanted = body.len();
            body.uncached = wanted - computed;
            let cap = self.chunk_cap(budget, body.next_prompt_logits().is_some());
            let n_tokens = self.chunk(computed, body.next_mark(computed).unwrap_or(wanted), cap);
            let n_pages = memory.pages_of(with_tail(computed + n_tokens, wanted, memory));
            let n_deltas = n_pages as usize * self.limits.paged_components.len();
            // Some requests take their part of this step afterwards: in the second half of a plan made ahead, or of what
            // the policy's favourites leave.
            let goes_on = when == When::Ahead || !self.policy.is_first_come();
            let late_deltas = if goes_on { self.limits.late_deltas } else { 0 };
            if n_tokens == 0 || self.deltas.len() + n_deltas > (self.limits.max_deltas - late_deltas) as usize {
                let end = body.next_mark(computed).unwrap_or(wanted);
                let has_tokens = self.chunk(computed, end, self.limits.chunk_cap.min(budget.tokens)) > 0;
                return Some(if has_tokens { Why::StepRoom } else { Why::StepBudget });
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
            if (margin > 0 || memory.n_loads() > 0) && !memory.has_available_beside(path, n_new) {
                self.blocked = Some((body.id, memory.releases()));
                return Some(Why::NoPages);
            }
            let max_pages = memory.pages_of(body.max_len) as usize;
            self.n_cut_tokens += u64::from(n_cut * memory.page_tokens());
            let lease = Lease::open(memory, path, max_pages);
            self.decisions.note(body.id, What::Admitted { cached: computed, returns: is_preempted });
            let mut sequence = match queues.waiting.remove(at).expect("looked at above") {
                Waiting::Queued(sequence) => sequence.admit(lease, computed),
                Waiting::Preempted(sequence) => sequence.admit(lease, computed),
            };
            let (body, active) = sequence.parts_mut();
            active.find_drafted(memory);
            if !seeded!(FoundPagesAreNotAnnounced) {
                self.announce_from(active, 0);
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

    /// Bring back from host memory what lies beyond the first `n_found` pages. Not for ever: what came back can be evicted again
    /// before the request is admitted.
    pub(super) fn load(&self, body: &mut Body, n_found: usize, memory: &mut Memory, margin: u32) -> Option<LoadId> {
        if !memory.has_host() || body.n_loads == LOADS_MAX || !memory.reuses_prefixes() {
            return None;
        }
        let max_pages = self.reusable_pages(body, memory);
        let path = (body.found.nodes(), n_found);
        let load = memory.start_load(&body.namespace, &body.tokens, max_pages, &mut body.hashes, path, margin)?;
        body.n_loads += 1;
        Some(load)
    }

    /// Whole pages before what a request computes in any case.
    pub(super) fn reusable_pages(&self, body: &Body, memory: &Memory) -> usize {
        let most = body.len() - u32::from(!seeded!(WholePromptIsReused));
        let reusable = body.next_prompt_logits().unwrap_or(most).min(most);
        (reusable / memory.page_tokens()) as usize
    }

    /// Find the cached pages of a request that waits, and how many of them it can start from: at least its last token is
    /// computed again, and every token whose logits it still needs to report. Decides where its recurrent state is stored
    /// from there on.
    pub(super) fn find_prefix(&self, body: &mut Body, memory: &Memory) -> usize {
        body.marks.clear();
        if !memory.reuses_prefixes() {
            return 0;
        }
        let max_pages = self.reusable_pages(body, memory);
        memory.index.find(&body.namespace, &body.tokens, max_pages, &mut body.hashes, &mut body.found);
        let (n_seen, n_found) = (body.found.nodes().len(), memory.n_resumable(body.found.nodes()));
        if memory.has_states() {
            let (len, page_tokens) = (body.len(), memory.page_tokens());
            let (computed, given) = (n_found as u32 * page_tokens, &body.boundaries);
            marks::place(&mut body.marks, len, computed, n_seen as u32, given, page_tokens);
        }
        n_found
    }
}
