//! The whole system, as users meet it: commands, HTTP server, engine, models, text and the CPU backend together.
//!
//! Tests are named after the kind of a public fault report, not after the case that showed it. What the HTTP layer does
//! by itself is tried in `server/tests/http` with a scripted engine; here are the kinds where the real engine, tokenizer
//! or kernels decide. One binary for all of it: linking is what such tests cost most.
mod agentic;
mod batch_invariance;
mod chunk_boundaries;
mod commands;
mod drafts;
mod endings;
mod experts_in_place;
mod gfx950;
mod gfx950_failures;
mod gfx950_kimi;
mod gfx950_launches;
mod gfx950_layers;
mod golden;
mod health;
mod host_tier;
mod hybrid_cache;
mod hybrid_fast;
mod kimi_k3;
mod kv_events;
mod metamorphic;
mod prefix_cache;
mod requests;
mod sampling;
mod smollm2;
mod speculation;
mod support;
mod tools;
mod trees;
mod usage;
