//! From engine events to answers: what HTTP handlers and terminal commands share.
pub mod answer;
pub mod delta;
pub mod ids;
