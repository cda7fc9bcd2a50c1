//! Experts larger than memory: which of them stay mapped, within a budget.
//!
//! Experts used in place cost memory once they are touched. With a budget, the least recently used ones are unmapped
//! before others are touched, so that the mapped part of the checkpoint never outgrows it, and the chosen ones are read
//! ahead by a thread of their own while earlier ones are computed. Contents never change: an unmapped page comes back
//! from the file.
//!
//! Memory is counted in the windows of 2 MiB in which the system may map a file: touching one page of it can map it all.
//! A window at the edge of an expert is shared with its neighbour: it is counted for both, and if one is dropped the
//! other maps it again when needed. So the sum over mapped experts bounds what is mapped. Read are only an expert's own
//! pages.
//!
//! Rejected: copying experts into a buffer of the budget's size. It would read each one through the page cache and hold
//! it twice, and kernels could not run on the file. Rejected too: leaving it to the system, whose pages are not experts
//! and whose limit is all of memory.

mod stacks;
mod windows;

pub use stacks::Stacks;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread::JoinHandle,
};
use windows::{Advice, Windows, advise};

/// An expert: the layer's stacks and the place in them.
type Key = (usize, u32);

#[derive(Debug)]
struct Entry {
    windows: Windows,
    pages: Windows,
    bytes: u64,
    /// When it was last used.
    stamp: u64,
    /// Uses that have not ended.
    pinned: u32,
    /// Its read-ahead has not ended.
    pending: bool,
}

#[derive(Debug, Default)]
struct State {
    entries: HashMap<Key, Entry>,
    /// Stamps of all entries: the first is the least recently used.
    order: BTreeMap<u64, Key>,
    used: u64,
    clock: u64,
    /// To be read ahead.
    queue: Vec<Key>,
    stop: bool,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// The queue has grown, or it is time to stop.
    wanted: Condvar,
    /// Some read-ahead has ended.
    arrived: Condvar,
    hits: AtomicU64,
    misses: AtomicU64,
    read: AtomicU64,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps the mapped experts of a device within a budget. Dropping it joins its thread.
#[derive(Debug)]
pub struct Residency {
    budget: u64,
    shared: Arc<Shared>,
    reader: Option<JoinHandle<()>>,
}

impl Residency {
    /// At most `budget` bytes of experts are mapped.
    pub fn new(budget: u64) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        let reader = std::thread::Builder::new().name("cpu-read-ahead".into()).spawn(move || read_ahead(&own))?;
        Ok(Self { budget, shared, reader: Some(reader) })
    }

    /// Bytes of experts that may be in use together: while they are, as many more are read.
    pub fn wave_bytes(&self) -> u64 {
        self.budget / 2
    }

    /// Make room for the experts at these places, mark them used and start reading those that are not mapped. At most
    /// [`Self::wave_bytes`] at a time, and at most two times before [`Self::release`].
    pub fn admit(&self, stacks: &Stacks, places: impl Iterator<Item = u32> + Clone) {
        let mut state = self.shared.lock();
        let mut missing = 0;
        for place in places.clone() {
            let key = (stacks.id(), place);
            if state.entries.contains_key(&key) {
                self.shared.hits.fetch_add(1, Relaxed);
                touch(&mut state, key).pinned += 1;
            } else {
                missing += stacks.bytes(place);
            }
        }
        while state.used + missing > self.budget {
            let mut by_age = state.order.values();
            let Some(key) = by_age.find(|key| state.entries[key].pinned == 0).copied() else { break };
            if state.entries[&key].pending {
                // It would map pages after they were dropped.
                state = self.shared.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let entry = state.entries.remove(&key).expect("just found");
            state.order.remove(&entry.stamp);
            state.used -= entry.bytes;
            advise(&entry.windows, Advice::Drop);
        }
        for place in places {
            let key = (stacks.id(), place);
            if state.entries.contains_key(&key) {
                continue;
            }
            let (windows, pages) = (stacks.windows(place), stacks.pages(place));
            let bytes = windows::bytes(&windows);
            self.shared.misses.fetch_add(1, Relaxed);
            self.shared.read.fetch_add(windows::bytes(&pages), Relaxed);
            state.used += bytes;
            state.entries.insert(key, Entry { windows, pages, bytes, stamp: 0, pinned: 1, pending: true });
            touch(&mut state, key);
            state.queue.push(key);
        }
        self.shared.wanted.notify_one();
    }

    /// The use that [`Self::admit`] began has ended on every worker.
    pub fn release(&self, stacks: &Stacks, places: impl Iterator<Item = u32>) {
        let mut state = self.shared.lock();
        for place in places {
            if let Some(entry) = state.entries.get_mut(&(stacks.id(), place)) {
                entry.pinned -= 1;
            }
        }
    }

    /// Calls `counter` with what was counted.
    pub fn counters(&self, counter: &mut dyn FnMut(&'static str, u64)) {
        counter("expert_hits", self.shared.hits.load(Relaxed));
        counter("expert_misses", self.shared.misses.load(Relaxed));
        counter("expert_bytes_read", self.shared.read.load(Relaxed));
        counter("expert_bytes_resident", self.shared.lock().used);
    }
}

impl Drop for Residency {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.wanted.notify_one();
        if let Some(reader) = self.reader.take() {
            // A panic of the reader was printed by itself; there is nothing to add on the way out.
            let _ = reader.join();
        }
    }
}

/// Make an entry the most recently used.
fn touch(state: &mut State, key: Key) -> &mut Entry {
    state.clock += 1;
    let entry = state.entries.get_mut(&key).expect("the caller found it");
    state.order.remove(&entry.stamp);
    entry.stamp = state.clock;
    state.order.insert(entry.stamp, key);
    entry
}

/// The reader's thread: first ask for everything that is wanted, then wait for it, one expert after the other.
fn read_ahead(shared: &Shared) {
    let mut state = shared.lock();
    loop {
        while state.queue.is_empty() && !state.stop {
            state = shared.wanted.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.stop {
            return;
        }
        let queue = std::mem::take(&mut state.queue);
        let wanted: Vec<Windows> = queue.iter().map(|key| state.entries[key].pages.clone()).collect();
        drop(state);
        wanted.iter().for_each(|pages| advise(pages, Advice::Read));
        for (key, pages) in queue.iter().zip(&wanted) {
            advise(pages, Advice::Populate);
            let mut state = shared.lock();
            // Nobody removes a pending entry.
            state.entries.get_mut(key).expect("still pending").pending = false;
            shared.arrived.notify_all();
        }
        state = shared.lock();
    }
}
