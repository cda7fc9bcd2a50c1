//! From hashes to nodes: open addressing with half of each hash beside the node's number, sized once.
//!
//! Looking up, adding and removing read the slots alone, one cache line nearly always; a node is only read if it is likely
//! the one. The half that is kept also says where an entry would like to be, so removing one moves later ones up and leaves no
//! mark behind. Several nodes may have one hash. Rejected: chains through the nodes; with a million cached pages every link is
//! a read from memory, and the oldest node, which goes first, is the last of its chain.

use super::lru::NONE;

#[derive(Clone, Copy, Debug)]
struct Slot {
    /// The hash's lower half; its lowest bits are where the entry would like to be.
    half: u32,
    /// `NONE` in an empty slot.
    node: u32,
}

const EMPTY: Slot = Slot { half: 0, node: NONE };

/// See the module's header.
#[derive(Debug)]
pub(super) struct HashTable {
    /// A power of two, at least twice as many as entries.
    slots: Vec<Slot>,
}

impl HashTable {
    /// For at most `max_nodes` entries.
    pub fn new(max_nodes: u32) -> Self {
        Self { slots: vec![EMPTY; (max_nodes.max(1) as usize * 2).next_power_of_two()] }
    }

    /// Read where these hashes would like to be. Such reads do not wait for each other; lookups and removals, which do, then
    /// find the core's cache warm.
    pub fn warm_up(&self, hashes: impl Iterator<Item = u64>) {
        std::hint::black_box(hashes.fold(0, |all, hash| all ^ self.slots[self.place(hash as u32, 0)].node));
    }

    /// Nodes that may have this hash, among them all that do.
    pub fn candidates(&self, hash: u64) -> impl Iterator<Item = u32> + '_ {
        let half = hash as u32;
        let from_home = (0..).map(move |n| self.slots[self.place(half, n)]);
        from_home.take_while(|slot| slot.node != NONE).filter(move |slot| slot.half == half).map(|slot| slot.node)
    }

    /// Add a node.
    pub fn insert(&mut self, hash: u64, node: u32) {
        let half = hash as u32;
        let at = self.find(half, NONE);
        self.slots[at] = Slot { half, node };
    }

    /// Remove a node that was added with this hash.
    pub fn remove(&mut self, hash: u64, node: u32) {
        let mut hole = self.find(hash as u32, node);
        let mut at = hole;
        loop {
            at = (at + 1) & self.mask();
            let slot = self.slots[at];
            if slot.node == NONE {
                break;
            }
            // It may move up unless it would then lie before the place it likes.
            let from_home = at.wrapping_sub(self.place(slot.half, 0)) & self.mask();
            let from_hole = at.wrapping_sub(hole) & self.mask();
            if from_home >= from_hole {
                self.slots[hole] = slot;
                hole = at;
            }
        }
        self.slots[hole] = EMPTY;
    }

    fn mask(&self) -> usize {
        self.slots.len() - 1
    }

    fn place(&self, half: u32, n: usize) -> usize {
        (half as usize).wrapping_add(n) & self.mask()
    }

    fn find(&self, half: u32, node: u32) -> usize {
        let mut places = (0..self.slots.len()).map(|n| self.place(half, n));
        places.find(|&at| self.slots[at].node == node).expect("there is room, and what is removed was added")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against a list. Hashes are few and close together, around the end of the table, so that entries crowd.
    #[test]
    fn equals_a_list() {
        let mut state = 1u32;
        let mut below = |n: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % n
        };
        for round in 0..50 {
            let max = 1 + below(40);
            let mut table = HashTable::new(max);
            let hash = |n: u32| u64::from(0xffff_fffcu32.wrapping_add(n)) | 5 << 40;
            let mut list: Vec<(u64, u32)> = Vec::new();
            for node in 0..600 {
                if below(2) == 0 && (list.len() as u32) < max {
                    list.push((hash(below(9)), node));
                    table.insert(list[list.len() - 1].0, node);
                } else if !list.is_empty() {
                    let (hash, node) = list.swap_remove(below(list.len() as u32) as usize);
                    table.remove(hash, node);
                }
                for n in 0..9 {
                    let mut found: Vec<u32> = table.candidates(hash(n)).collect();
                    found.sort_unstable();
                    let mut wanted: Vec<u32> = list.iter().filter(|e| e.0 == hash(n)).map(|e| e.1).collect();
                    wanted.sort_unstable();
                    assert_eq!(found, wanted, "round {round}, hash {n}");
                }
            }
        }
    }
}
