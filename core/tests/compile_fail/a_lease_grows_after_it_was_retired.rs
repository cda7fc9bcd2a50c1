//! A lease grows after it was retired.

use tokenspeed_core::cache::{lease::Lease, memory::Memory};

fn late(mut lease: Lease, memory: &mut Memory) {
    lease.retire(memory);
    lease.grow(memory);
}

fn main() {}
