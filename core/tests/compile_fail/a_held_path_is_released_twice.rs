//! A held path is released twice.

use tokenspeed_core::cache::{holds::PathRef, index::PrefixIndex};

fn twice(path: PathRef, index: &mut PrefixIndex) {
    index.release(path);
    index.release(path);
}

fn main() {}
