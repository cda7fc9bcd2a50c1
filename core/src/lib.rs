//! The vendor-neutral engine: a pure state machine (scheduler, prefix cache, sampler, lowering) and, apart from it, the
//! thin driver that runs it on threads.
#![deny(missing_docs)]
pub mod bug;
pub mod cache;
pub mod client;
pub mod driver;
pub mod engine;
pub mod grammar;
pub mod load;
pub mod lower;
mod mailbox;
pub mod memory;
mod monitor;
pub mod overload;
pub mod request;
pub mod sampler;
pub mod scheduler;
pub mod speculation;
pub mod step;
pub mod validate;
