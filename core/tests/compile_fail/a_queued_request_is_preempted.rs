//! A queued request is preempted.

use tokenspeed_core::{
    cache::memory::Memory,
    scheduler::sequence::{Queued, Sequence},
};

fn early(sequence: Sequence<Queued>, memory: &mut Memory) {
    sequence.preempt(memory);
}

fn main() {}
