//! Every order of threads, as far as a model checker gets: whatever threads share in the driver over shuttle's locks and threads
//! instead of std's.
//!
//! What is checked is the shipped code, which takes its locks as a parameter ([`crate::monitor`]). Each scenario is also
//! run over locks with a race built in, and must fail there: a wake-up that is lost between looking and sleeping, a change
//! made on a copy, a count read and written in two steps; and with the seeded bugs of [`crate::bug`] that are of threads.
//!
//! Rejected: loom. It knows weak memory orders, but what is shared here is behind locks, and the one atomic number orders
//! nothing but itself; and it brings four times as much to build.

mod device;
mod feed;
mod locks;
mod masks;
mod requests;
mod steps;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::bug::{Bug, switch_on};

/// Random schedules of each scenario, twice: by chance, and by priorities that change three times.
fn n_schedules() -> usize {
    if std::env::var_os("TOKENSPEED_LONG_TESTS").is_some() { 100_000 } else { 3000 }
}

fn holds(scenario: fn()) {
    shuttle::check_random(scenario, n_schedules());
    shuttle::check_pct(scenario, n_schedules(), 3);
}

/// The checker finds the race that was built in.
fn breaks(scenario: fn()) {
    let n = n_schedules();
    let outcome = catch_unwind(AssertUnwindSafe(|| shuttle::check_random(scenario, n)));
    assert!(outcome.is_err(), "the race was not found in {n} schedules");
}

/// The checker finds a seeded bug.
fn finds(bug: Bug, scenario: fn()) {
    let n = n_schedules();
    switch_on(Some(bug));
    let outcome = catch_unwind(AssertUnwindSafe(|| shuttle::check_random(scenario, n)));
    switch_on(None);
    assert!(outcome.is_err(), "{} was not found in {n} schedules", bug.name());
}
