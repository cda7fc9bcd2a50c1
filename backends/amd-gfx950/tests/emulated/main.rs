//! The shipped kernels on the emulator, through the same HIP table that a GPU is driven with.
//!
//! Needs `libamdhip64.so` of this workspace (built by `cargo build --workspace`) and the kernels of `cargo xtask kernels`;
//! `cargo xtask test` makes both. Without kernels the tests say so and do nothing. Everything runs with all checks on.

mod conform;
mod cost;
mod experts;
mod fault;
mod few;
mod find;
mod gate_up;
mod gates;
mod gemm;
mod header;
mod kda_mix;
mod linear;
mod mla;
mod mla_prefill;
mod mla_rounded;
mod moe_edges;
mod mutation;
mod probe;
mod replay;
mod sample;
mod seeded;
mod stream;
mod support;
