//! A HIP runtime without a GPU: loads gfx950 code objects and executes their machine code on the CPU.
//!
//! Built as `libamdhip64.so`, it takes the place of ROCm's library for any program that loads kernels as modules. As a Rust
//! library it gives tests the decoder, the machine and its counters. What it proves and what not: see the README beside.

// Lane loops run over several arrays at once, bit fields read as in the manual, and "not less" is another instruction than
// "greater or equal": each of these lints asks for less readable code here.
#![allow(clippy::needless_range_loop, clippy::precedence)]
#![allow(clippy::neg_cmp_op_on_partial_ord, clippy::nonminimal_bool, clippy::double_comparisons)]

pub mod code;
pub mod exec;
pub mod hip;
pub mod isa;
mod lanes;
pub mod machine;
