//! Copies between the device and host memory: carried out late, in any order, well or badly, each as its [`Fate`] says, by the
//! very code that serves, behind the C table.
//!
//! What is checked: nothing can be found in host memory before its copy was said to have ended well, nor after a copy from
//! there was said to have failed; what was stored and not damaged comes back; whoever waits for pages had some to wait for.
//! That what comes back is right is the device's to check.

use std::collections::{BTreeMap, BTreeSet};

use tokenspeed_core::{
    cache::copies::{CopyOrder, Direction},
    driver::StepRunner,
    request::RequestId,
};

use super::Simulation;
use crate::{
    check::{Check, Failure, ensure},
    scenario::Fate,
};

/// A copy under way.
#[derive(Debug)]
struct Flying {
    order: CopyOrder,
    /// The tick in which it is carried out and its end is told.
    due: u32,
    fate: Fate,
}

/// What was stored in places of one kind, and whether a bit of it is wrong.
type Places = BTreeMap<u32, bool>;

/// All copies of an engine.
#[derive(Debug, Default)]
pub(super) struct Wire {
    flying: Vec<Flying>,
    /// Ends to tell again, and when.
    echoes: Vec<(u32, u64)>,
    /// Orders so far, by name and direction.
    ordered: BTreeMap<(u64, bool), u32>,
    /// Names of what was said to have arrived in host memory.
    arrived: BTreeSet<u64>,
    /// Names of what was said to have failed on its way back.
    failed: BTreeSet<u64>,
    pages: Places,
    states: Places,
    /// Copies that were said to have failed.
    n_failed: u64,
    /// Requests that were seen to wait.
    loading: BTreeSet<RequestId>,
}

impl Wire {
    /// Nothing is under way.
    pub fn is_empty(&self) -> bool {
        self.flying.is_empty()
    }

    /// Something is on its way back.
    pub fn are_loading(&self) -> bool {
        self.flying.iter().any(|flying| flying.order.direction == Direction::Load)
    }

    /// A bit flips in all that was stored.
    pub fn damaged(&mut self) {
        self.pages.values_mut().chain(self.states.values_mut()).for_each(|is_wrong| *is_wrong = !*is_wrong);
    }
}

