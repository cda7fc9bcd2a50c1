//! A preempted request uses its memory.

use tokenspeed_core::scheduler::sequence::{Preempted, Sequence};

fn lost(sequence: Sequence<Preempted>) -> u32 {
    sequence.active().computed
}

fn main() {}
