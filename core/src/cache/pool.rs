//! A fixed set of numbered things, handed out as move-only handles.

use std::{marker::PhantomData, num::NonZeroU32};

use super::tally::Marks;

/// What a pool holds; keeps pages, rows and state slots apart in the types.
pub trait Kind {
    /// For messages.
    const NAME: &'static str;
}

/// A block of every paged component.
#[derive(Debug)]
pub enum Page {}
/// A row of the block tables.
#[derive(Debug)]
pub enum TableRow {}
/// A recurrent-state slot.
#[derive(Debug)]
pub enum StateSlot {}
/// Room for a page in host memory.
#[derive(Debug)]
pub enum HostPage {}
/// Room for a recurrent state in host memory.
#[derive(Debug)]
pub enum HostState {}

impl Kind for Page {
    const NAME: &'static str = "page";
}
impl Kind for TableRow {
    const NAME: &'static str = "table row";
}
impl Kind for StateSlot {
    const NAME: &'static str = "state slot";
}
impl Kind for HostPage {
    const NAME: &'static str = "host page";
}
impl Kind for HostState {
    const NAME: &'static str = "host state";
}

/// The right to use one numbered thing. Not `Clone`, not `Copy`; [`Pool::give`] consumes it.
///
/// Using it after release, releasing it twice, copying it and giving it to another kind's pool do not compile
/// (`tests/compile_fail/`).
/// ```
/// use tokenspeed_core::cache::pool::{Page, Pool};
/// let mut pool = Pool::<Page>::new(1, 8);
/// let page = pool.take().unwrap();
/// assert_eq!((page.index(), pool.n_free()), (1, 6));
/// pool.give(page);
/// assert_eq!(pool.n_free(), 7);
/// ```
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a handle that is dropped is lost to its pool"]
pub struct Handle<K: Kind> {
    /// Its number and one: so that an `Option` of it takes no more room.
    above: NonZeroU32,
    kind: PhantomData<K>,
}

impl<K: Kind> Handle<K> {
    fn new(index: u32) -> Self {
        Self { above: NonZeroU32::MIN.saturating_add(index), kind: PhantomData }
    }

    /// The number the device knows it by.
    pub fn index(&self) -> u32 {
        self.above.get() - 1
    }
}

/// The numbers `first..end`.
#[derive(Debug)]
pub struct Pool<K: Kind> {
    first: u32,
    /// Last given is next taken: it is the likeliest to be warm.
    free: Vec<u32>,
    is_free: Vec<bool>,
    kind: PhantomData<K>,
}

impl<K: Kind> Pool<K> {
    /// All of `first..end`, free, taken in ascending order.
    pub fn new(first: u32, end: u32) -> Self {
        let free: Vec<u32> = (first..end).rev().collect();
        Self { first, is_free: vec![true; free.len()], free, kind: PhantomData }
    }

    /// A free one.
    pub fn take(&mut self) -> Option<Handle<K>> {
        let index = self.free.pop()?;
        self.is_free[(index - self.first) as usize] = false;
        Some(Handle::new(index))
    }

    /// Back to the pool it came from.
    pub fn give(&mut self, handle: Handle<K>) {
        let index = handle.index();
        let is_free = &mut self.is_free[(index - self.first) as usize];
        assert!(!*is_free, "{} {index} is free already: it came from another pool", K::NAME);
        *is_free = true;
        self.free.push(index);
    }

    /// How many are free.
    pub fn n_free(&self) -> u32 {
        self.free.len() as u32
    }

    /// How many there are.
    pub fn n_total(&self) -> u32 {
        self.is_free.len() as u32
    }

    /// Check that `held` and the free ones are all there are, each once.
    pub(super) fn check(&self, held: impl Iterator<Item = u32>, marks: &mut Marks) -> Result<(), String> {
        let seen = marks.none(self.is_free.len());
        for index in held.chain(self.free.iter().copied()) {
            match index.checked_sub(self.first).and_then(|at| seen.get_mut(at as usize)) {
                None => return Err(format!("{} {index} is not in the pool", K::NAME)),
                Some(true) => return Err(format!("{} {index} is held twice", K::NAME)),
                Some(slot) => *slot = true,
            }
        }
        match seen.iter().position(|&s| !s) {
            Some(lost) => Err(format!("{} {} is lost", K::NAME, lost as u32 + self.first)),
            None => Ok(()),
        }
    }
}
