//! A lease is released twice.

use tokenspeed_core::cache::{lease::Lease, memory::Memory};

fn twice(lease: Lease, memory: &mut Memory) {
    lease.release(memory);
    lease.release(memory);
}

fn main() {}
