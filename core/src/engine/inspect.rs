//! What the engine holds, for simulators and debug endpoints: reads, decides nothing.

use super::EngineState;
use crate::{
    cache::events::{EventRing, Tier},
    overload::Load,
    request::RequestId,
    scheduler::{
        decision::{What, Why},
        queue::Running,
    },
};

/// Where a request that holds memory stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Computes tokens it has.
    Prefilling,
    /// Computes its last token and samples the next.
    Decoding,
    /// Has ended for the caller; a step in flight still writes its memory.
    Leaving,
}

/// A request that holds memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Which.
    pub id: RequestId,
    /// Row of the block tables.
    pub table_row: u32,
    /// Tokens computed by completed steps.
    pub computed: u32,
    /// Tokens of the step in flight, 0 if it has no part in one.
    pub planned: u32,
    /// Pages it holds.
    pub pages: u32,
    /// Where it stands.
    pub phase: Phase,
}

impl EngineState {
    /// The requests that hold memory, in order of service.
    pub fn holders(&self) -> impl Iterator<Item = Holder> + '_ {
        self.queues.iter_running().map(|running| {
            let (body, active) = running.parts();
            let phase = match running {
                Running::Prefilling(_) => Phase::Prefilling,
                Running::Decoding(_) => Phase::Decoding,
                Running::Leaving(_) => Phase::Leaving,
            };
            let (table_row, computed, planned) = (active.lease.row(), active.computed, active.planned);
            Holder { id: body.id, table_row, computed, planned, pages: active.lease.n_pages(), phase }
        })
    }

    /// The requests that wait for pages from host memory.
    pub fn loading(&self) -> impl Iterator<Item = RequestId> + '_ {
        self.queues.loading.iter().map(|entry| entry.body().id)
    }

    /// Requests that decode.
    pub fn n_decoding(&self) -> u32 {
        self.queues.iter_running().filter(|running| matches!(running, Running::Decoding(_))).count() as u32
    }

    /// Pages the prefix cache owns, in use or not.
    pub fn cached_pages(&self) -> impl Iterator<Item = u32> + '_ {
        self.memory.index.pages()
    }

    /// State slots the prefix cache owns.
    pub fn cached_states(&self) -> impl Iterator<Item = u32> + '_ {
        self.memory.index.snapshot_slots()
    }

    /// State slots of each request that holds memory: the one it goes on in, and one more it may keep.
    pub fn held_states(&self) -> impl Iterator<Item = (RequestId, u32)> + '_ {
        self.queues.iter_running().flat_map(|running| {
            let (body, active) = running.parts();
            active.lease.states().map(|slot| (body.id, slot))
        })
    }

    /// What became findable in the prefix cache and what stopped being so.
    pub fn cache_events(&self) -> &EventRing {
        self.memory.index.events()
    }

    /// What a reader of all [`EngineState::cache_events`] knows: place, hash, hash of the page before.
    pub fn cached_blocks(&self) -> impl Iterator<Item = (Tier, u64, Option<u64>)> + '_ {
        self.memory.index.blocks()
    }

    /// Cache namespaces with requests or cached pages.
    pub fn n_namespaces(&self) -> usize {
        self.memory.index.n_namespaces()
    }

    /// What there is to do, for [`crate::overload`]. O(running + waiting).
    pub fn load(&self, load: &mut Load) {
        load.classes.clear();
        load.running = self.queues.running.len() as u64;
        load.running_tokens = 0;
        for running in self.queues.iter_running() {
            let (body, active) = running.parts();
            if matches!(running, Running::Prefilling(_)) {
                load.running_tokens += u64::from(body.len() - active.computed - active.planned);
            }
        }
        let last = self.decisions().list.last().map(|decision| decision.what);
        let is_short_of_memory = matches!(last, Some(What::Waits(Why::NoPages)));
        load.seats = if is_short_of_memory { load.running } else { u64::from(self.config.max_num_seqs) };
        for waiting in &self.queues.waiting {
            let body = waiting.body();
            load.wait(body.rank.0, body.uncached);
        }
    }
}
