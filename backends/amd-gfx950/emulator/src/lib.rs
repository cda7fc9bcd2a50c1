//! A HIP runtime without a GPU: loads gfx950 code objects and executes their machine code on the CPU.
//!
//! Built as `libamdhip64.so`, it takes the place of ROCm's library for any program that loads kernels as modules. As a Rust
//! library it gives tests the decoder, the machine and its counters. What it proves and what not: see the README beside.

pub mod code;
pub mod exec;
pub mod hip;
pub mod isa;
mod lanes;
pub mod machine;
