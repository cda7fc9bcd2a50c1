//! Which requests run, and how many tokens each has computed in the next step.
//!
//! There are no prefill and decode steps: a request has computed and wanted tokens, and a step mixes both kinds. The
//! life cycle is in the types (see [`sequence`]); order is (priority, arrival) everywhere, never by id or hash.
#![forbid(unsafe_code)]

pub mod decision;
pub mod marks;
pub mod outlook;
pub mod plan;
pub mod policy;
pub mod queue;
pub mod sequence;
pub mod trace;