impl Simulation<'_> {
    /// Take over what the engine wants copied.
    pub(super) fn take_orders(&mut self) {
        while let Some(order) = self.engine.next_copy() {
            let is_load = order.direction == Direction::Load;
            let times = self.wire.ordered.entry((order.hash, is_load)).or_default();
            let (delay, fate) = self.scenario.wire.fate(order.hash, is_load, *times);
            *times += 1;
            self.wire.flying.push(Flying { order, due: self.tick + delay, fate });
        }
    }

    /// Carry out what is due; with `all`, everything. True if anything was.
    pub(super) fn land(&mut self, all: bool) -> Result<bool, Failure> {
        if self.scenario.config.host_pages == 0 {
            return Ok(false);
        }
        let tick = self.tick;
        let mut any = false;
        while let Some(at) = self.wire.echoes.iter().position(|(due, _)| *due <= tick) {
            let (_, id) = self.wire.echoes.swap_remove(at);
            self.engine.copied(id, true);
            any = true;
        }
        while let Some(at) = self.wire.flying.iter().position(|flying| all || flying.due <= tick) {
            let flying = self.wire.flying.remove(at);
            self.carry_out(flying)?;
            any = true;
        }
        if any {
            self.conserve()?;
            self.look_at_host_memory()?;
        }
        Ok(any)
    }

    fn carry_out(&mut self, Flying { order, fate, .. }: Flying) -> Result<(), Failure> {
        let is_store = order.direction == Direction::Store;
        let page = order.page.map(|ends| ends.host);
        if let (Fate::Damaged, false, Some(page)) = (fate, is_store, page) {
            self.damage_page(page);
        }
        let arrives = match fate {
            Fate::Lost => false,
            Fate::Half => {
                // Where there is one half only, all of it comes, and nobody is told.
                let half = CopyOrder { state: order.state.filter(|_| page.is_none()), ..order };
                self.copy(&half)?;
                false
            }
            Fate::Arrives | Fate::ToldTwice | Fate::Damaged => self.copy(&order)?,
        };
        if let (Fate::Damaged, true, Some(page)) = (fate, is_store, page) {
            self.damage_page(page);
        }
        self.outcome.tally.copies_between += u64::from(self.behind.is_some());
        self.outcome.tally.bad_copies += u64::from(!arrives);
        self.wire.n_failed += u64::from(!arrives);
        match (is_store, arrives) {
            (true, true) => drop(self.wire.arrived.insert(order.hash)),
            (false, false) => drop(self.wire.failed.insert(order.hash)),
            _ => {}
        }
        if is_store && arrives {
            self.wire.failed.remove(&order.hash);
        }
        self.engine.copied(order.id, arrives);
        if fate == Fate::ToldTwice {
            self.engine.copied(order.id, arrives);
            self.wire.echoes.push((self.tick + 1 + (order.hash % 7) as u32, order.id));
        }
        Ok(())
    }

    /// Copy for real; false if it is refused, which must be for a reason.
    fn copy(&mut self, order: &CopyOrder) -> Result<bool, Failure> {
        let result = self.program.copy(order);
        let (page, state) = (order.page, order.state);
        let Wire { pages, states, .. } = &mut self.wire;
        let both = [(page, pages), (state, states)];
        if order.direction == Direction::Store {
            for (ends, places) in both {
                ends.map(|ends| places.insert(ends.host, false));
            }
            ensure(result.is_ok(), Check::Tier, || format!("{order:?} was not stored: {result:?}"))?;
        } else {
            let is_wrong = both.iter().any(|(ends, places)| ends.is_some_and(|e| places.get(&e.host) != Some(&false)));
            ensure(result.is_ok() || is_wrong, Check::Tier, || {
                format!("{order:?} was refused, and nothing is wrong with what was stored: {result:?}")
            })?;
        }
        let mut world = self.registered.world.lock();
        if let Some(ends) = page {
            world.copied_page(order.direction == Direction::Store, ends.device, ends.host);
        }
        Ok(result.is_ok())
    }

    fn damage_page(&mut self, page: u32) {
        if let Some(is_wrong) = self.wire.pages.get_mut(&page)
            && let Some(host) = self.program.host_cache()
        {
            *is_wrong = !*is_wrong;
            host.damage_page(page);
        }
    }

    /// A bit flips in everything that was stored.
    pub(super) fn damage(&mut self) {
        if let Some(host) = self.program.host_cache() {
            host.damage();
            self.wire.damaged();
        }
    }

    /// Only what has arrived can be found in host memory, and nothing that failed to come back from there.
    fn look_at_host_memory(&mut self) -> Result<(), Failure> {
        if !self.is_looked_through() {
            return Ok(());
        }
        let Wire { arrived, failed, flying, n_failed, .. } = &mut self.wire;
        let tick = self.tick;
        let unknown = self.told.in_host_memory().find(|name| !arrived.contains(name));
        ensure(unknown.is_none(), Check::Tier, || {
            format!("tick {tick}: {unknown:x?} can be found in host memory and has not arrived there")
        })?;
        if flying.iter().all(|flying| flying.order.direction == Direction::Store)
            && self.engine.loading().next().is_none()
        {
            let bad = self.told.in_host_memory().find(|name| failed.contains(name));
            ensure(bad.is_none(), Check::Tier, || {
                format!("tick {tick}: {bad:x?} did not come back from host memory and can be found there still")
            })?;
            failed.clear();
        }
        let counted = self.engine.metrics().host_failed;
        ensure(counted == *n_failed, Check::Tier, || {
            format!("tick {tick}: {n_failed} copies were said to have failed, {counted} are counted")
        })
    }

    /// A plan was made: whoever waits for host memory since then has something there to wait for.
    pub(super) fn look_at_loading(&mut self) -> Result<(), Failure> {
        let loading: BTreeSet<RequestId> = self.engine.loading().collect();
        let is_known = self.is_looked_through() && !self.promises.has_state();
        for id in loading.difference(&self.wire.loading).filter(|_| is_known) {
            let alone = &self.ears.asked[id].alone;
            let [here, anywhere] = self.told.known(&alone.request, alone.tokens(), self.scenario.config.block_tokens);
            ensure(anywhere > here, Check::Tier, || {
                format!("{id:?} waits for host memory, where there is nothing for it beyond {here} tokens")
            })?;
        }
        self.wire.loading = loading;
        Ok(())
    }
}
