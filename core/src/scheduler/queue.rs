//! Requests that run and requests that wait, both in order of service.

use std::collections::VecDeque;

use super::sequence::{Active, Body, Decoding, HoldsMemory, Leaving, Preempted, Prefilling, Queued, Rank, Sequence};
use crate::{bug::seeded, cache::copies::LoadId, request::RequestId};

/// A request that waits.
#[derive(Debug)]
pub enum Waiting {
    /// For its first admission.
    Queued(Sequence<Queued>),
    /// To come back.
    Preempted(Sequence<Preempted>),
}

impl Waiting {
    /// What stays through all states.
    pub fn body(&self) -> &Body {
        match self {
            Self::Queued(sequence) => &sequence.body,
            Self::Preempted(sequence) => &sequence.body,
        }
    }

    /// For hashing ahead.
    pub fn body_mut(&mut self) -> &mut Body {
        match self {
            Self::Queued(sequence) => &mut sequence.body,
            Self::Preempted(sequence) => &mut sequence.body,
        }
    }
}

/// A request that waits for pages to come back from host memory. The pages are the load's; nothing can be done with it
/// but to let it wait again once the load is over.
#[derive(Debug)]
pub struct Loading {
    load: LoadId,
    waiting: Waiting,
}

impl Loading {
    /// What stays through all states.
    pub fn body(&self) -> &Body {
        self.waiting.body()
    }
}

/// A request that holds memory.
#[derive(Debug)]
pub enum Running {
    /// Computes tokens it has.
    Prefilling(Sequence<Prefilling>),
    /// Generates.
    Decoding(Sequence<Decoding>),
    /// Ended for the caller, in the step in flight.
    Leaving(Sequence<Leaving>),
}

impl Running {
    /// What stays, and memory and progress.
    pub fn parts(&self) -> (&Body, &Active) {
        fn of<S: HoldsMemory>(sequence: &Sequence<S>) -> (&Body, &Active) {
            (&sequence.body, sequence.active())
        }
        match self {
            Self::Prefilling(sequence) => of(sequence),
            Self::Decoding(sequence) => of(sequence),
            Self::Leaving(sequence) => of(sequence),
        }
    }

    /// The same, to change.
    pub fn parts_mut(&mut self) -> (&mut Body, &mut Active) {
        match self {
            Self::Prefilling(sequence) => sequence.parts_mut(),
            Self::Decoding(sequence) => sequence.parts_mut(),
            Self::Leaving(sequence) => sequence.parts_mut(),
        }
    }

    /// Order of service.
    pub fn rank(&self) -> Rank {
        self.parts().0.rank
    }
}

/// With more classes of priority than these, looking at every request is as good.
const CLASSES_SEARCHED: usize = 32;

/// Both queues; room for everything is reserved, so moving between them never allocates.
#[derive(Debug)]
pub struct Queues {
    /// Ascending rank.
    pub waiting: VecDeque<Waiting>,
    /// Ascending rank. A slot is empty only while its request changes state.
    pub running: Vec<Option<Running>>,
    /// Out of `waiting` until their loads are over; others go on meanwhile.
    pub loading: Vec<Loading>,
}

impl Queues {
    /// Empty queues.
    pub fn new(max_waiting: u32, max_running: u32) -> Self {
        Self {
            waiting: VecDeque::with_capacity(max_waiting as usize + max_running as usize),
            running: Vec::with_capacity(max_running as usize),
            loading: Vec::new(),
        }
    }

    /// Queue a request behind those of its rank.
    pub fn wait(&mut self, entry: Waiting) {
        let rank = entry.body().rank;
        let at = self.waiting.partition_point(|other| other.body().rank < rank || seeded!(PriorityIsIgnored));
        self.waiting.insert(at, entry);
    }

    /// Let the one that waits at `at` wait for a load.
    pub fn load(&mut self, at: usize, load: LoadId) {
        if let Some(waiting) = self.waiting.remove(if seeded!(FirstWaitsForAnothersLoad) { 0 } else { at }) {
            self.loading.push(Loading { load, waiting });
        }
    }

    /// A load is over: who waited for it waits to be admitted.
    pub fn loaded(&mut self, load: LoadId) {
        while let Some(at) = self.loading.iter().position(|entry| entry.load == load) {
            let entry = self.loading.swap_remove(at);
            self.wait(entry.waiting);
        }
    }

    /// All that wait, for whatever.
    pub fn iter_waiting(&self) -> impl Iterator<Item = &Body> {
        self.waiting.iter().map(Waiting::body).chain(self.loading.iter().map(Loading::body))
    }

    /// Let an admitted request run.
    pub fn run(&mut self, entry: Running) {
        let rank = entry.rank();
        let at = self.running.partition_point(|other| present(other).rank() < rank);
        self.running.insert(at, Some(entry));
    }

    /// Take a waiting request out.
    pub fn take_waiting(&mut self, id: RequestId) -> Option<Waiting> {
        if let Some(at) = self.loading.iter().position(|entry| entry.body().id == id) {
            return Some(self.loading.swap_remove(at).waiting);
        }
        let rank_at = |at: usize| self.waiting.get(at).map(|entry| entry.body().rank);
        let mut at = 0;
        // Ids ascend within a class of priority: from class to class, not from request to request.
        for _ in 0..if seeded!(PriorityIsIgnored) { 0 } else { CLASSES_SEARCHED } {
            let (class, _) = rank_at(at)?;
            let wanted = (class, id.0);
            at = self.waiting.partition_point(|entry| entry.body().rank < wanted);
            if rank_at(at) == Some(wanted) {
                return self.waiting.remove(at);
            }
            at = self.waiting.partition_point(|entry| entry.body().rank.0 <= class);
        }
        let at = (at..self.waiting.len()).find(|&at| self.waiting[at].body().id == id)?;
        self.waiting.remove(at)
    }

    /// Where a running request is.
    pub fn position_running(&self, id: RequestId) -> Option<usize> {
        self.running.iter().position(|entry| present(entry).parts().0.id == id)
    }

    /// All running requests in order.
    pub fn iter_running(&self) -> impl Iterator<Item = &Running> + Clone {
        self.running.iter().map(present)
    }
}

/// The request in a slot.
pub fn present(slot: &Option<Running>) -> &Running {
    slot.as_ref().expect("a running slot is empty only while its request changes state")
}
