//! OpenAI-compatible HTTP server and the `tokenspeed` command.
//!
//! `http/` speaks the API, `generation/` turns engine events into answers, `cli/` holds one file per subcommand;
//! `frontend.rs` and `tokenspeed_core::client::Engine` are the two seams everything else stands on.
#![forbid(unsafe_code)]
pub mod acceptance;
pub mod cli;
pub mod engine_setup;
pub mod error;
pub mod frontend;
pub mod generation;
pub mod grammar;
pub mod http;
pub mod kv_events;
pub mod log;
pub mod progress;
pub mod step_trace_file;
pub mod text_frontend;
