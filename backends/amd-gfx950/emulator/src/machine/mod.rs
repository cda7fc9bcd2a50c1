//! The machine: waves, LDS, device memory, and how a launch runs on them.

mod check;
mod context;
mod counters;
mod fault;
mod launch;
mod lds;
mod memory;
mod pending;
mod run;
mod wave;

pub use context::{Cx, Env, Scratch, scalar64 as scalar_source};
pub use counters::Counters;
pub use fault::{Fault, Report};
pub use launch::{Dispatch, Mode, launch};
pub use lds::Lds;
pub use memory::{Allocation, Memory, Owner, View};
pub use pending::{Landing, LdsOp, Merge, Pending, Queues, ScalarLoad};
pub use run::{place, selected};
pub use wave::{POISON, Signal, Wave};
