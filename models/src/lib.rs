//! Model graphs, weight readers, tokenizers and chat formats.
#![deny(missing_docs)]

pub mod config;
pub mod kimi;
pub mod weights;
