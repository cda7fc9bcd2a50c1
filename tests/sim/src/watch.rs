//! What the plans of the default policy promise, checked on every plan: who goes first, who loses memory, and that
//! nothing is freed while a step writes it.

use std::collections::{BTreeMap, BTreeSet};

use tokenspeed_core::{
    engine::inspect::{Holder, Phase},
    request::RequestId,
};

use crate::check::{Check, Failure, ensure};

/// Order of service: (priority, arrival).
pub type Rank = (i32, u64);

/// What was seen at the last plan.
#[derive(Debug, Default)]
pub struct Watch {
    held_before: BTreeSet<RequestId>,
    in_flight: Vec<RequestId>,
    /// Times each request lost its memory.
    preempted: BTreeMap<RequestId, u32>,
}

/// Losses of memory by one request that are no longer bad luck. A preempted request comes back only when all of its
/// tokens fit; each later loss needs others that grew meanwhile.
const PREEMPTIONS_MAX: u32 = 40;

impl Watch {
    /// A plan was made. `open`: ranks of all that have not ended.
    pub fn planned(&mut self, holders: &[Holder], open: &BTreeMap<RequestId, Rank>) -> Result<(), Failure> {
        let rank_of = |id: &RequestId| open.get(id).copied();
        let held: BTreeSet<RequestId> = holders.iter().map(|holder| holder.id).collect();
        let admitted = held.difference(&self.held_before).filter_map(rank_of).max();
        let waiting = open.iter().filter(|(id, _)| !held.contains(id));
        if let Some(admitted) = admitted
            && let Some((id, rank)) = waiting.clone().find(|(_, rank)| **rank < admitted)
        {
            let what = format!("{id:?} of rank {rank:?} waits and rank {admitted:?} was admitted");
            return Err(Failure::new(Check::Order, what));
        }
        for id in self.held_before.difference(&held) {
            let Some(victim) = rank_of(id) else { continue };
            let stays = self.held_before.intersection(&held).filter_map(rank_of).find(|rank| *rank > victim);
            ensure(stays.is_none(), Check::Order, || {
                format!("{id:?} of rank {victim:?} lost its memory, {stays:?} behind it did not")
            })?;
            let times = self.preempted.entry(*id).or_default();
            *times += 1;
            let times = *times;
            ensure(times <= PREEMPTIONS_MAX, Check::Thrash, || format!("{id:?} lost its memory {times} times"))?;
        }
        for (at, holder) in holders.iter().enumerate() {
            if holder.phase == Phase::Decoding && holder.planned == 0 {
                let overtakes = holders[at + 1..].iter().find(|behind| behind.planned > 0);
                ensure(overtakes.is_none(), Check::Order, || {
                    format!("{:?} decodes and waits, {:?} behind it is in the step", holder.id, overtakes)
                })?;
            }
        }
        self.in_flight = holders.iter().filter(|holder| holder.planned > 0).map(|holder| holder.id).collect();
        self.held_before = held;
        Ok(())
    }

    /// Whether a request ever lost its memory.
    pub fn was_preempted(&self, id: RequestId) -> bool {
        self.preempted.contains_key(&id)
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
