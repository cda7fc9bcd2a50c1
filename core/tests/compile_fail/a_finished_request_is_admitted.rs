//! A finished request is admitted.

use tokenspeed_core::{
    cache::lease::Lease,
    scheduler::sequence::{Finished, Sequence},
};

fn again(sequence: Sequence<Finished>, lease: Lease) {
    sequence.admit(lease, 0);
}

fn main() {}
