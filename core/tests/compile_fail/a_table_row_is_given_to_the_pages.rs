//! A table row is given to the pages.

use tokenspeed_core::cache::pool::{Page, Pool, TableRow};

fn main() {
    let row = Pool::<TableRow>::new(0, 8).take().unwrap();
    Pool::<Page>::new(1, 8).give(row);
}
