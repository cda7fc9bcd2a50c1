//! A queued request is complete.

use tokenspeed_core::scheduler::sequence::{Decoding, Queued, Sequence};

fn early(sequence: Sequence<Queued>) -> Sequence<Decoding> {
    sequence.complete()
}

fn main() {}
