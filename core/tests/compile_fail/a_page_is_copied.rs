//! A page is copied.

use tokenspeed_core::cache::pool::{Page, Pool};

fn main() {
    let page = Pool::<Page>::new(1, 8).take().unwrap();
    let _copy = page.clone();
}
