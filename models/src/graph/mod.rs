//! Model graphs in the op catalogue's terms, and which checkpoint tensors they need.

pub mod branches;
mod llama;
mod parts;

pub use llama::build;
pub use parts::{Part, WeightPlan, weights};

/// The weight made at load from the config: `[rotary dimensions / 2]` angular frequencies, f32.
pub const INV_FREQ: &str = "rope.inv_freq";
