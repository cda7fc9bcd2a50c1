//! The MI355X backend as a plugin, `libtokenspeed_amd_gfx950.so`.
//!
//! One line: the C entry and the layout-checked root module of a backend that lives in another crate.

tokenspeed_backend_api::export_backend!(tokenspeed_amd_gfx950::AmdGfx950);
