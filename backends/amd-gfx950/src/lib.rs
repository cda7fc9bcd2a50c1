//! AMD MI355X (gfx950) backend: HIP loaded at run time, kernels compiled ahead of time.
//!
//! No vendor SDK is needed to build. The same code runs on a machine with ROCm and, through `emulator/`, anywhere. State and
//! plans: `README.md`. From the device up: [`hip`] (calls and owners), [`kernel`] (manifest, loading, planned launches),
//! [`ops`] (one file per op), `program` (a step), `cost` (what it should take), `device` and `backend` (the ABI).

mod arena;
mod backend;
mod cost;
mod device;
mod fault;
pub mod hip;
pub mod kernel;
pub mod ops;
mod program;
mod settings;
mod timeline;

pub use backend::AmdGfx950;
pub use device::Gfx950Device;
pub use settings::{GRAPH_TOKENS, Graphs, Kernels, MlaPrefill, Precision, Settings};
