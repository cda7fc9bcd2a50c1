//! Every reference against vectors that numpy float64 scripts computed from the formulas (`tests/vectors/`), one seeded bug
//! per op to show that the vectors would catch it, and every decomposition against its fused op.

mod basic;
mod decomposition;
mod kimi;
mod vector;
