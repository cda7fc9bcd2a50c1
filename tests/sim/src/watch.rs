//! What plans promise under every policy, checked on every plan: who loses memory, that decoding waits for nobody, and that
//! nothing is freed while a step writes it. Who is admitted first is [`crate::service`]'s.

use std::collections::{BTreeMap, BTreeSet};

use tokenspeed_core::{
    engine::inspect::{Holder, Phase},
    request::RequestId,
    scheduler::decision::{Decisions, What},
};

use crate::{
    check::{Check, Failure, ensure},
    service::{Opens, Service},
};

/// Order of service: (priority, arrival).
pub type Rank = (i32, u64);

/// What was seen at the last plan.
#[derive(Debug, Default)]
pub struct Watch {
    held_before: BTreeSet<RequestId>,
    /// Before the plan, everybody decoded and the pages for a token of each were there.
    suffices: bool,
    page_tokens: u32,
    /// Pages of each after the last plan.
    had: BTreeMap<RequestId, u32>,
    /// Admitted by the last plan, with all of their tokens.
    admitted_whole: BTreeSet<RequestId>,
    in_flight: Vec<RequestId>,
    /// Times each request lost its memory.
    preempted: BTreeMap<RequestId, Losses>,
}

/// Losses of memory.
#[derive(Clone, Copy, Debug, Default)]
struct Losses {
    times: u32,
    /// In a row, without a token generated in between.
    in_vain: u32,
    len: u32,
}

/// Losses by one request, in all and in a row, that are no longer bad luck: a preempted request comes back only when all
/// of its tokens fit, so each later loss needs others that grew meanwhile. Over 30,000 seeds 16 in a row was the most.
const LOSSES_MAX: u32 = 200;
const IN_VAIN_MAX: u32 = 60;

impl Watch {
    /// Of an engine with pages of so many tokens.
    pub fn new(page_tokens: u32) -> Self {
        Self { page_tokens, ..Self::default() }
    }

    /// A plan is about to be made, with so many pages free or only cached.
    pub fn before_plan(&mut self, holders: &[Holder], n_available: u64) {
        let needed = |h: &Holder| (h.computed + 1).div_ceil(self.page_tokens).saturating_sub(h.pages);
        let needed: u32 = holders.iter().map(needed).sum();
        self.suffices = holders.iter().all(|h| h.phase == Phase::Decoding) && u64::from(needed) <= n_available;
    }

    /// A plan was made. `open`: ranks and lengths of all that have not ended; `n_available`: pages that are free or only cached.
    pub fn planned(
        &mut self,
        holders: &[Holder],
        open: &Opens,
        n_available: u64,
        decisions: &Decisions,
        service: &mut Service,
    ) -> Result<(), Failure> {
        let rank_of = |id: &RequestId| open.get(id).map(|open| open.rank);
        let held = self.admitted_in_order(holders, open, service)?;
        for id in self.held_before.difference(&held) {
            let Some(victim) = rank_of(id) else { continue };
            let stays = self.held_before.intersection(&held).filter_map(rank_of).find(|rank| *rank > victim);
            // Both may have lost it, and one returned while the other's pages are on their way from host memory.
            ensure(stays.is_none() || open[id].is_loading, Check::Order, || {
                format!("{id:?} of rank {victim:?} lost its memory, {stays:?} behind it did not")
            })?;
            // Room for a page of each that ran was left when it was admitted, also beside guesses. Where others still compute
            // prompts: up to the one that took its memory, which decodes, none took more than one.
            let all_decode =
                holders.iter().all(|holder| holder.phase == Phase::Decoding || !self.held_before.contains(&holder.id));
            let taker = decisions.list.iter().find_map(|decision| match decision.what {
                What::Preempted { by } if decision.id == *id => Some(by),
                _ => None,
            });
            let at = holders.iter().position(|h| Some(h.id) == taker && h.phase == Phase::Decoding);
            let is_modest = |h: &Holder| self.had.get(&h.id).is_some_and(|had| h.pages <= had + 1);
            let are_modest = at.is_some_and(|at| holders[..=at].iter().all(is_modest));
            ensure(!((all_decode || are_modest) && self.admitted_whole.contains(id)), Check::Thrash, || {
                format!("{id:?} was admitted in the plan before and lost its memory to {taker:?}, which decodes")
            })?;
            ensure(!self.suffices, Check::Thrash, || {
                format!("{id:?} lost its memory, though all decode and the pages for a token of each were there")
            })?;
            let losses = self.preempted.entry(*id).or_default();
            let len = open[id].len;
            losses.in_vain = if losses.len == len { losses.in_vain + 1 } else { 0 };
            (losses.times, losses.len) = (losses.times + 1, len);
            let Losses { times, in_vain, .. } = *losses;
            ensure(times <= LOSSES_MAX && in_vain <= IN_VAIN_MAX, Check::Thrash, || {
                format!("{id:?} lost its memory {times} times, {in_vain} of them since its last token")
            })?;
        }
        self.tails_are_reserved(holders, open)?;
        for (at, holder) in holders.iter().enumerate() {
            if holder.phase == Phase::Decoding && holder.planned == 0 {
                ensure(n_available == 0, Check::Order, || {
                    format!("{:?} decodes and is not in the step, {n_available} pages are available", holder.id)
                })?;
                let overtakes = holders[at + 1..].iter().find(|behind| behind.planned > 0);
                ensure(overtakes.is_none(), Check::Order, || {
                    format!("{:?} decodes and waits, {:?} behind it is in the step", holder.id, overtakes)
                })?;
            }
        }
        let is_whole = |holder: &Holder| {
            let len = open.get(&holder.id).map(|open| open.len);
            !self.held_before.contains(&holder.id) && len == Some(holder.computed + holder.planned)
        };
        self.admitted_whole = holders.iter().filter(|h| is_whole(h)).map(|h| h.id).collect();
        self.had = holders.iter().map(|holder| (holder.id, holder.pages)).collect();
        self.in_flight = holders.iter().filter(|holder| holder.planned > 0).map(|holder| holder.id).collect();
        self.held_before = held;
        Ok(())
    }

