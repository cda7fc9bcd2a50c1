//! What the prefix cache holds, told to routers: ZMQ publish/subscribe with msgpack payloads.
//!
//! The message shape is the one that public routers read already: `[topic, sequence as 8 bytes big-endian, payload]`,
//! and a replay socket that sends past messages again. Rejected: an own protocol over HTTP, which no router speaks.

mod config;
mod payload;
mod publisher;
mod zmtp;

pub use config::{KvEventsArgs, KvEventsConfig};
pub use payload::payload;
pub use publisher::Publisher;
