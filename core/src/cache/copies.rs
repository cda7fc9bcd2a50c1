//! Copies between the device and host memory: orders for whoever can copy, and what their ends mean.
//!
//! * **Stores** follow pages that were let go, oldest first. Nothing is held on the device for them: a page that is evicted
//!   while it is copied makes its copy void, and the copy is then never seen. The copy's place in host memory is the
//!   copy's own until then.
//! * **Loads** bring back what a waiting request can resume from. The pages they fill belong to the load, and the pages
//!   before them are held, until all of its copies have ended, also if nobody waits any more.
//! * Nothing is visible before its copy has ended well. A copy that has not is a miss: its unit is forgotten, the request
//!   computes its tokens, and the failure is counted.
//!
//! Orders end in any order, each once: whoever carries them out may say so twice, and what is said again, or of no order, is
//! not heard. Rejected: holding pages while they are stored; a held page in the middle of an idle
//! path blocks the eviction of all pages before it.

use std::collections::VecDeque;

use super::{
    component::{PagedRows, Resume, joint_match},
    index::{PathRef, PrefixIndex, STORES_MAX},
    lru::NONE,
    memory::Memory,
    namespace::Namespace,
    node::NodeId,
    pool::{Handle, Page, StateSlot},
    tier::Unit,
};
use crate::bug::seeded;

/// One end of a copy on the device, the other in host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// Page or state slot.
    pub device: u32,
    /// Page or state in host memory.
    pub host: u32,
}

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the device to host memory.
    Store,
    /// From host memory to the device.
    Load,
}

/// Something to copy. It may be copied at any time; how it ended is told with [`Memory::copied`], once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "an order that is not carried out keeps its memory"]
pub struct CopyOrder {
    /// Number, to tell how it ended; never used again.
    pub id: u64,
    /// Which way.
    pub direction: Direction,
    /// Name of the page's whole history: what is in host memory under another name is something else.
    pub hash: u64,
    /// The page of every paged component, if it is wanted.
    pub page: Option<Ends>,
    /// The recurrent state at its end, if it is wanted.
    pub state: Option<Ends>,
}

/// A load that a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadId(u32);

/// Counts since start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierCounts {
    /// Pages copied to host memory.
    pub stored: u64,
    /// Pages copied back.
    pub loaded: u64,
    /// Copies that failed or did not fit their checksum.
    pub failed: u64,
}

#[derive(Debug)]
enum Flight {
    Store {
        /// `None` once the page has left the device.
        node: Option<u32>,
        unit: Unit,
        /// The snapshot being copied, by number.
        snapshot: Option<u64>,
    },
    Load {
        load: u32,
        item: usize,
    },
}

#[derive(Debug)]
struct Item {
    node: u32,
    page: Option<Handle<Page>>,
    state: Option<Handle<StateSlot>>,
    is_ok: bool,
}

#[derive(Debug)]
struct Load {
    /// The path before the items.
    held: Option<PathRef>,
    /// In path order.
    items: Vec<Item>,
    n_pending: usize,
}

/// All copies under way.
#[derive(Debug, Default)]
pub(super) struct Copies {
    flights: Vec<Option<Flight>>,
    /// `[flight]`: how many there were in this place before.
    earlier: Vec<u32>,
    free: Vec<u32>,
    loads: Vec<Option<Load>>,
    /// Loads go first: somebody waits for them.
    orders: [VecDeque<CopyOrder>; 2],
    n_stores: usize,
    pub counts: TierCounts,
}

impl Copies {
    pub fn new(has_host: bool) -> Self {
        let n = if has_host { STORES_MAX } else { 0 };
        Self {
            flights: Vec::with_capacity(n),
            earlier: Vec::with_capacity(n),
            free: Vec::with_capacity(n),
            orders: [VecDeque::new(), VecDeque::with_capacity(n)],
            ..Self::default()
        }
    }

    fn take_off(&mut self, flight: Flight) -> u32 {
        match self.free.pop() {
            Some(id) => {
                self.flights[id as usize] = Some(flight);
                id
            }
            None => {
                self.flights.push(Some(flight));
                self.earlier.push(0);
                self.free.reserve(self.flights.len());
                self.flights.len() as u32 - 1
            }
        }
    }

    /// The number of the order in a place.
    fn order_id(&self, at: u32) -> u64 {
        u64::from(self.earlier[at as usize]) << 32 | u64::from(at)
    }

