//! A request is preempted twice.

use tokenspeed_core::{
    cache::memory::Memory,
    scheduler::sequence::{Decoding, Sequence},
};

fn twice(sequence: Sequence<Decoding>, memory: &mut Memory) {
    sequence.preempt(memory);
    sequence.preempt(memory);
}

fn main() {}
