//! A request that leaves is preempted.

use tokenspeed_core::{
    cache::memory::Memory,
    scheduler::sequence::{Leaving, Sequence},
};

fn late(sequence: Sequence<Leaving>, memory: &mut Memory) {
    sequence.preempt(memory);
}

fn main() {}
