//! A stored state is read after it was unpinned.

use tokenspeed_core::cache::{index::PrefixIndex, snapshots::SnapshotRef};

fn after(snapshot: SnapshotRef, index: &mut PrefixIndex) -> u32 {
    index.unpin_snapshot(snapshot);
    snapshot.slot()
}

fn main() {}
