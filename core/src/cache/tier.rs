//! The host tier's side of the prefix index: which cached pages have a copy in host memory.
//!
//! Both tiers are one tree. A node is on the device, in host memory, or in both, and it stays where it is in the tree when it
//! moves, so a page is found by its tokens and its whole history wherever it lies. Pages on the device form a prefix of every
//! path; what lies in host memory alone continues it. A unit is a page, and the recurrent state at its end if there was one.
//!
//! Rejected: a second index over hashes alone. Its hits would have to be believed, and parents of other tiers found again.
//!
//! Why the oldest unit can always go: a unit becomes the newest of its list when its page leaves the device, deepest page
//! first, so of two units in host memory alone the one that continues the other is older.

use super::{
    events::Tier,
    index::PrefixIndex,
    lru::{Lru, NONE},
    namespace::Namespace,
    node::{NodeId, Parent},
    pool::{Handle, HostPage, HostState, Pool},
    tally::Tally,
};
use crate::bug::seeded;

/// A copy of a page, and of the state at its end, in host memory.
#[derive(Debug)]
pub(super) struct Unit {
    pub page: Handle<HostPage>,
    pub state: Option<Handle<HostState>>,
    /// Tokens the state encodes, by the label of the one that was copied.
    pub state_tokens: u32,
}

/// What the host tier knows of a node.
#[derive(Debug)]
pub(super) struct Side {
    /// In host memory.
    pub unit: Option<Unit>,
    /// The copy under way to host memory, or `NONE`.
    pub store: u32,
    /// The load that reads the unit, or `NONE`.
    pub load: u32,
    /// On the list of pages to copy.
    pub is_uncopied: bool,
    /// A copy did not work; not tried again.
    pub copy_failed: bool,
}

/// Without a host tier, all there is to know of every node.
const NOTHING: Side = Side { unit: None, store: NONE, load: NONE, is_uncopied: false, copy_failed: false };

/// Host memory and what is in it.
#[derive(Debug)]
pub(super) struct HostMemory {
    /// `[node]`; empty without a host tier.
    sides: Vec<Side>,
    pub pages: Pool<HostPage>,
    pub states: Pool<HostState>,
    /// Nodes with a unit that nobody copies from, oldest first.
    pub units: Lru,
    /// Of these, the ones with a state.
    pub with_state: Lru,
    /// Nodes that were let go on the device and have something there that host memory does not.
    pub uncopied: Lru,
}

impl HostMemory {
    pub fn new(nodes: u32, pages: u32, states: u32) -> Self {
        let nodes = if pages > 0 { nodes } else { 0 };
        Self {
            sides: (0..nodes).map(|_| NOTHING).collect(),
            pages: Pool::new(0, pages),
            states: Pool::new(0, states),
            units: Lru::new(nodes),
            with_state: Lru::new(nodes),
            uncopied: Lru::new(nodes),
        }
    }

    pub fn give(&mut self, unit: Unit) {
        self.pages.give(unit.page);
        if let Some(state) = unit.state {
            self.states.give(state);
        }
    }
}

impl PrefixIndex {
    pub(super) fn side(&self, at: u32) -> &Side {
        self.host.sides.get(at as usize).unwrap_or(&NOTHING)
    }

    /// Only with a host tier.
    pub(super) fn side_mut(&mut self, at: u32) -> &mut Side {
        &mut self.host.sides[at as usize]
    }

    fn has_host(&self) -> bool {
        !self.host.sides.is_empty()
    }

    /// Extend a path of pages on the device through both tiers.
    pub(super) fn find_anywhere(
        &self,
        namespace: &Namespace,
        tokens: &[u32],
        max_pages: usize,
        hashes: &mut Vec<u64>,
        path: &mut Vec<NodeId>,
    ) {
        self.walk(namespace, tokens, max_pages, hashes, path, |_| true);
    }

    /// A page leaves the device: what is being copied may be overwritten from now on.
    pub(super) fn void_store(&mut self, at: u32) {
        if self.has_host() {
            let store = std::mem::replace(&mut self.side_mut(at).store, NONE);
            if store != NONE {
                self.void_stores.push(store);
            }
        }
    }

    /// A node is used no more.
    pub(super) fn leave_host(&mut self, at: u32) {
        if self.has_host() {
            let side = std::mem::replace(self.side_mut(at), NOTHING);
            assert!(side.unit.is_none() && side.load == NONE && side.store == NONE && !side.is_uncopied);
        }
    }

    /// A page was let go on the device: it is to be copied if host memory lacks something of it.
    pub(super) fn offer(&mut self, at: u32) {
        if !self.has_host() {
            return;
        }
        let has_state = self.snapshots.has(at) && self.host.states.n_total() > 0;
        let on_device = self.node(at).page.is_some();
        let side = self.side_mut(at);
        let is_missing = side.unit.as_ref().is_none_or(|unit| has_state && unit.state.is_none());
        if is_missing && on_device && !side.is_uncopied && side.store == NONE && !side.copy_failed {
            side.is_uncopied = true;
            self.host.uncopied.push(at);
        }
    }

    pub(super) fn withdraw(&mut self, at: u32) {
        if self.has_host() && std::mem::take(&mut self.side_mut(at).is_uncopied) {
            self.host.uncopied.remove(at);
        }
    }

