//! `cargo xtask kernels`: device kernels of every backend that has a `kernels/build.py`, compiled without the device.
//!
//! A backend's folder brings its script and its pinned requirements; what it makes goes to `target/kernels/<backend>`. The
//! script keeps what is up to date, so a second run takes seconds. Nothing of it is committed: kernels are made from source
//! by a pinned compiler, byte for byte the same everywhere, which `--verify` shows.

use std::{path::PathBuf, process::Command};

use crate::{command, python, workspace};

/// What tests need to find kernels and their compiler.
#[derive(Debug, Clone)]
pub struct Kernels {
    /// `target/kernels`.
    pub folder: PathBuf,
    /// Interpreter with the compiler; of the last backend, if there were several.
    pub python: PathBuf,
}

/// Compiles the kernels of all backends; `verify` compiles every so many-th a second time and compares. `None` if no backend
/// has any.
pub fn run(verify: Option<usize>) -> Result<Option<Kernels>, String> {
    let folder = workspace::target_folder()?.join("kernels");
    let mut made = None;
    for backend in backends()? {
        let sources = format!("backends/{backend}/kernels");
        let python = python::interpreter_of(&format!("{sources}/requirements.txt"))?;
        let mut build = Command::new(&python);
        build.arg("-B").arg(workspace::root().join(&sources).join("build.py")).arg(folder.join(&backend));
        if let Some(every) = verify {
            build.args(["--verify", &every.to_string()]);
        }
        command::run(&mut build).map_err(|e| format!("{sources}: {e}"))?;
        made = Some(Kernels { folder: folder.clone(), python });
    }
    Ok(made)
}

/// Backends with kernels, in order.
pub fn backends() -> Result<Vec<String>, String> {
    let entries = std::fs::read_dir(workspace::root().join("backends")).map_err(|e| format!("backends: {e}"))?;
    let mut names: Vec<String> = entries
        .filter_map(Result::ok)
        .filter(|e| e.path().join("kernels/build.py").is_file())
        .filter_map(|e| e.file_name().into_string().ok())
        .collect();
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_backends_that_have_kernels() {
        let found = backends().unwrap();
        assert!(!found.is_empty() && found.iter().all(|b| !b.contains("null")), "{found:?}");
    }
}
