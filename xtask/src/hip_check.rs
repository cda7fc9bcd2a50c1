//! `cargo xtask hip-check`: the HIP table against the crate `hip-runtime-sys`, whose build wants a HIP installation.
//!
//! It gets one: a folder with the public headers of the kernels' compiler and the emulator's library. The crate that compares
//! stands outside the workspace, so nothing else ever needs this.

use std::path::Path;

use crate::{command, kernels::Kernels, workspace};

const CRATE: &str = "backends/amd-gfx950/hip-check";

/// Builds and runs the comparison; `kernels` names the interpreter beside which the headers lie.
pub fn run(kernels: &Kernels) -> Result<(), String> {
    let target = workspace::target_folder()?;
    let hip = target.join("hip-check/hip");
    let include = headers(&kernels.python)?;
    let wrap = |e: std::io::Error| format!("{}: {e}", hip.display());
    std::fs::create_dir_all(hip.join("lib")).map_err(wrap)?;
    link(&include, &hip.join("include")).map_err(wrap)?;
    link(&target.join("debug/libamdhip64.so"), &hip.join("lib/libamdhip64.so")).map_err(wrap)?;
    let mut cargo = command::cargo();
    cargo.arg("test").arg("--quiet").arg("--manifest-path").arg(workspace::root().join(CRATE).join("Cargo.toml"));
    cargo.arg("--target-dir").arg(target.join("hip-check"));
    cargo.env("HIP_PATH", &hip).env("LD_LIBRARY_PATH", hip.join("lib"));
    command::run(&mut cargo)
}

/// The compiler's copy of the HIP headers.
fn headers(python: &Path) -> Result<std::path::PathBuf, String> {
    let lib = python.ancestors().nth(2).unwrap_or(python).join("lib");
    let versions = std::fs::read_dir(&lib).map_err(|e| format!("{}: {e}", lib.display()))?;
    let found = versions.filter_map(Result::ok).map(|e| e.path().join("site-packages/triton/backends/amd/include"));
    found.into_iter().find(|p| p.is_dir()).ok_or_else(|| format!("no HIP headers under {}", lib.display()))
}

fn link(to: &Path, at: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(at) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    std::os::unix::fs::symlink(to, at)
}