    /// The copy of an order leaves its place; `None` if it has left before or never was.
    fn end(&mut self, id: u64) -> Option<Flight> {
        let at = id as u32;
        if !seeded!(CopyEndsTwice) && self.earlier.get(at as usize) != Some(&((id >> 32) as u32)) {
            return None;
        }
        let flight = self.flights[at as usize].take()?;
        self.earlier[at as usize] = self.earlier[at as usize].wrapping_add(1);
        self.free.push(at);
        Some(flight)
    }

    fn loads(&self) -> impl Iterator<Item = &Load> + Clone {
        self.loads.iter().flatten()
    }

    /// Units that stores fill.
    pub fn units(&self) -> impl Iterator<Item = &Unit> + Clone {
        self.flights.iter().flatten().filter_map(|flight| match flight {
            Flight::Store { unit, .. } => Some(unit),
            Flight::Load { .. } => None,
        })
    }

    /// Pages that loads fill.
    pub fn pages(&self) -> impl Iterator<Item = u32> + '_ {
        self.loads().flat_map(|load| &load.items).filter_map(|item| item.page.as_ref()).map(Handle::index)
    }

    /// State slots that loads fill.
    pub fn states(&self) -> impl Iterator<Item = u32> + '_ {
        self.loads().flat_map(|load| &load.items).filter_map(|item| item.state.as_ref()).map(Handle::index)
    }

    /// Nodes that loads hold.
    pub fn held_nodes(&self) -> impl Iterator<Item = u32> + '_ {
        self.loads().filter_map(|load| load.held.as_ref()).map(|path| path.node)
    }
}

/// States stored on the device or in host memory.
struct StatesAnywhere<'a>(&'a PrefixIndex);

impl Resume for StatesAnywhere<'_> {
    fn deepest(&self, path: &[NodeId], at_most: usize) -> usize {
        let is_there = |&node: &NodeId| self.0.has_snapshot(node) || self.0.has_host_state(node);
        path[..at_most].iter().rposition(is_there).map_or(0, |at| at + 1)
    }
}

impl Memory {
    /// True if there is host memory to keep pages in.
    pub fn has_host(&self) -> bool {
        self.index.host.pages.n_total() > 0
    }

    /// Loads under way.
    pub fn n_loads(&self) -> usize {
        self.copies.loads().count()
    }

    /// Copies under way, ordered or not yet handed out.
    pub fn n_copies(&self) -> usize {
        self.copies.flights.iter().flatten().count()
    }

    /// The next order to carry out, loads first.
    pub fn next_copy(&mut self) -> Option<CopyOrder> {
        self.copies.orders.iter_mut().find_map(VecDeque::pop_front)
    }

    /// Order copies of pages that were let go, until so many are under way ([`STORES_MAX`] at most).
    pub fn order_stores(&mut self, most: usize) {
        while self.copies.n_stores < most.min(STORES_MAX)
            && let Some(at) = self.index.host.uncopied.oldest()
        {
            let snapshot = self.index.snapshots.get(at).filter(|_| self.index.host.states.n_total() > 0);
            let has_unit = self.index.side(at).unit.is_some();
            self.index.withdraw(at);
            let Some(unit) = self.index.take_unit(snapshot.map(|stored| stored.tokens)) else {
                // All of host memory is being copied to or from: later.
                self.index.offer(at);
                return;
            };
            if has_unit && unit.state.is_none() && self.index.side(at).unit.is_some() {
                // Only the state was missing, and there is no room for it.
                self.index.host.give(unit);
                continue;
            }
            let snapshot = snapshot.filter(|_| unit.state.is_some());
            let state = snapshot.zip(unit.state.as_ref());
            let state = state.map(|(stored, host)| Ends { device: stored.slot, host: host.index() });
            let host = unit.page.index();
            let flight = Flight::Store { node: Some(at), unit, snapshot: snapshot.map(|stored| stored.number) };
            let place = self.copies.take_off(flight);
            let id = self.copies.order_id(place);
            self.copies.n_stores += 1;
            self.index.side_mut(at).store = place;
            let node = self.index.node(at);
            let device = node.page.as_ref().expect("it was let go on the device").index();
            let page = Some(Ends { device, host });
            self.copies.orders[1].push_back(CopyOrder {
                id,
                direction: Direction::Store,
                hash: node.hash,
                page,
                state,
            });
            if seeded!(CopyIsFoundBeforeItEnds) {
                self.copied(id, true);
            }
        }
    }

