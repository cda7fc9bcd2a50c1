//! A running request is admitted again.

use tokenspeed_core::{
    cache::lease::Lease,
    scheduler::sequence::{Prefilling, Sequence},
};

fn again(sequence: Sequence<Prefilling>, lease: Lease) {
    sequence.admit(lease, 0);
}

fn main() {}
