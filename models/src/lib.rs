//! Model graphs, weight readers, tokenizers and chat formats.
#![deny(missing_docs)]

pub mod config;
pub mod draft_model;
pub mod dummy;
pub mod eagle3;
pub mod graph;
pub mod kimi;
pub mod loader;
pub mod text;
pub mod tiny;
pub mod weights;