    /// Bring back what a request of `tokens` could resume from beyond the first `n_resumable` pages of its `path` on the device,
    /// as far as host memory has it and the device has room for it beside `margin` pages. The load to wait for, which may be
    /// another request's.
    pub fn start_load(
        &mut self,
        namespace: &Namespace,
        tokens: &[u32],
        max_pages: usize,
        hashes: &mut Vec<u64>,
        (path, n_resumable): (&[NodeId], usize),
        margin: u32,
    ) -> Option<LoadId> {
        if seeded!(NothingComesBack) {
            return None;
        }
        let mut whole = Vec::with_capacity(max_pages);
        whole.extend_from_slice(path);
        self.index.find_anywhere(namespace, tokens, max_pages, hashes, &mut whole);
        let resumable = |memory: &Self, path: &[NodeId]| {
            let components: [&dyn Resume; 2] = [&PagedRows, &StatesAnywhere(&memory.index)];
            joint_match(&components[..if memory.has_states() { 2 } else { 1 }], path)
        };
        whole.truncate(resumable(self, &whole));
        let index = &self.index;
        // A page on the device that somebody waits for all the same is nothing to wait for.
        if let Some(node) = whole.iter().skip(n_resumable).find(|node| index.side(node.0).load != NONE) {
            return Some(LoadId(index.side(node.0).load));
        }
        // As far as there is room for it.
        let n_held = whole.iter().take_while(|node| index.node(node.0).page.is_some()).count();
        let room = self.n_available_beside(&whole[..n_held]).saturating_sub(margin);
        whole.truncate(n_held + room as usize);
        whole.truncate(resumable(self, &whole));
        if whole.len() <= n_resumable {
            return None;
        }
        let n_held = n_held.min(whole.len());
        let n_pages = whole.len() - n_held;
        let last = *whole.last()?;
        let wants_state = self.has_states() && !self.index.has_snapshot(last);
        if wants_state && self.n_states_available() == 0 {
            return None;
        }
        let load = self.copies.loads.iter().position(Option::is_none).unwrap_or_else(|| {
            self.copies.loads.push(None);
            self.copies.loads.len() - 1
        }) as u32;
        let held = if seeded!(LoadHoldsNothing) { None } else { whole[..n_held].last() };
        let held = held.map(|&deepest| self.index.hold(deepest));
        let fetched = whole[n_held..].iter().copied().chain((wants_state && n_pages == 0).then_some(last));
        let fetched: Vec<u32> = fetched.map(|node| node.0).collect();
        for &node in &fetched {
            self.index.unlist_unit(node);
            self.index.side_mut(node).load = load;
        }
        let mut items = Vec::with_capacity(fetched.len());
        for (item, node) in fetched.into_iter().enumerate() {
            let page = (n_pages > 0).then(|| self.take_page().expect("counted as available"));
            let state = (wants_state && node == last.0).then(|| self.take_state().expect("counted as available"));
            let place = self.copies.take_off(Flight::Load { load, item });
            let id = self.copies.order_id(place);
            let unit = self.index.side(node).unit.as_ref().expect("it is in host memory");
            let host_state = unit.state.as_ref().map(Handle::index);
            let order = CopyOrder {
                id,
                direction: Direction::Load,
                hash: self.index.node(node).hash,
                page: page.as_ref().map(|page| Ends { device: page.index(), host: unit.page.index() }),
                state: state.as_ref().zip(host_state).map(|(slot, host)| Ends { device: slot.index(), host }),
            };
            self.copies.orders[0].push_back(order);
            items.push(Item { node, page, state, is_ok: false });
        }
        let n_pending = items.len();
        self.copies.loads[load as usize] = Some(Load { held, items, n_pending });
        Some(LoadId(load))
    }

