//! Kernels compiled ahead of time: the manifest beside them, and launching by name with checked arguments.

mod launch;
mod manifest;

pub use launch::{Argument, Kernel, LaunchError};
pub use manifest::{Entry, Manifest, ManifestError, Placed};
