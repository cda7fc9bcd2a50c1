//! Kimi Linear and Kimi K3: one configuration, one graph, every difference keyed on a field.
//!
//! * [`KimiConfig`]: what the model is; [`crate::config::from_kimi`] reads it from `config.json`.
//! * [`Graphs`]: the forward pass, the verify pass and the replay that commits it, over one cache layout.
//! * [`tensors`]: what a checkpoint holds, tensor by tensor; [`KimiWeights`] gives a graph its weights from one.
//! * [`tiny`]: small checkpoints of the published layout, for tests and demos.
//!
//! One file per part of the model: `kda`, `gated_mla`, `attn_res`, `latent_moe`, and the `stack` that puts them together.
//!
//! Rejected: a graph per model. Kimi Linear is K3 with six features off; two copies would drift.
#![forbid(unsafe_code)]

mod attn_res;
mod builder;
mod config;
mod gated_mla;
mod kda;
mod latent_moe;
mod source;
mod stack;
mod taps;
pub mod tensors;
pub mod tiny;

pub use config::{Activation, ExpertFormat, Kda, KdaGate, KimiConfig, LayerKind, Mla, Moe, Vision};
pub use latent_moe::is_slots;
pub use source::{KimiWeights, KimiWeightsError};
pub use stack::{GraphOptions, Graphs};
pub use taps::Taps;
