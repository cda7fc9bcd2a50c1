//! AMD MI355X (gfx950) backend: so far the way to the device (HIP at run time) and to its kernels (compiled ahead of time).
//!
//! No vendor SDK is needed to build: HIP is found and loaded when a device is opened, and kernels are files with a manifest.
//! The same code runs on a machine with ROCm and, through `emulator/`, anywhere. State and plans: `README.md`.

pub mod hip;
pub mod kernel;
