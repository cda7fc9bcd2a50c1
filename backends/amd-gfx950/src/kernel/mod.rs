//! Kernels compiled ahead of time: the manifest beside them, loading by name, launching with checked arguments.

mod grid;
mod launch;
mod library;
mod manifest;
mod plan;

pub use launch::{Argument, Kernel, LaunchError};
pub use library::{Library, VARIABLE, folders};
pub use manifest::{Entry, Manifest, ManifestError, Placed};
pub use plan::{Extent, Plan, Prepared};