    /// What is left of a prompt behind this step's chunk, if less than a page, has its memory: it cannot fail any more.
    fn tails_are_reserved(&self, holders: &[Holder], open: &Opens) -> Result<(), Failure> {
        for holder in holders.iter().filter(|holder| holder.phase == Phase::Prefilling && holder.planned > 0) {
            let Some(len) = open.get(&holder.id).map(|open| open.len) else { continue };
            let left = len.saturating_sub(holder.computed + holder.planned);
            ensure(left >= self.page_tokens || holder.pages * self.page_tokens >= len, Check::Tail, || {
                format!(
                    "{left} of {len} tokens of {:?} are left behind this step, it has {} pages",
                    holder.id, holder.pages
                )
            })?;
        }
        Ok(())
    }

    /// The requests that hold memory, those among them that are new having been admitted in order.
    fn admitted_in_order(
        &mut self,
        holders: &[Holder],
        open: &Opens,
        service: &mut Service,
    ) -> Result<BTreeSet<RequestId>, Failure> {
        let held: BTreeSet<RequestId> = holders.iter().map(|holder| holder.id).collect();
        let admitted = held.difference(&self.held_before).copied().collect();
        let lost = self.held_before.difference(&held).copied().collect();
        service.admitted(&admitted, &held, &lost, open)?;
        Ok(held)
    }

    /// A plan was made ahead: it may have admitted some, and took memory from nobody.
    pub fn planned_ahead(&mut self, holders: &[Holder], open: &Opens, service: &mut Service) -> Result<(), Failure> {
        let held = self.admitted_in_order(holders, open, service)?;
        let lost = self.held_before.difference(&held).next();
        ensure(lost.is_none(), Check::Thrash, || format!("{lost:?} lost its memory to a plan made ahead"))?;
        self.held_before = held;
        Ok(())
    }

    /// The step behind the one that was taken in is in flight.
    pub fn moved_up(&mut self, holders: &[Holder]) {
        self.in_flight = holders.iter().filter(|holder| holder.planned > 0).map(|holder| holder.id).collect();
        self.admitted_whole.clear();
        // Nothing was planned since it was; callers may have left.
        self.held_before.retain(|id| holders.iter().any(|holder| holder.id == *id));
    }

    /// Whether a request ever lost its memory.
    pub fn was_preempted(&self, id: RequestId) -> bool {
        self.preempted.contains_key(&id)
    }

    /// Most times that one request lost its memory.
    pub fn preempted_most(&self) -> u64 {
        self.preempted.values().map(|losses| losses.in_vain).max().unwrap_or(0).into()
    }

    /// The step in flight is about to be taken in: it must still own what it writes.
    pub fn before_advance(&self, holders: &[Holder]) -> Result<(), Failure> {
        let gone = self.in_flight.iter().find(|id| holders.iter().all(|holder| holder.id != **id));
        ensure(gone.is_none(), Check::Order, || format!("memory of {gone:?} was freed while a step writes it"))
    }

    /// A step was taken in or lost.
    pub fn after_step(&mut self, holders: &[Holder]) {
        self.in_flight.clear();
        self.held_before.retain(|id| holders.iter().any(|holder| holder.id == *id));
    }
}
