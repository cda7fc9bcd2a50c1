//! A page is used after its release.

use tokenspeed_core::cache::pool::{Page, Pool};

fn main() {
    let mut pool = Pool::<Page>::new(1, 8);
    let page = pool.take().unwrap();
    pool.give(page);
    println!("{}", page.index());
}
