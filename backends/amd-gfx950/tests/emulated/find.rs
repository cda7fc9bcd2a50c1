//! Where cargo puts what it makes.

use std::path::PathBuf;

/// The folder of cargo's products of this profile.
pub fn profile() -> PathBuf {
    let program = std::env::current_exe().expect("a program knows its file");
    program.ancestors().nth(2).expect("in a folder of a folder").to_path_buf()
}

/// The folder of all of cargo's products.
pub fn target() -> PathBuf {
    profile().parent().expect("a folder of the profile's").to_path_buf()
}
