//! Where the workspace is and what cargo says about it.

use std::{path::PathBuf, sync::OnceLock};

use serde_json::Value;

/// The folder of the workspace's Cargo.toml.
pub fn root() -> PathBuf {
    // Set by `cargo run`; the compiled-in value serves when the program is started directly.
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let crate_folder = manifest.filter(|p| p.ends_with("xtask")).unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    crate_folder.parent().map(PathBuf::from).unwrap_or_default()
}

/// `cargo metadata` of the workspace members, asked once.
pub fn metadata() -> Result<&'static Value, String> {
    static METADATA: OnceLock<Result<Value, String>> = OnceLock::new();
    let result = METADATA.get_or_init(|| {
        let text =
            crate::command::capture(crate::command::cargo().args(["metadata", "--no-deps", "--format-version", "1"]))?;
        serde_json::from_str(&text).map_err(|e| format!("cargo metadata printed no JSON: {e}"))
    });
    result.as_ref().map_err(Clone::clone)
}

/// Where cargo puts build products.
pub fn target_folder() -> Result<PathBuf, String> {
    let folder = metadata()?["target_directory"].as_str().ok_or("cargo metadata names no target directory")?;
    Ok(folder.into())
}
