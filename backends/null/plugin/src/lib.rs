//! The null backend as a plugin, `libtokenspeed_null.so`.
//!
//! One line: the C entry and the layout-checked root module of a backend that lives in another crate. It is a crate of
//! its own because a binary that links two backends must not meet the entry symbol twice.

tokenspeed_backend_api::export_backend!(tokenspeed_null::Null);
