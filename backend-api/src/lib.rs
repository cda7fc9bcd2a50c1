//! The stable accelerator ABI of TokenSpeed.
//!
//! * [`abi`]: the C table, the authority; `include/tokenspeed_backend.h` is generated from it.
//! * [`dtype`], [`op`], [`graph`]: safe names for what the table calls numbers, and the graph a model is written in.
//! * [`quant`]: what each stored weight format means in f32.
//! * [`catalogue`]: every op with schema, reference, decomposition, tolerance and input generator.
//! * [`loader`]: find a plugin, negotiate, check; [`backend`]: safe calls through the table afterwards.
//! * [`exec`]: the program walker, for backends without programs and to check those with.
//! * [`sdk`]: write a backend in Rust: one trait, one macro.
#![deny(missing_docs)]

#[allow(missing_docs)]
pub mod abi;
pub mod backend;
pub mod catalogue;
pub mod conform;
pub mod dtype;
pub mod embedded;
pub mod exec;
pub mod graph;
pub mod host;
pub mod loader;
pub mod manifest;
pub mod negotiate;
pub mod op;
pub mod plugin_root;
pub mod quant;
pub mod record;
pub mod sampling;
pub mod sdk;
pub mod sized;
pub mod step;
pub mod support;
pub mod tensor;

#[doc(hidden)]
pub use inventory;
