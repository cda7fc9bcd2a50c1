//! Guesses of a step: as many as pay and as there is room for, first along the likeliest continuation, then beside it.

use super::*;

impl Scheduler {
    /// Decide, while a step without guesses is in flight, that nobody guesses in the one after it, because what is known of the
    /// texts promises nothing; false, and nothing is decided, if somebody may. See [`looks`](crate::speculation::looks).
    pub fn rests(&mut self, queues: &mut Queues, memory: &Memory, cost: &StepCost) -> bool {
        self.offers.clear();
        let mut is_due = false;
        let generating = |running: &&mut Running| Outlook::of(running).generates();
        for running in queues.running.iter_mut().flatten().filter(generating) {
            let (body, active) = running.parts_mut();
            body.drafts.record.start_like(&self.looks.record);
            let finds = body.drafts.finds(&body.tokens);
            let offered = if finds { self.limits.guesses_max(body, active, memory) } else { 0 };
            is_due |= offered > 0 && body.drafts.record.is_rested();
            self.offers.push(Offer { chance: body.drafts.record.chance(), offered, width: 0 });
        }
        let rows = self.offers.len() as u32;
        let room_ns = self.looks.room_ns(rows, cost);
        width::choose(&mut self.offers, self.limits.guesses_of_all(rows), cost, room_ns);
        let pays = self.offers.iter().any(|offer| offer.width > 0) && self.looks.may_guess(rows, cost);
        if pays || is_due && self.looks.may_try(rows, cost) {
            return false;
        }
        self.looks.planned(rows, cost);
        let offers = self.offers.iter();
        for (running, offer) in queues.running.iter_mut().flatten().filter(generating).zip(offers) {
            let record = &mut running.parts_mut().0.drafts.record;
            if offer.offered > 0 && !record.is_rested() {
                record.rest_on();
            }
        }
        true
    }

    /// Let decoding requests guess, as far as it pays and the step has room; returns how many tokens that adds.
    pub(super) fn guess(&mut self, queues: &mut Queues, memory: &Memory, n_decode: u32, cost: &StepCost) -> u32 {
        let limits = &self.limits;
        self.offers.clear();
        let mut are_paid = false;
        for running in queues.running.iter_mut().flatten() {
            if let Running::Decoding(sequence) = running {
                let (body, active) = sequence.parts_mut();
                body.drafts.propose(&body.tokens, limits.guesses_max(body, active, memory));
                if body.drafts.are_paid() {
                    are_paid = true;
                } else {
                    body.drafts.record.start_like(&self.looks.record);
                }
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
        width::choose(&mut self.offers, total, cost, self.looks.room_ns(n_decode, cost));
        // A model's guesses are on an account of their own, and were decided on when they were made.
        let may_guess = are_paid || self.looks.may_guess(n_decode, cost);
        let may_try = self.looks.may_try(n_decode, cost);
        self.looks.planned(n_decode, cost);
        let mut left = total;
        let mut offers = self.offers.iter();
        for running in queues.running.iter_mut().flatten() {
            if let Running::Decoding(sequence) = running {
                let offer = offers.next().expect("one per decoding request");
                let drafts = &mut sequence.body.drafts;
                let mut width = if drafts.are_paid() { offer.offered } else { offer.width * u32::from(may_guess) };
                if width == 0 && offer.offered > 0 && drafts.record.is_due(may_try) {
                    width = 1;
                }
                drafts.truncate(width.min(left) as usize);
                left -= drafts.len();
            }
        }
        if limits.branch_rows > 0 && may_guess {
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
}
