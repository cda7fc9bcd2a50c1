//! HIP at run time: one table of function pointers, and thin owners of what HIP hands out.
//!
//! Decision: our own table over `libloading`. Rejected: binding crates (they link at build time, or panic on a missing
//! symbol, or look for names that a runtime-only installation lacks).

mod error;
mod library;
mod owners;
mod table;
mod types;

pub use error::{HipError, Place};
pub use library::{candidates, load, load_from};
pub use owners::{Buffer, Device, Event, Executable, Function, Graph, HostBuffer, Module, Queue};
pub use table::{Hip, PROTOTYPES};
pub use types::*;
