//! Who is served before whom, under every policy, checked on every plan.
//!
//! Classes of priority are strict, and a preempted request returns before a new one of its class. First come, first served
//! admits by arrival. Shortest prefill first admits by what remains, where that is known (without a prefix cache it is the
//! whole prompt), but whoever was overtaken often enough by arrival; who was overtaken is counted here anew. A request that
//! waits for pages from host memory is passed by all.

use std::collections::{BTreeMap, BTreeSet};

use tokenspeed_core::{
    engine::{
        EngineConfig,
        inspect::{Holder, Phase},
    },
    request::RequestId,
    scheduler::{
        decision::{Decisions, What, Why},
        policy::{Order, SchedulingConfig},
    },
};

use crate::{
    check::{Check, Failure, ensure},
    watch::Rank,
};

/// A request that has not ended.
#[derive(Clone, Copy, Debug)]
pub struct Open {
    /// Order of service.
    pub rank: Rank,
    /// Tokens it has.
    pub len: u32,
    /// When it was submitted.
    pub submitted_ns: u64,
    /// It waits for pages from host memory.
    pub is_loading: bool,
}

/// All of them.
pub type Opens = BTreeMap<RequestId, Open>;

/// What was seen so far.
#[derive(Debug)]
pub struct Service {
    scheduling: SchedulingConfig,
    /// What remains of a new request is its prompt.
    is_exact: bool,
    /// Have held memory at some time.
    served: BTreeSet<RequestId>,
    overtaken: BTreeMap<RequestId, u32>,
    /// Admissions out of order of arrival.
    pub n_overtaken: u64,
    /// Admissions of those who had been overtaken often enough.
    pub n_aged: u64,
    /// Steps in which new requests were kept waiting.
    pub n_coalesced: u64,
}

impl Service {
    /// Of an engine.
    pub fn new(config: &EngineConfig) -> Self {
        Self {
            scheduling: config.scheduling,
            is_exact: !config.prefix_cache,
            served: BTreeSet::new(),
            overtaken: BTreeMap::new(),
            n_overtaken: 0,
            n_aged: 0,
            n_coalesced: 0,
        }
    }

    fn is_aged(&self, id: RequestId) -> bool {
        self.overtaken.get(&id).copied().unwrap_or(0) >= self.scheduling.overtaken_steps_max
    }

    /// Place among those of a class; smaller goes first.
    fn place(&self, id: RequestId, open: &Open) -> (u64, u64) {
        let arrival = open.rank.1;
        match self.scheduling.order {
            Order::FirstCome => (0, arrival),
            _ if self.served.contains(&id) => (0, arrival),
            Order::ShortestPrefill if self.is_aged(id) => (1, arrival),
            Order::ShortestPrefill if self.is_exact => (2 + u64::from(open.len), arrival),
            // Nobody here knows what remains.
            Order::ShortestPrefill => (2, 0),
        }
    }

    /// Some were admitted: nobody who still waits would have been before them. Under a policy, running requests get what its
    /// favourites leave when all have been admitted; whoever loses memory to that (`lost`, of this plan) did not wait then.
    pub fn admitted(
        &mut self,
        admitted: &BTreeSet<RequestId>,
        held: &BTreeSet<RequestId>,
        lost: &BTreeSet<RequestId>,
        opens: &Opens,
    ) -> Result<(), Failure> {
        let key = |id: RequestId, open: &Open| (open.rank.0, self.place(id, open));
        let is_by_arrival = self.scheduling.order == Order::FirstCome;
        let waits = |id: &RequestId, open: &Open| {
            !held.contains(id) && !open.is_loading && (is_by_arrival || !lost.contains(id))
        };
        let waiting: Vec<_> = opens.iter().filter(|(id, open)| waits(id, open)).collect();
        let first = waiting.iter().map(|(id, open)| (key(**id, open), **id)).min();
        let last = admitted.iter().filter_map(|id| Some((key(*id, opens.get(id)?), *id))).max();
        if let (Some((waits, who)), Some((goes, other))) = (first, last) {
            ensure(waits >= goes, Check::Order, || {
                format!("{who:?} of place {waits:?} waits and {other:?} of place {goes:?} was admitted")
            })?;
        }
        let passes = |open: &Open| {
            let is_passed =
                |(_, other): &&(&RequestId, &Open)| other.rank.0 == open.rank.0 && other.rank.1 < open.rank.1;
            waiting.iter().any(|entry| is_passed(&entry))
        };
        let new = admitted.iter().filter(|id| !self.served.contains(id)).filter_map(|id| Some((id, opens.get(id)?)));
        let (mut n_overtaken, mut n_aged) = (0, 0);
        for (id, open) in new {
            n_overtaken += u64::from(passes(open));
            let is_ordered = self.scheduling.order == Order::ShortestPrefill;
            n_aged += u64::from(is_ordered && self.scheduling.overtaken_steps_max > 0 && self.is_aged(*id));
        }
        self.n_overtaken += n_overtaken;
        self.n_aged += n_aged;
        self.served.extend(admitted);
        Ok(())
    }

    /// A step was planned: count who was overtaken in it, and look at why new requests wait.
    pub fn planned(
        &mut self,
        holders: &[Holder],
        opens: &Opens,
        decisions: &Decisions,
        now_ns: u64,
    ) -> Result<(), Failure> {
        let planned = |wanted: bool| {
            let is_so = move |h: &&Holder| h.phase == Phase::Prefilling && (h.planned > 0) == wanted;
            holders.iter().filter(is_so).filter_map(|holder| Some((holder.id, opens.get(&holder.id)?)))
        };
        let mut latest = BTreeMap::new();
        for (_, open) in planned(true) {
            let (class, arrival) = open.rank;
            let last = latest.entry(class).or_insert(arrival);
            *last = arrival.max(*last);
        }
        let holds = |id: &RequestId| holders.iter().any(|holder| holder.id == *id);
        let waiting = || opens.iter().filter(|(id, open)| !open.is_loading && !holds(id));
        for (id, open) in planned(false).chain(waiting().map(|(id, open)| (*id, open))) {
            if latest.get(&open.rank.0).is_some_and(|last| *last > open.rank.1) {
                *self.overtaken.entry(id).or_default() += 1;
            }
        }
        let is_held = decisions.list.iter().any(|decision| decision.what == What::Waits(Why::Coalescing));
        if !is_held {
            return Ok(());
        }
        self.n_coalesced += 1;
        let (decode, prefill, bound) =
            (decisions.decode_tokens, decisions.prefill_tokens, self.scheduling.coalescing_ns);
        ensure(decode > 0 && prefill == 0, Check::Order, || {
            format!("new requests are kept waiting in a step of {decode} decoding and {prefill} prompt tokens")
        })?;
        let mut waited = waiting().filter(|(id, _)| !self.served.contains(id));
        let late = waited.find(|(_, open)| now_ns.saturating_sub(open.submitted_ns) >= bound);
        ensure(late.is_none(), Check::Order, || {
            format!("{late:?} is kept waiting at {now_ns}, the bound is {bound} ns")
        })
    }
}
