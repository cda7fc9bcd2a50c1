//! `cargo xtask vendor-check`: declarations of a vendor's runtime against a binding crate of somebody else's.
//!
//! Such crates want the vendor's installation to build, so the check is a crate of its own outside the workspace,
//! `backends/<backend>/vendor-check`. Its `prepare.py` assembles what the build looks for and prints the environment to build in.

use std::process::Command;

use crate::{command, kernels::Kernels, workspace};

/// Runs the check of every backend that has one; `kernels` names the interpreter.
pub fn run(kernels: &Kernels) -> Result<(), String> {
    let (root, target) = (workspace::root(), workspace::target_folder()?);
    for backend in crate::kernels::backends()? {
        let folder = root.join("backends").join(&backend).join("vendor-check");
        if !folder.join("prepare.py").is_file() {
            continue;
        }
        let own = target.join("vendor-check").join(&backend);
        let mut prepare = Command::new(&kernels.python);
        prepare.arg("-B").arg(folder.join("prepare.py")).arg(own.join("runtime")).arg(target.join("debug"));
        let environment = command::capture(&mut prepare)?;
        let mut cargo = command::cargo();
        cargo.args(["test", "--quiet", "--manifest-path"]).arg(folder.join("Cargo.toml")).arg("--target-dir").arg(&own);
        cargo.envs(environment.lines().filter_map(|line| line.split_once('=')));
        command::run(&mut cargo).map_err(|e| format!("{backend}: {e}"))?;
    }
    Ok(())
}
