//! Where a running request's recurrent state lies, and which slots its next step reads and writes.
//!
//! A request owns one slot, and a second one where there is room. Kernels read one slot and write another, so a state
//! is never copied: what a step leaves behind at a page boundary simply stays where it was written, and the next step
//! writes elsewhere. That kept state is what can become a snapshot: it moves into the prefix index, and the request
//! reads it there, shared, like anybody else would.
//!
//! * The state at the last page boundary is kept as long as a second slot exists; with one slot a step off the boundary
//!   overwrites it, and nothing can be stored. Nothing else depends on it.
//! * A shared snapshot is read and never written.
//!
//! Rejected: copying states to snapshots (449 MB for Kimi K3, in the middle of a step), and storing the state a request
//! happens to end in: it is almost never on a boundary, and a state that encodes other tokens than its pages is how
//! hybrid caches answer fluently and wrongly.

use super::{
    memory::Memory,
    node::NodeId,
    pool::{Handle, StateSlot},
    snapshots::SnapshotRef,
};
use crate::bug::seeded;

/// Where the state after the computed tokens is.
#[derive(Debug)]
enum Current {
    /// Nothing is computed: the state is zero and nowhere.
    Start,
    /// In own slot 0 or 1, of so many tokens.
    Own(usize, u32),
    /// In the prefix index.
    Shared(SnapshotRef),
}

/// A state at a page boundary that could be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kept {
    /// Own slot.
    at: usize,
    /// Tokens it encodes.
    tokens: u32,
}

/// The slots that a step reads and writes, and the tokens that the state it reads encodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateSlots {
    /// 0, the scratch slot, before the first step; it is not looked at then.
    pub read: u32,
    /// Never 0.
    pub write: u32,
    /// What the state's own label says; the request's own count must agree.
    pub tokens: u32,
}

/// A request's recurrent state.
#[derive(Debug)]
#[must_use = "a state that is dropped loses its slots"]
pub(super) struct RecurrentState {
    own: [Option<Handle<StateSlot>>; 2],
    current: Current,
    kept: Option<Kept>,
    /// Own slot that the step in flight writes.
    writing: Option<usize>,
}

impl RecurrentState {
    /// Start from nothing, or from the snapshot at the end of page `from`; [`Memory::has_seat`] must be true.
    ///
    /// If the only slot left is the snapshot itself, the request takes it out of the index and goes on in it.
    pub fn open(memory: &mut Memory, from: Option<NodeId>, tokens: u32) -> Self {
        let mut current = Current::Start;
        if let Some(node) = from {
            if memory.n_states_available() == 1 && memory.index.is_unpinned_snapshot(node) && memory.no_state_is_free()
            {
                let slot = memory.index.take_snapshot(node, tokens).expect("it is there");
                let kept = Some(Kept { at: 0, tokens });
                return Self { own: [Some(slot), None], current: Current::Own(0, tokens), kept, writing: None };
            }
            current = Current::Shared(memory.index.pin_snapshot(node, tokens));
        }
        let slot = memory.take_state().expect("asked has_seat");
        Self { own: [Some(slot), None], current, kept: None, writing: None }
    }

    /// Slots the next step reads and writes; it ends on a page boundary or not.
    pub fn plan(&mut self, memory: &mut Memory, ends_on_boundary: bool) -> StateSlots {
        let current = match self.current {
            Current::Own(at, _) => Some(at),
            Current::Start | Current::Shared(_) => None,
        };
        let kept = self.kept.map(|kept| kept.at);
        let at = match (ends_on_boundary, kept) {
            // What was kept is about to be superseded; in place, or wherever there is a slot.
            (true, _) | (false, None) => current.or(self.any()).expect("a request owns a slot"),
            (false, Some(kept)) => {
                let other = 1 - kept;
                if self.own[other].is_none() && memory.reuses_prefixes() {
                    self.own[other] = memory.take_state();
                }
                if self.own[other].is_some() {
                    other
                } else {
                    self.kept = None;
                    kept
                }
            }
        };
        self.writing = Some(at);
        let (read, tokens) = match &self.current {
            Current::Start => (0, 0),
            Current::Own(at, tokens) => (self.slot(*at), *tokens),
            Current::Shared(snapshot) => (snapshot.slot(), snapshot.tokens()),
        };
        let is_shared = matches!(self.current, Current::Shared(_));
        let write = if is_shared && seeded!(SnapshotIsWrittenInPlace) { read } else { self.slot(at) };
        StateSlots { read, write, tokens }
    }

