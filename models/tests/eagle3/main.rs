//! The EAGLE3 draft on the host: against numpy float64, and decoding with it against decoding without.

mod checkpoint;
mod config;
mod fixture;
mod formats;
mod golden;
mod lossless;
mod variants;
