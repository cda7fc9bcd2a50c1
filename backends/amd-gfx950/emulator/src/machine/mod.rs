//! The machine: waves, LDS, device memory, and how a launch runs on them.

mod banks;
mod check;
mod context;
mod counters;
mod detail;
mod fault;
mod launch;
mod lds;
mod memory;
mod occupancy;
mod pending;
mod run;
mod side_cache;
mod timing;
mod wave;

pub use banks::Access;
pub use context::{Cx, Env, Scratch, scalar64 as scalar_source};
pub use counters::Counters;
pub use detail::{Detail, Footprint, LINE_BYTES};
pub use fault::{Fault, Report};
pub use launch::{Dispatch, Mode, launch, launch_behind, sampled};
pub use lds::Lds;
pub use memory::{Allocation, Memory, Owner, View};
pub use occupancy::{LDS_BYTES, Occupancy};
pub use pending::{Landing, LdsOp, Merge, Pending, Queues, ScalarLoad};
pub use run::{place, selected};
pub use side_cache::{SideCache, Traffic};
pub use timing::{Estimate, LAUNCH, RESOURCES, estimate};
pub use wave::{POISON, Signal, Wave};
