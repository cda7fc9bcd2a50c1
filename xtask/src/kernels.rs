//! `cargo xtask kernels`: device kernels of every backend that has a `kernels/build.py`, compiled without the device.
//!
//! A backend's folder brings its script and its pinned requirements; what it makes goes to `target/kernels/<backend>`. The
//! script keeps what is up to date, so a second run takes seconds. Nothing of it is committed: kernels are made from source
//! by a pinned compiler, byte for byte the same everywhere, which `--verify` shows.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

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

/// Tests that execute kernels without the device: how the test runner is told of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Emulated {
    /// Packages whose tests all are: those in a backend's folder.
    pub packages: Vec<String>,
    /// How names of whole-system tests begin that are: with the device's name, which is what a backend's ends with.
    pub devices: Vec<String>,
}

/// Those of all backends with kernels.
pub fn emulated() -> Result<Emulated, String> {
    let mut found = Emulated::default();
    let packages = workspace::metadata()?["packages"].as_array().ok_or("cargo metadata names no packages")?;
    for backend in backends()? {
        let folder = workspace::root().join("backends").join(&backend);
        let inside =
            |p: &&serde_json::Value| p["manifest_path"].as_str().is_some_and(|f| Path::new(f).starts_with(&folder));
        found.packages.extend(packages.iter().filter(inside).filter_map(|p| Some(p["name"].as_str()?.to_owned())));
        found.devices.push(backend.rsplit('-').next().unwrap_or(&backend).to_owned());
    }
    Ok(found)
}

/// Compares what tests launched, as the emulator wrote it to `log`, with what each backend ships; its `kernels/launched.py` knows
/// how. `long`: whether tests with `--long` were run.
pub fn check_launched(kernels: &Kernels, log: &Path, long: bool) -> Result<(), String> {
    for backend in backends()? {
        let script = workspace::root().join("backends").join(&backend).join("kernels/launched.py");
        let mut check = Command::new(&kernels.python);
        check.arg("-B").arg(script).arg(kernels.folder.join(&backend)).arg(log);
        if long {
            check.arg("--long");
        }
        command::run(&mut check).map_err(|e| format!("{backend}: {e}"))?;
    }
    Ok(())
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

    #[test]
    fn emulated_tests_are_those_of_backends_with_kernels() {
        let (found, backends) = (emulated().unwrap(), backends().unwrap());
        assert_eq!(found.devices.len(), backends.len());
        for (backend, device) in backends.iter().zip(&found.devices) {
            assert!(backend.ends_with(device.as_str()) && found.packages.contains(&format!("tokenspeed-{backend}")));
        }
        assert!(!found.packages.iter().any(|p| p.contains("reference") || p.contains("null")), "{found:?}");
    }
}
