//! The HTTP API, over hyper directly.
//!
//! Thirteen routes need a match, not a framework; and streaming wants a body that polls the engine itself. `docs/api.md`
//! is the reference for users.
pub mod auth;
pub mod body;
pub mod chat_request;
pub mod chat_settings;
pub mod chunk;
pub mod collect;
pub mod completion_request;
pub mod debug_steps;
pub mod error;
pub mod fields;
pub mod generate;
pub mod io;
pub mod json;
pub mod limits;
pub mod logprobs;
pub mod messages;
pub mod metrics;
pub mod request;
pub mod router;
pub mod sampling;
pub mod server;
pub mod state;
pub mod stream;
pub mod structure;
pub mod tokenize;
