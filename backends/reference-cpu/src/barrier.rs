//! A barrier between the ops of one parallel region.
//!
//! A program has hundreds of ops per step, so arrival must cost well under a microsecond: workers spin on a
//! generation counter, and only after a long wait (more threads than cores) give their time slice away.
//!
//! Rejected: `std::sync::Barrier`, whose mutex and condition variable cost several microseconds per round.

use std::{
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread::yield_now,
};

/// Spins before a waiter starts to yield: some tens of microseconds.
const SPINS: u32 = 4000;

/// Own cache line, so waiting for one word does not slow writes to another.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line<T>(T);

/// A reusable barrier for a fixed number of workers.
#[derive(Debug)]
pub struct Barrier {
    members: u32,
    arrived: Line<AtomicU32>,
    generation: Line<AtomicU32>,
    poisoned: AtomicBool,
}

impl Barrier {
    /// For `members` ≥ 1 workers.
    pub fn new(members: usize) -> Self {
        assert!(members >= 1);
        Self {
            members: members as u32,
            arrived: Line::default(),
            generation: Line::default(),
            poisoned: AtomicBool::new(false),
        }
    }

    /// Return once all members called it. Everything written before is visible after.
    ///
    /// # Panics
    /// If a member panicked in this region: waiting for it would never end.
    pub fn wait(&self) {
        if self.members == 1 {
            return;
        }
        let generation = self.generation.0.load(Ordering::Relaxed);
        if self.arrived.0.fetch_add(1, Ordering::AcqRel) + 1 == self.members {
            self.arrived.0.store(0, Ordering::Relaxed);
            self.generation.0.store(generation.wrapping_add(1), Ordering::Release);
            return;
        }
        let mut spins = 0;
        while self.generation.0.load(Ordering::Acquire) == generation {
            assert!(!self.poisoned.load(Ordering::Relaxed), "another worker of this region panicked");
            if spins < SPINS {
                spins += 1;
                spin_loop();
            } else {
                yield_now();
            }
        }
    }

    /// Wake all waiters with a panic.
    pub(crate) fn poison(&self) {
        self.poisoned.store(true, Ordering::Relaxed);
    }

    /// Ready for the next region.
    pub(crate) fn reset(&self) {
        self.arrived.0.store(0, Ordering::Relaxed);
        self.poisoned.store(false, Ordering::Relaxed);
    }
}
