//! The CPU backend: fast kernels in tiers of instruction sets.
//!
//! Every op is a plain function over raw pointers that computes one worker's share of the work, so that a whole
//! program runs inside one parallel region with barriers between ops. Arithmetic is fixed by shape and format alone:
//! the number of rows, of workers and the neighbours in a batch never change a bit of a row's result. Different
//! instruction-set tiers ([`Level`]) may differ in the last bits.
//!
//! Rejected: a BLAS or GEMM crate. Those choose blocking, and so rounding, by the number of rows.

pub mod activation;
pub mod attention;
pub mod attn_res;

pub mod barrier;
pub mod blocks;
pub mod columns;
pub mod copy;
pub mod device;
pub mod elementwise;
pub mod embedding;
pub mod exact;
pub mod exp;
pub mod experts;
mod fast;
pub mod float_rows;
pub mod gated_rmsnorm;
pub mod gates;
pub mod gemm;
#[cfg(target_os = "linux")]
mod huge_pages;
pub mod kda;
pub mod kv_write;
pub mod l2norm;
pub mod level;
pub mod mla;
pub mod part;
pub mod pool;
pub mod residency;
pub mod rmsnorm;
pub mod rope;
pub mod router;
pub mod row_gather;
pub mod scratch;
pub mod short_conv;
pub mod simd;
pub mod small_float;
pub mod softplus;
pub mod state_slots;
pub mod table_update;
pub mod tanh;

pub use device::ReferenceCpu;
pub use level::Level;
pub use part::Part;
pub use pool::{Pool, Worker};
