//! Kimi Linear and Kimi K3 on the host, against numpy float64 (`tests/golden/kimi`) and against themselves.

mod checkpoint;
mod config;
mod fixture;
mod golden;
mod history;
mod host_walker;
mod plan;
mod presets;
mod rank_walker;
mod ranks;
mod slicing;
mod speculation;
mod split_residuals;
mod transformers;
mod variants;