    /// A copy has ended, well or not; nothing happens if that was said before. The load that is over with it, if one is.
    pub fn copied(&mut self, id: u64, is_ok: bool) -> Option<LoadId> {
        self.void_stores();
        let flight = self.copies.end(id)?;
        self.copies.counts.failed += u64::from(!is_ok);
        let is_ok = is_ok || seeded!(FailedCopyIsBelieved);
        match flight {
            Flight::Store { node, unit, snapshot } => {
                self.copies.n_stores -= 1;
                self.stored(node, unit, snapshot, is_ok);
                None
            }
            Flight::Load { load, item } => {
                let entry = &mut self.copies.loads[load as usize];
                let all = entry.as_mut().expect("its copies were under way");
                all.items[item].is_ok = is_ok;
                all.n_pending -= 1;
                if all.n_pending > 0 {
                    return None;
                }
                let all = entry.take().expect("looked at above");
                self.loaded(all);
                Some(LoadId(load))
            }
        }
    }

    /// Copies whose page left the device meanwhile are not believed.
    fn void_stores(&mut self) {
        while let Some(place) = self.index.void_stores.pop() {
            if let Some(Some(Flight::Store { node, .. })) = self.copies.flights.get_mut(place as usize)
                && !seeded!(VoidCopyIsBelieved)
            {
                *node = None;
            }
        }
    }

    fn stored(&mut self, node: Option<u32>, unit: Unit, snapshot: Option<u64>, is_ok: bool) {
        let index = &mut self.index;
        let Some(at) = node else {
            index.host.give(unit);
            return;
        };
        index.side_mut(at).store = NONE;
        let is_same = |number| index.snapshots.get(at).is_some_and(|now| now.number == number);
        let still_there = seeded!(StateGivenUpMeanwhileIsKept) || snapshot.is_none_or(is_same);
        // A unit that a load reads is not exchanged.
        if is_ok && still_there && index.side(at).load == NONE {
            self.copies.counts.stored += 1;
            index.attach(at, unit);
        } else {
            index.side_mut(at).copy_failed = !is_ok;
            index.host.give(unit);
        }
        // A state may have been stored meanwhile.
        index.offer(at);
    }

    /// All copies of a load have ended: what arrived whole, from the front on, can be found.
    fn loaded(&mut self, load: Load) {
        let Load { mut held, items, .. } = load;
        let mut bad = Vec::new();
        for item in items.iter().rev() {
            // Deepest first, as pages leave the device.
            self.index.side_mut(item.node).load = NONE;
            self.index.list_unit(item.node);
        }
        for Item { node, page, state, is_ok } in items {
            if !is_ok {
                bad.push(node);
            }
            let is_usable = bad.is_empty() || seeded!(PagesBehindAGapCount) && is_ok;
            if let Some(page) = page {
                if !is_usable {
                    self.pages.give(page);
                } else if self.index.node(node).page.is_some() {
                    // Computed meanwhile.
                    if !seeded!(PageLoadedInVainIsLost) {
                        self.pages.give(page);
                    }
                    held = Some(self.index.extend(held, NodeId(node)));
                } else {
                    self.copies.counts.loaded += 1;
                    held = Some(self.index.put(held, node, page));
                }
            }
            if let Some(slot) = state {
                // A unit that is read stays what it is.
                let unit = self.index.side(node).unit.as_ref();
                if is_usable && !self.index.has_snapshot(NodeId(node)) {
                    let tokens = unit.expect("it was read").state_tokens;
                    self.index.store_snapshot(NodeId(node), slot, tokens);
                } else {
                    self.give_state(slot);
                }
            }
        }
        // Deepest first: with a page goes what continues it.
        for node in bad.into_iter().rev().filter(|_| !seeded!(BadCopyIsKept)) {
            self.index.drop_bad_unit(node);
        }
        if let Some(path) = held {
            self.index.release(path);
        }
        self.releases += 1;
    }

    /// What a seeded bug does when a request that waits for a load is aborted.
    #[cfg(debug_assertions)]
    pub(crate) fn give_up_loads(&mut self) {
        let items = self.copies.loads.iter_mut().flatten().flat_map(|load| &mut load.items);
        items.filter_map(|item| item.page.take()).for_each(|page| self.pages.give(page));
    }

    /// (pages, states) in host memory and in all: used, total.
    pub fn host_counts(&self) -> [(u32, u32); 2] {
        let host = &self.index.host;
        let (pages, states) = (&host.pages, &host.states);
        [(pages.n_total() - pages.n_free(), pages.n_total()), (states.n_total() - states.n_free(), states.n_total())]
    }

    /// What the host tier did.
    pub fn tier_counts(&self) -> TierCounts {
        self.copies.counts
    }
}
