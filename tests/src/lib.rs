//! What the whole-system tests share.
pub mod script_model;

/// A plugin of this workspace, built with the rest of it.
///
/// # Panics
/// If it is not there: `cargo xtask test` builds the whole workspace first, `cargo build --workspace` does too.
pub fn plugin(backend: &str) -> std::path::PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    // target/PROFILE/deps/test → target/PROFILE
    let folder = test.parent().and_then(std::path::Path::parent).expect("tests live in a target folder");
    let library = folder.join(format!("libtokenspeed_{}.so", backend.replace('-', "_")));
    assert!(library.exists(), "{} is missing: run `cargo build --workspace`", library.display());
    library
}
