//! A model of the memory-side cache, which all dies share: what of the traffic behind L2 comes from HBM and goes there.
//!
//! Assumed: 256 MiB (AMD's CDNA3 and CDNA4 white papers), lines of 128 bytes, filled by reads and by writes alike, the least
//! recently used line leaves first and is then written back if it was changed, contents stay from launch to launch. A line
//! that is written is not fetched, not even where it is written in part: HBM takes bytes under a mask. Work-groups arrive in the order
//! in which they are dispatched, each with the lines it touches, once; so what L2 serves again within a launch refreshes a line here,
//! which it would not do there.
//!
//! Left out: sets and channels (the cache is fully associative: what fills it to the brim here may not fit there), policies that
//! keep streams out, and that hundreds of work-groups run at a time. Rejected: arguing that something stays in the cache.

use std::collections::{BTreeMap, HashMap};

use super::detail::LineHash;

/// No slot.
const NONE: u32 = u32::MAX;

/// A line in the cache, between its neighbours in order of use.
#[derive(Debug, Clone, Copy)]
struct Slot {
    line: u64,
    changed: bool,
    newer: u32,
    older: u32,
}

/// Lines read from memory and lines written to it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Read.
    pub read: u64,
    /// Written.
    pub written: u64,
}

/// The cache.
#[derive(Debug)]
pub struct SideCache {
    capacity: usize,
    places: HashMap<u64, u32, LineHash>,
    slots: Vec<Slot>,
    newest: u32,
    oldest: u32,
    traffic: Traffic,
    /// Of the launch: the next work-group to arrive, and those that ran before it.
    next: u64,
    early: BTreeMap<u64, Vec<u64>>,
}

/// An access as a number: the line's, doubled, plus 1 if it is written.
pub fn access(line: u64, write: bool) -> u64 {
    2 * line + u64::from(write)
}

impl SideCache {
    /// Empty, of so many lines.
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity: capacity.clamp(1, NONE as usize),
            places: HashMap::default(),
            slots: Vec::new(),
            newest: NONE,
            oldest: NONE,
            traffic: Traffic::default(),
            next: 0,
            early: BTreeMap::new(),
        }
    }

    /// A launch begins: its work-groups are numbered from 0 on.
    pub fn begin(&mut self) {
        (self.next, self.traffic) = (0, Traffic::default());
    }

    /// Work-group `number` has made these accesses (see [`access`]). It is looked at when all before it were.
    pub fn group(&mut self, number: u64, accesses: Vec<u64>) {
        self.early.insert(number, accesses);
        while let Some(accesses) = self.early.remove(&self.next) {
            self.next += 1;
            accesses.iter().for_each(|a| self.touch(a / 2, a % 2 != 0));
        }
    }

    /// Traffic since the launch began.
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// Changed lines that memory has not seen yet.
    pub fn changed(&self) -> u64 {
        self.slots.iter().filter(|s| s.changed).count() as u64
    }

    fn touch(&mut self, line: u64, write: bool) {
        let known = self.places.get(&line).copied();
        let at = match known {
            Some(at) => {
                self.unlink(at);
                at
            }
            None => {
                self.traffic.read += u64::from(!write);
                let at = self.room();
                self.places.insert(line, at);
                self.slots[at as usize].line = line;
                at
            }
        };
        self.slots[at as usize].changed |= write;
        self.link(at);
    }

    /// A slot that nobody uses, not linked.
    fn room(&mut self) -> u32 {
        if self.slots.len() < self.capacity {
            self.slots.push(Slot { line: 0, changed: false, newer: NONE, older: NONE });
            return (self.slots.len() - 1) as u32;
        }
        let at = self.oldest;
        self.unlink(at);
        let slot = &mut self.slots[at as usize];
        self.traffic.written += u64::from(std::mem::take(&mut slot.changed));
        self.places.remove(&slot.line);
        at
    }

    fn unlink(&mut self, at: u32) {
        let Slot { newer, older, .. } = self.slots[at as usize];
        match newer {
            NONE => self.newest = older,
            newer => self.slots[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.slots[older as usize].newer = newer,
        }
    }

    fn link(&mut self, at: u32) {
        let older = std::mem::replace(&mut self.newest, at);
        (self.slots[at as usize].newer, self.slots[at as usize].older) = (NONE, older);
        match older {
            NONE => self.oldest = at,
            older => self.slots[older as usize].newer = at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(cache: &mut SideCache, accesses: &[(u64, bool)]) -> Traffic {
        cache.begin();
        cache.group(0, accesses.iter().map(|(line, write)| access(*line, *write)).collect());
        cache.traffic()
    }

    #[test]
    fn by_hand() {
        let mut cache = SideCache::new(3);
        let (r, w) = (false, true);
        assert_eq!(run(&mut cache, &[(1, r), (2, w), (1, r), (2, r)]), Traffic { read: 1, written: 0 });
        // Contents stay: 1 and 2 are there, 3 comes in, 4 displaces 1, which nobody changed, 5 displaces 2.
        assert_eq!(run(&mut cache, &[(1, r), (2, r), (3, r)]), Traffic { read: 1, written: 0 });
        assert_eq!(run(&mut cache, &[(4, w)]), Traffic { read: 0, written: 0 });
        assert_eq!(run(&mut cache, &[(5, r), (3, r), (4, r)]), Traffic { read: 1, written: 1 });
        assert_eq!(cache.changed(), 1, "line 4");
        // A changed line that is written again where it is reaches memory once.
        assert_eq!(run(&mut cache, &[(4, w), (4, w)]), Traffic { read: 0, written: 0 });
        assert_eq!(run(&mut cache, &[(6, r), (7, r), (8, r)]), Traffic { read: 3, written: 1 });
        assert_eq!(cache.changed(), 0);
    }

    #[test]
    fn work_groups_count_in_their_order_whoever_is_done_first() {
        let groups: Vec<Vec<u64>> =
            (0..40).map(|g| (0..9).map(|i| access((g * 7 + i * i * 3) % 61, (g + i) % 4 == 0)).collect()).collect();
        let mut straight = SideCache::new(16);
        let mut mixed = SideCache::new(16);
        straight.begin();
        mixed.begin();
        for g in 0..40 {
            straight.group(g, groups[g as usize].clone());
            let other = g ^ 3;
            mixed.group(other, groups[other as usize].clone());
        }
        assert_eq!((straight.traffic(), straight.changed()), (mixed.traffic(), mixed.changed()));
        // As a list that is searched says.
        let (mut list, mut want): (Vec<(u64, bool)>, Traffic) = (Vec::new(), Traffic::default());
        for access in groups.concat() {
            let (line, write) = (access / 2, access % 2 != 0);
            let known = list.iter().position(|(l, _)| *l == line).map(|at| list.remove(at));
            if known.is_none() {
                want.read += u64::from(!write);
                if list.len() == 16 {
                    want.written += u64::from(list.remove(0).1);
                }
            }
            list.push((line, write || known.is_some_and(|k| k.1)));
        }
        assert!(want.written > 0);
        assert_eq!(straight.traffic(), want);
    }
}
