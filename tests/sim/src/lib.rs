//! Deterministic simulation of the engine: `core` in one thread under a seeded loop, on a device behind the C table that
//! verifies every row and state it is given.
//!
//! * [`device`], [`graph`], [`model`]: the verifiable device, the op lists it runs, and how they get there; [`world`]: the truth it compares with.
//! * [`scenario`], [`generate`]: a run as data (configuration, requests, faults), and random ones from a seed.
//! * [`alone`]: the oracle; [`simulate`]: the loop; [`ears`], [`watch`], [`service`]: what is checked; [`grammar`]: constrained answers.
//! * [`shrink`]: a small case from a failing one; [`campaign`]: many seeds on several threads.
//!
//! A scenario is data and the loop draws no random numbers, so removing a request or a fault from it leaves the rest as
//! it was: that is what makes shrinking work. Rejected: drawing as the run goes, where one request less changes all that
//! follows.
#![deny(missing_docs)]

pub mod alone;
pub mod campaign;
pub mod check;
pub mod device;
pub mod ears;
pub mod fingerprint;
pub mod generate;
pub mod grammar;
pub mod graph;
#[cfg(debug_assertions)]
pub mod hunt;
pub mod model;
pub mod rng;
pub mod scenario;
pub mod service;
pub mod shrink;
pub mod simulate;
pub mod watch;
pub mod world;
