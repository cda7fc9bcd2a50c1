//! A state slot's handle is used twice: for the states of two pages.

use tokenspeed_core::cache::{
    index::{NodeId, PrefixIndex},
    pool::{Handle, StateSlot},
};

fn twice(slot: Handle<StateSlot>, index: &mut PrefixIndex, [one, other]: [NodeId; 2]) {
    index.store_snapshot(one, slot, 64);
    index.store_snapshot(other, slot, 128);
}

fn main() {}
