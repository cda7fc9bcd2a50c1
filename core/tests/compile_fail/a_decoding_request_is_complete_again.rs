//! A request whose tokens are all computed is complete once more.

use tokenspeed_core::scheduler::sequence::{Decoding, Sequence};

fn again(sequence: Sequence<Decoding>) -> Sequence<Decoding> {
    sequence.complete()
}

fn main() {}
