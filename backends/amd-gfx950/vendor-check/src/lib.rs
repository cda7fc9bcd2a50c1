//! Our HIP table beside `hip-runtime-sys`: see the test.

#![allow(dead_code, unused_imports, missing_docs)]

#[path = "../../src/hip/mod.rs"]
pub mod hip;
