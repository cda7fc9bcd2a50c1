//! EAGLE3: a one-layer draft model that reads the target's hidden states and proposes tokens for it to verify.
//!
//! * [`Eagle3Config`]: what the draft is; [`crate::config::from_eagle3`] reads it from `config.json`.
//! * [`Graphs`]: its first and its next pass, attached to the target's graphs.
//! * [`tensors`]: what a checkpoint holds; [`Eagle3Weights`] gives the graphs their weights, [`Joined`] both models'.
//! * [`chain`]: greedy decoding with a draft in a plain loop.
//! * [`tiny`]: small drafts of the published layout; [`walker`]: graphs on the host.
#![forbid(unsafe_code)]

pub mod chain;
mod config;
mod error;
mod fit;
mod graph;
mod solve;
mod source;
pub mod tensors;
pub mod tiny;
mod trunk;
pub mod walker;

pub use config::{Eagle3Config, default_taps};
pub use error::Eagle3Error;
pub use graph::{Graphs, Options};
pub use source::{Eagle3Weights, Joined, PREFIX};