    /// The planned step has run; its request has `computed` tokens now.
    pub fn complete(&mut self, memory: &mut Memory, computed: u32) {
        let at = self.writing.take().expect("a step was planned");
        if let Current::Shared(snapshot) = std::mem::replace(&mut self.current, Current::Own(at, computed)) {
            memory.index.unpin_snapshot(snapshot);
        }
        let is_boundary = computed.is_multiple_of(memory.page_tokens()) || seeded!(SnapshotIsTakenOffBoundary);
        if is_boundary && !seeded!(SnapshotsAreNeverKept) {
            self.kept = Some(Kept { at, tokens: computed });
        } else if self.kept.is_some_and(|kept| kept.at == at) {
            self.kept = None;
        }
    }

    /// Tokens of the state that could be stored.
    pub fn kept_tokens(&self) -> Option<u32> {
        self.kept.map(|kept| kept.tokens)
    }

    /// Store the kept state at `node`, the page it ends, and go on reading it there. False, and nothing changes, if that
    /// would leave no slot to write to: with `may_evict`, another snapshot may be given up for one.
    pub fn share(&mut self, memory: &mut Memory, node: NodeId, may_evict: bool) -> bool {
        let Some(kept) = self.kept else { return false };
        if memory.index.has_snapshot(node) {
            memory.index.touch_snapshot(node);
            return false;
        }
        let other = 1 - kept.at;
        if self.own[other].is_none() {
            self.own[other] = if may_evict { memory.take_state() } else { memory.take_free_state() };
        }
        if self.own[other].is_none() {
            return false;
        }
        let stored = if seeded!(SnapshotIsNeverWritten) { other } else { kept.at };
        memory.index.store_snapshot(node, self.own[stored].take().expect("kept in it"), kept.tokens);
        self.kept = None;
        if let Current::Own(at, tokens) = self.current
            && at == kept.at
        {
            self.current = Current::Shared(memory.index.pin_snapshot(node, tokens));
        }
        true
    }

    /// End: store the kept state at `node` unless there is one, and give everything else back.
    pub fn close(mut self, memory: &mut Memory, node: Option<NodeId>) {
        if let Current::Shared(snapshot) = std::mem::replace(&mut self.current, Current::Start) {
            memory.index.unpin_snapshot(snapshot);
        }
        if let (Some(node), Some(kept)) = (node, self.kept) {
            if memory.index.has_snapshot(node) {
                memory.index.touch_snapshot(node);
            } else {
                memory.index.store_snapshot(node, self.own[kept.at].take().expect("kept in it"), kept.tokens);
            }
        }
        self.own.into_iter().flatten().for_each(|slot| memory.give_state(slot));
    }

    fn any(&self) -> Option<usize> {
        self.own.iter().position(Option::is_some)
    }

    fn slot(&self, at: usize) -> u32 {
        self.own[at].as_ref().expect("an own slot").index()
    }

    /// Slots owned.
    pub fn slots(&self) -> impl Iterator<Item = u32> + '_ {
        self.own.iter().flatten().map(Handle::index)
    }

    /// Node of the snapshot being read.
    pub fn pinned_node(&self) -> Option<u32> {
        match &self.current {
            Current::Shared(snapshot) => Some(snapshot.node()),
            Current::Start | Current::Own(..) => None,
        }
    }
}
