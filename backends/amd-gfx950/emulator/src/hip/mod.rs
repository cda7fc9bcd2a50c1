//! The HIP C API.
