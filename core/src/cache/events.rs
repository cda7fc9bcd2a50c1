//! What became reusable and what stopped being so, for routers outside: a bounded ring of block events.
//!
//! All memory is taken once, token ids included, so announcing a page allocates nothing. When readers lag, the oldest
//! events make room; every event has a number, so a reader sees the gap and starts over from an empty picture or a replay.
//! Rejected: a channel, which would have to block the engine or grow without bound.
//!
//! A block is named by the hash of its whole history, salt included ([`super::hash`]); the key is random per process, so a
//! name means something only beside the token ids and the parent that came with it.

use std::{collections::BTreeMap, sync::Arc};

/// Which memory holds a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// The device's cache: usable at once.
    Device,
    /// Host memory: usable after it was copied back.
    Host,
}

/// One change of what can be reused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockEvent {
    /// A page can be found now.
    Stored {
        /// Its name.
        hash: u64,
        /// The page it continues; `None` for the first of a text.
        parent: Option<u64>,
        /// Its tokens, a whole page.
        tokens: Vec<u32>,
        /// Where.
        tier: Tier,
        /// `cache_salt` of the requests that can find it.
        salt: Option<Arc<str>>,
    },
    /// It cannot be found there any more.
    Removed {
        /// Its name.
        hash: u64,
        /// Where.
        tier: Tier,
    },
    /// Nothing can be found any more.
    Cleared,
}

#[derive(Clone, Debug)]
enum Kind {
    Stored { hash: u64, parent: Option<u64>, tier: Tier, salt: Option<Arc<str>> },
    Removed { hash: u64, tier: Tier },
    Cleared,
}

/// Events in order, the newest of them kept.
#[derive(Debug)]
pub struct EventRing {
    page_tokens: usize,
    /// `[slot]`; event number n is in slot n modulo the capacity.
    kinds: Vec<Kind>,
    /// `[slot][page_tokens]`.
    tokens: Vec<u32>,
    /// Number of the oldest event kept, and of the next to come.
    range: (u64, u64),
}

impl EventRing {
    /// Room for `capacity` events; 0 = nothing is recorded.
    pub fn new(page_tokens: u32, capacity: u32) -> Self {
        let (page_tokens, capacity) = (page_tokens as usize, capacity as usize);
        Self {
            page_tokens,
            kinds: vec![Kind::Cleared; capacity],
            tokens: vec![0; capacity * page_tokens],
            range: (0, 0),
        }
    }

    /// Number of the next event to come.
    pub fn next(&self) -> u64 {
        self.range.1
    }

    /// Number of the oldest event kept; [`EventRing::next`] if there is none.
    pub fn oldest(&self) -> u64 {
        self.range.0
    }

    /// Whether there is room for any event at all.
    pub fn is_kept(&self) -> bool {
        !self.kinds.is_empty()
    }

    fn slot(&self, number: u64) -> usize {
        (number % self.kinds.len() as u64) as usize
    }

    fn push(&mut self, kind: Kind, tokens: &[u32]) {
        if !self.is_kept() {
            return;
        }
        let at = self.slot(self.range.1);
        self.kinds[at] = kind;
        self.tokens[at * self.page_tokens..][..tokens.len()].copy_from_slice(tokens);
        self.range.1 += 1;
        self.range.0 = self.range.0.max(self.range.1.saturating_sub(self.kinds.len() as u64));
    }

    /// A page of `tokens` can be found.
    pub fn stored(&mut self, hash: u64, parent: Option<u64>, tokens: &[u32], tier: Tier, salt: Option<Arc<str>>) {
        self.push(Kind::Stored { hash, parent, tier, salt }, tokens);
    }

    /// It cannot any more.
    pub fn removed(&mut self, hash: u64, tier: Tier) {
        self.push(Kind::Removed { hash, tier }, &[]);
    }

    /// Nothing can.
    pub fn cleared(&mut self) {
        self.push(Kind::Cleared, &[]);
    }

    /// Event `number`, copied; `None` unless it is kept.
    pub fn get(&self, number: u64) -> Option<BlockEvent> {
        if number < self.range.0 || number >= self.range.1 {
            return None;
        }
        let at = self.slot(number);
        Some(match self.kinds[at].clone() {
            Kind::Stored { hash, parent, tier, salt } => {
                let tokens = self.tokens[at * self.page_tokens..][..self.page_tokens].to_vec();
                BlockEvent::Stored { hash, parent, tokens, tier, salt }
            }
            Kind::Removed { hash, tier } => BlockEvent::Removed { hash, tier },
            Kind::Cleared => BlockEvent::Cleared,
        })
    }

    /// Take over the events of `from` that are not here yet, under their numbers. Those that `from` has already lost are
    /// lost here too, and with them all before. Allocates nothing.
    pub fn follow(&mut self, from: &Self) {
        if from.oldest() > self.range.1 {
            self.range = (from.oldest(), from.oldest());
        }
        for number in self.range.1..from.next() {
            let at = from.slot(number);
            let n_tokens = if matches!(from.kinds[at], Kind::Stored { .. }) { from.page_tokens } else { 0 };
            self.push(from.kinds[at].clone(), &from.tokens[at * from.page_tokens..][..n_tokens]);
        }
    }
}

/// A picture of the cache made from events alone, as a router keeps it; [`Mirror::apply`] says what does not fit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mirror {
    /// Parent of each block, by place and name.
    pub blocks: BTreeMap<(Tier, u64), Option<u64>>,
}

impl Mirror {
    /// One more event.
    pub fn apply(&mut self, event: &BlockEvent) -> Result<(), String> {
        match event {
            BlockEvent::Stored { hash, parent, tier, .. } => match self.blocks.insert((*tier, *hash), *parent) {
                Some(_) => Err(format!("block {hash:x} was stored twice in {tier:?}")),
                None => Ok(()),
            },
            BlockEvent::Removed { hash, tier } => match self.blocks.remove(&(*tier, *hash)) {
                Some(_) => Ok(()),
                None => Err(format!("block {hash:x} was removed from {tier:?} and never stored there")),
            },
            BlockEvent::Cleared => {
                self.blocks.clear();
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_kept_and_gaps_have_numbers() {
        let mut ring = EventRing::new(2, 3);
        for n in 0..5u32 {
            ring.stored(n.into(), n.checked_sub(1).map(u64::from), &[n, n + 1], Tier::Device, None);
        }
        assert_eq!((ring.oldest(), ring.next(), ring.get(1)), (2, 5, None));
        let Some(BlockEvent::Stored { parent: Some(3), tokens, .. }) = ring.get(4) else { panic!("{:?}", ring.get(4)) };
        assert_eq!(tokens, [4, 5]);

        let mut behind = EventRing::new(2, 8);
        behind.follow(&ring);
        assert_eq!((behind.oldest(), behind.next()), (2, 5));
        ring.removed(4, Tier::Device);
        behind.follow(&ring);
        assert_eq!((behind.oldest(), behind.next(), behind.get(4)), (2, 6, ring.get(4)));
        for _ in 0..4 {
            ring.cleared();
        }
        behind.follow(&ring);
        assert_eq!((behind.oldest(), behind.next()), (7, 10), "6 was lost, and what came before does not count");
        assert_eq!(behind.get(9), Some(BlockEvent::Cleared));
    }

    #[test]
    fn without_room_nothing_is_recorded() {
        let mut ring = EventRing::new(2, 0);
        ring.cleared();
        assert_eq!((ring.next(), ring.get(0)), (0, None));
    }
}
