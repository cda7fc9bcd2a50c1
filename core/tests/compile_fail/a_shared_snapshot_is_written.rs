//! A stored state is written by who reads it: only the owner of a slot has a handle to write it by.

use tokenspeed_core::cache::{
    pool::{Handle, StateSlot},
    snapshots::SnapshotRef,
};

fn write(_slot: &mut Handle<StateSlot>) {}

fn shared(mut snapshot: SnapshotRef) {
    write(&mut snapshot);
}

fn main() {}