    /// Room for a unit, with a state of so many tokens or without: free, or that of the unit unused for longest.
    pub(super) fn take_unit(&mut self, state_tokens: Option<u32>) -> Option<Unit> {
        let page = match self.host.pages.take() {
            Some(page) => page,
            None => {
                let oldest = self.host.units.oldest()?;
                self.drop_unit(oldest);
                self.host.pages.take().expect("one was given back")
            }
        };
        let mut state = None;
        if state_tokens.is_some() {
            state = self.host.states.take();
            if let (None, Some(at)) = (&state, self.host.with_state.oldest()) {
                self.host.with_state.remove(at);
                state = self.side_mut(at).unit.as_mut().and_then(|unit| unit.state.take());
            }
        }
        Some(Unit { page, state, state_tokens: state_tokens.unwrap_or(0) })
    }

    /// A unit has arrived.
    pub(super) fn attach(&mut self, at: u32, unit: Unit) {
        if self.side(at).unit.is_some() {
            self.unlist_unit(at);
        }
        let before = self.side_mut(at).unit.replace(unit);
        match before {
            Some(before) => self.host.give(before),
            None => self.announce(at, Tier::Host),
        }
        self.list_unit(at);
    }

    /// As the newest that may go.
    pub(super) fn list_unit(&mut self, at: u32) {
        self.host.units.push(at);
        if self.side(at).unit.as_ref().is_some_and(|unit| unit.state.is_some()) {
            self.host.with_state.push(at);
        }
    }

    pub(super) fn unlist_unit(&mut self, at: u32) {
        self.host.units.remove(at);
        if self.side(at).unit.as_ref().is_some_and(|unit| unit.state.is_some()) {
            self.host.with_state.remove(at);
        }
    }

    /// Forget a copy that nobody reads, and the page where there was nothing else.
    pub(super) fn drop_unit(&mut self, at: u32) {
        assert_eq!(self.side(at).load, NONE, "a unit that is read is never given up");
        assert!(self.side(at).unit.is_some(), "what is given up is in host memory");
        self.unlist_unit(at);
        let unit = self.side_mut(at).unit.take().expect("looked at above");
        self.host.give(unit);
        if !self.is_clearing && !seeded!(RemovalIsNotAnnounced) {
            self.events.removed(self.node(at).hash, Tier::Host);
        }
        if self.node(at).page.is_none() {
            self.unlink(at);
        }
    }

    /// Forget everything in host memory that continues a page. O(pages forgotten): from a page that is gone it goes on at the one
    /// before, not at the first again.
    pub(super) fn drop_continuations(&mut self, at: u32) {
        let mut last = at;
        loop {
            while self.node(last).first_child != NONE {
                last = self.node(last).first_child;
            }
            if last == at {
                return;
            }
            let before = self.node(last).parent.node().expect("it continues a page");
            self.drop_unit(last);
            last = before;
        }
    }

    /// Forget a copy that turned out to be bad: the page too if it is nowhere else, with all that continues it.
    pub(super) fn drop_bad_unit(&mut self, at: u32) {
        if self.node(at).page.is_none() {
            self.drop_continuations(at);
        }
        self.drop_unit(at);
    }

    /// Whether a state is stored at the end of a page in host memory.
    pub(super) fn has_host_state(&self, NodeId(at): NodeId) -> bool {
        self.side(at).unit.as_ref().is_some_and(|unit| unit.state.is_some())
    }

    /// Check the host side's lists and counts; `in_flight` are the units of copies under way.
    pub(super) fn check_host<'a>(
        &'a self,
        in_flight: impl Iterator<Item = &'a Unit> + Clone,
        tally: &mut Tally,
    ) -> Result<(), String> {
        let Tally { marks, numbers } = tally;
        let units = || self.host.sides.iter().filter_map(|side| side.unit.as_ref()).chain(in_flight.clone());
        self.host.pages.check(units().map(|unit| unit.page.index()), marks)?;
        self.host.states.check(units().filter_map(|unit| unit.state.as_ref()).map(Handle::index), marks)?;
        let HostMemory { units, with_state, uncopied, .. } = &self.host;
        let [numbers, of_states, of_uncopied] = numbers;
        let units = numbers.places(self.nodes.len(), units.iter());
        let with_state = of_states.places(self.nodes.len(), with_state.iter());
        let uncopied = of_uncopied.places(self.nodes.len(), uncopied.iter());
        let is_listed = |places: &[u32], at: usize| places[at] != NONE;
        for (at, node) in self.nodes.iter().enumerate() {
            let Some(node) = node else {
                if [units, with_state, uncopied].iter().any(|places| is_listed(places, at)) {
                    return Err(format!("node {at} is not in use and on a list of the host tier"));
                }
                continue;
            };
            let side = self.side(at as u32);
            let is_kept = side.unit.is_some() && side.load == NONE;
            let has_state = side.unit.as_ref().is_some_and(|unit| unit.state.is_some());
            if is_listed(units, at) != is_kept || is_listed(with_state, at) != (is_kept && has_state) {
                return Err(format!("the unit of node {at} is on the wrong side of a list"));
            }
            if is_listed(uncopied, at) != side.is_uncopied || side.is_uncopied && node.page.is_none() {
                return Err(format!("node {at} is on the wrong side of the list of pages to copy"));
            }
            if node.page.is_none() {
                if side.unit.is_none() || node.holds > 0 {
                    return Err(format!("node {at} is nowhere, or held without a page"));
                }
                if let Parent::Node(parent) = node.parent {
                    let (own, theirs) = (units[at], units[parent as usize]);
                    let before = self.node(parent);
                    if before.page.is_none() && own != NONE && theirs != NONE && own > theirs {
                        return Err(format!("the unit of node {at} would outlive the one it continues"));
                    }
                }
            } else if let Parent::Node(parent) = node.parent
                && self.node(parent).page.is_none()
            {
                return Err(format!("node {at} is on the device, and the page it continues is not"));
            }
        }
        Ok(())
    }
}
