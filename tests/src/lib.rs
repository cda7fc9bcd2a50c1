//! What the whole-system tests share.
pub mod script_model;
